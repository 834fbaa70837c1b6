"""Two processes on loopback, by either runtime: one is killed, stopped, fails, or is told to end.

The twin of a disturbed run is the same command left alone. By TensorFlow dropout and shuffling are
on. By jax each process has two devices, and undisturbed they do what one device does.
"""

import json
import random
import re
import resource
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import starts, waiting
from tests.training.generated_task import SMALL, write_task
from tests.training.small_runs import (
    assert_same_end,
    command,
    last_logged_step,
    run_stops,
    wait_for_step,
)

pytestmark = pytest.mark.gate

TASKS = {"tensorflow": SMALL, "jax": {"num_hidden_layers": 1}}
NUM_STEPS = 90
SECONDS_TO_END = {"tensorflow": 30, "jax": 60}  # after a loss; a second or so on an idle machine
AGAIN = "run the same command on all processes, to go on from the last checkpoint if there is one"

by = partial(pytest.mark.parametrize, "runtime", indirect=True)


@pytest.fixture(scope="module")
def runtime(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def task(runtime, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(runtime)
    write_task(folder, **TASKS[runtime])
    return folder


@pytest.fixture(scope="module")
def start(runtime, task):
    """Starts the processes of a run; their shares of a batch are those of one process."""

    def start(output, *, processes=2, devices=2, **changed) -> list[starts.Start]:
        flags = {"num_train_steps": NUM_STEPS, "save_checkpoints_steps": 11, "steps_per_update": 2}
        environment = dict(starts.NO_WEB)
        if runtime == "jax":
            flags |= {"runtime": "jax", "shuffle": "false"}
            devices = f"--xla_force_host_platform_device_count={devices}"
            environment |= {"XLA_FLAGS": devices, "CUDA_VISIBLE_DEVICES": ""}
        commands = [command(task, output, **flags | changed)] * processes
        return starts.workers(commands, **environment)

    return start


@pytest.fixture(scope="module")
def undisturbed(runtime, start, tmp_path_factory) -> Path:
    """What two processes write that are left alone, and wait for their checkpoints."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    for code, said, errors in starts.ends(start(output, async_checkpoint="false")):
        assert code == 0, errors
        assert "[Gloo]" not in said
    assert run_stops(output) == [["aborted"]]  # to the last step, below the target
    log = (output / "bert.log").read_text()
    assert '"gradient_normalization", "value": "global"' in log
    num_replicas = {"tensorflow": 2, "jax": 4}[runtime]
    assert f'"num_replicas", "value": {num_replicas}' in log and log.count('"run_start"') == 1
    assert len(list(output.glob("events.out.tfevents.*"))) == 1  # each writer makes its own
    return output


@by(["jax"])
def test_two_processes_of_two_devices_equal_one_device(start, undisturbed, tmp_path):
    """The examples have unequal numbers of predictions, and there is no dropout."""
    folders = (tmp_path / "alone", undisturbed)
    [(code, _, errors)] = starts.ends(start(folders[0], processes=1, devices=1))
    assert code == 0, errors
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
    assert not re.search(r"Traceback|^F\d{4} ", errors, re.M), errors
    [line] = [line for line in errors.splitlines() if line.startswith("run_pretraining.py: ")]
    return line.removeprefix("run_pretraining.py: ")


@pytest.mark.parametrize(
    "runtime, victims",
    [
        ("tensorflow", (1,)),
        pytest.param("tensorflow", (1, 0), marks=pytest.mark.all),
        pytest.param("tensorflow", (1, 0, 0, 1, 0), marks=pytest.mark.soak),
        ("jax", (1, 0)),
    ],
    indirect=["runtime"],
)
def test_kills_and_a_notice_end_bitwise_where_an_undisturbed_run_does(
    runtime, start, undisturbed, victims, tmp_path
):
    """Each kill is in a start of its own; then one is told to end, and the last start is let be."""
    output, seconds = tmp_path / "out", SECONDS_TO_END[runtime]
    rng = random.Random(3)
    for victim in victims:
        started = start(output)
        wait_for_step(started[0], output, last_logged_step(output) + rng.randint(1, 12))
        time.sleep(rng.random() * 0.1)
        assert [worker.poll() for worker in started] == [None, None]
        started[victim].kill()
        code, _, errors = starts.ends(started, seconds=seconds)[1 - victim]
        assert code == 1, errors
        assert re.fullmatch(
            rf"worker {victim} \(localhost:.*\) does not answer \(.*\); {AGAIN}", line_of(errors)
        )
        if victim == 1:
            assert run_stops(output)[-1] == ["aborted"]

    started = start(output)
    wait_for_step(started[0], output, last_logged_step(output) + 3)
    started[1].send_signal(signal.SIGTERM)
    ends = starts.ends(started, seconds=seconds)
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
@pytest.mark.parametrize(
    "runtime, silent", [("tensorflow", ".*"), ("jax", "silent for 20 s")], indirect=["runtime"]
)
def test_a_silent_process_ends_the_other_with_one_line(start, tmp_path, victim, silent):
    """It is stopped, so it closes no connection; gloo waits for it without an end."""
    output = tmp_path / "out"
    started = start(output, num_train_steps=10**6)
    wait_for_step(started[0], output, 30)
    started[victim].send_signal(signal.SIGSTOP)
    try:
        [(code, _, errors)] = starts.ends([started[1 - victim]], seconds=60)
    finally:
        started[victim].kill()
        started[victim].communicate()
    assert code == 1
    assert re.fullmatch(
        rf"worker {victim} \(localhost:.*\) does not answer \({silent}\); {AGAIN}", line_of(errors)
    )
    if victim == 1:
        assert run_stops(output) == [["aborted"]]
        assert not (output / ".lock").exists()


@pytest.mark.all
@by(["tensorflow"])
def test_a_signal_ends_a_process_that_waits_for_another_with_one_line(task, tmp_path):
    folder = tmp_path / "a" / "o"
    [chief, other] = starts.workers([command(task, folder)] * 2)
    other.kill()
    try:
        waiting.until((folder / ".worker-0.json").exists, chief)
        chief.terminate()
        output, errors = chief.communicate(timeout=30)
    finally:
        chief.kill()
    assert chief.returncode == 75 and output == ""
    [line] = errors.splitlines()
    assert line == "run_pretraining.py: interrupted; run the same command again to resume"
    assert not folder.parent.exists()


@pytest.mark.all
@by(["tensorflow"])
def test_the_failure_of_one_process_is_told_by_the_other(start, tmp_path):
    """The chief may write no large file from a step on, and so no checkpoint."""
    started = start(tmp_path / "o", async_checkpoint="false")
    wait_for_step(started[0], tmp_path / "o", 2)
    resource.prlimit(started[0].pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    ended = starts.ends(started, seconds=30)
    assert [code for code, _, _ in ended] == [1, 1], ended
    [reason] = re.findall(r"run_pretraining.py: (.*model.ckpt-\d+: .*)", ended[0][2])
    assert "worker 0 (localhost:" in ended[1][2]
    assert f"has ended: {reason}; {AGAIN}" in ended[1][2]
    assert run_stops(tmp_path / "o") == [["aborted"]]
