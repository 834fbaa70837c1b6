"""A trace as a workload of DLIO, the deep learning I/O simulator.

Every value is measured; what a trace does not show is left to DLIO's defaults. Source of the keys:
`LoadConfig` of dlio_benchmark 2.0.0, which PyPI has, and of the repository at e1919d7 of June 2026.
"""

import itertools
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import yaml

from tracing import files, mllog
from tracing.exports.finished import Finished
from tracing.tables import written_beside

_FRAME_BYTES = 16  # a record's length and the two CRCs around it
_CALL_COLUMNS = (
    "monotonic_ns", "tid", "kind", "path", "file_class", "requested_bytes", "size_bytes", "error",
)  # fmt: skip
_FOR_WHOM = """\
# record_length and checkpoint.model_size are for dlio_benchmark 2.0.0; record_length_bytes and
# model.model_size_bytes, the same values, for its repository.
"""
_TRAINING_SPAN, _EVAL_SPAN = "block", "eval"


@dataclass(frozen=True)
class Steps:
    """The training steps, by the MLPerf log."""

    batch_size: int
    num_steps: int
    seconds_per_step: float
    stdev_seconds: float


class Measured:
    """The tables of a trace, asked for what DLIO wants to know."""

    def __init__(self, trace: Finished):
        """Reads the trace.

        Raises:
          ValueError: it is not one of a training with its single calls.
        """
        self.summary = trace.summary
        self.events = trace.table("mllog")
        self.files = trace.table("files")
        self.spans = trace.table("spans")
        operations = trace.table("file_ops", _CALL_COLUMNS)
        is_record = operations["file_class"] == files.TFRECORDS
        self.operations = operations[is_record & operations["error"].isna()]
        self.reads = self.operations[self.operations["kind"] == "read"]
        if self._spans(_TRAINING_SPAN).empty:
            raise ValueError(
                f"{trace.folder} holds no training: no block_start of an MLPerf log within its "
                f"{self.summary['seconds']} s"
            )
        self.training_reads = self._within(_TRAINING_SPAN, self.reads)
        if self.training_reads.empty:
            raise ValueError(
                f"{trace.folder} holds no reads of TFRecords during training: trace with strace or "
                f"bpftrace, this one was made with {self.summary['backend']}"
            )
        self.eval_paths = self._eval_paths()
        self.training_paths = sorted({*self.training_reads["path"]} - {*self.eval_paths})
        evaluations = self._spans(_EVAL_SPAN)
        evaluations = evaluations[evaluations["is_closed"]]
        lengths_ns = evaluations["end_monotonic_ns"] - evaluations["monotonic_ns"]
        self.seconds_of_evaluation = list(lengths_ns / 1e9)
        # Those that the training wrote: the log has a span for each, none for an initial one.
        checkpoints = self.summary["checkpoints"]
        self.checkpoints = [each for each in checkpoints if each["span_seconds"] is not None]

    def _spans(self, name: str) -> pd.DataFrame:
        return self.spans[self.spans["name"] == name]

    def _within(self, name: str, rows: pd.DataFrame) -> pd.DataFrame:
        inside = pd.Series(False, rows.index)
        for span in self._spans(name).itertuples():
            inside |= rows["monotonic_ns"].between(span.monotonic_ns, span.end_monotonic_ns)
        return rows[inside]

    def _eval_paths(self) -> list[str]:
        """Files most of whose bytes were read while evaluating."""
        in_all = self.reads.groupby("path")["size_bytes"].sum()
        in_eval = self._within(_EVAL_SPAN, self.reads).groupby("path")["size_bytes"].sum()
        share = in_eval.reindex(in_all.index, fill_value=0) / in_all
        return list(share.index[share > 0.5])

    def steps(self) -> Steps:
        """Batch size, and seconds per step without waiting for input or for checkpoints.

        Raises:
          ValueError: the log has no batch size, or no block came to its end.
        """
        batch = mllog.value_of(self.events, "global_batch_size")
        if not batch:
            raise ValueError("the MLPerf log has no global_batch_size")
        batch //= mllog.value_of(self.events, "gradient_accumulation_steps", 1)
        blocks = [block for block in self._blocks() if block[0]]
        if not blocks:
            raise ValueError("the MLPerf log has no finished block of training")
        per_step = [seconds / (samples / batch) for samples, seconds in blocks]
        num_steps = round(sum(samples for samples, _ in blocks) / batch)
        seconds = sum(seconds for _, seconds in blocks)
        return Steps(batch, num_steps, seconds / num_steps, statistics.pstdev(per_step))

    def _blocks(self) -> list[tuple[int, float]]:
        """(samples, seconds of computing) of every finished block.

        Without a ledger, or of one without computing, the time between the checkpoints counts.
        """
        found = []
        for block in self._spans(_TRAINING_SPAN).itertuples():
            stop = mllog.stop_of(block, self.events)
            if stop is not None:
                ledger = mllog.ledger_of(block, self.events) or {}
                if not (seconds := ledger.get("compute_seconds")):
                    seconds = (block.end_monotonic_ns - block.monotonic_ns) / 1e9
                    seconds -= mllog.saving_seconds(block, self.events, self.spans)
                found.append((mllog.trained_samples(json.loads(stop.metadata)), seconds))
        return found

    def files_are_shuffled(self) -> bool:
        """Whether the training files were opened in another order than that of their names."""
        opens = self.operations[self.operations["kind"] == "open"]
        opens = self._within(_TRAINING_SPAN, opens)
        first = [p for p in opens["path"].drop_duplicates() if p in set(self.training_paths)]
        return first != sorted(first)


