"""What a process of a run reports, and after how long, when the other one is lost.

    python -m benchmarks.lost_processes --case=killed --watch=tensorflow --watch=jax
    python -m benchmarks.lost_processes

Starts a training of two processes on loopback. One of them is killed, is stopped (SIGSTOP), is not
started, or is started with other flags. Prints when and how the other one ended, in seconds
since the loss (or since the start of both, if none is lost). The loss is noticed by TensorFlow or
jax. The whole table takes half an hour on an idle machine, nearly all of it waiting.

benchmarks/NOTES.md has the table.
"""

import argparse
import itertools
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import random_task
from benchmarks.accelerator import MODELS
from benchmarks.processes import ROOT, environment_of, free_addresses
from mlperf_bert.data.validity import ExampleShape
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.rules import BERT_LARGE
from mlperf_bert.options import words_with_home

WATCHES = ("tensorflow", "jax")
SECONDS_TO_START = 200.0
SHAPE = ExampleShape(max_seq_length=32, max_predictions_per_seq=5)
# case -> flags of the lost process that differ
CASES = {
    "killed": [],
    "silent": [],
    "missing": [],
    "other learning rate": ["--learning_rate=2e-3"],
}
REASON = re.compile(r"aborted by|heartbeat|seems down|is down|unavailable|worker \d|mismatch", re.I)
SIGNALS = {"killed": signal.SIGKILL, "silent": signal.SIGSTOP}


def wait_until(condition: Callable[[], object], seconds: float) -> float:
    """Seconds until the condition is true, or all of them."""
    began = time.monotonic()
    while time.monotonic() - began < seconds and not condition():
        time.sleep(0.05)
    return time.monotonic() - began


def observe(case: str, watch: str, lost: int, *, folder: Path, patience: float) -> str:
    """One row of the table: when and how the remaining process ended."""
    lengths = [SHAPE.max_seq_length] * 64
    flags = random_task.write(folder, BERT_LARGE | MODELS["tiny"], SHAPE, lengths)
    flags += ["--do_train", "--train_batch_size=4", "--num_train_steps=100000", "--optimizer=lamb"]
    flags += [f"--runtime={watch}", f"--output_dir={folder / 'output'}"]
    addresses, logs = free_addresses(2), [folder / "0.log", folder / "1.log"]
    started = {}
    for index in [1 - lost] if case == "missing" else [0, 1]:
        own = CASES[case] if index == lost else []
        with logs[index].open("w") as file:
            started[index] = subprocess.Popen(
                [sys.executable, "run_pretraining.py", *flags, *own],
                cwd=ROOT,
                env={**environment_of(addresses, index), "CUDA_VISIBLE_DEVICES": ""},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
    left, log, said_before = started[1 - lost], logs[1 - lost], 0
    try:
        if case in SIGNALS:
            # The chief says so at the first step, which both have trained.
            wait_until(lambda: "started in" in logs[0].read_text(), SECONDS_TO_START)
            assert "started in" in logs[0].read_text(), logs[0].read_text()
            time.sleep(3)
            said_before = len(log.read_text())
            started[lost].send_signal(SIGNALS[case])
        told = wait_until(
            lambda: left.poll() is not None or REASON.search(log.read_text(), said_before), patience
        )
        ended = told + wait_until(lambda: left.poll() is not None, patience - told)
        has_ended = left.poll() is not None
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    end = f"not in {patience:.0f} s"
    if has_ended:
        end = f"{ended:.1f} s, its line after {told:.1f} s"
    reasons = [line.strip()[:300] for line in log.read_text().splitlines() if REASON.search(line)]
    who = "worker" if lost else "chief"
    return f"| {case} | {who} | {watch} | {end} | {reasons[-1] if reasons else ''} |"


@ends_in_one_line("lost_processes")
def main() -> None:
    """Runs all cases, prints the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, action="append", help="Only this one.")
    parser.add_argument("--watch", choices=WATCHES, action="append", help="Only this one.")
    parser.add_argument(
        "--seconds", type=float, default=330, help="Waits this long for the other to end."
    )
    given = parser.parse_args(words_with_home())
    print("| case | lost | noticed by | the other has ended after | its reason |")
    print("|---|---|---|---|---|")
    for case, watch, lost in itertools.product(given.case or CASES, given.watch or WATCHES, (1, 0)):
        with tempfile.TemporaryDirectory() as folder:
            row = observe(case, watch, lost, folder=Path(folder), patience=given.seconds)
            print(row, flush=True)


if __name__ == "__main__":
    sys.exit(main())
