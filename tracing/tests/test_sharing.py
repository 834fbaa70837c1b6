"""Where reads and writes begin, of processes and threads that share descriptors."""

import os
import platform
import sys
from pathlib import Path

import pytest

from tracing import backends
from tracing.tables import read_table
from tracing.tests import sharing
from tracing.tests.conftest import require, trace

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")

NAME_SPACE = ["unshare", "--fork", "--pid", "--mount-proc"]
"""As in a container, processes have other numbers within."""


@pytest.mark.gate
@pytest.mark.parametrize(
    ("backend", "within"),
    [(backends.STRACE, []), (backends.STRACE, NAME_SPACE), (backends.BPFTRACE, [])],
)
def test_offsets_are_true_or_unknown(backend, within, tmp_path):
    require(backend)
    if within and os.geteuid() != 0:
        pytest.skip("only root can make a name space")
    output, folder = tmp_path / "trace", tmp_path / "data"
    folder.mkdir()
    command = [*within, sys.executable, "-m", "tracing.tests.sharing", str(folder)]
    taken = trace(output, *command, options=[f"--backend={backend}"])
    assert taken.done.returncode == 0, taken.done.stderr
    assert "nothing was lost" in taken.done.stderr
    table = read_table(output, "file_ops").sort_values("monotonic_ns", kind="stable")
    expected = sharing.OFFSETS | sharing.UNKNOWN[backend]
    assert {name: _offsets(table, folder / name)[1:] for name in expected} == expected
    if backend == backends.STRACE:
        mapped = table[table["kind"] == "map"]
        for name in sharing.NAMES:
            [mapping] = mapped[mapped["path"] == _as_recorded(folder / name)].itertuples()
            assert (mapping.offset_bytes, mapping.size_bytes) == (0, 1000)


def _as_recorded(path: Path) -> str:
    return os.fsencode(path).decode(errors="backslashreplace")


def _offsets(table, path: Path) -> list[int | None]:
    """The first one is of the file's making."""
    found = table[table["path"] == _as_recorded(path)]
    offsets = found.loc[found["kind"].isin(["read", "write"]), "offset_bytes"]
    return [None if offset != offset else int(offset) for offset in offsets]
