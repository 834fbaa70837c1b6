"""What a process of a run reports, and after how long, when the other one is lost.

    python -m benchmarks.lost_processes --case=killed --watch=tensorflow --watch=jax
    python -m benchmarks.lost_processes

Starts two processes on loopback that add up a tensor again and again, like the gradients of a
training. One of them is killed, is stopped (SIGSTOP), is not started, or is started with other
flags. Prints when and how the other one ended, in seconds since the loss (or since the start of
both, if none is lost). The loss is noticed as in a run by TensorFlow or jax. The whole table takes
half an hour on an idle machine, nearly all of it waiting.

benchmarks/NOTES.md has the table.
"""

import argparse
import itertools
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import environment_of, free_addresses
from mlperf_bert.options import words_with_home
from mlperf_bert.tensorflow_import import tensorflow

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-m", "benchmarks.lost_processes"]
WATCHES = ("tensorflow", "jax")
SECONDS_TO_START = 200.0
FAILS = "fails_at_step"

# case -> flags of the lost process that differ
CASES = {
    "killed": {},
    "silent": {},
    "missing": {},
    "other learning rate": {"learning_rate": 0.002},
    "fails": {FAILS: 100},
}
FLAGS = {"learning_rate": 0.001, "size": 1000, "num_steps": 1000}
REASON = re.compile(r"aborted by|heartbeat|seems down|is down|unavailable|worker \d|mismatch", re.I)
SIGNALS = {"killed": signal.SIGKILL, "silent": signal.SIGSTOP}


def train(flags: dict, step: Callable[[], object]) -> None:
    """Adds up a tensor over the processes again and again."""
    for number in range(flags["num_steps"]):
        step()
        if number == 0:
            print("trains", flush=True)
        if number == flags.get(FAILS):
            raise OSError("disk is full")
        time.sleep(0.02)


def by_tensorflow(strategy: Any, flags: dict) -> Callable[[], Any]:
    """A step that adds up a tensor of every process."""
    tf = tensorflow()

    @tf.function
    def step():
        context = tf.distribute.get_replica_context()
        gradient = tf.ones([flags["size"]]) * flags["learning_rate"]
        return context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)

    return lambda: strategy.run(step)


def by_jax(mesh: Any, flags: dict) -> Callable[[], Any]:
    """A step that adds up a tensor of every device, and returns the sum."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    every = PartitionSpec(mesh.axis_names)
    own = np.full([mesh.size, flags["size"]], flags["learning_rate"], np.float32)
    rows = jax.make_array_from_callback(own.shape, NamedSharding(mesh, every), own.__getitem__)
    add = jax.shard_map(
        lambda row: jax.lax.psum(row, mesh.axis_names),
        mesh=mesh,
        in_specs=every,
        out_specs=PartitionSpec(),
    )
    step = jax.jit(add)
    return lambda: np.array(step(rows).addressable_data(0))


def member(watch: str, flags: dict, folder: Path) -> None:
    """One of the two processes; they share the folder."""
    tensorflow()
    from mlperf_bert.training import output, processes, workers
    from mlperf_bert.training.config import DeviceConfig

    cluster = workers.read_cluster()
    compared = {name: value for name, value in flags.items() if name != FAILS}
    processes.Meeting(cluster, folder).hold(compared, None, dict)
    config = types.SimpleNamespace(runtime=watch, device=DeviceConfig(), compilation_cache_dir=None)
    connection = workers.module_of(config.runtime).Connection(config, cluster)
    team = workers.Team(
        cluster=cluster,
        connection=connection,
        output=output.OutputDirectory(str(folder), {}),
        release=lambda: None,
        seed=0,
        resumes=False,
        latest_step=None,
    )
    with team.failures_reported():
        if watch == "jax":
            step = by_jax(connection.devices.mesh, flags)
            connection.call(step)
            train(flags, lambda: connection.train(step))
        else:
            train(flags, by_tensorflow(connection.devices.strategy, flags))


def wait_until(condition, seconds: float) -> float | None:
    """Seconds until the condition is true, None if it is not in time."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if condition():
            return time.monotonic() - began
        time.sleep(0.05)
    return None


def observe(case: str, watch: str, lost: int, *, folder: Path, patience: float) -> str:
    """One row of the table: when and how the remaining process ended."""
    addresses, logs = free_addresses(2), [folder / "0.log", folder / "1.log"]
    flags = [FLAGS | (CASES[case] if index == lost else {}) for index in range(2)]
    indices = [1 - lost] if case == "missing" else [0, 1]
    started = {}
    for i in indices:
        with logs[i].open("w") as file:
            started[i] = subprocess.Popen(
                [*COMMAND, watch, json.dumps(flags[i]), folder],
                cwd=ROOT,
                env={**environment_of(addresses, i), "CUDA_VISIBLE_DEVICES": ""},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
    left, log = started[1 - lost], logs[1 - lost]
    try:
        if case in SIGNALS:
            trains = wait_until(
                lambda: all("trains" in each.read_text() for each in logs), SECONDS_TO_START
            )
            assert trains, [each.read_text() for each in logs]
            time.sleep(3)
            started[lost].send_signal(SIGNALS[case])
        elif case == "fails":
            wait_until(lambda: started[lost].poll() is not None, SECONDS_TO_START)
        began = time.monotonic()
        wait_until(lambda: left.poll() is not None or REASON.search(log.read_text()), patience)
        told = time.monotonic() - began
        has_ended = wait_until(lambda: left.poll() is not None, max(patience - told, 0)) is not None
        ended = time.monotonic() - began
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    text = log.read_text()
    end = f"not in {patience:.0f} s"
    if has_ended:
        end = f"{ended:.1f} s, its line after {told:.1f} s"
    reasons = [line.strip()[:300] for line in text.splitlines() if REASON.search(line)]
    reason = reasons[-1] if reasons else ""
    return f"| {case} | {'worker' if lost else 'chief'} | {watch} | {end} | {reason} |"


def main() -> None:
    """Runs all cases, prints the table row by row."""
    if len(sys.argv) == 4 and sys.argv[1] in WATCHES:
        member(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, action="append", help="Only this one.")
    parser.add_argument("--watch", choices=WATCHES, action="append", help="Only this one.")
    parser.add_argument(
        "--seconds", type=float, default=330, help="Waits this long for the other to end."
    )
    given = parser.parse_args(words_with_home())
    print("| case | lost | noticed by | the other has ended after | its reason |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for case, watch in itertools.product(given.case or CASES, given.watch or WATCHES):
            for lost in (1, 0):
                row = observe(case, watch, lost, folder=Path(folder), patience=given.seconds)
                print(row, flush=True)


if __name__ == "__main__":
    main()
