"""What the parsers of strace's and bpftrace's lines share: calls on files, folders, positions.

The kernel keeps one position for each opening. Descriptors that were copied from each other (by
dup, fork, exec, or in a message) share it. It is followed here as long as one thread alone moves
it. Source: open(2), dup(2), fcntl(2), clone(2).
"""

import collections
import itertools
import os.path
import re
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tracing import files

KINDS = {
    "open": "open openat openat2",
    "close": "close",
    "read": "read pread64 readv preadv preadv2",
    "write": "write pwrite64 writev pwritev pwritev2",
    "map": "mmap",
    "seek": "lseek",
    "create": "creat mkdir mkdirat",
    "remove": "unlink unlinkat rmdir",
    "rename": "rename renameat renameat2",
    "sync": "fsync fdatasync",
    "copy": "sendfile copy_file_range splice",
    "receive": "recvfrom recvmsg",
    "send": "sendto sendmsg",
}
KIND_OF = {call: kind for kind, calls in KINDS.items() for call in calls.split()}
ASYNCHRONOUS_CALLS = ("io_setup", "io_uring_setup")
"""With them libaio and io_uring begin, whose reads and writes are no calls of their own."""
DESCRIPTOR_CALLS = ("dup", "dup2", "dup3", "fcntl", "close_range", "fchdir")
"""They make no row: by them it is known which file a descriptor or a path means."""
LONGEST_NAME_BYTES = 199
"""What bpftrace records of a name; a longer one is cut."""
SHARED = {"CLONE_FS": 0x200, "CLONE_FILES": 0x400}
"""What a process can have with its maker, and the flags of clone(2) for it."""
RENAMING = ("rename", "exchange", "remove")
"""Kinds after which a file, or what is in a folder, has another name or none."""
REMOVED = "\0"
"""Behind the name of what was removed: another may have this name since."""

_SHORTENED = re.compile(r"/(\.\.?)?(/|$)")
"""Where a path can be shortened."""

Thread = tuple[int, int]
"""Process and thread."""


def moves(kind: str, path: str | None, new_path: str | None) -> dict[str, str]:
    """Old name -> new name, for what a rename or removal concerns; source: rename(2).

    Nothing is known of names that the tracer could not read.
    """
    old, new = (str(name).rstrip("/") for name in (path, new_path))
    if old.startswith("/") and kind == "remove":
        return {old: old + REMOVED}
    if not (old.startswith("/") and new.startswith("/")) or old == new:
        return {}
    return {old: new, new: old if kind == "exchange" else new + REMOVED}


@dataclass(eq=False, slots=True, weakref_slot=True)
class OpenFile:
    """What one opening made: the kernel's open file description."""

    path: str
    """As it is called now."""
    position: int | None = None
    """Bytes from the file's start; None: unknown."""
    appends: bool = False
    number: int = field(default_factory=itertools.count().__next__)
    """Of the opening; no two are equal."""
    _mover: Thread | None = None
    """Who alone moves the position."""
    _is_followed: bool = True

    def lose(self) -> None:
        """More than one may move the position, from now on in an order that nobody sees."""
        self._is_followed, self.position = False, None

    def _note_mover(self, thread: Thread) -> None:
        if self._mover not in (None, thread):
            self.lose()
        self._mover = thread

    def moved(self, thread: Thread, size_bytes: int, *, writes: bool) -> int | None:
        """Where a call began that moved the position; None: unknown."""
        self._note_mover(thread)
        if writes and self.appends:
            # It began at the file's end, which others may have moved.
            self.position = None if size_bytes else self.position
            return None
        began = self.position
        self.position = None if began is None else began + size_bytes
        return began

    def sought(self, thread: Thread, position: int) -> None:
        """A seek returned this."""
        self._note_mover(thread)
        self.position = position if self._is_followed else None


