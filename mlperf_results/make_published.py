"""The table of published results, made from clones of the repositories in which they are.

    python -m mlperf_results.make_published clones

makes published.parquet again from clones of the nine repositories, clones/training_results_v1.0 to
_v5.0. Asking the official RCP checker about every system takes some minutes. `entry_of` makes one
row, also of a system of one's own.
"""

import argparse
import collections
import dataclasses
import json
import math
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from mlperf_bert.files import json_text
from mlperf_bert.files.whole import require_writable, written_beside
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.logs import (
    MOST_SAMPLES_TO_CONVERGE,
    SAMPLES_UNKNOWN,
    RunResult,
    in_words,
    read_run,
    why_samples_are_unknown,
    without_plans,
)
from mlperf_bert.mlperf.rules import NUM_RUNS_PER_RESULT
from mlperf_bert.options import words_with_home
from mlperf_bert.submission.official import check_rcp
from mlperf_bert.submission.plan import result_files
from mlperf_bert.submission.run_logs import require_free
from mlperf_bert.submission.system import read_description
from mlperf_bert.submission.verdict import System, olympic_mean
from mlperf_results.published import (
    COPIES,
    PANDAS_ATTRS,
    ROUNDS,
    TABLE,
    Entry,
    with_twins,
)

_REMEDY = "check it out again"
_STATUSES = {"preview": "preview", "research": "research", "rdi": "research"}


def entry_of(
    system: System,
    *,
    round: str = "",
    org: str = "",
    num_failed_logs: int = 0,
    num_missing_logs: int = 0,
    scaling: float | None = None,
    notes: Sequence[str] = (),
) -> Entry:
    """Return the row on a system.

    Args:
      system: with the runs whose logs can be read.
      round, org: name the row, with the system's name.
      num_failed_logs, num_missing_logs: of runs without an end; of logs that are not there.
      scaling: multiplies the score; None: as the RCP checker says, if it was asked.
      notes: on the row.
    """
    runs, description, rcp = system.runs, system.description, system.rcp
    # The review's own factor, where there is one, was made with the points of its round.
    scaling = rcp.scaling if rcp and scaling is None and rcp.scaling != 1.0 else scaling
    converged = [run for run in runs if run.succeeded]
    num_failed = len(runs) + num_failed_logs - len(converged)
    minutes = [run.minutes for run in converged]
    # Nobody knows whether a log that is missing was the slowest.
    mean = None if num_missing_logs else olympic_mean(minutes, num_failed=num_failed)
    accelerators = _accelerators(description, runs)
    return Entry(
        round=round,
        org=org,
        system=system.name,
        division=_division(description, runs),
        status=_status(description),
        nodes=_whole(description.get("number_of_nodes")),
        accelerators=accelerators,
        accelerator_model_name=_text(description, "accelerator_model_name"),
        host_processor_model_name=_text(description, "host_processor_model_name"),
        framework=_text(description, "framework"),
        global_batch_size=_common([run.global_batch_size for run in runs]),
        max_sequence_length=_common([run.max_sequence_length for run in runs]),
        num_weights=_common([run.num_weights for run in runs]),
        runs=len(runs) + num_failed_logs,
        runs_missing=num_missing_logs,
        runs_converged=len(converged),
        minutes_olympic_mean=_rounded(mean, 4),
        rcp_scaling_factor=scaling,
        minutes_scored=_rounded(mean and mean * (scaling or 1), 4),
        rcp=str(rcp) if rcp else None,
        rcp_unaided=str(system.rcp_unaided) if system.rcp_unaided else None,
        notes="; ".join([*notes, *_notes(system)]) or None,
        run_minutes=tuple(float(f"{value:.4f}") for value in minutes),
        **_convergence(converged, accelerators),
    )


def _notes(system: System) -> Iterator[str]:
    """What a reader of the row has to know of the logs."""
    if system.copies:
        yield f"{COPIES}{in_words(system.copies)}"
    if why := why_samples_are_unknown(system.runs):
        yield why


def _convergence(runs: Sequence[RunResult], accelerators: int | None) -> dict[str, Any]:
    """Return the fields on samples of converged runs."""
    # Two entries of Google in the open division of round 1.1 resumed larger models: they count the
    # samples before the timed run too.
    counted = [r for r in runs if 0 < (r.samples_to_converge or 0) <= MOST_SAMPLES_TO_CONVERGE]
    samples = [run.samples_to_converge for run in counted if run.samples_to_converge]
    rates = [run.samples_per_second for run in counted if run.samples_per_second]
    rate = statistics.median(rates) if rates else None
    sources = {"train_samples" if run.counts_by_train_samples else "epoch_num" for run in counted}
    evaluations = [_logged_evaluations(run) if run in counted else [] for run in runs]
    return {
        "samples_mean": _rounded(statistics.fmean(samples), 0) if samples else None,
        "samples_source": " and ".join(sorted(sources)) or None,
        "samples_per_second_median": _rounded(rate, 2),
        "samples_per_second_per_accelerator": _rounded(
            rate / accelerators if rate and accelerators else None, 2
        ),
        "run_samples": tuple(run.samples_to_converge if run in counted else None for run in runs),
        "evaluation_samples": tuple(tuple(n for n, _ in each) for each in evaluations),
        "evaluation_accuracy": tuple(tuple(a for _, a in each) for each in evaluations),
    }


