"""A trace as a workload of DLIO, the deep learning I/O simulator.

Every value is measured; what a trace does not show is left to DLIO's defaults. Source of the keys:
`LoadConfig` of dlio_benchmark 2.0.0, which PyPI has, and of the repository at e1919d7 of June 2026.
"""

import itertools
import statistics
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import yaml

from tracing import files, mllog
from tracing.loaded import Trace
from tracing.tables import written_beside

_FRAME_BYTES = 16  # a record's length and the two CRCs around it
_CALL_COLUMNS = (
    "monotonic_ns", "tid", "kind", "path", "file_class", "requested_bytes", "size_bytes", "error",
)  # fmt: skip
_FOR_WHOM = """\
# record_length and checkpoint.model_size are for dlio_benchmark 2.0.0; record_length_bytes and
# model.model_size_bytes, the same values, for its repository.
"""


class Steps(NamedTuple):
    """The training steps, by the MLPerf log."""

    batch_size: int
    num_steps: int
    seconds_per_step: float
    stdev_seconds: float


def write(trace: Trace, output: Path) -> str:
    """Writes the file beside and renames it; returns where it is from, in words.

    Raises:
      ValueError: the trace does not hold what DLIO asks for.
      OSError: there is no room; nothing is left.
    """
    text = yaml.safe_dump(workload(trace), sort_keys=False)
    with written_beside(output) as file:
        file.write(f"# From the trace {trace.folder.name}.\n{_FOR_WHOM}{text}")
    return "for dlio_benchmark 2.0.0 and for its repository of June 2026"


def workload(trace: Trace) -> dict:
    """The workload of a trace, as DLIO's YAML spells it.

    Raises:
      ValueError: the trace does not hold what DLIO asks for.
    """
    spans, events = trace.table("spans"), trace.table("mllog")
    if "block" not in set(spans["name"]):
        raise ValueError(f"{trace.folder} holds no training: no block_start of an MLPerf log")
    calls = _calls(trace)
    reads = calls[calls["kind"] == "read"]
    training = reads[reads["block"]]
    if training.empty:
        raise ValueError(
            f"{trace.folder} holds no reads of TFRecords during training: trace with strace or "
            f"bpftrace, this one was made with {trace.summary['backend']}"
        )
    # A file most of whose bytes were read while evaluating is one of the evaluation.
    share = (reads["size_bytes"] * reads["eval"]).groupby(reads["path"]).sum()
    share /= reads.groupby("path")["size_bytes"].sum()
    paths = sorted({*training["path"]} - {*share.index[share > 0.5]})
    steps = steps_of(events, spans)
    dataset = _dataset(trace, events, paths, has_evaluation=bool((share > 0.5).any()))
    opened = calls[calls["block"] & (calls["kind"] == "open") & calls["path"].isin(paths)]
    order = list(opened["path"].drop_duplicates())
    samples = dataset["num_files_train"] * dataset["num_samples_per_file"]
    made: dict = {
        # 2.0.0 has no use for it; it names its log's folder after the whole of it.
        "model": {"name": "bert"},
        "framework": "tensorflow",
        "workflow": {"generate_data": True, "train": True},
        "dataset": dataset,
        "reader": {
            "data_loader": "tensorflow",
            "batch_size": steps.batch_size,
            "read_threads": training["tid"][training["path"].isin(paths)].nunique(),
            # The most frequent one: the last read of a file may ask for less.
            "transfer_size": int(training["requested_bytes"].mode().iloc[-1]),
            "file_shuffle": "seed" if order != sorted(order) else "off",
        },
        "train": {
            "computation_time": round(steps.seconds_per_step, 6),
            "computation_time_stdev": round(steps.stdev_seconds, 6),
            **epochs(steps.num_steps, steps.batch_size, samples),
        },
    }
    evaluations = spans[(spans["name"] == "eval") & spans["is_closed"]]
    made["workflow"]["evaluation"] = not evaluations.empty
    if not evaluations.empty:
        num_samples = mllog.value_of(events, "eval_samples") or steps.batch_size
        made["evaluation"] = _evaluation(evaluations, steps.batch_size / num_samples)
        made["reader"]["batch_size_eval"] = steps.batch_size
    # Those that the training wrote: the log has a span for each, none for an initial one.
    saved = [c for c in trace.summary["checkpoints"] if c["span_seconds"] is not None]
    made["workflow"]["checkpoint"] = bool(saved)
    if saved:
        made["checkpoint"] = _checkpoint(saved)
        made["model"]["model_size_bytes"] = made["checkpoint"]["model_size"]
    return made


