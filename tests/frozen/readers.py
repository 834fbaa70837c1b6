"""What a run has left, as values that are the same every time: one adapter for each kind of file.

The project's own readers read the files. When the form of a file changes, its adapter here changes,
and the recorded values stay. Times, paths, hosts, versions and commits are left out.
"""

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import tensorflow as tf

from mlperf_bert.checkpoints import state
from mlperf_bert.mlperf import energy, ledger, log_reader
from mlperf_bert.training import evaluations, output

OFFLINE_LOG = log_reader.RESULT_LOG
_OF_A_SAVING_THREAD = "checkpoint_stop"
"""A line that a thread writes when a checkpoint is complete: anywhere before the next one."""


def run_values(folder: Path, *, root: Path) -> dict:
    """All that a training or an offline evaluation has left in its output directory.

    Args:
      folder: the output directory.
      root: what is cut off the paths in the values.
    """
    values = {
        "files": _names_of_files(folder),
        "logs": [log_values(log) for log in _logs(folder)],
        "metrics": metrics_values(folder),
        "record": record_values(folder),
        "checkpoints": checkpoint_values(folder),
        "evaluations": evaluation_values(folder),
    }
    return without_root(values, root)


def log_values(path: Path) -> dict:
    """An MLPerf log: its header, the events after it in order, and what a thread adds to these."""
    records = log_reader.read_records(path, may_be_cut=True)
    names = [r.metadata["tensor"] for r in records if r.key == "weights_initialization"]
    lines = [_line(r) for r in records if r.key != "weights_initialization"]
    is_in_header = [line["key"] for line in lines].index("init_stop") + 1
    header, events = lines[:is_in_header], lines[is_in_header:]
    tracked = [set(r.value) for r in records if r.key == ledger.LOG_KEY]
    return {
        "header": header,
        "weights": {"count": len(names), "sha256_of_names": digest("\n".join(names).encode())},
        "events": [line for line in events if line["key"] != _OF_A_SAVING_THREAD],
        "of_saving": [line for line in events if line["key"] == _OF_A_SAVING_THREAD],
        "tracked": sorted(set().union(*tracked)),
    }


def _logs(folder: Path) -> list[Path]:
    written = [*log_reader.logs_of_run(folder), folder / OFFLINE_LOG]
    return [Path(log) for log in written if log.exists()]


def _line(record: log_reader.LogRecord) -> dict:
    """A line without its time, and without what the machine measures."""
    value, metadata = (
        record.value,
        {name: what for name, what in record.metadata.items() if name not in ("file", "lineno")},
    )
    if metadata.pop("written_ms", None):
        metadata["was_killed"] = True
    if record.key == ledger.LOG_KEY:
        value = None
    elif record.key == energy.LOG_KEY:
        value, metadata = None, {"of": metadata["of"]}
    elif record.key == "provenance":
        value = _without_code(value)
    return {"key": record.key, **({} if value is None else {"value": value}), **metadata}


def _without_code(provenance) -> dict:
    return {name: what for name, what in provenance.items() if name not in ("commit", "image")}


def metrics_values(folder: Path) -> dict:
    """The lines of metrics.jsonl; of what was measured in seconds, only the names."""
    path = folder / output.METRICS_NAME
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    measured: dict[str, set] = {}
    for line in lines:
        names = {name for name in line if "second" in name}
        measured.setdefault(line["kind"], set()).update(names)
    kept = [{name: line[name] for name in line if "second" not in name} for line in lines]
    return {"lines": kept, "measured": {kind: sorted(names) for kind, names in measured.items()}}


def record_values(folder: Path) -> dict:
    """The content of run.json."""
    if not (folder / output.RECORD_NAME).exists():
        return {}
    values = dataclasses.asdict(output.read_record(folder))
    values["made_with"] = sorted(values["made_with"])
    for name in ("energy", "time_budget_spent_seconds"):
        values[name] = bool(values[name])
    return values


def checkpoint_values(folder: Path) -> dict:
    """Steps of the complete checkpoints, and the norm of every part of the last one's state."""
    steps = sorted(state.complete_checkpoints(str(folder)))
    if not steps:
        return {"steps": []}
    reader = tf.train.load_checkpoint(str(folder / f"model.ckpt-{steps[-1]}"))
    squares: dict[str, float] = {}
    for name, kind in reader.get_variable_to_dtype_map().items():
        if kind == tf.float32:
            part = name.partition("/")[0]
            square = float(np.square(reader.get_tensor(name), dtype=np.float64).sum())
            squares[part] = squares.get(part, 0.0) + square
    return {
        "steps": steps,
        "norms": {part: float(np.sqrt(squares[part])) for part in sorted(squares)},
    }


def evaluation_values(folder: Path) -> dict[str, dict]:
    """Step -> evaluation, of those that were made offline."""
    found = evaluations.read_evaluations(folder)
    return {str(step): dataclasses.asdict(each) for step, each in found.items()}


def printed_result(printed: str) -> str | None:
    """The RESULT line without time, user and start."""
    found = re.search(r"^RESULT,bert,(\d+),\d+,[^,]*,[^,]*,(.*)$", printed, re.MULTILINE)
    return found and f"seed {found[1]}: {found[2]}"


def _names_of_files(folder: Path) -> list[str]:
    """Without checkpoints, which `checkpoint_values` lists."""
    names = {
        re.sub(r"^events\.out\..*", "events.out", path.name)
        for path in folder.iterdir()
        if not path.name.startswith((".", "model.ckpt-"))
    }
    return sorted(names)


def digest(content: bytes) -> str:
    """SHA-256 of what is too long to be recorded."""
    return hashlib.sha256(content).hexdigest()


def without_root(values, root: Path):
    """The values with `ROOT` for a folder in all texts."""
    return json.loads(json.dumps(values).replace(str(root), "ROOT"))
