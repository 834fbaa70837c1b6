"""Two processes on loopback: one is killed, stopped, fails, is told to end, or never starts.

The twin of a disturbed run is the same command left alone. Each process has two devices, and
undisturbed they do what one device does.
"""

import json
import random
import re
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import starts
from tests.training.small_runs import (
    assert_same_end,
    command,
    held,
    last_logged_step,
    run_stops,
    wait_for_step,
)

pytestmark = pytest.mark.gate

TASK = {"num_hidden_layers": 1}
NUM_STEPS = 90
SECONDS_TO_END = 60  # after a loss; a second or so on an idle machine
LOST = re.compile(r"another process was lost \(.*\); start all again")


@pytest.fixture(scope="module")
def start(task, tmp_path_factory, starts_compile_quickly):
    """Starts the processes of a run; their shares of a batch are those of one process.

    What one start compiles is kept for the next, as between the starts of a resumed run.
    """
    cache_dir = str(tmp_path_factory.mktemp("compiled"))

    def start(output, *, processes=2, devices=2, last=None, **changed) -> list[starts.Start]:
        flags = {"num_train_steps": NUM_STEPS, "save_checkpoints_steps": 11, "steps_per_update": 2}
        flags |= {"runtime": "jax", "shuffle": "false"}
        # Two processes share these batches as well as three.
        flags |= {"train_batch_size": 12, "eval_batch_size": 24, "eval_interval_samples": 12 * 25}
        number = f"--xla_force_host_platform_device_count={devices}"
        words = command(task, output, **flags | changed)
        commands = [held(words, *last) if last else words] * processes
        return starts.workers(
            commands,
            **starts.NO_WEB,
            XLA_FLAGS=f"{number} {starts_compile_quickly}",
            JAX_COMPILATION_CACHE_DIR=cache_dir,
            CUDA_VISIBLE_DEVICES="",
        )

    return start


@pytest.fixture(scope="module")
def undisturbed(start, tmp_path_factory) -> Path:
    """What two processes write that are left alone, and wait for their checkpoints."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    for code, said, errors in starts.ends(start(output, async_checkpoint="false")):
        assert code == 0, errors
        assert "[Gloo]" not in said
    assert run_stops(output) == [["aborted"]]  # to the last step, below the target
    log = (output / "bert.log").read_text()
    assert '"gradient_normalization", "value": "global"' in log
    assert '"num_replicas", "value": 4' in log and log.count('"run_start"') == 1
    assert len(list(output.glob("events.out.tfevents.*"))) == 1  # each writer makes its own
    return output


def test_two_processes_of_two_devices_and_three_of_one_equal_one_device(
    start, undisturbed, tmp_path
):
    """The examples have unequal numbers of predictions, and there is no dropout."""
    for processes in (1, 3):
        started = start(tmp_path / str(processes), processes=processes, devices=1)
        for code, _, errors in starts.ends(started):
            assert code == 0, errors
        assert_equal(tmp_path / str(processes), undisturbed)


def assert_equal(*folders: Path) -> None:
    """The figures of two runs, and the tensors of their last checkpoints, to 1e-6."""
    lines = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in folders
    ]
    assert len(lines[0]) == len(lines[1]) > NUM_STEPS / 3
    for expected, found in zip(*lines):
        for name in (n for n in expected if re.search("step$|loss|accuracy|learning_rate", n)):
            assert found[name] == pytest.approx(expected[name], rel=0, abs=1e-6), (name, expected)
    readers = [tf.train.load_checkpoint(f"{folder}/model.ckpt-{NUM_STEPS}") for folder in folders]
    names = [n for n, kind in readers[0].get_variable_to_dtype_map().items() if kind == tf.float32]
    assert len(names) > 60
    for name in names:
        expected, found = (reader.get_tensor(name) for reader in readers)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6, err_msg=name)


def line_of(errors: str) -> str:
    """The one line of a run that has failed."""
    assert "Traceback" not in errors, errors
    [line] = [line for line in errors.splitlines() if line.startswith("run_pretraining.py: ")]
    return line.removeprefix("run_pretraining.py: ")


def assert_ended_for_another(ended: tuple[int, str, str]) -> None:
    """By one line, if the error of a collective operation came first; else by jax's abort()."""
    code, _, errors = ended
    if code != -signal.SIGABRT:
        assert code == 1 and LOST.fullmatch(line_of(errors)), errors


