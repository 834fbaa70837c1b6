"""Peak memory and seconds of a step, without recomputation and with it.

    python -m benchmarks.memory --output=benchmarks/memory --precisions=bfloat16

BERT-large with LAMB, 512 tokens, dropout 0.1, on synthetic batches. Each measurement is a process
of its own, one after the other: it builds the model, and trains one step that is traced and
compiled, then `--steps` timed ones, on a CPU. The peak is the process's high-water mark, libraries
included. A measurement that the model of memory (mlperf_bert/training/memory.py) expects to exceed
what is available is left out, with a line. Of accelerators their compilers say what a step takes.
Measurements are added to OUTPUT.jsonl; those that are in it are not repeated.
"""

from mlperf_bert.options import whole_number, words_with_home
from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    tensorflow()  # before other modules import it

import argparse
import itertools
import resource
import statistics
import time
from pathlib import Path

import psutil

from benchmarks import reports
from benchmarks.contestants import ours
from benchmarks.processes import in_a_process
from mlperf_bert.mlperf.rules import BERT_LARGE
from mlperf_bert.model.config import RECOMPUTE_CHOICES, BertConfig
from mlperf_bert.training.memory import step_bytes

FLAGS = ("precision", "jit_compile", "train_batch_size", "recompute", "steps_per_update")
"""Of a run: what a measurement is of."""


def measure(flags: dict, num_steps: int) -> dict:
    """Trains in this process; returns peak bytes and median seconds of a step."""
    tf = tensorflow()  # in the child alone
    from mlperf_bert.input import pipeline

    trainer = ours.trainer_of(BertConfig(**BERT_LARGE), **flags)
    batch = pipeline.synthetic_batch(ours.SHAPE, batch_size=flags["train_batch_size"])
    batches = trainer.batches(lambda _: tf.data.Dataset.from_tensors(batch).repeat())
    stamps = [time.perf_counter()]
    for _ in range(1 + num_steps):
        trainer.train(batches, tf.constant(1)).numpy()
        stamps.append(time.perf_counter())
    seconds = [after - before for before, after in itertools.pairwise(stamps[1:])]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak_bytes": peak, "seconds": statistics.median(seconds) if seconds else None}


def estimated_bytes(row: dict) -> int:
    """By the model of memory, of the flags in a row."""
    flags = {name: row[name] for name in FLAGS}
    config = ours.config_of(**flags, **vars(ours.SHAPE), async_checkpoint=False)
    return step_bytes(config, BertConfig(**BERT_LARGE), num_rows=row["train_batch_size"])


def report(file: Path) -> None:
    """Prints a row for each measurement of a file."""
    cells = []
    for row in reports.stored(file):
        precision, jit_compile, size, recompute, _ = (row[name] for name in FLAGS)
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
        about = f"{precision}, --jit_compile={jit_compile}"
        sizes = [f"{each / 2**30:.1f}" for each in (row["peak_bytes"], estimated_bytes(row))]
        cells.append([about, size, recompute, *sizes, seconds])
    titles = ["", "batch", "recompute", "peak, GiB", "estimate", "s a step"]
    print(reports.table(titles, cells), end="")


def main() -> None:
    """Measures what is not in OUTPUT.jsonl yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="without suffix")
    several = {"nargs": "+", "help": "several"}
    parser.add_argument("--batch_sizes", type=whole_number, default=[2, 4, 8], **several)
    precisions = ("float32", "bfloat16")
    parser.add_argument("--precisions", choices=precisions, default=precisions, **several)
    recompute = RECOMPUTE_CHOICES
    parser.add_argument("--recompute", choices=recompute, default=recompute, **several)
    parser.add_argument("--jit_compile", default="auto", choices=["auto", "true", "false"])
    parser.add_argument("--steps", type=int, default=1, help="timed steps; 0: the peak, never time")
    given = parser.parse_args(words_with_home())
    file = given.output.with_suffix(".jsonl")
    for precision, size, recompute in itertools.product(
        given.precisions, given.batch_sizes, given.recompute
    ):
        flags = dict(zip(FLAGS, (precision, given.jit_compile, size, recompute, 1)))
        if reports.is_stored(file, flags):
            continue
        available = psutil.virtual_memory().available
        if estimated_bytes(flags) > available:
            print(f"left out: {flags}: {available / 2**30:.1f} GiB are available", flush=True)
            continue
        row = flags | in_a_process(measure, flags, given.steps)
        reports.store(file, row)
        print(row, flush=True)
    report(file)


if __name__ == "__main__":
    main()
