"""Runs of two processes, by either runtime: one is killed, stopped, or told to end."""

import random
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.helpers import starts
from tests.training.small_runs import last_logged_step, run_stops, wait_for_step

AGAIN = "run the same command on all processes, to go on from the last checkpoint if there is one"


def line_of(errors: str) -> str:
    """The one line of a run that has failed."""
    assert not re.search(r"Traceback|^F\d{4} ", errors, re.M), errors
    [line] = [line for line in errors.splitlines() if line.startswith("run_pretraining.py: ")]
    return line.removeprefix("run_pretraining.py: ")


def kill_and_tell(
    start: Callable[[], list[starts.Start]],
    output: Path,
    victims: Sequence[int],
    *,
    seconds: float,
) -> None:
    """Kills these processes, each in a start of its own; tells one to end; lets the last start be.

    Each time the other process names the lost one, within `seconds`.
    """
    rng = random.Random(3)
    for victim in victims:
        started = start()
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

    started = start()
    wait_for_step(started[0], output, last_logged_step(output) + 3)
    started[1].send_signal(signal.SIGTERM)
    ends = starts.ends(started, seconds=seconds)
    assert [code for code, _, _ in ends] == [75, 75], ends
    assert "another process got a signal after step" in ends[0][2]
    [step] = set(re.findall(r"after step (\d+): the checkpoint is saved", ends[0][2] + ends[1][2]))
    newest_log = max(output.glob("bert*.log"), key=lambda path: path.stat().st_mtime)
    saved = re.findall(r'"checkpoint_start".*"step_num": (\d+)', newest_log.read_text())
    assert saved.count(step) == 1 and (output / f"model.ckpt-{step}.index").exists()

    for code, _, errors in starts.ends(start()):
        assert code == 0, errors
    assert set(map(tuple, run_stops(output))) == {("aborted",)}  # one each, kills included


def line_after_stop(started: list[starts.Start], victim: int, *, seconds: float) -> str:
    """Stops a process, and returns the line with which the other then ends."""
    started[victim].send_signal(signal.SIGSTOP)
    try:
        [(code, _, errors)] = starts.ends([started[1 - victim]], seconds=seconds)
    finally:
        started[victim].kill()
        started[victim].communicate()
    assert code == 1
    return line_of(errors)
