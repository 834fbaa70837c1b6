"""strace as a tracer: its command line, and its lines as rows of file_ops and process_events."""

import codecs
import collections
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tracing.calls import (
    ASYNCHRONOUS_CALLS,
    DESCRIPTOR_CALLS,
    KIND_OF,
    REMOVED,
    RENAMING,
    SHARED,
    CallParser,
    OpenFile,
)

_Row = tuple[str, dict]  # its table, and column -> value
PROCESS_CALLS = ("clone", "clone3", "fork", "vfork", "execve", "chdir")
# Every thread begins with them. strace 6.1 stops a thread at all of its calls, traced or not, until
# the filter has caught one: a training, whose threads only wait for each other, took twice as long.
FIRST_CALLS_OF_A_THREAD = ("?set_robust_list", "?rseq")


def options(output: Path, *, can_filter: bool = True) -> list[str]:
    """The command line before the command or "-p PID".

    Strings are cut to nothing: the data themselves stay private and cost nothing. With a seccomp
    filter only the traced calls stop the program; it needs a command that strace starts itself.
    """
    # "?": unknown to an older strace.
    followed = [f"?{call}" for call in (*DESCRIPTOR_CALLS, *ASYNCHRONOUS_CALLS)]
    calls = ",".join([*KIND_OF, *PROCESS_CALLS, *followed, *FIRST_CALLS_OF_A_THREAD])
    return [
        "strace",
        *["-f", *(["--seccomp-bpf"] if can_filter else []), "--decode-fds=path,socket", "-s", "0"],
        # Containers have numbers of their own for processes.
        *["--quiet=attach,personality", "--pidns-translation"],
        *["--absolute-timestamps=format:unix,precision:ns", "--syscall-times=ns"],
        *["-e", "signal=none", "-e", f"trace={calls}", "-o", str(output)],
    ]


_LINE = re.compile(r"(\d+) +(\d+)\.(\d{9}) (.*)", re.DOTALL)
# strace escapes quotes within quotes, and < and > in what a descriptor means; not the other way
# round. What a socket is connected to has an arrow: TCP:[ADDRESS->ADDRESS].
_QUOTED = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_MEANING = r"<(?:->|[^<>-]|-(?!>))*>"
_ARGUMENTS = rf"(?:[^\"<)]|{_QUOTED}|{_MEANING}|<|\)(?! += ))*"
_DONE = re.compile(
    # What is looked ahead for is not tried in another way: a possessive quantifier, of which
    # Python 3.11 had another meaning until 3.11.5.
    rf"(?P<name>\w+)\((?=(?P<arguments>{_ARGUMENTS}))(?P=arguments)\) += "
    r"(?P<result>-?\d+|0x[0-9a-f]+|\?)(?:<(?P<path>[^>]*)>)?"
    r"(?: /\* (?P<here>\d+) in strace's PID NS \*/)?"
    r"(?:\(deleted\))?(?: (?P<error>E\w+) \(.*\))?.*? <(?P<seconds>\d+)\.(?P<fraction>\d{9})>",
    re.DOTALL,
)
_UNFINISHED = re.compile(r" <(?:unfinished|pid changed to \d+) \.\.\.>$")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>")
# A thread that is not the first of its process executes a program: it becomes the first.
_SUPERSEDED = re.compile(r"\+\+\+ superseded by execve in pid (\d+) \+\+\+")
_EXIT = re.compile(r"\+\+\+ (exited with \d+|killed by \w+.*) \+\+\+")
_NAMES = re.compile(rf"(?P<text>{_QUOTED})|(?P<fd>-?\w+)(?P<path>{_MEANING})", re.DOTALL)


class _Descriptor(NamedTuple):
    """An argument."""

    fd: int
    """-1: AT_FDCWD."""
    path: str
    behind: int
    """Where in the arguments the next one begins."""


def _descriptors_in(arguments: str) -> list[_Descriptor]:
    return [
        _Descriptor(_number(found["fd"], -1), _unescaped(found["path"][1:-1]), found.end())
        for found in _NAMES.finditer(arguments)
        if found["fd"]
    ]


def _texts_in(arguments: str) -> list[str]:
    found = (found["text"] for found in _NAMES.finditer(arguments))
    return [_unescaped(text[1:-1]) for text in found if text]


def _flags_in(arguments: str) -> str:
    """The arguments without names, in which anything may stand."""
    return _NAMES.sub("", arguments)


