"""What a checkpoint costs the training: waiting for it, against writing it while training goes on.

    python -m benchmarks.checkpointing --rounds=3

Trains BERT-large with LAMB (weights and slots: 4 GB), one example of 128 tokens a step, once for
each way of saving; they take turns. Printed are medians, least and greatest:

- stands still: seconds until the training goes on, by the run's ledger
- complete: seconds until the checkpoint can be read, by its log
- next step: seconds that it takes longer than others; there the copy is made
- memory: the most that the process held, of which the state and TensorFlow are a part
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import random_task, reports
from benchmarks.processes import ROOT, in_a_process
from mlperf_bert.data.validity import ExampleShape
from mlperf_bert.mlperf import logs
from mlperf_bert.mlperf.rules import BERT_LARGE
from mlperf_bert.options import whole_number, words_with_home

WAYS = {"synchronous": "--noasync_checkpoint", "asynchronous": "--async_checkpoint"}
SHAPE = ExampleShape(max_seq_length=128, max_predictions_per_seq=20)
SAVED_STEP = 12
"""Half of the training, so that what is written then is complete before the end is saved."""
TITLES = ("stands still, s", "complete, s", "next step longer by, s", "memory, GB")


def measure(way: str, folder: str) -> list[float]:
    """Trains; the figures of a row. In a process of its own, for the sake of its memory."""
    output = Path(folder, "output")
    flags = random_task.write(Path(folder), BERT_LARGE, SHAPE, [SHAPE.max_seq_length] * 32)
    flags += ["--do_train", "--optimizer=lamb", "--train_batch_size=1", "--log_every_steps=1"]
    flags += [f"--num_train_steps={2 * SAVED_STEP}", f"--save_checkpoints_steps={SAVED_STEP}"]
    command = [sys.executable, "run_pretraining.py", *flags, WAYS[way], f"--output_dir={output}"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    lines = {line["step"]: line for line in reports.training_lines(output)}
    alone = statistics.median(lines[step]["compute_seconds"] for step in range(2, SAVED_STEP + 1))
    after = lines[SAVED_STEP + 1]
    records = logs.read_records(output / "bert.log")
    begun, done = (
        next(each.time_ms for each in records if each.key == f"checkpoint_{end}")
        for end in ("start", "stop")
    )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    times = [after["saving_seconds"], (done - begun) / 1e3, after["compute_seconds"] - alone]
    return [*times, peak / 1e9]


def spread(values: list[float]) -> str:
    """Median, least and greatest."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=whole_number, default=3)
    parser.add_argument("--output", help="a folder on the disk to measure; default: temporary")
    given = parser.parse_args(words_with_home())
    turns: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for number in range(given.rounds):
        for way, rows in turns.items():
            with tempfile.TemporaryDirectory(prefix="checkpointing-", dir=given.output) as folder:
                rows.append(in_a_process(measure, way, folder))
            print(f"round {number + 1}: {way}: {rows[-1]}", flush=True)
    columns = {way: list(map(list, zip(*rows))) for way, rows in turns.items()}
    print(reports.table(["", *TITLES], [[w, *map(spread, each)] for w, each in columns.items()]))
    one, other = (statistics.median(columns[way][0]) for way in WAYS)
    print(f"asynchronous: stands still {other / one:.3f} of the time of synchronous")


if __name__ == "__main__":
    main()
