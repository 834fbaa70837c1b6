"""strace as a tracer: its command line, and its lines as rows of file_ops and process_events."""

import codecs
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tracing.calls import DESCRIPTOR_CALLS, KIND_OF, CallParser
from tracing.descriptors import MOVING, OpenFile, Thread

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
    followed = [f"?{call}" for call in DESCRIPTOR_CALLS]
    calls = ",".join([*KIND_OF, *PROCESS_CALLS, *followed, *FIRST_CALLS_OF_A_THREAD])
    return [
        "strace",
        *["-f", *(["--seccomp-bpf"] if can_filter else []), "--decode-fds=path,socket", "-s", "0"],
        "--quiet=attach,personality,thread-execve",
        *["--absolute-timestamps=format:unix,precision:ns", "--syscall-times=ns"],
        *["-e", "signal=none", "-e", f"trace={calls}", "-o", str(output)],
    ]


_LINE = re.compile(r"(\d+) +(\d+)\.(\d{9}) (.*)", re.DOTALL)
# strace escapes quotes within quotes, and < and > in what a descriptor means; not the other way
# round. What a socket is connected to has an arrow: TCP:[ADDRESS->ADDRESS].
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_MEANING = r"<(?:->|[^<>])*+>"
_DONE = re.compile(
    rf"(?P<name>\w+)\((?P<arguments>(?:[^\"<)]|{_QUOTED}|{_MEANING}|<|\)(?! += ))*+)\) += "
    r"(?P<result>-?\d+|0x[0-9a-f]+|\?)(?:<(?P<path>[^>]*)>)?"
    r"(?:\(deleted\))?(?: (?P<error>E\w+) \(.*\))?.*? <(?P<seconds>\d+)\.(?P<fraction>\d{9})>",
    re.DOTALL,
)
_UNFINISHED = " <unfinished ...>"
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>")
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
    shares_files: bool


class _Call(NamedTuple):
    """One that was interrupted."""

    stamp_ns: int
    text: str
    moving: dict[int, OpenFile]


