"""A memory limit around a command: cgroups of either version; written to directly, as root.

systemd-run would do it where systemd runs; in containers and small virtual machines it does not.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LARGEST = 2**63
_JOIN = 'echo $$ > "$0" && exec "$@"'


def parse_bytes(text: str) -> int | None:
    """Bytes of "1g", "512m" or a number, as container engines count; None for "none".

    Raises:
      ValueError: it is neither.
    """
    if text == "none":
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)b?", text.lower())
    size = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < size < _LARGEST:
        raise ValueError(f"--memory: {text[:80]!r} is not a size; give 512m, 1g, bytes, or none")
    return round(size)


@dataclass(frozen=True)
class _Version:
    """Where one version of cgroups keeps what is needed here."""

    root: Path
    limit: str
    swap_limit: str
    swap_counts_memory: bool
    """The limit of swap includes that of memory."""
    kills: str
    """A file with a line "oom_kill N"."""


_V2 = _Version(CGROUPS, "memory.max", "memory.swap.max", False, "memory.events")
_V1 = _Version(
    CGROUPS / "memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", True,
    "memory.oom_control",
)  # fmt: skip


class MemoryGroup:
    """A cgroup of one command."""

    def __init__(self, folder: Path, version: _Version):
        """Takes a group that was made."""
        self._folder = folder
        self._version = version

    def limit(self, limit_bytes: int) -> None:
        """Limits programs and their page cache; without swap, which would hide what is missing."""
        (self._folder / self._version.limit).write_text(str(limit_bytes))
        swap_bytes = limit_bytes if self._version.swap_counts_memory else 0
        with contextlib.suppress(OSError):  # a kernel that does not count swap
            (self._folder / self._version.swap_limit).write_text(str(swap_bytes))

    def joined(self, command: list[str]) -> list[str]:
        """The command, which puts itself into the group first."""
        return ["/bin/sh", "-c", _JOIN, str(self._folder / "cgroup.procs"), *command]

    @property
    def num_kills(self) -> int:
        """How many processes the kernel has killed for want of memory."""
        text = (self._folder / self._version.kills).read_text()
        found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def remove(self) -> None:
        """Removes the group once its processes are gone; what it had in the page cache stays."""
        for _ in range(50):
            with contextlib.suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(0.1)


@contextlib.contextmanager
def memory_group(name: str) -> Iterator[MemoryGroup]:
    """A new group.

    Raises:
      OSError: this user may make none, or the kernel has none.
    """
    version = _V2 if (CGROUPS / "cgroup.controllers").exists() else _V1
    if version is _V2:
        _hand_down_memory()
    folder = version.root / f"{name}-{os.getpid()}"
    folder.mkdir()
    group = MemoryGroup(folder, version)
    try:
        if not (folder / version.limit).exists():
            raise OSError(f"{folder} has no {version.limit}: no memory controller")
        yield group
    finally:
        group.remove()


def _hand_down_memory() -> None:
    """Version 2 gives a group's children a controller only if told to."""
    control = CGROUPS / "cgroup.subtree_control"
    if "memory" not in control.read_text().split():
        control.write_text("+memory")


def missing() -> str | None:
    """Why memory cannot be limited here; None if it can."""
    try:
        with memory_group("mlperf-bert-probe"):
            return None
    except OSError as error:
        return f"{error.strerror or error} ({error.filename or 'cgroups'}); it needs root"
