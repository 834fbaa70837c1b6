"""Fixtures that every test may use."""

import collections
import functools
import gc
import os
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from mlperf_bert import messages
from mlperf_bert.tensorflow_import import INFORMATION, lines_left_out

# On a busy machine anything may last ten seconds and say so. Tests of these lines set it again.
messages.SECONDS_BETWEEN_LINES = 1e6

# Until everything is imported: see pytest_collection_finish.
gc.disable()

# As the root scripts set it. Libraries that import jax would otherwise make it 1, and every program
# that a test starts would print TensorFlow's errors about GPUs.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Also as there: TensorFlow would import keras 3 beside tf_keras, once in each process.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

# `nohup make test &` makes every process ignore these signals. Pytest still ignores them, but by
# handlers, which the programs that a test starts do not inherit.
for _number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = REPOSITORY.parent / "shared"
QUICKLY = {"xla_backend_optimization_level": 0}
"""With these options XLA compiles in half of the time; the programs compute the same, slower."""


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """The tests import TensorFlow, which speaks of itself when it is loaded."""
    with lines_left_out(INFORMATION):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the most long tests first, so that no process is left alone with one at the end.

    It needs --no-loadscope-reorder.
    """
    is_long = ("gate", "all")
    long = collections.Counter(
        item.path for item in items if any(map(item.get_closest_marker, is_long))
    )
    items.sort(key=lambda item: -long[item.path])


def pytest_collection_finish() -> None:
    """The garbage collector never looks through what the tests import, as in the root scripts."""
    gc.freeze()
    gc.enable()


def open_to_all(folder: Path) -> None:
    """Lets other users reach a temporary folder, which pytest makes for its own user only."""
    for parent in (folder, *folder.parents):
        mode = stat.S_IMODE(parent.stat().st_mode)
        if parent.is_relative_to(tempfile.gettempdir()) and mode & 0o055 != 0o055:
            parent.chmod(mode | 0o055)


def lacking(reason: str) -> NoReturn:
    """Skips a test for want of a tool or a right; CI has them all, so there it fails."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; in CI this must not be")
    pytest.skip(reason)


MAY_BE_SKIPPED_IN_CI = (
    "/proc tells no single calls",  # what the backend cannot do
    "bpftrace cannot run here",  # the kernel may refuse it
    "has no block device",  # its files lie in a container's overlay
    "TensorFlow rounds partial sums of products",  # a processor without avx512_bf16
    "is not readable for others",  # it lies in root's home
    "no gcloud here",
    "SKIP_CONTAINER_TEST is set",
)
"""Parts of the reasons; each other skip fails in CI, where nobody would see it."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """A skip that is not listed is a failure in CI; -r in pyproject.toml lists all of them."""
    report = yield
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2]
        if not any(part in reason for part in MAY_BE_SKIPPED_IN_CI):
            report.outcome = "failed"
            report.longrepr = f"{reason}; in CI no test may be skipped for this (tests/fixtures.py)"
    return report


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """The two ends of a pseudo-terminal: ours, and the program's."""
    try:
        ends = os.openpty()
    except OSError as error:
        lacking(f"no pseudo-terminal can be had here: {error}")
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and recorded reference results, beside the checkout in CI.

    Elsewhere the test is skipped: each oracle has a twin that needs nothing from outside.
    """
    if not SHARED.is_dir():
        lacking(f"{SHARED} is absent: the recorded reference results are not at hand")
    return SHARED


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Callable[[int], Path]]:
    """Makes a file system of so many KiB, for tests of a full disk."""
    mounted = []

    def make(size_kib: int) -> Path:
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lacking(f"cannot mount a small file system here: {done.stderr.splitlines()[0]}")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


@pytest.fixture
def refusal(capsys):
    """Gives words to a command, which must refuse them; returns its one line."""

    def refusal(command, *words):
        assert command.main([str(word) for word in words]) == 1
        printed = capsys.readouterr()
        [line] = printed.err.splitlines()
        assert printed.out == ""
        return line

    return refusal


@pytest.fixture(scope="module")
def compiles_quickly() -> Iterator[None]:
    """The process of the tests compiles quickly what jax compiles."""
    import jax  # not every process of the tests needs it

    compiles = functools.partialmethod(jax.stages.Lowered.compile, QUICKLY)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jax.stages.Lowered, "compile", compiles)
        yield


@pytest.fixture(scope="module")
def starts_compile_quickly() -> Iterator[str]:
    """Processes that the module starts compile quickly, by jax and TensorFlow; yields XLA_FLAGS."""
    flags = " ".join(f"--{name}={value}" for name, value in QUICKLY.items())
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XLA_FLAGS", flags)
        yield flags


@pytest.fixture(scope="module")
def task(request, tmp_path_factory) -> Path:
    """The generated task, made as the module's TASK says."""
    from tests.training import generated_task  # it imports TensorFlow

    folder = tmp_path_factory.mktemp("task") / "task"
    generated_task.write_task(folder, **getattr(request.module, "TASK", {}))
    return folder
