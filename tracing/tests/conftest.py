"""Traces of small programs, taken once."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fixtures import lacking
from tests.helpers import programs
from tracing import backends
from tracing.tests import example_training, whole

BACKENDS = [
    pytest.param(name, marks=[] if name == backends.PROC else pytest.mark.gate)
    for name in backends.NAMES
]
TRACE = Path(__file__).resolve().parent.parent.parent / "tracing" / "trace.sh"


def require(backend: str) -> None:
    """Skips a test whose backend does not work here; CI's kernel may refuse bpftrace alone."""
    reason = backends.choose(None).reasons.get(backend)
    if reason and backend == backends.BPFTRACE and shutil.which(backend):
        pytest.skip(f"{backend} cannot run here: {reason}")
    if reason:
        lacking(f"{backend} cannot run here: {reason}")


class Traced:
    """A finished call of trace.sh, and the monotonic time in nanoseconds before and after it."""

    def __init__(self, folder: Path, done: subprocess.CompletedProcess, ends: tuple[int, int]):
        self.folder = folder
        self.done = done
        self.began_ns, self.ended_ns = ends

    @property
    def summary(self) -> dict:
        return json.loads((self.folder / "summary.json").read_text())


def command_line(output: Path, *words, options=()) -> list[str]:
    """Of a trace."""
    return [str(word) for word in [TRACE, "--output", output, *options, "--", *words]]


def environment(**more: str) -> dict[str, str]:
    """Traces run with this interpreter; no sudo, unless a test says so."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SUDO_")}
    return {**kept, "PYTHON": sys.executable, **more}


def observed(folder: Path) -> dict[str, str]:
    """Variables of a trace by observed.py, and the file of its samples."""
    (samples := folder / "samples").touch()
    words = [sys.executable, Path(__file__).with_name("observed.py")]
    # trace.sh asks Python for its packages first; then it gives a program, and words for it.
    text = (
        f'[ "$1" = -c ] || exec {words[0]} "$@"\nshift 2\nexec {shlex.join(map(str, words))} "$@"'
    )
    python = programs.stand_in(folder / "python", text)
    return {"PYTHON": str(python), "SAMPLES": str(samples)}


def trace(output: Path, *words, options=(), **more) -> Traced:
    """Takes a trace of a command."""
    more, began = {"env": environment(), **more}, time.monotonic_ns()
    done = programs.run(*command_line(output, *words, options=options), **more)
    return Traced(output, done, (began, time.monotonic_ns()))


@pytest.fixture(scope="session", params=BACKENDS)
def traced(request, tmp_path_factory) -> Traced:
    """The example training, traced with each backend that works here."""
    require(request.param)
    folder = tmp_path_factory.mktemp("example")
    example_training.make_data(folder)
    words = [sys.executable, "-m", "tracing.tests.example_training", folder]
    options = [f"--backend={request.param}", "--interval_s=0.25"]
    seen_by = environment(**observed(folder))
    found = trace(folder / "trace", *words, options=options, env=seen_by)
    assert found.done.returncode == 0, found.done.stderr
    return found


@pytest.fixture(scope="session")
def whole_trace(tmp_path_factory) -> Path:
    """The whole trace by hand of strace, not to be changed."""
    return whole.write(tmp_path_factory.mktemp("whole"), "strace")


@pytest.fixture
def copied(whole_trace, tmp_path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(whole_trace, tmp_path / "trace"))