def write(trace: Finished, output: Path) -> str:
    """Writes the file beside and renames it; returns where it is from, in words.

    Raises:
      ValueError: the trace does not hold what DLIO asks for.
      OSError: there is no room; nothing is left.
    """
    text = yaml.safe_dump(workload(trace), sort_keys=False)
    with written_beside(output) as file:
        file.write(f"# From the trace {trace.folder.name}.\n{_FOR_WHOM}{text}")
    return "for dlio_benchmark 2.0.0 and for its repository of June 2026"


def workload(trace: Finished) -> dict:
    """The workload of a trace, as DLIO's YAML spells it.

    Raises:
      ValueError: the trace does not hold what DLIO asks for.
    """
    measured = Measured(trace)
    steps = measured.steps()
    checkpoints, reads = measured.checkpoints, measured.training_reads
    found: dict = {
        # 2.0.0 has no use for it; it names its log's folder after the whole of it.
        "model": {"name": "bert"},
        "framework": "tensorflow",
        "workflow": {
            "generate_data": True,
            "train": True,
            "evaluation": bool(measured.seconds_of_evaluation),
            "checkpoint": bool(checkpoints),
        },
        "dataset": _dataset(measured),
        "reader": {
            "data_loader": "tensorflow",
            "batch_size": steps.batch_size,
            "read_threads": reads[reads["path"].isin(measured.training_paths)]["tid"].nunique(),
            "transfer_size": int(reads["requested_bytes"].mode().iloc[-1]),
            "file_shuffle": "seed" if measured.files_are_shuffled() else "off",
        },
        "train": {
            "computation_time": round(steps.seconds_per_step, 6),
            "computation_time_stdev": round(steps.stdev_seconds, 6),
        },
    }
    dataset = found["dataset"]
    samples = dataset["num_files_train"] * dataset["num_samples_per_file"]
    found["train"] |= epochs(steps.num_steps, steps.batch_size, samples)
    if seconds := measured.seconds_of_evaluation:
        num_samples = mllog.value_of(measured.events, "eval_samples") or steps.batch_size
        # DLIO evaluates in steps, each so long: a training batch at a time here.
        step_s = statistics.mean(seconds) * steps.batch_size / num_samples
        found |= {"evaluation": {"eval_time": round(step_s, 6)}}
        found["reader"]["batch_size_eval"] = steps.batch_size
    if checkpoints:
        at = sorted({entry["step"] for entry in checkpoints})
        between = [after - before for before, after in itertools.pairwise(at)]
        size = round(statistics.mean(entry["written_bytes"] for entry in checkpoints))
        found["checkpoint"] = {
            "checkpoint_folder": "checkpoints/bert",
            "steps_between_checkpoints": round(statistics.median(between)) if between else at[-1],
            "model_size": size,
        }
        found["model"]["model_size_bytes"] = size
    return found


def epochs(num_steps: int, batch_size: int, num_samples: int) -> dict[str, int]:
    """Epochs over `num_samples`, and DLIO's "total" of steps, which is that of an epoch."""
    num = max(-(-num_steps * batch_size // num_samples), 1)
    # DLIO refuses more than an epoch's data give.
    of_epoch = min(-(-num_steps // num), max(num_samples // batch_size, 1))
    return {"total_training_steps": of_epoch, "epochs": num}


def _dataset(measured: Measured) -> dict:
    records = measured.summary["records"]
    paths, known = measured.training_paths, measured.files
    # Of those that were still there at the end.
    sizes = [int(n) for n in known[known["path"].isin(paths)]["size_bytes"].dropna()]
    if not (records and sizes):
        raise ValueError("the TFRecords were gone when the trace ended: their records are unknown")
    record_bytes = records["mean_bytes"]
    per_file = round(statistics.mean(sizes) / (record_bytes + _FRAME_BYTES))
    eval_samples = mllog.value_of(measured.events, "eval_samples", 0)
    length, spread = round(record_bytes), round(records["stdev_bytes"])
    return {
        "data_folder": "data/bert",
        "format": "tfrecord",
        "num_files_train": len(paths),
        "num_files_eval": -(-eval_samples // per_file) if measured.eval_paths else 0,
        "num_samples_per_file": per_file,
        "record_length": length,
        "record_length_stdev": spread,
        "record_length_bytes": length,
        "record_length_bytes_stdev": spread,
        "file_prefix": "part",
    }