class Descriptors(dict[int, OpenFile]):
    """What a process's descriptors mean, as far as it is known."""

    def __init__(self, copied: "Descriptors | None" = None):
        """Takes what it is a copy of."""
        super().__init__(copied or {})
        self.closed_by_exec: set[int] = set(copied.closed_by_exec if copied else ())

    def note(self, fd: int, file: OpenFile | None, *, closed_by_exec: bool) -> None:
        """It means this from now on; None: nobody knows what."""
        self.close(fd, fd)
        if file:
            self[fd] = file
            self.note_exec(fd, fd, closes=closed_by_exec)

    def note_exec(self, first: int, last: int, *, closes: bool) -> None:
        """Whether exec closes those from the first to the last."""
        fds = {fd for fd in self if first <= fd <= last}
        self.closed_by_exec = self.closed_by_exec | fds if closes else self.closed_by_exec - fds

    def close(self, first: int, last: int) -> None:
        """Closes those from the first to the last."""
        for fd in [fd for fd in self if first <= fd <= last]:
            del self[fd]
            self.closed_by_exec.discard(fd)


@dataclass(eq=False, slots=True)
class _Folder:
    """Where relative paths begin; processes may share it."""

    path: str


@dataclass
class Losses:
    """What a trace lacks, counted."""

    lost_events: int = 0
    """Events that bpftrace's buffers had no room for."""
    lost_lines: int = 0
    """Lines that the disk had no room for."""
    damaged_lines: int = 0
    """Lines that could not be understood."""
    calls_cut_short: int = 0
    """Calls whose return was never seen: their thread was killed within."""
    asynchronous_processes: int = 0
    """Processes that can read and write by libaio or io_uring, which is not recorded."""
    cut_names: int = 0
    """Names longer than bpftrace records: their calls are there, under the name's beginning."""
    strangers: int = 0
    """Threads and processes whose making was not seen: each counts as a process of its own."""

    def in_short(self) -> str:
        """What had no room, and what could not be understood."""
        damaged = f", {self.damaged_lines:,} not understood" if self.damaged_lines else ""
        made = f", {self.strangers:,} threads whose making was not seen" if self.strangers else ""
        return f"{self.lost_events + self.lost_lines:,} events lost{damaged}{made}"

    def __str__(self) -> str:
        parts = [
            (self.lost_events, "events for which bpftrace had no room"),
            (self.lost_lines, "lines for which the disk had no room"),
            (self.damaged_lines, "lines that were not understood"),
            (self.calls_cut_short, "calls that an end cut short"),
            (self.strangers, "threads or processes whose making was not seen"),
        ]
        lost = ", ".join(f"{n:,} {what}" for n, what in parts if n) or "nothing was lost"
        cut = f"; {self.cut_names:,} names are cut at {LONGEST_NAME_BYTES} bytes"
        aside = (
            f"; {self.asynchronous_processes:,} processes use libaio or io_uring: what is read and "
            "written by these is not recorded"
        )
        return lost + cut * bool(self.cut_names) + aside * bool(self.asynchronous_processes)