def _logged_evaluations(run: RunResult) -> list[tuple[float, float]]:
    """Return (samples, accuracy) of those with both."""
    return [
        (e.samples, round(e.accuracy, 4))
        for e in run.evaluations
        if e.samples is not None and math.isfinite(e.accuracy)
    ]


def _division(description: Mapping[str, object], runs: Sequence[RunResult]) -> str | None:
    """Return closed or open; PCL and others spelt it otherwise."""
    named = _text(description, "division") or next((run.division for run in runs), None) or ""
    return {"c": "closed", "o": "open"}.get(named[:1].lower(), named or None)


def _status(description: Mapping[str, object]) -> str | None:
    # Each submitter spells it differently: "Available on-premise", "onprem", "RDI".
    filed = (_text(description, "status") or "").lower()
    return next(
        (name for word, name in _STATUSES.items() if word in filed), "available" if filed else None
    )


def _accelerators(description: Mapping[str, object], runs: Sequence[RunResult]) -> int | None:
    nodes = _whole(description.get("number_of_nodes"))
    each = _whole(description.get("accelerators_per_node"))
    if nodes is not None and each is not None:
        return nodes * each
    return _common([run.num_replicas for run in runs])


def _text(description: Mapping[str, object], name: str) -> str | None:
    return str(description.get(name) or "").strip() or None


def _whole(value: object) -> int | None:
    digits = re.fullmatch(r"\s*(\d{1,9})(\.0)?\s*", str(value), re.ASCII)
    return int(digits[1]) if digits else None


def _common(values: Sequence[float | None]) -> int | None:
    """Return what all logs that say it agree on."""
    distinct = {value for value in values if value is not None}
    return int(distinct.pop()) if len(distinct) == 1 else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


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
watts: measured, mean of all nodes and switches during the runs. rcp: what the
RCP checker of mlperf-logging 4.1.68 says today under the round's ruleset, of closed results;
rcp_unaided: what it says unless it is told to count by train_samples. same_logs_as: an earlier
entry with the same timed runs; leave one of them out of statistics. Names are as the submitters
typed them. In the open division model and data may differ. Fujitsu's gx_A100x4 of round 1.1 logs
about twice the samples of its like."""
LICENCE = (
    "Facts, gathered from repositories of MLCommons that are under the Apache License 2.0 "
    "(v4.1 has no licence file); the MLPerf name and logo are trademarks of MLCommons."
)
_LOGS = "*/results/*/bert/result_*.txt"


def save(entries: Sequence[Entry], commits: Mapping[str, str], path: Path) -> None:
    """Write a table, whole or not at all."""
    attrs = {
        "about": ABOUT.replace("\n", " "),
        "licence": LICENCE,
        "sources": {SOURCE.format(round=round): commit for round, commit in commits.items()},
    }
    table = pyarrow.Table.from_pylist([dataclasses.asdict(entry) for entry in entries])
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
    # By what git lists: a sparse clone may lack a log that belongs to the result.
    counts = collections.Counter(path.parent for path in sorted(logs))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda part: _read_system(folder / part, round, counts[part]), counts))


def _read_system(folder: Path, round: str, num_logs: int) -> Entry:
    org_dir, name = folder.parents[2], folder.parent.name
    runs, failures = [], []  # what cannot be read is a failed run
    for log in result_files(folder):
        try:
            runs.append(read_run(log))
        except ValueError as error:
            failures.append(str(error).replace(f"{folder}{os.sep}", ""))
    description = read_description(folder.parent)
    scaling = json_text.read_record(
        folder / "scaling.json", lambda content: content.get("scaling_factor"), remedy=_REMEDY
    )
    entry = entry_of(
        System(name=name, runs=tuple(without_plans(runs)), description=description),
        round=round,
        org=org_dir.name,
        num_failed_logs=len(failures),
        num_missing_logs=num_logs - len(runs) - len(failures),
        scaling=scaling,
        notes=failures,
    )
    # In the open division nothing has to converge as the reference does.
    is_judged = entry.division == "closed" and entry.runs == NUM_RUNS_PER_RESULT
    if not is_judged or entry.noted(SAMPLES_UNKNOWN):
        return entry
    by_train_samples = entry.samples_source == "train_samples"
    verdict = check_rcp(folder, f"{round}.0", by_train_samples=by_train_samples)
    unaided = str(check_rcp(folder, f"{round}.0")) if by_train_samples else None
    return replace(entry, rcp=str(verdict), rcp_unaided=unaided)


def _git(folder: Path, *arguments: str) -> str:
    """Return what git prints; nothing if it fails."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@ends_in_one_line("make_published")
def main(arguments: Sequence[str] | None = None) -> int:
    """Make the table from clones; return 1 with one line if something is missing."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_results.make_published")
    parser.add_argument("clones", type=Path, help="holds training_results_v1.0 to _v5.0")
    parser.add_argument("--output", type=Path, default=TABLE)
    given = parser.parse_args(words_with_home(arguments))
    require_writable(given.output)
    require_free({"--output": str(given.output)})

    entries, commits = collect(given.clones)
    save(entries, commits, given.output)
    print(f"{len(entries)} systems in {given.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
