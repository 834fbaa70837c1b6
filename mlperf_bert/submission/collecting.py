"""The table of published results, made from clones of the repositories in which they are."""

import collections
import dataclasses
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import pyarrow
import pyarrow.parquet

from mlperf_bert.files.whole import written_beside
from mlperf_bert.mlperf.results import RunResult, read_run, without_plans
from mlperf_bert.mlperf.rules import NUM_RUNS_PER_RESULT
from mlperf_bert.submission.entry import Entry, with_twins
from mlperf_bert.submission.folder import description_path, result_files
from mlperf_bert.submission.official import check_rcp
from mlperf_bert.submission.published import PANDAS_ATTRS, ROUNDS
from mlperf_bert.submission.tabulation import entry_of
from mlperf_bert.submission.verdict import System

REPOSITORY = "training_results_v{round}"
SOURCE = "https://github.com/mlcommons/" + REPOSITORY
ABOUT = """\
Every entry for BERT published in MLPerf Training, closed and open division, a row for each round,
organisation and system. Facts read from logs (ORG/results/SYSTEM/bert/result_*.txt) and system
descriptions (ORG/systems/SYSTEM.json) of the public repositories; not official scores.
minutes_olympic_mean: without the fastest and the slowest run; a failed run counts as the slowest;
null if more than one failed, or logs are missing. minutes_scored: times rcp_scaling_factor, which
is the review's (scaling.json). samples_mean: to converge, over all converged runs; by epoch_num of
the last evaluation, or by train_samples where epoch_num counts no samples (samples_source).
samples_per_second_median: samples to converge over run_start to run_stop, evaluation and all.
accelerators: nodes times accelerators per node as described; 0 for processors; a TPU v4 is a chip.
watts: measured, mean of all nodes and switches during the runs (power.py). rcp: what the
RCP checker of mlperf-logging 4.1.68 says today under the round's ruleset, of closed results;
rcp_unaided: what it says unless it is told to count by train_samples. same_logs_as: an earlier
entry with the same timed runs; leave one of them out of statistics. Names are as the submitters
typed them. In the open division model and data may differ. Fujitsu's gx_A100x4 of round 1.1 logs
about twice the samples of its like."""
LICENCE = (
    "Facts, gathered from repositories of MLCommons that are under the Apache License 2.0 "
    "(v4.1 has no licence file); the MLPerf name and logo are trademarks of MLCommons."
)
_LIST_OF_ONE = re.compile(rb'("value": )\[(\d+)\]')
_LOGS = "*/results/*/bert/result_*.txt"
_TYPES = {
    str: pyarrow.string(),
    str | None: pyarrow.string(),
    int: pyarrow.int64(),
    int | None: pyarrow.int64(),
    float | None: pyarrow.float64(),
    tuple[float, ...]: pyarrow.list_(pyarrow.float64()),
    tuple[float | None, ...]: pyarrow.list_(pyarrow.float64()),
    tuple[tuple[float, ...], ...]: pyarrow.list_(pyarrow.list_(pyarrow.float64())),
}
"""Type of an entry's field -> type of the column."""


def save(entries: Sequence[Entry], commits: Mapping[str, str], path: Path) -> None:
    """Write a table, whole or not at all."""
    attrs = {
        "about": ABOUT.replace("\n", " "),
        "licence": LICENCE,
        "sources": {SOURCE.format(round=round): commit for round, commit in commits.items()},
    }
    types = get_type_hints(Entry)
    schema = pyarrow.schema([(name, _TYPES[types[name]]) for name in types])
    table = pyarrow.Table.from_pylist([dataclasses.asdict(entry) for entry in entries], schema)
    table = table.replace_schema_metadata({PANDAS_ATTRS: json.dumps(attrs)})
    with written_beside(path) as file:
        pyarrow.parquet.write_table(table, file, compression="zstd", compression_level=19)


def collect(clones: Path) -> tuple[list[Entry], dict[str, str]]:
    """Return the rows of all rounds, and the commit of each round's clone.

    Raises:
      ValueError: a clone is missing, or is not a clone.
    """
    entries: list[Entry] = []
    commits = {}
    for round in ROUNDS:
        folder = clones / REPOSITORY.format(round=round)
        commit = _git(folder, "rev-parse", "HEAD").strip() if folder.is_dir() else ""
        if not commit:
            source = SOURCE.format(round=round)
            raise ValueError(f"{folder}: no clone; git clone --depth 1 {source} {folder}")
        commits[round] = commit
        entries += read_round(folder, round)
        print(f"round {round}: {sum(entry.round == round for entry in entries)} systems")
    return with_twins(entries), commits


def read_round(folder: Path, round: str) -> list[Entry]:
    """Return the rows of one round's repository, or of a part of it, by name."""
    listed = map(Path, _git(folder, "ls-tree", "-rz", "--name-only", "HEAD").split("\0"))
    logs = [path for path in listed if path.match(_LOGS)]
    if not logs:  # no clone, but the same folders
        logs = [path.relative_to(folder) for path in folder.glob(_LOGS)]
    counts = collections.Counter(path.parent for path in sorted(logs))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda part: _read_system(folder / part, round, counts[part]), counts))


def _read_system(folder: Path, round: str, num_logs: int) -> Entry:
    org_dir, name = folder.parents[2], folder.parent.name
    runs, failures = [], []  # what cannot be read is a failed run
    for log in result_files(folder):
        try:
            runs.append(_read_log(log))
        except ValueError as error:
            failures.append(str(error).replace(f"{folder}{os.sep}", ""))
    description = _object(description_path(org_dir, name))
    entry = entry_of(
        System(name=name, runs=tuple(without_plans(runs)), description=description),
        round=round,
        org=org_dir.name,
        num_failed_logs=len(failures),
        num_missing_logs=num_logs - len(runs) - len(failures),
        scaling=_object(folder / "scaling.json").get("scaling_factor"),
        notes=failures,
    )
    is_judged = entry.division == "closed" and entry.runs == NUM_RUNS_PER_RESULT
    if not is_judged or entry.samples_unknown_because:
        return entry
    by_train_samples = entry.samples_source == "train_samples"
    verdict = check_rcp(folder, f"{round}.0", by_train_samples=by_train_samples)
    unaided = str(check_rcp(folder, f"{round}.0")) if by_train_samples else None
    return replace(entry, rcp=str(verdict), rcp_unaided=unaided)


def _read_log(log: Path) -> RunResult:
    """Read a log as it is, or with numbers for the lists of one number in Graphcore's of 1.1."""
    text = log.read_bytes()
    numbers = _LIST_OF_ONE.sub(rb"\1\2", text)
    if numbers == text:
        return read_run(log)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, log.name)
        copy.write_bytes(numbers)
        return replace(read_run(copy), path=log)


def _object(path: Path) -> dict:
    """Return the object of a JSON file; nothing without the file.

    Some submitters' begin with a byte order mark or have a key twice, which json_text refuses.
    """
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8-sig")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: not JSON ({error}); check it out again") from error


def _git(folder: Path, *arguments: str) -> str:
    """Return what git prints; nothing if it fails."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