class CallParser:
    """Follows the folder of each process and the open files of its descriptors."""

    def __init__(
        self, *, folder: str, host_path: Callable[[str], str] = str, losses: Losses | None = None,
        folder_of: Mapping[int, str] | None = None,
    ):  # fmt: skip
        """Takes what the lines do not contain.

        Args:
          folder: where the command was started.
          host_path: where this machine finds a path of a container.
          losses: what is missing is added to it.
          folder_of: of the processes that were there before.
        """
        self.losses = losses or Losses()
        self._first_folder = folder
        self._host_path = host_path
        self._folders = {pid: _Folder(path) for pid, path in (folder_of or {}).items()}
        self._asynchronous: set[int] = set()
        # Process -> descriptor -> file; its threads share them.
        self._files: dict[int, Descriptors] = collections.defaultdict(Descriptors)
        self._open_files: weakref.WeakSet[OpenFile] = weakref.WeakSet()

    def _folder_of(self, pid: int) -> _Folder:
        return self._folders.setdefault(pid, _Folder(self._first_folder))

    def _enter(self, pid: int, folder: str) -> None:
        """A process has made this its folder."""
        self._folder_of(pid).path = self._shortened(folder)

    def _inherit(self, child: int, maker: int, shares: frozenset[str]) -> None:
        """A process has what its maker has now: copies, but what it shares."""
        folder, table = self._folder_of(maker), self._files[maker]
        self._folders[child] = folder if "CLONE_FS" in shares else _Folder(folder.path)
        self._files[child] = table if "CLONE_FILES" in shares else Descriptors(table)

    def _absolute(self, pid: int, path: str, folder: str | None = None) -> str:
        """A path from a folder, or from the process's own; "." and ".." are not in it."""
        if not path.startswith("/"):
            path = f"{folder or self._folder_of(pid).path}/{path}"
        return self._shortened(path)

    def _shortened(self, path: str) -> str:
        if not _SHORTENED.search(path) or not path.startswith("/"):
            return path
        parts: list[str] = []
        for part in path.split("/"):
            if part == ".." and parts and parts[-1] != "..":
                above = "/" + "/".join(parts)
                seen_as = self._host_path(above)
                if not Path(seen_as).is_symlink():
                    parts.pop()
                elif seen_as == above:  # ".." behind a link leads elsewhere
                    parts = os.path.realpath(above).split("/")[1:-1]
                else:
                    parts.append(part)
            elif part not in ("", "."):
                parts.append(part)
        return "/" + "/".join(parts)

    def _opened(self, path: str, **more) -> OpenFile:
        file = OpenFile(path, **more)
        self._open_files.add(file)
        return file

    def _renamed(self, row: dict, path: str) -> None:
        """What is open, and folders of processes, have another name from now on."""
        renamed = moves(row["kind"], path, row.get("new_path"))

        def now(name: str) -> str:
            for old, new in renamed.items():
                if name == old or name.startswith(f"{old}/"):
                    return new + name[len(old) :]
            return name

        for file in self._open_files:
            file.path = now(file.path)
        for folder in {id(folder): folder for folder in self._folders.values()}.values():
            folder.path = now(folder.path)

    def _named(self, row: dict, path: str) -> tuple[str, dict]:
        path = path.replace(REMOVED, "")
        file_class = files.classify(path, seen_as=self._host_path(path))
        return "file_ops", {**row, "path": path, "file_class": file_class}

    def _lose_all(self) -> None:
        for table in self._files.values():
            for file in table.values():
                file.lose()

    def _damaged(self) -> None:
        """A line is not understood: what it moved is unknown."""
        self.losses.damaged_lines += 1
        self._lose_all()

    def _note_asynchronous(self, pid: int) -> None:
        self.losses.asynchronous_processes += pid not in self._asynchronous
        self._asynchronous.add(pid)

    def _moved(self, file: OpenFile | None, row: dict, offset: int | None) -> int | None:
        """Where a read or write began; without an offset of its own it moves the position."""
        writes = row["kind"] == "write"
        if offset is not None:
            # Linux appends whatever the offset says; pwrite(2), "BUGS".
            return None if writes and (file is None or file.appends) else offset
        thread = row["pid"], row["tid"]
        return file.moved(thread, row["size_bytes"], writes=writes) if file else None

    def _complete(
        self, row: dict, file: OpenFile | None, result: int | None, offset: int | None = None,
        *, appends: bool = False,
    ) -> None:  # fmt: skip
        """The columns of a call on a descriptor; what it makes of its file's position.

        Args:
          result: None if it failed.
          offset: None if it reads or writes at the position.
          appends: whether this call alone is told of the file's end.
        """
        kind, pid = row["kind"], row["pid"]
        row["opening"] = file.number if file else None
        if kind in ("read", "write", "receive", "send"):
            row["size_bytes"] = result or 0
        if kind in ("read", "write") and not appends:
            row["offset_bytes"] = self._moved(file, row, offset)
        elif kind in ("read", "write") and file and offset is None:
            file.position = None  # the end of the file, wherever that is
        elif kind == "seek" and result is not None:
            row["offset_bytes"] = result
            if file:
                file.sought((pid, row["tid"]), result)
        elif kind == "close":
            self._files[pid].close(row["fd"], row["fd"])

    def _executed(self, pid: int) -> None:
        self._files[pid] = table = Descriptors(self._files[pid])  # with others it shares no more
        for fd in sorted(table.closed_by_exec):
            table.close(fd, fd)

    def _duplicate(self, pid: int, fd: int, new_fd: int, *, closed_by_exec: bool) -> None:
        table = self._files[pid]
        if fd != new_fd:  # dup2 of the same does nothing
            table.note(new_fd, table.get(fd), closed_by_exec=closed_by_exec)
