"""How the other process of a run ends when one is lost: after how many seconds, with which code.

    python -m benchmarks.lost_processes --case=killed
    python -m benchmarks.lost_processes

Starts a training of two processes on loopback. One of them is killed, is stopped (SIGSTOP), is
asked to end (SIGTERM), is not started, or is started with other flags. Seconds count from then, or
from the start of both. The whole table takes ten minutes on an idle machine.

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

SECONDS_TO_START = 200.0
SHAPE = ExampleShape(max_seq_length=32, max_predictions_per_seq=5)
# case -> flags of the lost process that differ
CASES = {
    "killed": [],
    "stopped": [],
    "asked to end": [],
    "never started": [],
    "other learning rate": ["--learning_rate=2e-3"],
}
REASON = re.compile(r"^(run_pretraining\.py: |F\d{4} |.*(aborted|heartbeat|DEADLINE))", re.I)
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "asked to end": signal.SIGTERM}
WAITS_SECONDS = 30


def wait_until(condition: Callable[[], object], seconds: float) -> float:
    """Seconds until the condition is true, or all of them."""
    began = time.monotonic()
    while time.monotonic() - began < seconds and not condition():
        time.sleep(0.05)
    return time.monotonic() - began


def observe(case: str, lost: int, *, folder: Path, patience: float) -> str:
    """One row of the table: when and how the remaining process ended."""
    lengths = [SHAPE.max_seq_length] * 64
    flags = random_task.write(folder, BERT_LARGE | MODELS["tiny"], SHAPE, lengths)
    flags += ["--do_train", "--train_batch_size=4", "--num_train_steps=100000", "--optimizer=lamb"]
    flags += [f"--connect_timeout_seconds={WAITS_SECONDS}", f"--output_dir={folder / 'output'}"]
    addresses, logs = free_addresses(2), [folder / "0.log", folder / "1.log"]
    started = {}
    for index in [1 - lost] if case == "never started" else [0, 1]:
        own = CASES[case] if index == lost else []
        with logs[index].open("w") as file:
            started[index] = subprocess.Popen(
                [sys.executable, "run_pretraining.py", *flags, *own],
                cwd=ROOT,
                env={**environment_of(addresses, index), "CUDA_VISIBLE_DEVICES": ""},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
    left, log = started[1 - lost], logs[1 - lost]
    try:
        if case in SIGNALS:
            # The chief says so at the first step, which both have trained.
            wait_until(lambda: "started in" in logs[0].read_text(), SECONDS_TO_START)
            assert "started in" in logs[0].read_text(), logs[0].read_text()
            time.sleep(3)
            started[lost].send_signal(SIGNALS[case])
        ended = wait_until(lambda: left.poll() is not None, patience)
        code = left.poll()
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    # A shell says 134 of a process that abort() has ended, by signal 6.
    end = (
        f"not in {patience:.0f} s | "
        if code is None
        else f"{ended:.1f} s | {code % 256 if code >= 0 else 128 - code}"
    )
    reasons = [line.strip()[:200] for line in log.read_text().splitlines() if REASON.search(line)]
    return (
        f"| {case} | {'worker' if lost else 'chief'} | {end} | {reasons[-1] if reasons else ''} |"
    )


@ends_in_one_line("lost_processes")
def main() -> None:
    """Runs all cases, prints the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, action="append", help="Only this one.")
    parser.add_argument(
        "--seconds", type=float, default=120, help="Waits this long for the other to end."
    )
    given = parser.parse_args(words_with_home())
    print("| case | which | the other has ended after | with code | its last line |")
    print("|---|---|---|---|---|")
    for case, lost in itertools.product(given.case or CASES, (1, 0)):
        with tempfile.TemporaryDirectory() as folder:
            row = observe(case, lost, folder=Path(folder), patience=given.seconds)
            print(row, flush=True)


if __name__ == "__main__":
    sys.exit(main())
