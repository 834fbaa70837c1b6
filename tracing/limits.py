"""Limits of memory around a command: cgroups of either version, as root.

systemd-run would do it where systemd runs; in containers and small virtual machines it does not.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

CGROUPS = Path("/sys/fs/cgroup")
SIZE = r"(?P<number>\d{1,12}(?:\.\d+)?)(?P<unit>[kmgt]?)b?"
"""Bytes as container engines count them: 1g, 512m, or a number."""
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# The shell joins, then becomes the command: nothing of it runs outside.
_JOIN = 'echo $$ > "$0" && exec "$@"'


def parse_bytes(text: str) -> int | None:
    """Bytes of a SIZE; None for "none"."""
    found = re.fullmatch(SIZE, text.lower())
    return round(float(found["number"]) * _UNITS[found["unit"]]) if found else None


class _Version(NamedTuple):
    """Where one version of cgroups keeps what is needed here."""

    root: Path
    limit: str
    swap_limit: str
    swap_counts_memory: bool
    kills: str
    """A file with a line "oom_kill N"."""


_V2 = _Version(CGROUPS, "memory.max", "memory.swap.max", False, "memory.events")
_V1 = _Version(
    CGROUPS / "memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", True,
    "memory.oom_control",
)  # fmt: skip


@dataclass(frozen=True)
class MemoryGroup:
    """A cgroup of one command."""

    folder: Path
    version: _Version

    def limit(self, limit_bytes: int) -> None:
        """Limits programs and their page cache; without swap, which would hide what is missing."""
        (self.folder / self.version.limit).write_text(str(limit_bytes))
        with contextlib.suppress(OSError):  # a kernel that does not count swap
            swap_bytes = limit_bytes if self.version.swap_counts_memory else 0
            (self.folder / self.version.swap_limit).write_text(str(swap_bytes))

    def joined(self, command: list[str]) -> list[str]:
        """The command, which puts itself into the group first."""
        return ["/bin/sh", "-c", _JOIN, str(self.folder / "cgroup.procs"), *command]

    @property
    def num_kills(self) -> int:
        """How many processes the kernel has killed for want of memory."""
        text = (self.folder / self.version.kills).read_text()
        found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        return int(found[1]) if found else 0


def drop_from_cache(files: Iterable[str | Path]) -> None:
    """Takes files out of the page cache: pages belong to the group that read them first."""
    for path in files:
        with Path(path).open("rb") as file:
            os.fsync(file.fileno())  # pages that are not written back yet would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def memory_group(name: str) -> Iterator[MemoryGroup]:
    """A new group, removed at the end; what it had in the page cache stays.

    Raises:
      OSError: this user may make none, or the kernel has none.
    """
    version = _V2 if (CGROUPS / "cgroup.controllers").exists() else _V1
    if version is _V2:
        # This version gives a group's children a controller only if told to.
        (CGROUPS / "cgroup.subtree_control").write_text("+memory")
    folder = version.root / f"{name}-{os.getpid()}"
    folder.mkdir()
    try:
        if not (folder / version.limit).exists():
            raise OSError(f"{folder} has no {version.limit}: no memory controller")
        yield MemoryGroup(folder, version)
    finally:
        # The kernel lets go of a group some time after its last process has ended.
        for _ in range(50):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


def missing() -> str | None:
    """Why memory cannot be limited here; None if it can."""
    try:
        with memory_group("mlperf-bert-probe"):
            return None
    except OSError as error:
        return f"{error.strerror or error} ({error.filename or 'cgroups'}); it needs root"