def _last_numbers(arguments: str, count: int) -> list[int]:
    """Of the last arguments, before which strings and vectors stand; 0 for words."""
    numbers = [_number(part) for part in arguments.rsplit(", ", count)[1:]]
    if len(numbers) != count:
        raise ValueError("too few arguments")
    return numbers


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return codecs.escape_decode(text.encode())[0].decode("utf-8", "backslashreplace")


class Birth(NamedTuple):
    """How a thread or process began."""

    maker: int
    """A thread."""
    is_thread: bool
    shares: frozenset[str]
    """What a process has with its maker, not a copy of it: `calls.SHARED`."""


class _Call(NamedTuple):
    tid: int
    stamp_ns: int
    text: str
    superseded: int | None = None
    """The thread that executes and becomes `tid`."""


def _whole_calls(lines: Iterable[str], begun: dict[int, _Call]) -> Iterator[_Call | None]:
    """Calls and exits, interrupted ones where they end; None for a line that is not understood.

    `begun` holds, by thread, the calls that have not returned.
    """
    for line in lines:
        found = _LINE.match(line)
        if not found or not line.endswith("\n"):
            yield None
            continue
        call = _Call(int(found[1]), int(found[2]) * 10**9 + int(found[3]), found[4].rstrip("\n"))
        # Lines of other threads stand between the halves of a call.
        if unfinished := _UNFINISHED.search(call.text):
            begun[call.tid] = call._replace(text=call.text[: unfinished.start()])
        elif superseded := _SUPERSEDED.match(call.text):
            if first := begun.pop(int(superseded[1]), None):
                begun[call.tid] = first._replace(tid=call.tid, superseded=first.tid)
        elif resumed := _RESUMED.match(call.text):
            first, rest = begun.pop(call.tid, None), call.text[resumed.end() :]
            if first and first.superseded:
                rest = f") = 0 {rest[rest.rfind('<') :]}"  # strace prints something else's result
            yield first and first._replace(text=first.text + rest)
        else:
            yield call


_HERE = r"(\d+)(?: /\* (\d+) in strace's PID NS \*/)?"
_MADE = re.compile(rf"(?:clone3?|v?fork)\(.*\) += {_HERE} <[\d.]+>$", re.DOTALL)


def births_in(lines: Iterable[str]) -> dict[int, list[Birth]]:
    """How each thread and process of a trace began: its lines may stand before its making's.

    A number that was used again has several births, in order of time.
    """
    makings = (line for line in lines if "clone" in line or "fork" in line)
    found: dict[int, list[Birth]] = {}
    for call in _whole_calls(makings, {}):
        if call and (made := _MADE.match(call.text)):
            shares = frozenset(flag for flag in SHARED if flag in call.text)
            birth = Birth(call.tid, "CLONE_THREAD" in call.text, shares)
            found.setdefault(int(made[2] or made[1]), []).append(birth)
    return found


