"""Processes that measure: one of its own, and a command that is watched."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from mlperf_bert.messages import lasting

ROOT = Path(__file__).resolve().parent.parent


@lasting("a measurement in a process of its own")
def in_a_process(function: Callable, *arguments: Any) -> Any:
    """What a function of a module returns in a new process, which then ends."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


@contextlib.contextmanager
def started(
    command: Sequence[object], *, limit_seconds: float, **how: Any
) -> Iterator[subprocess.Popen[str]]:
    """A command that may import this project, whose output is read by line; `how` as for Popen.

    What PYTHONPATH has stays there, such as the packages of pack_run.py.

    It is killed after `limit_seconds` or when the block ends, with all that it has started: a
    compiler or an export would share the machine with what is measured next.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    usual = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": path}}
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, text=True, errors="replace",
        start_new_session=True, **usual | how,
    )  # fmt: skip

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    limit = threading.Timer(limit_seconds, kill)
    limit.start()
    try:
        with lasting(f"waiting for {command[1]}"):
            yield process
    finally:
        limit.cancel()
        kill()
        process.wait()


def finished(
    command: Sequence[object], limit: float, *, expected: int = 0, stop_at: str | None = None
) -> dict:
    """What a command prints, which is killed after `limit` seconds.

    After a line that begins with `stop_at` it gets SIGTERM; it fails with another exit code than
    the expected one.
    """
    said: list[str] = []
    with started(command, limit_seconds=limit, stderr=subprocess.STDOUT) as process:
        for line in process.stdout or ():
            said.append(line.rstrip())
            if stop_at and line.startswith(stop_at):
                process.send_signal(signal.SIGTERM)
        code = process.wait()
    failed = {} if code == expected else {"failed": f"exit code {code}, not {expected}"}
    return {"said": said[-50:]} | failed
