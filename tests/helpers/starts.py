"""Starts the project's programs as forks of a process that has imported TensorFlow.

Each start is a process of its own, in the repository's root, with its own environment, output and
signals, like `python program flags`; only the imports, seconds of each start, are paid once.
"""

import atexit
import json
import multiprocessing
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.fixtures import REPOSITORY
from tests.helpers.waiting import HANGS_AFTER_SECONDS

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.helpers.imported"])
"""Makes processes as forks of one that computes nothing, so that no lock is held at a fork."""


class Start:
    """A started program, with the methods of subprocess.Popen that the tests use.

    Standard output and error go to files, so that nobody needs to read them for it to go on.
    """

    def __init__(
        self,
        command: Sequence[object],
        *,
        env: Mapping[str, str] | None = None,
        errors_in_output: bool = False,
    ):
        """Starts `python program flags`, a command that begins with sys.executable."""
        self.args = [str(word) for word in command]
        assert self.args[0] == sys.executable and self.args[1].endswith(".py")
        self._folder = tempfile.TemporaryDirectory(prefix="start-")
        self._output = Path(self._folder.name, "output")
        self._errors = self._output if errors_in_output else self._output.with_name("errors")
        files = [str(self._output), str(self._errors)]
        self._process = FORKS.Process(
            target=_run, args=(self.args[1:], dict(env or os.environ), files)
        )
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Standard output and error, once it has ended."""
        self.wait(timeout)
        return self.output(), self.errors()

    def output(self) -> str:
        """What it has written to standard output so far."""
        return self._output.read_text() if self._output.exists() else ""

    def errors(self) -> str:
        """What it has written to standard error so far."""
        return self._errors.read_text() if self._errors.exists() else ""

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    command: Sequence[object],
    *,
    check: bool = False,
    seconds: float = HANGS_AFTER_SECONDS,
    **options,
) -> subprocess.CompletedProcess:
    """Runs a program, started with the options, to its end, which must come in so many seconds."""
    started = Start(command, **options)
    try:
        output, errors = started.communicate(timeout=seconds)
    finally:
        started.kill()
    done = subprocess.CompletedProcess(started.args, started.returncode, output, errors)
    assert not check or done.returncode == 0, done.stderr or done.stdout
    return done


# A proxy for the web that does not answer: the processes of a run do without it.
NO_WEB = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}


# Below what Linux gives to whoever asks for any port, and to connections (32768 and more).
_PORTS = range(20_000, 30_000)
_taken: list[socket.socket] = []


def free_addresses(count: int) -> list[str]:
    """Loopback addresses whose ports nobody else takes: free now, and held against other tests."""
    found: list[str] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            break
        held = socket.socket(socket.AF_UNIX)
        try:
            held.bind(f"\0port {port} of a test")  # until this process ends
            socket.create_server(("localhost", port)).close()
        except OSError:
            held.close()
            continue
        _taken.append(held)
        found.append(f"localhost:{port}")
    return found


def environment_of(addresses: list[str], index: int) -> dict[str, str]:
    """The environment of one worker; without addresses, of a single process."""
    if not addresses:
        return dict(os.environ)
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return {**os.environ, "TF_CONFIG": json.dumps(cluster)}


def workers(commands: Sequence[Sequence[object]], **environment: str) -> list[Start]:
    """Starts the processes of a run on loopback, one for each command; a single one is alone."""
    addresses = free_addresses(len(commands)) if len(commands) > 1 else []
    return [
        Start(command, env=environment_of(addresses, index) | environment)
        for index, command in enumerate(commands)
    ]


def ends(
    started: Sequence[Start], *, seconds: float = HANGS_AFTER_SECONDS
) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each, in order; none may outlive the time."""
    try:
        ended = [(process.communicate(timeout=seconds), process.returncode) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(code, *texts) for texts, code in ended]


def _run(argv: list[str], environment: dict[str, str], files: list[str]) -> None:
    for number, path in enumerate(files, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # of another TMPDIR
    os.chdir(REPOSITORY)
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).parent))  # as Python does
    try:
        runpy.run_path(argv[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