class Parser(CallParser):
    """Turns strace's lines into rows."""

    def __init__(
        self,
        *,
        births: Mapping[int, Birth] | None = None,
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
        self._births = dict(births or {})
        self._process_of = dict(process_of_thread or {})
        for child, birth in self._births.items():
            maker = self._process_of.get(birth.maker, birth.maker)
            self._process_of[child] = maker if birth.is_thread else child
        self._unfinished: dict[int, _Call] = {}
        self._seen: set[int] = set()

    def _thread(self, tid: int) -> Thread:
        return self._process_of.get(tid, tid), tid

    def parse(self, lines: Iterable[str]) -> Iterator[_Row]:
        """Yields (table, row) in the order of the lines."""
        for line in lines:
            found = _LINE.match(line)
            if not found or not line.endswith("\n"):
                self._damaged()
                continue
            tid, stamp = int(found[1]), int(found[2]) * 10**9 + int(found[3])
            text = found[4].rstrip("\n")
            self._appear(tid)
            call = _Call(stamp, "", {})
            if text.endswith(_UNFINISHED):
                text = text.removesuffix(_UNFINISHED)
                self._unfinished[tid] = _Call(stamp, text, self._begun(tid, text))
                continue
            if resumed := _RESUMED.match(text):
                if tid not in self._unfinished:
                    self._damaged()
                    continue
                call = self._unfinished.pop(tid)
                text = call.text + text[resumed.end() :]
            try:
                yield from self._rows(tid, call._replace(text=text))
            except (ValueError, IndexError):
                self._damaged()
            for file in call.moving.values():
                file.end()
        self.num_calls_cut_short = len(self._unfinished)

    def _appear(self, tid: int) -> None:
        """A child's first line may stand before the end of the call that made it."""
        if tid in self._seen:
            return
        self._seen.add(tid)
        if birth := self._births.get(tid):
            maker = self._thread(birth.maker)
            self._descriptors.born(maker, tid, shares=birth.shares_files)
            if not birth.is_thread:
                self._folders.setdefault(tid, self._folder_of(maker[0]))

    def _begun(self, tid: int, text: str) -> dict[int, OpenFile]:
        """The open files whose position an interrupted call may move at any time."""
        moving: dict[int, OpenFile] = {}
        if text.partition("(")[0] in MOVING:
            for each in _descriptors_in(text):
                if file := self._file(self._thread(tid), each):
                    moving[each.fd] = file
                    file.begin()
        return moving

    def _file(self, thread: Thread, descriptor: _Descriptor) -> OpenFile | None:
        """None: nothing is known of it."""
        file = self._descriptors.get(thread, descriptor.fd)
        if file and file.path == descriptor.path:
            return file
        # Received in a message, or its folder was renamed, or it was there before.
        if descriptor.path.startswith("/"):
            self._descriptors.used_unseen(descriptor.path)
        if file:
            file.lose()
            self._descriptors.close(thread, [descriptor.fd])
        return None

    def _rows(self, tid: int, call: _Call) -> Iterator[_Row]:
        pid, text = self._thread(tid)[0], call.text
        row = {"realtime_ns": call.stamp_ns, "pid": pid, "tid": tid}
        if exited := _EXIT.match(text):
            if tid in self._unfinished:
                for file in self._unfinished[tid].moving.values():
                    file.forget()
                    file.end()
                self._unfinished[tid].moving.clear()
            self._descriptors.ended(tid)
            yield "process_events", {**row, "event": "exit", "detail": exited[1]}
            return
        found = _DONE.fullmatch(text)
        if not found:
            # Calls that a kill or an exit cut short have no result; anything else is damage.
            if not re.search(r"\) += \?|<unfinished|\?\s*<unavail", text):
                self._damaged()
            for file in call.moving.values():
                file.forget()
            return
        row["latency_ns"] = int(found["seconds"]) * 10**9 + int(found["fraction"])
        name = found["name"]
        if name in PROCESS_CALLS:
            yield from self._process_rows(row, found)
        elif name in DESCRIPTOR_CALLS:
            self._note_descriptors((pid, tid), name, found)
        elif name in KIND_OF:
            yield from self._file_rows(row, found, call.moving)

    def _process_rows(self, row: dict, found: re.Match) -> Iterator[_Row]:
        if found["error"] or found["result"] == "?":
            return
        pid, name, arguments = row["pid"], found["name"], found["arguments"]
        if name in ("chdir", "execve"):
            names = _texts_in(arguments) if arguments.startswith('"') else []
            if name == "execve":
                self._descriptors.executed((pid, row["tid"]))
            if not names:
                self.num_damaged_lines += 1
            elif name == "chdir":
                self._folders[pid] = self._absolute(pid, names[0])
            else:
                yield "process_events", {**row, "event": "exec", "detail": names[0]}
        else:
            child = int(found["result"])
            is_thread = "CLONE_THREAD" in arguments
            self._births.setdefault(child, _birth(row["tid"], arguments))
            self._appear(child)
            yield (
                "process_events",
                {
                    **row,
                    "pid": pid if is_thread else child,
                    "tid": child,
                    "event": "thread" if is_thread else "process",
                    "parent_pid": pid,
                },
            )

    def _note_descriptors(self, thread: Thread, name: str, found: re.Match) -> None:
        """What becomes of descriptors by calls that make no row."""
        if found["error"] or found["result"] == "?":
            return
        arguments, result = found["arguments"], int(found["result"], 0)
        flags = _flags_in(arguments)
        fds = [each.fd for each in _descriptors_in(arguments)]
        fds += [_number(part) for part in flags.split(", ")] if not fds else []
        closes = "CLOEXEC" in flags
        if name in ("unshare", "close_range") and re.search("CLONE_FILES|UNSHARE", flags):
            self._descriptors.unshared(thread)
        if name == "close_range":
            self._close_range(thread, fds[0], _last_numbers(arguments, 2)[0], marks=closes)
        elif name == "pidfd_getfd":
            # In a process that the line does not name.
            self._descriptors.handed_on(fds[1:] or None)
            self._descriptors.open(thread, result, None, closes=True)
        elif name.startswith("dup") or "F_DUPFD" in flags:
            self._duplicate(thread, fds[0], result, closes=closes)
        elif "F_SETFD" in flags:
            self._descriptors.set_closing(thread, fds[0], closes)
        elif "F_SETFL" in flags and (file := self._descriptors.get(thread, fds[0])):
            file.appends = "O_APPEND" in flags

    def _file_rows(self, row: dict, found: re.Match, moving: dict[int, OpenFile]) -> Iterator[_Row]:
        name, arguments = found["name"], found["arguments"]
        failed = found["result"].startswith("-") or found["result"] == "?"
        row |= {"kind": KIND_OF[name], "operation": name, "error": found["error"]}
        row["size_bytes"] = 0
        result = None if failed else int(found["result"], 0)
        if row["kind"] in ("open", "create", "remove", "rename"):
            yield self._of_path(row, arguments, result, found["path"])
        elif row["kind"] == "map":
            if mapped := self._mapping(row, arguments, failed):
                yield mapped
        elif row["kind"] == "copy":
            yield from self._copies(row, arguments, result, moving)
        elif descriptors := _descriptors_in(arguments):
            yield self._of_descriptor(row, descriptors[0], arguments, result, moving)

    def _of_path(self, row: dict, arguments: str, result: int | None, opened: str | None) -> _Row:
        pid = row["pid"]
        found = _descriptors_in(arguments)
        if found and found[0].fd == -1:
            self._folders[pid] = found[0].path
        folders: list[str | None] = [descriptor.path for descriptor in found]
        names = _texts_in(arguments)
        folders += [None] * (len(names) - len(folders))
        paths = [self._absolute(pid, name, folder) for name, folder in zip(names, folders)]
        paths += ["unknown:"] * 2  # for names that strace could not read
        if opened is not None:
            paths[0] = opened = _unescaped(opened)
        if row["kind"] in ("open", "create") and opened is not None and result is not None:
            row["fd"] = result
            flags = _flags_in(arguments)
            file = OpenFile(opened, position=0, appends="O_APPEND" in flags)
            thread = (pid, row["tid"])
            self._descriptors.open(thread, result, file, closes="O_CLOEXEC" in flags)
            if "O_CREAT" in flags:
                row["kind"] = "create"
        if row["kind"] == "rename":
            row["new_path"] = paths[1]
            if result is not None:
                self._descriptors.renamed(paths[0], paths[1])
        return self._named(row, paths[0])

    def _of_descriptor(
        self, row: dict, descriptor: _Descriptor, arguments: str, result: int | None,
        moving: dict[int, OpenFile],
    ) -> _Row:  # fmt: skip
        kind, name, thread = row["kind"], row["operation"], (row["pid"], row["tid"])
        row["fd"] = descriptor.fd
        if kind in ("read", "write"):
            row["size_bytes"] = result or 0
            row["requested_bytes"], offset = _count_and_offset(name, arguments)
            with self._moving(thread, descriptor, moving) as file:
                if "RWF_APPEND" in _flags_in(arguments):
                    if file and offset is None:
                        file.forget()
                else:
                    row["offset_bytes"] = self._moved(file, row, offset)
        elif kind == "seek" and result is not None:
            row["offset_bytes"] = result
            with self._moving(thread, descriptor, moving) as file:
                if file:
                    file.sought(result)
        elif kind == "close":
            self._descriptors.close(thread, [row["fd"]])
        elif kind in ("receive", "send"):
            row["size_bytes"] = result or 0
            if kind == "send" and "SCM_RIGHTS" in _flags_in(arguments):
                sent = [each.fd for each in _descriptors_in(arguments)[1:]]
                self._descriptors.handed_on(sent or None, thread)
        return self._named(row, descriptor.path)

    @contextlib.contextmanager
    def _moving(
        self, thread: Thread, descriptor: _Descriptor, moving: dict[int, OpenFile]
    ) -> Iterator[OpenFile | None]:
        """The open file of a call that returns; `moving`: those that it was begun with."""
        if file := moving.get(descriptor.fd):
            yield file
        elif file := self._file(thread, descriptor):
            file.begin()
            yield file
            file.end()
        else:
            yield None

    def _copies(
        self, row: dict, arguments: str, result: int | None, moving: dict[int, OpenFile]
    ) -> Iterator[_Row]:
        ends = _descriptors_in(arguments)[:2]
        offsets = [_offset_behind(arguments, end.behind) for end in ends]
        if row["operation"] == "sendfile":
            ends.reverse()
            offsets = [offsets[1], None]  # it writes at the position
        for kind, end, offset in zip(("read", "write"), ends, offsets):
            copied = {**row, "kind": kind, "size_bytes": result or 0}
            with self._moving((row["pid"], row["tid"]), end, moving) as file:
                copied["offset_bytes"] = self._moved(file, copied, offset)
            yield self._named(copied, end.path)

    def _mapping(self, row: dict, arguments: str, failed: bool) -> _Row | None:
        found = _descriptors_in(arguments)
        if not found:
            return None  # memory without a file
        row["requested_bytes"] = _number(arguments.split(", ", 2)[1])
        row["size_bytes"] = 0 if failed else row["requested_bytes"]
        [row["offset_bytes"]] = _last_numbers(arguments, 1)
        return self._named(row, found[0].path)


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


_MAKING = re.compile(r"(\d+) +[\d.]+ (<\.\.\. )?(?:clone3?|v?fork)(?:\(| resumed>)")
_MADE = re.compile(r".*\) += (\d+) <[\d.]+>$", re.DOTALL)


def births_in(lines: Iterable[str]) -> dict[int, Birth]:
    """How each thread and process of a trace began: its lines may stand before its making's."""
    births: dict[int, Birth] = {}
    unfinished: dict[int, str] = {}
    for line in lines:
        if ("clone" not in line and "fork" not in line) or not (found := _MAKING.match(line)):
            continue
        maker, text = int(found[1]), line.rstrip("\n")
        # One that failed, or never returned, says nothing of the next.
        begun = unfinished.pop(maker, "")
        if found[2]:
            text = begun + text
        if text.endswith(_UNFINISHED):
            unfinished[maker] = text
        elif made := _MADE.match(text):
            births[int(made[1])] = _birth(maker, text)
    return births


def _birth(maker: int, flags: str) -> Birth:
    return Birth(maker, "CLONE_THREAD" in flags, "CLONE_FILES" in flags)
