"""The base of the parsers of strace's and bpftrace's lines: follows files, folders, positions.

The kernel keeps one position for each opening. Descriptors that were copied from each other (by
dup, fork, exec, or in a message) share it. It is followed here as long as one thread alone moves
it. Source: open(2), dup(2), fcntl(2), clone(2).
"""

import collections
import dataclasses
import fcntl
import itertools
import os
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

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
"""libaio and io_uring begin with these calls; their reads and writes are no system calls."""
DESCRIPTOR_CALLS = ("dup", "dup2", "dup3", "fcntl", "close_range", "fchdir", "unshare")
"""Calls that make no row, but decide which file a descriptor or a path means."""
LONGEST_NAME_BYTES = 199
"""What bpftrace records of a name; a longer one is cut."""
UNKNOWN = "unknown:"
"""A path of which nothing is known."""
CLONE_FS, CLONE_FILES, CLONE_NEWNS = 0x200, 0x400, 0x20000
CLOSE_RANGE_CLOEXEC, RENAME_EXCHANGE = 4, 2
RENAMING = ("rename", "exchange", "remove")
"""Kinds after which a file, or what is in a folder, has another name or none."""
REMOVED = "\0"
"""Follows the name of a removed file, because another file may have this name since."""

_SHORTENED = re.compile(r"/(\.\.?)?(/|$)")
"""Matches where a path can be shortened."""

Row = tuple[str, dict]
"""The row's table, and column -> value."""
Thread = tuple[int, int]
"""Process and thread."""


def new_names(kind: str, path: str | None, new_path: str | None) -> dict[str, str]:
    """Old name -> new name of each file that a rename or removal concerns; source: rename(2).

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
    """The file's present name."""
    position: int | None = None
    """Bytes from the file's start; None: unknown."""
    appends: bool = False
    number: int = field(default_factory=itertools.count().__next__)
    """The number of the opening; no two are equal."""
    _mover: Thread | None = None
    """The only thread that moves the position, if there is only one."""
    _is_followed: bool = True

    def lose_position(self) -> None:
        """Gives the position up: several may move it from now on, in an unknown order."""
        self._is_followed, self.position = False, None

    def _note_mover(self, thread: Thread) -> None:
        if self._mover not in (None, thread):
            self.lose_position()
        self._mover = thread

    def move(self, thread: Thread, size_bytes: int, *, writes: bool) -> int | None:
        """Moves the position by a call; returns where the call began, None if unknown."""
        self._note_mover(thread)
        if writes and self.appends:
            # The call began at the file's end, which others may have moved.
            self.position = None if size_bytes else self.position
            return None
        began = self.position
        self.position = None if began is None else began + size_bytes
        return began

    def note_seek(self, thread: Thread, position: int) -> None:
        """Notes the position that a seek returned."""
        self._note_mover(thread)
        self.position = position if self._is_followed else None


class Descriptors(dict[int, OpenFile]):
    """The files that a process's descriptors mean, as far as they are known."""

    def __init__(self, copied: "Descriptors | None" = None):
        """Copies the descriptors of another process, if given."""
        super().__init__(copied or {})
        self.closed_by_exec: set[int] = set(copied.closed_by_exec if copied else ())

    def note(self, fd: int, file: OpenFile | None, *, closed_by_exec: bool) -> None:
        """Notes that a descriptor means this file from now on; None: an unknown one."""
        self.close(fd, fd)
        if file:
            self[fd] = file
            self.note_exec(fd, fd, closes=closed_by_exec)

    def note_exec(self, first: int, last: int, *, closes: bool) -> None:
        """Notes whether exec closes the descriptors from the first to the last."""
        fds = {fd for fd in self if first <= fd <= last}
        self.closed_by_exec = self.closed_by_exec | fds if closes else self.closed_by_exec - fds

    def close(self, first: int, last: int) -> None:
        """Closes the descriptors from the first to the last."""
        for fd in [fd for fd in self if first <= fd <= last]:
            del self[fd]


@dataclass(eq=False, slots=True)
class _Folder:
    """The folders where relative and absolute paths begin; processes may share it."""

    path: str
    root: str = ""
    """The root of a process that has called chroot."""


