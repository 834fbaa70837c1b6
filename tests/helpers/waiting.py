"""Waits for what a process that goes on, or another thread, will have done."""

import subprocess
import time
from collections.abc import Callable

HANGS_AFTER_SECONDS = 1800.0
"""Only what hangs takes so long: no machine is that busy."""


def until(
    condition: Callable,
    *running,
    seconds: float = HANGS_AFTER_SECONDS,
    every_seconds: float = 0.02,
):
    """Returns what the condition gives once that is true; no process may end before."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        for process in running:
            assert process.poll() is None, said_by(process)
        assert time.monotonic() < deadline
        time.sleep(every_seconds)
    return found


def said_by(process) -> str:
    """All that an ended process of `starts` or of subprocess has written."""
    try:
        return "\n".join(str(text) for text in process.communicate(timeout=60))
    except subprocess.TimeoutExpired as error:  # what it has started goes on
        return f"{error.stdout!r}\n{error.stderr!r}"