class Parser(CallParser):
    """Turns strace's lines into rows."""

    def __init__(
        self,
        *,
        births: Mapping[int, Sequence[Birth]] | None = None,
        process_of_thread: Mapping[int, int] | None = None,
        **where,
    ):
        """Takes what the lines do not contain.

        Args:
          births: the answer of `births_in`.
          process_of_thread: of the threads that were there before.
          where: what `CallParser` takes.
        """
        super().__init__(**where)
        self._births = births or {}
        self._num_begun: collections.Counter[int] = collections.Counter()
        self._num_made: collections.Counter[int] = collections.Counter()
        # Those that are there now.
        self._process_of = dict(process_of_thread or {})
        self._is_shared = False

    def parse(self, lines: Iterable[str]) -> Iterator[_Row]:
        """Yields (table, row) in the order in which calls end."""
        begun: dict[int, _Call] = {}
        for call in _whole_calls(lines, begun):
            if call is None:
                self._damaged()
                continue
            self._appear(call.tid)
            try:
                yield from self._rows(call)
            except (ValueError, IndexError):
                self._damaged()
        self.losses.calls_cut_short += len(begun)

    def _appear(self, tid: int) -> None:
        """At a thread's first line, or the end of the call that made it, whichever comes first."""
        if not self._process_of:
            self._process_of[tid] = tid  # the command
        if tid in self._process_of:
            return
        births, number = self._births.get(tid, ()), self._num_begun[tid]
        self._num_begun[tid] += 1
        if number >= len(births):
            # Whose descriptors it has, and which positions it moves, is not known.
            self._process_of[tid] = tid
            self.losses.strangers += 1
            self._is_shared = True
            self._lose_all()
            return
        birth = births[number]
        maker = self._process_of.get(birth.maker, birth.maker)
        self._process_of[tid] = maker if birth.is_thread else tid
        if birth.is_thread:
            return
        self._inherit(tid, maker, birth.shares)
        for file in self._files[maker].values():
            file.lose()  # the child moves it too

    def _end(self, tid: int) -> None:
        """Its number may be used again."""
        if self._process_of.pop(tid, None) == tid:
            self._files.pop(tid, None)
            self._folders.pop(tid, None)

    def _file(self, pid: int, descriptor: _Descriptor, *, moves: bool) -> OpenFile | None:
        """None: nothing is known of it: it was received, or was there before."""
        file = self._files[pid].get(descriptor.fd)
        if file and file.path.replace(REMOVED, "") == descriptor.path:
            return file
        for other in self._named_as(descriptor.path) if moves else ():
            other.lose()
        return None

    def _named_as(self, path: str) -> list[OpenFile]:
        """What may be the opening of a descriptor that is not known: by name.

        So are those received, and those that an ioctl keeps from an exec: to see the ioctls of
        accelerators would cost too much.
        """
        return [file for file in self._open_files if file.path == path] if path[:1] == "/" else []

    def _rows(self, call: _Call) -> Iterator[_Row]:
        pid = self._process_of.get(call.tid, call.tid)
        row = {"realtime_ns": call.stamp_ns, "pid": pid, "tid": call.tid}
        if exited := _EXIT.match(call.text):
            self._end(call.tid)
            yield "process_events", {**row, "event": "exit", "detail": exited[1]}
            return
        found = _DONE.fullmatch(call.text)
        if not found:
            # Calls that a kill or an exit cut short have no result; anything else is damage.
            if not re.search(r"\) += \?|<unfinished|\?\s*<unavail", call.text):
                self._damaged()
            return
        row["latency_ns"] = int(found["seconds"]) * 10**9 + int(found["fraction"])
        failed = found["error"] is not None or found["result"] == "?"
        if found["name"] in KIND_OF:
            yield from self._file_rows(row, found)
        elif found["name"] in PROCESS_CALLS and not failed:
            if call.superseded:
                self._end(call.superseded)
            yield from self._process_rows(row, found)
        elif found["name"] in DESCRIPTOR_CALLS and not failed:
            self._note_descriptors(pid, found)
        elif found["name"] in ASYNCHRONOUS_CALLS and not failed:
            self._note_asynchronous(pid)

    def _process_rows(self, row: dict, found: re.Match) -> Iterator[_Row]:
        pid, name, arguments = row["pid"], found["name"], found["arguments"]
        if name not in ("chdir", "execve"):
            child, is_thread = int(found["here"] or found["result"]), "CLONE_THREAD" in arguments
            self._num_made[child] += 1
            if self._num_made[child] > self._num_begun[child]:
                self._appear(child)
            whose = {"pid": pid if is_thread else child, "tid": child, "parent_pid": pid}
            event = "thread" if is_thread else "process"
            yield "process_events", {**row, **whose, "event": event}
            return
        if name == "execve":
            self._executed(pid)
        if not (names := _texts_in(arguments) if arguments.startswith('"') else []):
            self.losses.damaged_lines += 1
        elif name == "chdir":
            self._enter(pid, self._absolute(pid, names[0]))
        else:
            yield "process_events", {**row, "event": "exec", "detail": names[0]}

    def _note_descriptors(self, pid: int, found: re.Match) -> None:
        """What becomes of descriptors by calls that make no row."""
        arguments, table = found["arguments"], self._files[pid]
        flags = _flags_in(arguments)
        fds = [each.fd for each in _descriptors_in(arguments)]
        fd = fds[0] if fds else _number(flags.partition(", ")[0])
        if found["name"] == "fchdir":
            self._enter(pid, _descriptors_in(arguments)[0].path)
        elif found["name"] == "close_range":
            last, _ = _last_numbers(arguments, 2)
            if "CLOEXEC" in flags:
                table.note_exec(fd, last, closes=True)
            else:
                table.close(fd, last)
        elif found["name"].startswith("dup") or "F_DUPFD" in flags:
            closes = "CLOEXEC" in flags
            self._duplicate(pid, fd, int(found["result"], 0), closed_by_exec=closes)
        elif "F_SETFD" in flags:
            table.note_exec(fd, fd, closes="FD_CLOEXEC" in flags)
        elif "F_SETFL" in flags and (file := table.get(fd)):
            file.appends = "O_APPEND" in flags
        elif "F_SETFL" in flags:
            for file in self._named_as(_descriptors_in(arguments)[0].path):
                file.appends = True  # perhaps

    def _file_rows(self, row: dict, found: re.Match) -> Iterator[_Row]:
        name, arguments = found["name"], found["arguments"]
        failed = found["result"].startswith("-") or found["result"] == "?"
        row |= {"kind": KIND_OF[name], "operation": name, "error": found["error"]}
        row["size_bytes"] = 0
        result = None if failed else int(found["result"], 0)
        descriptors = _descriptors_in(arguments)
        if row["kind"] in ("open", "create", "remove", "rename"):
            yield self._of_path(row, arguments, result, found["path"])
        elif row["kind"] == "copy":
            yield from self._copies(row, arguments, result)
        elif descriptors and row["kind"] == "map":
            row["requested_bytes"] = _number(arguments.split(", ", 2)[1])
            row["size_bytes"] = 0 if failed else row["requested_bytes"]
            [row["offset_bytes"]] = _last_numbers(arguments, 1)
            yield self._named(row, descriptors[0].path)
        elif descriptors:
            row["fd"], offset, appends = descriptors[0].fd, None, False
            if row["kind"] in ("read", "write"):
                row["requested_bytes"], offset = _count_and_offset(name, arguments)
                appends = "RWF_APPEND" in _flags_in(arguments)
            moves = row["kind"] in ("read", "write", "seek") and offset is None
            file = self._file(row["pid"], descriptors[0], moves=moves)
            self._complete(row, file, result, offset, appends=appends)
            yield self._named(row, descriptors[0].path)

    def _of_path(self, row: dict, arguments: str, result: int | None, opened: str | None) -> _Row:
        pid = row["pid"]
        found = _descriptors_in(arguments)
        if found and found[0].fd == -1:
            self._folder_of(pid).path = found[0].path
        folders: list[str | None] = [descriptor.path for descriptor in found]
        names = _texts_in(arguments)
        folders += [None] * (len(names) - len(folders))
        paths = [self._absolute(pid, name, folder) for name, folder in zip(names, folders)]
        paths += ["unknown:"] * 2  # for names that strace could not read
        if opened is not None and result is not None:
            paths[0], flags = _unescaped(opened), _flags_in(arguments)
            row["fd"] = result
            appends = "O_APPEND" in flags
            file = self._opened(paths[0], position=0, appends=appends)
            closes = "O_CLOEXEC" in flags
            self._files[pid].note(result, file, closed_by_exec=closes)
            row["opening"] = file.number
            if self._is_shared:
                file.lose()
        if "O_CREAT" in _flags_in(arguments):
            row["kind"] = "create"
        if row["kind"] == "rename":
            row["new_path"] = paths[1]
            if "RENAME_EXCHANGE" in _flags_in(arguments):
                row["kind"] = "exchange"
        if row["kind"] in RENAMING and result is not None:
            self._renamed(row, paths[0])
        return self._named(row, paths[0])

    def _copies(self, row: dict, arguments: str, result: int | None) -> Iterator[_Row]:
        ends = _descriptors_in(arguments)[:2]
        offsets = [_offset_behind(arguments, end.behind) for end in ends]
        if row["operation"] == "sendfile":
            ends.reverse()
            offsets = [offsets[1], None]  # it writes at the position
        for kind, end, offset in zip(("read", "write"), ends, offsets):
            copied = {**row, "kind": kind, "size_bytes": result or 0}
            file = self._file(row["pid"], end, moves=offset is None)
            copied["opening"] = file.number if file else None
            copied["offset_bytes"] = self._moved(file, copied, offset)
            yield self._named(copied, end.path)


def _count_and_offset(name: str, arguments: str) -> tuple[int | None, int | None]:
    """Bytes asked for, None for vectors; and the offset, None at the position."""
    if name.endswith("64"):  # pread64, pwrite64
        count, offset = _last_numbers(arguments, 2)
        return count, offset
    if name.endswith("v2"):
        offset, _ = _last_numbers(arguments, 2)
        return None, offset if offset != -1 else None
    [last] = _last_numbers(arguments, 1)
    return (last, None) if name in ("read", "write") else (None, last if name[0] == "p" else None)


def _offset_behind(arguments: str, at: int) -> int | None:
    """What follows a descriptor in a copy: [OFFSET], or NULL."""
    found = re.compile(r"(?:\(deleted\))?, \[(\d+)\]").match(arguments, at)
    return int(found[1]) if found else None


def _number(text: str, of_words: int = 0) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return of_words
