"""Traces of small programs, taken once."""

import json
import os
import shutil
import subprocess
import sys
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
    """A finished call of trace.sh."""

    def __init__(self, folder: Path, done: subprocess.CompletedProcess):
        self.folder = folder
        self.done = done

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


def trace(output: Path, *words, options=(), **more) -> Traced:
    """Takes a trace of a command."""
    more = {"env": environment(), **more}
    return Traced(output, programs.run(*command_line(output, *words, options=options), **more))


@pytest.fixture(scope="session", params=BACKENDS)
def traced(request, tmp_path_factory) -> Traced:
    """The example training, traced with each backend that works here."""
    require(request.param)
    folder = tmp_path_factory.mktemp("example")
    example_training.make_data(folder)
    words = [sys.executable, "-m", "tracing.tests.example_training", folder]
    options = [f"--backend={request.param}", "--interval_s=0.25"]
    found = trace(folder / "trace", *words, options=options)
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
