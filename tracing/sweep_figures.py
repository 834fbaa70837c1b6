"""The figures of one point of a sweep, from its trace and metrics.jsonl; and the table of all."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tracing.tables import RUNS, described, written_beside

_LEDGER = [
    "input_wait_seconds", "compute_seconds", "saving_seconds", "evaluation_input_wait_seconds",
    "evaluation_compute_seconds", "host_seconds",
]  # fmt: skip


def row(folder: Path, **given) -> dict:
    """The row of a point; what its trace or metrics.jsonl does not hold is None.

    Args:
      folder: of the point, with trace/ and run/.
      given: what the sweep itself knows.
    """
    found = dict.fromkeys(RUNS) | given
    if given["memory_bytes"] and given["data_bytes"]:
        found["memory_to_data_ratio"] = round(given["memory_bytes"] / given["data_bytes"], 4)
    try:
        summary = json.loads((folder / "trace" / "summary.json").read_text())
    except (OSError, ValueError):
        return found  # the command was not there, or the disk was full
    access, phases = summary["access"], summary["phases"]
    training_s = sum(phase["seconds"] for phase in phases if phase["name"] == "block")
    # A block stands still while a checkpoint is written in it.
    training_s -= sum(phase["saving_seconds"] or 0 for phase in phases)
    passes = access["passes"] or []
    cache = ("call_bytes", "storage_bytes", "storage_from", "hit_ratio")
    found |= {name: access["page_cache"][name] for name in cache} | {
        "seconds": summary["seconds"],
        "peak_resident_bytes": summary["usage"]["peak_resident_bytes"],
        "num_samples": access["samples"] and access["samples"]["num_trained"],
        "training_seconds": round(training_s, 3) if training_s > 0 else None,
        "pass_call_bytes": [entry["call_bytes"] for entry in passes],
        "pass_storage_bytes": [entry["storage_bytes"] for entry in passes],
    }
    if given["status"] == "done" and found["training_seconds"] and found["num_samples"]:
        found["samples_per_second"] = round(found["num_samples"] / found["training_seconds"], 2)
        # The command writes none, or another kind of them.
        with contextlib.suppress(OSError, ValueError, LookupError):
            found |= _of_steps(folder / "run" / "metrics.jsonl")
    return found


def _of_steps(path: Path) -> dict:
    """Utilization, and seconds of a step that does not wait, by the ledger in metrics.jsonl."""
    lines = pd.read_json(path, lines=True)
    lines = lines[lines["kind"] == "train"]
    spent, num_steps = lines[_LEDGER].sum(), int(lines["step"].iloc[-1])
    if not (num_steps and spent.sum()):
        return {}
    return {
        "step_seconds": round(float(spent["compute_seconds"] / num_steps), 6),
        "utilization": round(float(1 - spent["input_wait_seconds"] / spent.sum()), 6),
    }


def write_table(path: Path, rows: Sequence[dict]) -> None:
    """Writes runs.parquet; each field's metadata says what it is."""
    with written_beside(path, "wb") as file:
        pq.write_table(pa.Table.from_pylist(list(rows), described(RUNS)), file)