class Descriptor(NamedTuple):
    """The descriptor that a call is given for a file."""

    fd: int
    path: str | None = None
    """The path by the tracer; None: earlier calls decide what it means."""


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
          host_path: maps a path of a container to this machine's path.
          losses: losses are counted in it.
          folder_of: the folders of processes that were there before.
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

    def _absolute(self, pid: int, path: str, folder: str | None = None) -> str:
        """A path from a folder, or from the process's own; "." and ".." are not in it."""
        if path.startswith("/"):
            return self._folder_of(pid).root + self._shorten(path)
        return self._shorten(f"{folder or self._folder_of(pid).path}/{path}")

    def _shorten(self, path: str) -> str:
        if not _SHORTENED.search(path) or not path.startswith("/"):
            return path
        parts: list[str] = []
        for part in path.split("/"):
            if part == ".." and parts and parts[-1] != "..":
                above = "/" + "/".join(parts)
                seen_as = self._host_path(above)
                if not Path(seen_as).is_symlink():
                    parts.pop()
                elif seen_as == above:  # ".." behind a link leads above the link's target
                    parts = os.path.realpath(above).split("/")[1:-1]
                else:
                    parts.append(part)
            elif part not in ("", ".") and (parts or part != ".."):
                parts.append(part)
        return "/" + "/".join(parts)

    def _note_opening(self, path: str, **more) -> OpenFile:
        file = OpenFile(path, **more)
        self._open_files.add(file)
        return file

    def _path_of(self, pid: int, descriptor: Descriptor) -> str:
        if descriptor.path is not None:
            return descriptor.path
        file = self._files[pid].get(descriptor.fd)
        return file.path if file else UNKNOWN

    def _file(self, pid: int, descriptor: Descriptor, *, moves: bool) -> OpenFile | None:
        """The file; None if it is unknown: received, there before, or renamed during the call."""
        file = self._files[pid].get(descriptor.fd)
        if descriptor.path is None or (file and file.path.replace(REMOVED, "") == descriptor.path):
            return file
        for other in [*([file] if file else []), *self._named_as(descriptor.path)] if moves else ():
            other.lose_position()
        return None

    def _named_as(self, path: str | None) -> list[OpenFile]:
        """The openings, found by name, that an unknown descriptor may mean.

        Descriptors may be received, or an ioctl may keep them through an exec: seeing ioctls of
        accelerators would cost strace too much.
        """
        is_absolute = path is not None and path.startswith("/")
        return [file for file in self._open_files if file.path == path] if is_absolute else []

    def _row_of_file(self, row: dict, path: str) -> Row:
        path = path.replace(REMOVED, "")
        file_class = files.classify(path, seen_as=self._host_path(path))
        return "file_ops", {**row, "path": path, "file_class": file_class}

    # --- what nobody saw ---

    def _lose_all(self) -> None:
        for pid in self._files:
            self._lose_those_of(pid)

    def _lose_those_of(self, pid: int) -> None:
        """Gives up the positions of all that a process has open: others may move them."""
        for file in self._files[pid].values():
            file.lose_position()

    def _note_damage(self) -> None:
        """Counts a line that is not understood; all positions become unknown."""
        self.losses.damaged_lines += 1
        self._lose_all()

    def _note_asynchronous(self, pid: int) -> None:
        self.losses.asynchronous_processes += pid not in self._asynchronous
        self._asynchronous.add(pid)

    # --- processes, and calls that make no row ---

    def _inherit(self, child: int, maker: int, shares: int) -> None:
        """A process gets copies of what its maker has now, or shares it by flags of clone(2)."""
        folder, table = self._folder_of(maker), self._files[maker]
        self._folders[child] = folder if shares & CLONE_FS else dataclasses.replace(folder)
        self._files[child] = table if shares & CLONE_FILES else Descriptors(table)

    def _executed(self, pid: int) -> None:
        self._files[pid] = table = Descriptors(self._files[pid])  # it shares them no longer
        for fd in table.closed_by_exec:
            table.close(fd, fd)

    def _ends(self, pid: int) -> None:
        self._files.pop(pid, None)
        self._folders.pop(pid, None)

    def _enters(self, pid: int, call: str, path: str) -> None:
        """Notes a chdir or chroot that succeeded."""
        folder = self._folder_of(pid)
        entered = path if path == UNKNOWN else self._absolute(pid, path)
        if call == "chroot":
            folder.root = entered.rstrip("/")
        else:
            folder.path = entered

    def _note_descriptors(
        self, pid: int, call: str, descriptor: Descriptor, result: int, value: int, flags: int
    ) -> None:
        """Notes one of DESCRIPTOR_CALLS that succeeded.

        Args:
          value: the command of fcntl, the last descriptor of close_range.
          flags: the argument of that command; the flags of close_range, dup3 and unshare.
        """
        table, fd = self._files[pid], descriptor.fd
        if call == "fchdir":
            self._folder_of(pid).path = self._path_of(pid, descriptor)
        elif call == "close_range" and flags & CLOSE_RANGE_CLOEXEC:
            table.note_exec(fd, value, closes=True)
        elif call == "close_range":
            table.close(fd, value)
        elif call.startswith("dup"):
            self._duplicate(pid, fd, result, closed_by_exec=bool(flags & os.O_CLOEXEC))
        elif call == "fcntl":
            self._note_fcntl(pid, descriptor, result, value, flags)
        else:  # unshare: a process with its own mount name space has its own folder
            if flags & (CLONE_FS | CLONE_NEWNS):
                self._folders[pid] = dataclasses.replace(self._folder_of(pid))
            if flags & CLONE_FILES:
                self._files[pid] = Descriptors(table)

    def _note_fcntl(
        self, pid: int, descriptor: Descriptor, result: int, value: int, flags: int
    ) -> None:
        table, fd = self._files[pid], descriptor.fd
        if value in (fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC):
            self._duplicate(pid, fd, result, closed_by_exec=value == fcntl.F_DUPFD_CLOEXEC)
        elif value == fcntl.F_SETFD:
            table.note_exec(fd, fd, closes=bool(flags & fcntl.FD_CLOEXEC))
        elif value == fcntl.F_SETFL and (file := table.get(fd)):
            file.appends = bool(flags & os.O_APPEND)
        elif value == fcntl.F_SETFL:
            for file in self._named_as(descriptor.path):
                file.appends = True  # perhaps

    def _duplicate(self, pid: int, fd: int, new_fd: int, *, closed_by_exec: bool) -> None:
        table = self._files[pid]
        if fd != new_fd:  # dup2 of the same does nothing
            table.note(new_fd, table.get(fd), closed_by_exec=closed_by_exec)

    # --- calls that make rows ---

    def _on_opening(self, row: dict, path: str, result: int | None, flags: int) -> Row:
        """Returns the row of an opening; here and below, `result` is None if the call failed."""
        if flags & os.O_CREAT:
            row["kind"] = "create"
        if result is not None:
            file = self._note_opening(path, position=0, appends=bool(flags & os.O_APPEND))
            closes = bool(flags & os.O_CLOEXEC)
            self._files[row["pid"]].note(result, file, closed_by_exec=closes)
            row |= {"fd": result, "opening": file.number}
        return self._row_of_file(row, path)

    def _on_path(
        self, row: dict, path: str, result: int | None, new_path: str = "", flags: int = 0
    ) -> Row:
        """Returns the row of a call on one name or two."""
        if row["kind"] == "rename":
            row["new_path"] = new_path.replace(REMOVED, "")
            row["kind"] = "exchange" if flags & RENAME_EXCHANGE else "rename"
        # A call that renames nothing need not look at every open file.
        if result is not None and row["kind"] in RENAMING:
            self._note_renaming(row, path)
        return self._row_of_file(row, path)

    def _note_renaming(self, row: dict, path: str) -> None:
        """Renames open files and folders of processes from now on."""
        renamed = new_names(row["kind"], path, row.get("new_path"))

        def now(name: str) -> str:
            for old, new in renamed.items():
                if name == old or name.startswith(f"{old}/"):
                    return new + name[len(old) :]
            return name

        for file in self._open_files:
            file.path = now(file.path)
        for folder in {id(folder): folder for folder in self._folders.values()}.values():
            folder.path, folder.root = now(folder.path), now(folder.root)

    def _on_descriptor(
        self, row: dict, descriptor: Descriptor, result: int | None, offset: int | None = None,
        *, appends: bool = False,
    ) -> Row:  # fmt: skip
        """Returns the row of a call on a descriptor; moves its file's position.

        Args:
          offset: None if it reads or writes at the position.
          appends: whether this call alone appends to the file.
        """
        kind, pid, path = row["kind"], row["pid"], self._path_of(row["pid"], descriptor)
        moves = kind in ("read", "write", "seek") and offset is None
        file = self._file(pid, descriptor, moves=moves)
        row |= {"fd": descriptor.fd, "opening": file.number if file else None}
        if kind in ("read", "write", "receive", "send"):
            row["size_bytes"] = result or 0
        if kind in ("read", "write") and not appends:
            row["offset_bytes"] = self._move(file, row, offset)
        elif kind in ("read", "write") and file and offset is None:
            file.position = None  # the end of the file, which is unknown
        elif kind == "seek" and result is not None:
            row["offset_bytes"] = result
            if file:
                file.note_seek((pid, row["tid"]), result)
        elif kind == "close":
            self._files[pid].close(descriptor.fd, descriptor.fd)
        return self._row_of_file(row, path)

    def _move(self, file: OpenFile | None, row: dict, offset: int | None) -> int | None:
        """Returns where a read or write began; moves the position if the call has no offset."""
        writes = row["kind"] == "write"
        if offset is not None:
            # Linux appends, whatever the offset is: pwrite(2), "BUGS".
            return None if writes and (file is None or file.appends) else offset
        thread = row["pid"], row["tid"]
        return file.move(thread, row["size_bytes"], writes=writes) if file else None

    def _rows_of_copy(
        self, row: dict, ends: Iterable[tuple[Descriptor, int | None, bool]], result: int | None
    ) -> Iterator[Row]:
        """Yields the two rows of a copy, of its source and of its target.

        Args:
          ends: (descriptor, offset if it is known, whether its position is moved) of both.
        """
        for kind, (descriptor, offset, moves) in zip(("read", "write"), ends):
            file = self._file(row["pid"], descriptor, moves=moves)
            copied = {**row, "kind": kind, "size_bytes": result or 0}
            copied["opening"] = file.number if file else None
            if moves or offset is not None:
                copied["offset_bytes"] = self._move(file, copied, offset)
            yield self._row_of_file(copied, self._path_of(row["pid"], descriptor))
