"""Two processes on loopback: one is killed, stopped, told to end, or started differently.

The twin of a disturbed run is the same command left alone; dropout and shuffling are on.
"""

import re
import resource

import pytest

from tests.helpers import starts, waiting
from tests.training.generated_task import SMALL
from tests.training.lost_processes import AGAIN, kill_and_tell, line_after_stop
from tests.training.small_runs import assert_same_end, command, run_stops, wait_for_step

pytestmark = pytest.mark.gate

NUM_STEPS = 90
SECONDS_TO_END = 30  # after a loss; a second or so on an idle machine


TASK = SMALL


def both(task, output, **changed) -> list:
    """Starts the two processes of a run."""
    flags = {"num_train_steps": NUM_STEPS, "save_checkpoints_steps": 11, "steps_per_update": 2}
    return starts.workers([command(task, output, **flags | changed)] * 2, **starts.NO_WEB)


@pytest.mark.parametrize(
    "victims",
    [
        (1,),
        pytest.param((1, 0), marks=pytest.mark.all),
        pytest.param((1, 0, 0, 1, 0), marks=pytest.mark.soak),
    ],
    ids=["one", "two", "five"],
)
def test_kills_and_a_notice_end_bitwise_where_an_undisturbed_run_does(task, tmp_path, victims):
    expected, output = tmp_path / "undisturbed", tmp_path / "out"
    for code, _, errors in starts.ends(both(task, expected, async_checkpoint="false")):
        assert code == 0, errors
    assert run_stops(expected) == [["aborted"]]  # to the last step, below the target
    log = (expected / "bert.log").read_text()
    assert '"gradient_normalization", "value": "global"' in log
    assert '"num_replicas", "value": 2' in log and log.count('"run_start"') == 1
    assert len(list(expected.glob("events.out.tfevents.*"))) == 1  # each writer makes its own

    kill_and_tell(lambda: both(task, output), output, victims, seconds=SECONDS_TO_END)
    assert_same_end(output, expected, num_steps=NUM_STEPS)


@pytest.mark.all
@pytest.mark.parametrize("victim", [0, 1])
def test_a_silent_process_ends_the_other_with_one_line(task, tmp_path, victim):
    """It is stopped, so it closes no connection: its heartbeats stop, which takes longer."""
    output = tmp_path / "out"
    started = both(task, output)
    wait_for_step(started[0], output, 2)
    line = line_after_stop(started, victim, seconds=SECONDS_TO_END)
    assert line.startswith(f"worker {victim} (localhost:")
    assert re.search(rf"does not answer \(.*\); {AGAIN}$", line)
    if victim == 1:
        assert run_stops(output) == [["aborted"]]


@pytest.mark.all
def test_a_signal_ends_a_process_that_waits_for_another_with_one_line(task, tmp_path):
    folder = tmp_path / "a" / "o"
    [chief, other] = starts.workers([command(task, folder)] * 2)
    other.kill()
    try:
        waiting.until((folder / ".worker-0.json").exists, chief)
        chief.terminate()
        output, errors = chief.communicate(timeout=SECONDS_TO_END)
    finally:
        chief.kill()
    assert chief.returncode == 75 and output == ""
    [line] = errors.splitlines()
    assert line == "run_pretraining.py: interrupted; run the same command again to resume"
    assert not folder.parent.exists()


@pytest.mark.all
def test_the_failure_of_one_process_is_told_by_the_other(task, tmp_path):
    """The chief may write no large file from a step on, and so no checkpoint."""
    started = both(task, tmp_path / "o", async_checkpoint="false")
    wait_for_step(started[0], tmp_path / "o", 2)
    resource.prlimit(started[0].pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    ended = starts.ends(started, seconds=SECONDS_TO_END)
    assert [code for code, _, _ in ended] == [1, 1], ended
    [reason] = re.findall(r"run_pretraining.py: (.*model.ckpt-\d+: .*)", ended[0][2])
    assert "worker 0 (localhost:" in ended[1][2]
    assert f"has ended: {reason}; {AGAIN}" in ended[1][2]
    assert run_stops(tmp_path / "o") == [["aborted"]]