def _evaluation(spans: pd.DataFrame, share: float) -> dict:
    """The time of a step: DLIO evaluates in steps, here a `share` of all, a training batch."""
    seconds = (spans["end_monotonic_ns"] - spans["monotonic_ns"]).mean() / 1e9
    return {"eval_time": round(float(seconds * share), 6)}


def _checkpoint(saved: list[dict]) -> dict:
    """How often the training saves, and how much."""
    at = sorted({entry["step"] for entry in saved})
    between = [after - before for before, after in itertools.pairwise(at)]
    return {
        "checkpoint_folder": "checkpoints/bert",
        "steps_between_checkpoints": round(statistics.median(between)) if between else at[-1],
        "model_size": round(statistics.mean(entry["written_bytes"] for entry in saved)),
    }


def _calls(trace: Trace) -> pd.DataFrame:
    """Calls on TFRecords that did not fail; of each, whether a block or an evaluation ran."""
    calls = trace.table("file_ops", _CALL_COLUMNS)
    calls = calls[(calls["file_class"] == files.TFRECORDS) & calls["error"].isna()]
    return calls.assign(**{name: trace.is_within(calls, name) for name in ("block", "eval")})


def steps_of(events: pd.DataFrame, spans: pd.DataFrame) -> Steps:
    """Batch size, and seconds per step without waiting for input or for checkpoints.

    Raises:
      ValueError: the log has no batch size, or no block came to its end.
    """
    batch = mllog.value_of(events, "global_batch_size")
    if not batch:
        raise ValueError("the MLPerf log has no global_batch_size")
    batch //= mllog.value_of(events, "gradient_accumulation_steps", 1)
    blocks = [block for block in mllog.blocks(events, spans) if block.num_samples]
    if not blocks:
        raise ValueError("the MLPerf log has no finished block of training")
    # Without a ledger, or by one without computing, the time between the checkpoints counts.
    seconds = [
        block.ledger.get("compute_seconds")
        or (block.end_ns - block.begin_ns) / 1e9 - block.saving_seconds
        for block in blocks
    ]
    per_step = [lasting * batch / block.num_samples for lasting, block in zip(seconds, blocks)]
    num_steps = round(sum(block.num_samples for block in blocks) / batch)
    return Steps(batch, num_steps, sum(seconds) / num_steps, statistics.pstdev(per_step))


def epochs(num_steps: int, batch_size: int, num_samples: int) -> dict[str, int]:
    """Epochs over `num_samples`, and DLIO's "total" of steps, which is that of an epoch."""
    num = max(-(-num_steps * batch_size // num_samples), 1)
    # DLIO refuses more than an epoch's data give.
    of_epoch = min(-(-num_steps // num), max(num_samples // batch_size, 1))
    return {"total_training_steps": of_epoch, "epochs": num}


def _dataset(trace: Trace, events: pd.DataFrame, paths: list[str], *, has_evaluation) -> dict:
    records, known = trace.summary["records"], trace.table("files")
    # Of those that were still there at the end.
    sizes = known.loc[known["path"].isin(paths), "size_bytes"].dropna()
    if not records or sizes.empty:
        raise ValueError("the TFRecords were gone when the trace ended: their records are unknown")
    # One number for all files is what DLIO takes.
    per_file = round(float(sizes.mean()) / (records["mean_bytes"] + _FRAME_BYTES))
    eval_samples = mllog.value_of(events, "eval_samples", 0)
    length, spread = round(records["mean_bytes"]), round(records["stdev_bytes"])
    return {
        "data_folder": "data/bert",
        "format": "tfrecord",
        "num_files_train": len(paths),
        "num_files_eval": -(-eval_samples // per_file) if has_evaluation else 0,
        "num_samples_per_file": per_file,
        "record_length": length,
        "record_length_stdev": spread,
        "record_length_bytes": length,
        "record_length_bytes_stdev": spread,
        "file_prefix": "part",
    }
