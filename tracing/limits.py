"""Limits of memory and of a disk's speed around a command: cgroups of either version, as root.

    python -m tracing.limits --memory=700m --read_speed=8m -- fio replay.fio

--read_speed is bytes a second, of the disk that holds --disk. At the end it says how much memory
the programs held: what a limit leaves beyond that is the page cache's. systemd-run would do it
where systemd runs; in containers and small virtual machines it does not.

Exit codes: 1 bad input; else the command's; 137 it was killed, as for want of memory.
"""

import contextlib
import errno
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracing import ends_in_one_line, parser_of, path_with_home

CGROUPS = Path("/sys/fs/cgroup")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LARGEST = 2**63
_TURN_S = 0.05
_JOIN = 'echo $$ > "$0" && exec "$@"'


def parse_bytes(text: str, name: str = "--memory") -> int | None:
    """Bytes of "1g", "512m" or a number, as container engines count; None for "none".

    Raises:
      ValueError: it is neither.
    """
    if text == "none":
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)b?", text.lower())
    size = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < size < _LARGEST:
        raise ValueError(f"{name}: {text[:80]!r} is not a size; give 512m, 1g, bytes, or none")
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
    disk_root: Path
    disk_limit: str
    reading: str
    """What a limit of reading is called in that file."""
    used: str
    cached: str
    """Of memory.stat: what is page cache of what is used."""


_V2 = _Version(
    CGROUPS, "memory.max", "memory.swap.max", False, "memory.events", CGROUPS, "io.max", "rbps=",
    "memory.current", "file",
)  # fmt: skip
_V1 = _Version(
    CGROUPS / "memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", True,
    "memory.oom_control", CGROUPS / "blkio", "blkio.throttle.read_bps_device", "",
    "memory.usage_in_bytes", "cache",
)  # fmt: skip


class MemoryGroup:
    """A cgroup of one command."""

    def __init__(self, folder: Path, version: _Version):
        """Takes a group that was made."""
        self._folder = folder
        self._version = version
        self._folders = [folder]

    def limit(self, limit_bytes: int) -> None:
        """Limits programs and their page cache; without swap, which would hide what is missing."""
        (self._folder / self._version.limit).write_text(str(limit_bytes))
        swap_bytes = limit_bytes if self._version.swap_counts_memory else 0
        with contextlib.suppress(OSError):  # a kernel that does not count swap
            (self._folder / self._version.swap_limit).write_text(str(swap_bytes))

    def limit_reading(self, bytes_per_s: int, place: Path) -> None:
        """Limits what is read from the disk that holds a place; what the page cache gives is free.

        Raises:
          OSError: the place is on no disk, or this user may not.
        """
        version, disk = self._version, disk_of(place)
        folder = version.disk_root / self._folder.name
        if folder not in self._folders:
            folder.mkdir()
            self._folders.append(folder)
        (folder / version.disk_limit).write_text(f"{disk} {version.reading}{bytes_per_s}")

    def joined(self, command: list[str]) -> list[str]:
        """The command, which puts itself into the group first."""
        for folder in self._folders:
            command = ["/bin/sh", "-c", _JOIN, str(folder / "cgroup.procs"), *command]
        return command

    @property
    def held_bytes(self) -> int:
        """Memory that the programs and the kernel hold for them now, without the page cache."""
        used = int((self._folder / self._version.used).read_text())
        lines = (self._folder / "memory.stat").read_text().splitlines()
        return used - int(dict(map(str.split, lines))[self._version.cached])

    @property
    def num_kills(self) -> int:
        """How many processes the kernel has killed for want of memory."""
        text = (self._folder / self._version.kills).read_text()
        found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def remove(self) -> None:
        """Removes the group once its processes are gone; what it had in the page cache stays."""
        for folder in self._folders:
            for _ in range(50):
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.1)


def disk_of(place: Path) -> str:
    """Its numbers, as in "8:0", of the disk, not of the partition, that holds a file or folder.

    Raises:
      OSError: it is on none, as in a tmpfs, an overlay or a network file system.
    """
    number = place.stat().st_dev
    device = Path("/sys/dev/block") / f"{os.major(number)}:{os.minor(number)}"
    if not device.exists():
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
        _hand_down()
    folder = version.root / f"{name}-{os.getpid()}"
    folder.mkdir()
    group = MemoryGroup(folder, version)
    try:
        if not (folder / version.limit).exists():
            raise OSError(f"{folder} has no {version.limit}: no memory controller")
        yield group
    finally:
        group.remove()


def _hand_down() -> None:
    """Version 2 gives a group's children a controller only if told to."""
    control = CGROUPS / "cgroup.subtree_control"
    handed = control.read_text().split()
    if "memory" not in handed:
        control.write_text("+memory")
    if "io" not in handed:
        with contextlib.suppress(OSError):  # only a limit of reading needs it
            control.write_text("+io")


def missing() -> str | None:
    """Why memory cannot be limited here; None if it can."""
    try:
        with memory_group("mlperf-bert-probe"):
            return None
    except OSError as error:
        return f"{error.strerror or error} ({error.filename or 'cgroups'}); it needs root"


def run(command: list[str], *, memory_bytes: int | None, read_speed: int | None, disk: Path) -> int:
    """Runs a command within limits; returns its exit code, 128 + N for signal N.

    Raises:
      OSError: the limits cannot be set.
    """
    with memory_group("mlperf-bert-limits") as group:
        if memory_bytes is not None:
            group.limit(memory_bytes)
        if read_speed is not None:
            group.limit_reading(read_speed, disk)
        process = subprocess.Popen(group.joined(command))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda received, _: process.send_signal(received))
        held = [group.held_bytes]
        while (code := process.poll()) is None:
            time.sleep(_TURN_S)
            held.append(group.held_bytes)
        words = f"{max(held):,} bytes of memory at most, {statistics.median_high(held):,} bytes"
        print(f"limits: the programs held {words} half of the time", file=sys.stderr)
        if kills := group.num_kills:
            print(f"limits: processes killed for want of memory: {kills}", file=sys.stderr)
    return code if code >= 0 else 128 - code


@ends_in_one_line("limits")
def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command."""
    parser = parser_of("limits", __doc__)
    parser.add_argument("--memory", default="none", help="512m, 1g, bytes, or none")
    parser.add_argument("--read_speed", default="none", help="bytes a second: 8m, or none")
    parser.add_argument("--disk", type=path_with_home, default=Path(), metavar="FOLDER")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    code = run(
        given.command,
        memory_bytes=parse_bytes(given.memory),
        read_speed=parse_bytes(given.read_speed, "--read_speed"),
        disk=given.disk,
    )
    sys.exit(code)


if __name__ == "__main__":
    main()
