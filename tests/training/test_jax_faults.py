"""Two processes of two devices by jax, through run_pretraining.py: one is lost, or told to end.

Undisturbed, they do what one device does. The twin of a disturbed run is the same left alone.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import starts
from tests.training.lost_processes import AGAIN, kill_and_tell, line_after_stop
from tests.training.small_runs import assert_same_end, command, run_stops, wait_for_step

pytestmark = pytest.mark.gate

TASK = {"num_hidden_layers": 1}
NUM_STEPS = 90
SECONDS_TO_END = 60


def start(task, output, *, processes=2, devices=2, **changed) -> list[starts.Start]:
    """Starts the processes of a run; their shares of a batch are those of one process."""
    flags = {
        "runtime": "jax",
        "num_train_steps": NUM_STEPS,
        "save_checkpoints_steps": 11,
        "steps_per_update": 2,
        "shuffle": "false",
    }
    commands = [command(task, output, **flags | changed)] * processes
    xla = f"--xla_force_host_platform_device_count={devices}"
    return starts.workers(commands, XLA_FLAGS=xla, CUDA_VISIBLE_DEVICES="", **starts.NO_WEB)


@pytest.fixture(scope="module")
def undisturbed(task, tmp_path_factory) -> Path:
    """What two processes write that are left alone."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    ended = starts.ends(start(task, output))
    for code, said, errors in ended:
        assert code == 0, errors
        assert "[Gloo]" not in said
    assert run_stops(output) == [["aborted"]]  # to the last step, below the target
    log = (output / "bert.log").read_text()
    assert '"num_replicas", "value": 4' in log and log.count('"run_start"') == 1
    return output


def test_two_processes_of_two_devices_equal_one_device(task, undisturbed, tmp_path):
    """The examples have unequal numbers of predictions, and there is no dropout."""
    alone = tmp_path / "alone"
    [(code, _, errors)] = starts.ends(start(task, alone, processes=1, devices=1))
    assert code == 0, errors
    lines = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (alone, undisturbed)
    ]
    assert len(lines[0]) == len(lines[1]) > NUM_STEPS / 3
    for expected, found in zip(*lines):
        for name in (n for n in expected if re.search("step$|loss|accuracy|learning_rate", n)):
            assert found[name] == pytest.approx(expected[name], rel=0, abs=1e-6), (name, expected)
    readers = [
        tf.train.load_checkpoint(str(folder / f"model.ckpt-{NUM_STEPS}"))
        for folder in (alone, undisturbed)
    ]
    names = [n for n, kind in readers[0].get_variable_to_dtype_map().items() if kind == tf.float32]
    assert len(names) > 60
    for name in names:
        expected, found = (reader.get_tensor(name) for reader in readers)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6, err_msg=name)


def test_kills_and_a_notice_end_bitwise_where_an_undisturbed_run_does(task, undisturbed, tmp_path):
    output = tmp_path / "out"
    kill_and_tell(lambda: start(task, output), output, (1, 0), seconds=SECONDS_TO_END)
    assert_same_end(output, undisturbed, num_steps=NUM_STEPS)


@pytest.mark.all
@pytest.mark.parametrize("victim", [0, 1])
def test_a_silent_process_ends_the_other_with_one_line(task, tmp_path, victim):
    """It is stopped: gloo waits for it without an end."""
    output = tmp_path / "out"
    started = start(task, output, num_train_steps=10**6)
    wait_for_step(started[0], output, 30)
    line = line_after_stop(started, victim, seconds=SECONDS_TO_END)
    assert line.startswith(f"worker {victim} (localhost:")
    assert line.endswith(f" does not answer (silent for 20 s); {AGAIN}")
    if victim == 1:
        assert run_stops(output) == [["aborted"]]
        assert not (output / ".lock").exists()
