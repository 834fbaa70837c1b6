"""Which open file each descriptor means, and where its reads and writes stand.

The kernel keeps one position for each opening. Descriptors that were copied from each other (by
dup, fork, exec, or in a message) share it. So a position is known as long as every call that may
have moved it was seen, and in which order. Source: open(2), dup(2), fcntl(2), clone(2), unix(7).
"""

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

MOVING = frozenset(
    "read readv write writev lseek preadv2 pwritev2 sendfile copy_file_range splice".split()
)
"""Calls that read or write at a position, and move it."""


@dataclass(eq=False, slots=True)
class OpenFile:
    """What one opening made: the kernel's open file description."""

    path: str | None
    position: int | None = None
    """Bytes from the file's start; None: unknown."""
    appends: bool = False
    number: int = field(default_factory=itertools.count().__next__)
    """Of the opening; no two are equal."""
    _is_followed: bool = True
    _num_in_flight: int = 0
    _is_contested: bool = False

    def begin(self) -> None:
        """A call at the position has begun."""
        self._num_in_flight += 1
        # Two at once: nobody sees which one the kernel took first.
        self._is_contested |= self._num_in_flight > 1

    def end(self) -> None:
        """It has returned."""
        self._num_in_flight -= 1
        self._is_contested &= self._num_in_flight > 0

    def moved(self, size_bytes: int, *, writes: bool = False) -> int | None:
        """Where a call began that moved the position; None: unknown. Call `begin` before."""
        if writes and self.appends:
            # It began at the file's end, which others may have moved.
            self.position = None if size_bytes else self.position
            return None
        began = None if self._is_contested else self.position
        if self.position is not None:
            self.position += size_bytes
        return began

    def sought(self, position: int) -> None:
        """A seek returned this."""
        is_known = self._is_followed and not self._is_contested
        self.position = position if is_known else None

    def forget(self) -> None:
        """The position is unknown until the next lseek."""
        self.position = None

    def lose(self) -> None:
        """Somebody may move the position unseen, from now on."""
        self._is_followed, self.position = False, None


@dataclass(slots=True)
class _Table:
    """The descriptors of a process."""

    files: dict[int, OpenFile] = field(default_factory=dict)
    closing: set[int] = field(default_factory=set)
    """Those that exec closes."""

    def copied(self) -> "_Table":
        return _Table(dict(self.files), set(self.closing))


Thread = tuple[int, int]
"""Process and thread."""


class Descriptors:
    """The tables of all processes."""

    def __init__(self):
        # By thread; those from before the trace have that of their process.
        self._tables: dict[int, _Table] = {}

    def _table(self, thread: Thread) -> _Table:
        pid, tid = thread
        return self._tables[tid] if tid in self._tables else self._tables.setdefault(pid, _Table())

    def get(self, thread: Thread, fd: int) -> OpenFile | None:
        """None: it was there before the trace, or its making was not seen."""
        return self._table(thread).files.get(fd)

    def open(self, thread: Thread, fd: int, file: OpenFile | None, *, closes: bool) -> None:
        """A descriptor of a new opening, or a copy; `closes`: exec will close it."""
        table = self._table(thread)
        if file is None:
            table.files.pop(fd, None)
        else:
            table.files[fd] = file
        self.set_closing(thread, fd, closes)

    def set_closing(self, thread: Thread, fd: int, closes: bool) -> None:
        """Exec closes it from now on, or does not."""
        (set.add if closes else set.discard)(self._table(thread).closing, fd)

    def within(self, thread: Thread, first: int, last: int) -> list[int]:
        """The known descriptors from `first` to `last`."""
        return [fd for fd in self._table(thread).files if first <= fd <= last]

    def close(self, thread: Thread, fds: Collection[int]) -> None:
        """Closes some."""
        table = self._table(thread)
        for fd in fds:
            table.files.pop(fd, None)
            table.closing.discard(fd)

    def born(self, maker: Thread, child: int, *, shares: bool) -> None:
        """A thread or process begins with the descriptors of its maker, shared or copied."""
        table = self._table(maker)
        self._tables[child] = table if shares else table.copied()

    def unshared(self, thread: Thread) -> None:
        """A thread goes on with a table of its own."""
        self._tables[thread[1]] = self._table(thread).copied()

    def executed(self, thread: Thread) -> None:
        """A program begins: it has the descriptors that exec does not close."""
        pid, tid = thread
        table = self._table(thread).copied()
        self._tables.pop(tid, None)
        self._tables[pid] = table
        self.close(thread, list(table.closing))

    def ended(self, tid: int) -> None:
        """A thread or process is gone."""
        self._tables.pop(tid, None)

    def all(self) -> Iterator[OpenFile]:
        """Every open file; one that several descriptors share comes several times."""
        for table in self._tables.values():
            yield from table.files.values()

    def handed_on(self, fds: Collection[int] | None, thread: Thread | None = None) -> None:
        """Copies of these descriptors (None: of any) are somewhere; `thread`: whose, None: any."""
        for table in self._tables.values() if thread is None else [self._table(thread)]:
            for fd in table.files if fds is None else fds:
                if fd in table.files:
                    table.files[fd].lose()

    def used_unseen(self, path: str) -> None:
        """A descriptor of which nothing is known uses this file: it may be a copy of any."""
        for file in self.all():
            if file.path == path:
                file.lose()

    def renamed(self, old: str, new: str) -> None:
        """The kernel calls an open file by its new name."""
        for file in self.all():
            if file.path == old:
                file.path = new

    def lose(self) -> None:
        """Calls were lost: who shares what, and where it stands, is not known."""
        for file in self.all():
            file.lose()
