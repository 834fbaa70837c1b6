"""Limits of memory and of a disk's speed around a command: cgroups of either version, as root.

systemd-run would do it where systemd runs; in containers and small virtual machines it does not.
"""

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

CGROUPS = Path("/sys/fs/cgroup")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LARGEST = 2**63
# The shell joins, then becomes the command: nothing of it runs outside.
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
        raise ValueError(f"{text[:80]!r} is not a size; give 512m, 1g, bytes, or none")
    return round(size)


class _Version(NamedTuple):
    """Where one version of cgroups keeps what is needed here."""

    root: Path
    limit: str
    swap_limit: str
    swap_counts_memory: bool
    kills: str
    """A file with a line "oom_kill N"."""
    disk_root: Path
    disk_limit: str
    reading: str
    """What a limit of reading is called in that file."""


_V2 = _Version(
    CGROUPS, "memory.max", "memory.swap.max", False, "memory.events", CGROUPS, "io.max", "rbps="
)
_V1 = _Version(
    CGROUPS / "memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", True,
    "memory.oom_control", CGROUPS / "blkio", "blkio.throttle.read_bps_device", "",
)  # fmt: skip


class MemoryGroup:
    """A cgroup of one command."""

    def __init__(self, folder: Path, version: _Version):
        """Takes a group that was made."""
        self.folders = [folder]
        """With version 1 a limit of reading has one of its own."""
        self._version = version

    def limit(self, limit_bytes: int) -> None:
        """Limits programs and their page cache; without swap, which would hide what is missing."""
        version, folder = self._version, self.folders[0]
        (folder / version.limit).write_text(str(limit_bytes))
        with contextlib.suppress(OSError):  # a kernel that does not count swap
            swap_bytes = limit_bytes if version.swap_counts_memory else 0
            (folder / version.swap_limit).write_text(str(swap_bytes))

    def limit_reading(self, bytes_per_s: int, place: Path) -> None:
        """Limits what is read from the disk that holds a place; what the page cache gives is free.

        Raises:
          OSError: the place is on no disk, or this user may not.
        """
        version, disk = self._version, _disk_of(place)
        folder = version.disk_root / self.folders[0].name
        if folder not in self.folders:
            folder.mkdir()
            self.folders.append(folder)
        (folder / version.disk_limit).write_text(f"{disk} {version.reading}{bytes_per_s}")

    def joined(self, command: list[str]) -> list[str]:
        """The command, which puts itself into the group first."""
        for folder in self.folders:
            command = ["/bin/sh", "-c", _JOIN, str(folder / "cgroup.procs"), *command]
        return command

    @property
    def num_kills(self) -> int:
        """How many processes the kernel has killed for want of memory."""
        text = (self.folders[0] / self._version.kills).read_text()
        found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def remove(self) -> None:
        """Removes the group once its processes are gone; what it had in the page cache stays."""
        # The kernel lets go of a group some time after its last process has ended.
        for folder in self.folders:
            for _ in range(50):
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.1)


def _disk_of(place: Path) -> str:
    """The numbers, as in "8:0", of the disk, not of the partition, that holds a file or folder."""
    number = place.stat().st_dev
    device = Path("/sys/dev/block") / f"{os.major(number)}:{os.minor(number)}"
    if not device.exists():  # a tmpfs, an overlay or a network file system
        raise OSError(errno.ENODEV, "it is on no disk whose speed can be limited", str(place))
    device = device.resolve()
    disk = device.parent if (device / "partition").exists() else device
    return (disk / "dev").read_text().strip()


def drop_from_cache(files: Iterable[str | Path]) -> None:
    """Takes files out of the page cache: pages belong to the group that read them first."""
    for path in files:
        with Path(path).open("rb") as file:
            os.fsync(file.fileno())  # pages that are not written back yet would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def memory_group(name: str) -> Iterator[MemoryGroup]:
    """A new group.

    Raises:
      OSError: this user may make none, or the kernel has none.
    """
    version = _V2 if (CGROUPS / "cgroup.controllers").exists() else _V1
    if version is _V2:
        # This version gives a group's children a controller only if told to.
        control = CGROUPS / "cgroup.subtree_control"
        control.write_text("+memory")
        with contextlib.suppress(OSError):  # only a limit of reading needs it
            control.write_text("+io")
    folder = version.root / f"{name}-{os.getpid()}"
    folder.mkdir()
    group = MemoryGroup(folder, version)
    try:
        if not (folder / version.limit).exists():
            raise OSError(f"{folder} has no {version.limit}: no memory controller")
        yield group
    finally:
        group.remove()


def missing() -> str | None:
    """Why memory cannot be limited here; None if it can."""
    try:
        with memory_group("mlperf-bert-probe"):
            return None
    except OSError as error:
        return f"{error.strerror or error} ({error.filename or 'cgroups'}); it needs root"
