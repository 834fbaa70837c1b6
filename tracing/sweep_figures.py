"""The figures of one point of a sweep, from its trace and metrics.jsonl; and the table of all."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracing import files
from tracing.tables import described, written_beside

_LEDGER = (
    "input_wait_seconds", "compute_seconds", "saving_seconds", "evaluation_input_wait_seconds",
    "evaluation_compute_seconds", "host_seconds",
)  # fmt: skip
_CHECKPOINT, _WHILE_SAVING = "checkpoint", ("block", "eval")
_WORD, _COUNT, _NUMBER = pa.string(), pa.int64(), pa.float64()
# column -> (type, what it is and its unit)
COLUMNS = {
    "name": (_WORD, "the point's folder"),
    "status": (_WORD, "done killed failed skipped"),
    "reason": (_WORD, "why it is not done"),
    "exit_code": (_COUNT, "of the command"),
    "memory_bytes": (_COUNT, "the limit; null without one"),
    "batch": (_COUNT, "examples of a step; null: as the command has it"),
    "workers": (_COUNT, "files read at once; null: as the command has it"),
    "compute": (_WORD, "real sleep"),
    "cache": (_WORD, "cold warm; null: as it was found"),
    "emulated_step_seconds": (_NUMBER, "length of the sleep"),
    "data_bytes": (_COUNT, "size of the training's files"),
    "memory_to_data_ratio": (_NUMBER, "memory_bytes / data_bytes"),
    "peak_resident_bytes": (_COUNT, "bytes of memory, all processes"),
    "seconds": (_NUMBER, "of the trace"),
    "training_seconds": (_NUMBER, "of the log's blocks, without standing still for checkpoints"),
    "num_samples": (_COUNT, "trained"),
    "samples_per_second": (_NUMBER, "num_samples / training_seconds"),
    "step_seconds": (_NUMBER, "of a step that does not wait"),
    "utilization": (_NUMBER, "share of the training's time that does not wait for input"),
    "utilization_from": (_WORD, "what that was computed from"),
    "call_bytes": (_COUNT, "read by calls"),
    "storage_bytes": (_COUNT, "read from storage"),
    "storage_from": (_WORD, "whose counters"),
    "hit_ratio": (_NUMBER, "of the page cache"),
    "pass_call_bytes": (pa.list_(_COUNT), "read by calls in each pass over the data"),
    "pass_storage_bytes": (pa.list_(_COUNT), "read from storage in each pass over the data"),
    "phase_names": (pa.list_(_WORD), "of the MLPerf log, and rest"),
    "phase_seconds": (pa.list_(_NUMBER), "of each phase"),
    "phase_read_bytes": (pa.list_(_COUNT), "by calls in each phase"),
    "phase_storage_bytes": (pa.list_(_COUNT), "read from storage in each phase"),
    "phase_written_bytes": (pa.list_(_COUNT), "by calls in each phase"),
}


def row(folder: Path, given: dict) -> dict:
    """The row of a point; what its trace or metrics.jsonl does not hold is None.

    Args:
      folder: of the point, with trace/ and run/.
      given: what the sweep itself knows.
    """
    found = dict.fromkeys(COLUMNS) | given
    if given["memory_bytes"] and given["data_bytes"]:
        found["memory_to_data_ratio"] = round(given["memory_bytes"] / given["data_bytes"], 4)
    try:
        summary = json.loads((folder / "trace" / "summary.json").read_text())
    except (OSError, ValueError):
        return found  # the command was not there, or the disk was full
    lines = list(_train_lines(folder / "run" / "metrics.jsonl"))
    found |= _of_trace(summary)
    if given["status"] == "done":
        found |= _speed(found, lines)
    return found


def _of_trace(summary: dict) -> dict:
    cached, samples = summary["access"]["page_cache"], summary["access"]["samples"]
    passes = summary["access"]["passes"] or []
    phases = list(_phases(summary))
    blocks = sum(p["seconds"] for p in summary["phases"] if p["name"] == "block")
    training_s = round(blocks - sum(p["saving_seconds"] or 0 for p in summary["phases"]), 3)
    return {
        "seconds": summary["seconds"],
        "peak_resident_bytes": summary["usage"]["peak_resident_bytes"],
        "call_bytes": cached["call_bytes"],
        "storage_bytes": cached["storage_bytes"],
        "storage_from": cached["storage_from"],
        "hit_ratio": cached["hit_ratio"],
        "num_samples": samples["num_trained"] if samples else None,
        "training_seconds": training_s if training_s > 0 else None,
        "pass_call_bytes": [entry["call_bytes"] for entry in passes],
        "pass_storage_bytes": [entry["storage_bytes"] for entry in passes],
        "phase_names": [name for name, *_ in phases],
        "phase_seconds": [seconds for _, seconds, *_ in phases],
        "phase_read_bytes": [read for *_, read, _, _ in phases],
        "phase_written_bytes": [written for *_, written, _ in phases],
        "phase_storage_bytes": [storage for *_, storage in phases],
    }


def _phases(summary: dict) -> Iterator[tuple]:
    """(name, seconds, read, written, read from storage) of each kind of phase.

    A checkpoint may be written while the training goes on: it has the bytes of its files, and block
    and evaluation have all others. What was read from storage is theirs.
    """
    phases = [p for p in summary["phases"] if p["name"] != "run" and p["read_bytes"] is not None]
    saves = any(phase["name"] == _CHECKPOINT for phase in phases)
    total: dict[str, np.ndarray] = {}
    for phase in phases:
        classes = set(phase["read_bytes"]) | set(phase["written_bytes"])
        if phase["name"] == _CHECKPOINT:
            classes &= {files.CHECKPOINTS}
        elif saves and phase["name"] in _WHILE_SAVING:
            classes -= {files.CHECKPOINTS}
        total[phase["name"]] = total.get(phase["name"], np.zeros(4)) + _moved(phase, classes)
    for name, (seconds, *moved) in total.items():
        yield name, round(float(seconds), 3), *(int(part) for part in moved)


def _moved(phase: dict, classes: set[str]) -> np.ndarray:
    """Seconds, bytes of these classes by calls, read and written, and read from storage."""
    by_calls = [
        sum(moved for name, moved in phase[kind].items() if name in classes)
        for kind in ("read_bytes", "written_bytes")
    ]
    storage = 0 if phase["name"] == _CHECKPOINT else phase["storage_read_bytes"] or 0
    return np.array([phase["seconds"] - (phase["saving_seconds"] or 0), *by_calls, storage])


def _train_lines(path: Path) -> Iterator[dict]:
    try:
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if entry.get("kind") == "train":
                yield entry
    except (OSError, ValueError, AttributeError):
        return


def _speed(found: dict, lines: Sequence[dict]) -> dict:
    """Samples a second, seconds of a step, and utilization by the best source there is."""
    seconds, samples = found["training_seconds"], found["num_samples"]
    if not seconds or not samples:
        return {}
    speed: dict = {"samples_per_second": round(samples / seconds, 2)}
    num_steps = lines[-1]["step"] if lines else 0
    emulated = found["emulated_step_seconds"]
    if lines and all(name in lines[0] for name in _LEDGER):
        spent = {name: sum(line.get(name, 0) for line in lines) for name in _LEDGER}
        total = sum(spent.values())
        speed |= {
            "step_seconds": spent["compute_seconds"] / num_steps,
            "utilization": 1 - spent["input_wait_seconds"] / total if total else None,
            "utilization_from": "input_wait_seconds of metrics.jsonl",
        }
    elif emulated is not None and num_steps:
        speed |= {
            "step_seconds": emulated,
            "utilization": min(1.0, num_steps * emulated / seconds),
            "utilization_from": "sleeps / training_seconds; the rest is waiting, and Python",
        }
    elif lines:
        batch = samples / num_steps
        of_step = [batch / line["samples_per_second"] for line in lines]
        fastest = float(np.percentile(of_step, 10))
        speed |= {
            "step_seconds": fastest,
            "utilization": min(1.0, num_steps * fastest / seconds),
            "utilization_from": "the fastest steps / training_seconds; the rest counts as waiting",
        }
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in speed.items()
    }


def read_row(path: Path) -> dict:
    """The row of a point that was run before; empty if it was not, or its file is damaged."""
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or found.keys() != COLUMNS.keys():
            return {}
        _table([found])
    except (OSError, ValueError, pa.ArrowException):
        return {}
    return found


def _table(rows: Sequence[dict]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), described(COLUMNS))


def write_table(path: Path, rows: Sequence[dict]) -> None:
    """Writes runs.parquet; each field's metadata says what it is."""
    with written_beside(path, "wb") as file:
        pq.write_table(_table(rows), file, compression="zstd")
