"""Measures what tracing costs: the same training untraced and under every backend that works here.

    python -m tracing.benchmarks.overhead --rounds=3

A tiny BERT trains on TFRecords of random words (`training`: seconds from run_start to run_stop of
the MLPerf log), and a program reads the same files as fast as it can, 4,096 bytes at a time
(`reading`: the worst case, nothing but calls). Every round runs each variant once, untraced first.
The ratio of each is computed within its round; the median, the least and the greatest are printed.
The checkout's run_pretraining.py trains, in the environment of `make setup`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import random_task
from mlperf_bert.data.validity import ExampleShape
from mlperf_bert.mlperf.rules import BERT_LARGE
from tracing import backends, ends_in_one_line, mllog

REPOSITORY = Path(__file__).resolve().parents[2]
UNTRACED = "untraced"
NUM_RECORDS, NUM_REPEATS = 500, 40  # of each of two files
SHAPE = ExampleShape(max_seq_length=64, max_predictions_per_seq=10)
TINY = {
    **BERT_LARGE, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64,
    "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 255,
}  # fmt: skip
READING = """
import os, sys, time
began = time.monotonic()
for _ in range(5):
    for path in sys.argv[1:]:
        descriptor, offset = os.open(path, os.O_RDONLY), 0
        while chunk := os.pread(descriptor, 4096, offset):
            offset += len(chunk)
        os.close(descriptor)
print(time.monotonic() - began)
"""


def make_data(folder: Path) -> list[Path]:
    """Writes a configuration and two files of records."""
    random_task.write(folder, TINY, SHAPE, [SHAPE.max_seq_length] * NUM_RECORDS)
    content = (folder / "train.tfrecord").read_bytes() * NUM_REPEATS
    records = [folder / f"part-{number}" for number in range(2)]
    for path in records:
        path.write_bytes(content)
    return records


def run(variant: str, command: list[str], trace: Path) -> str:
    """Runs a command, traced or not; returns its standard output."""
    if variant != UNTRACED:
        script = REPOSITORY / "tracing" / "trace.sh"
        command = [str(script), f"--output={trace}", f"--backend={variant}", "--", *command]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=REPOSITORY, env=environment, check=False
    )
    if done.returncode:
        said = done.stderr.strip() or "it said nothing"
        sys.exit(f"{variant}: exit code {done.returncode}: {said.splitlines()[-1]}")
    return done.stdout


def seconds_of_training(folder: Path, variant: str, number: int, num_steps: int) -> float:
    """From run_start to run_stop."""
    output = folder / f"run-{variant}-{number}"
    command = [
        sys.executable, str(REPOSITORY / "run_pretraining.py"), "--do_train",
        f"--bert_config_file={folder}/bert_config.json", f"--input_file={folder}/part-*",
        f"--max_seq_length={SHAPE.max_seq_length}", f"--output_dir={output}",
        f"--max_predictions_per_seq={SHAPE.max_predictions_per_seq}", "--train_batch_size=64",
        f"--num_train_steps={num_steps}", "--num_warmup_steps=0",
        f"--save_checkpoints_steps={num_steps // 2}",
    ]  # fmt: skip
    run(variant, command, folder / f"training-{variant}-{number}")
    rows = mllog.event_rows(output / "bert.log", begin_ns=0, end_ns=time.time_ns())
    stamps = {row["key"]: row["realtime_ns"] for row in rows}
    return (stamps["run_stop"] - stamps["run_start"]) / 1e9


def seconds_of_reading(folder: Path, variant: str, number: int, records: list[Path]) -> float:
    """Measured by the program itself."""
    command = [sys.executable, "-c", READING, *map(str, records)]
    return float(run(variant, command, folder / f"reading-{variant}-{number}").split()[-1])


@ends_in_one_line("overhead")
def main() -> None:
    """Measures and prints."""
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num_steps", type=int, default=600, help="of the training")
    parser.add_argument("--workload", choices=["training", "reading"], help="default: both")
    options = parser.parse_args()
    if options.rounds < 1 or options.num_steps < 2:
        raise ValueError("give at least one round and two steps")
    missing = backends.choose(None).reasons
    for name, reason in missing.items():
        print(f"{name}: {reason}")
    variants = [UNTRACED, *(name for name in backends.NAMES if name not in missing)]
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        folder = Path(name)
        records = make_data(folder)
        size = sum(path.stat().st_size for path in records)
        print(f"reading: {5 * size:,} bytes in {5 * size // 4096:,} calls; {options.rounds} rounds")
        workloads = {
            "training": lambda v, n: seconds_of_training(folder, v, n, options.num_steps),
            "reading": lambda v, n: seconds_of_reading(folder, v, n, records),
        }
        for title, measure in workloads.items():
            if options.workload in (None, title):
                report(title, measure, variants, options.rounds)


def report(
    title: str, measure: Callable[[str, int], float], variants: Sequence[str], num_rounds: int
) -> None:
    """Prints seconds of every variant in every round at once; then medians and ratios."""
    rounds: list[dict[str, float]] = []
    for number in range(num_rounds):
        rounds.append({})
        for variant in variants:
            rounds[-1][variant] = measure(variant, number)
            print(f"  round {number + 1}: {variant:9} {rounds[-1][variant]:7.2f} s", flush=True)
    print(time.strftime(f"{title}, %Y-%m-%d"))
    for variant in variants:
        seconds = [measured[variant] for measured in rounds]
        ratios = [measured[variant] / measured[UNTRACED] for measured in rounds]
        print(
            f"  {variant:9} {statistics.median(seconds):7.2f} s   "
            f"{statistics.median(ratios):.3f} of untraced ({min(ratios):.3f} to {max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