@pytest.mark.parametrize("victims", [(0,), pytest.param((1, 0, 0, 1, 0), marks=pytest.mark.all)])
def test_kills_and_a_notice_end_bitwise_where_an_undisturbed_run_does(
    start, undisturbed, victims, tmp_path
):
    """Each kill is in a start of its own; then one is told to end, and the last start is let be."""
    output = tmp_path / "out"
    rng = random.Random(3)
    for number, victim in enumerate(victims):
        step, go = last_logged_step(output) + rng.randint(1, 12), tmp_path / f"go {number}"
        started = start(output, last=(step + 8, go))
        wait_for_step(started[0], output, step)
        time.sleep(rng.random() * 0.1)
        assert [worker.poll() for worker in started] == [None, None]
        started[victim].kill()
        go.touch()
        assert_ended_for_another(starts.ends(started, seconds=SECONDS_TO_END)[1 - victim])

    step, go = last_logged_step(output) + 3, tmp_path / "go after the notice"
    started = start(output, last=(step + 3, go))
    wait_for_step(started[0], output, step)
    started[1].send_signal(signal.SIGTERM)
    go.touch()
    ends = starts.ends(started, seconds=SECONDS_TO_END)
    assert [code for code, _, _ in ends] == [75, 75], ends
    assert "another process got a signal after step" in ends[0][2]
    [step] = set(re.findall(r"after step (\d+): the checkpoint is saved", ends[0][2] + ends[1][2]))
    newest_log = max(output.glob("bert*.log"), key=lambda path: path.stat().st_mtime)
    saved = re.findall(r'"checkpoint_start".*"step_num": (\d+)', newest_log.read_text())
    assert saved.count(step) == 1 and (output / f"model.ckpt-{step}.index").exists()

    for code, _, errors in starts.ends(start(output)):
        assert code == 0, errors
    assert set(map(tuple, run_stops(output))) == {("aborted",)}  # one each, kills included
    assert_same_end(output, undisturbed, num_steps=NUM_STEPS)


@pytest.mark.all
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_does_not_answer_ends_the_other(start, tmp_path, victim):
    """It is stopped, so it closes no connection; gloo waits for it without an end."""
    output = tmp_path / "out"
    started = start(output, num_train_steps=10**6)
    wait_for_step(started[0], output, 30)
    started[victim].send_signal(signal.SIGSTOP)
    try:
        [ended] = starts.ends([started[1 - victim]], seconds=60)
    finally:
        started[victim].kill()
        started[victim].communicate()
    assert_ended_for_another(ended)


def test_other_flags_are_named_by_both(start, task, tmp_path):
    """Before anything of the run is there; a process that never starts is not waited for long."""
    output = tmp_path / "out"
    flags = {"runtime": "jax", "num_train_steps": 12}
    commands = [command(task, output, **flags | {"learning_rate": rate}) for rate in (1e-3, 2e-3)]
    for code, _, errors in starts.ends(starts.workers(commands, **starts.NO_WEB)):
        assert code == 1
        assert re.fullmatch(
            r"process 1 \(.*\) was started differently \(learning_rate: 0.001 on the chief, 0.002 "
            "there\\); give all processes the same flags, data and software",
            line_of(errors),
        )
    assert not output.exists()
    of_two = starts.environment_of(starts.free_addresses(2), 0)
    words = command(task, output, **flags, connect_timeout_seconds=3)
    [(code, said, _)] = starts.ends([starts.Start(words, env=of_two | starts.NO_WEB)])
    assert code != 0 and "waiting up to 3 s for 1 other process at localhost:" in said
    assert not output.exists()


@pytest.mark.all
def test_the_failure_of_one_process_ends_the_other(start, tmp_path):
    """The chief may write no large file from a step on, and so no checkpoint."""
    last = 9, tmp_path / "go"
    started = start(tmp_path / "o", async_checkpoint="false", last=last)
    wait_for_step(started[0], tmp_path / "o", 2)
    resource.prlimit(started[0].pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    last[1].touch()
    chief, other = starts.ends(started, seconds=SECONDS_TO_END)
    assert chief[0] == 1 and re.search(r"model.ckpt-\d+: ", line_of(chief[2])), chief
    assert_ended_for_another(other)
    assert run_stops(tmp_path / "o") == [["aborted"]]
