"""The tracer strace: its command line, and the parser that makes rows of its lines."""

import codecs
import collections
import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tracing import calls
from tracing.calls import (
    ASYNCHRONOUS_CALLS,
    DESCRIPTOR_CALLS,
    KIND_OF,
    UNKNOWN,
    CallParser,
    Descriptor,
    Row,
)

PROCESS_CALLS = ("clone", "clone3", "fork", "vfork", "execve", "chdir", "chroot")
# Every thread begins with these calls. strace 6.1 stops a thread at all its calls, traced or not,
# until the filter has caught one: a training whose threads only wait took twice as long.
FIRST_CALLS_OF_A_THREAD = ("?set_robust_list", "?rseq")


def options(output: Path, *, can_filter: bool = True) -> list[str]:
    """The command line before the command or "-p PID".

    Strings are cut to nothing: the data themselves stay private and cost nothing. With a seccomp
    filter only the traced calls stop the program; it needs a command that strace starts itself.
    """
    # "?" marks calls that an older strace may not know.
    followed = [f"?{call}" for call in (*DESCRIPTOR_CALLS, *ASYNCHRONOUS_CALLS)]
    traced = ",".join([*KIND_OF, *PROCESS_CALLS, *followed, *FIRST_CALLS_OF_A_THREAD])
    return [
        "strace",
        *["-f", *(["--seccomp-bpf"] if can_filter else []), "--decode-fds=path,socket", "-s", "0"],
        # Containers have numbers of their own for processes.
        *["--quiet=attach,personality", "--pidns-translation"],
        *["--absolute-timestamps=format:unix,precision:ns", "--syscall-times=ns"],
        # Of the others strace would not say whom they have killed. These kill nobody.
        *["-e", "signal=!SIGCHLD,SIGCONT,SIGURG,SIGWINCH"],
        *["-e", f"trace={traced}", "-o", str(output)],
    ]


_OPENING = ("open", "openat", "openat2", "creat")
_LINE = re.compile(r"(\d+) +(\d+)\.(\d{9}) (.*)", re.DOTALL)
# strace escapes quotes only within quotes, and < and > only in what a descriptor means. The
# connection of a socket has an arrow: TCP:[ADDRESS->ADDRESS].
_QUOTED = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_MEANING = r"<(?:->|[^<>-]|-(?!>))*>"
_ARGUMENTS = rf"(?:[^\"<)]|{_QUOTED}|{_MEANING}|<|\)(?! += ))*"
_DONE = re.compile(
    # A lookahead is not tried again in another way. A possessive quantifier would do the same,
    # but had another meaning in Python 3.11 until 3.11.5.
    rf"(?P<name>\w+)\((?=(?P<arguments>{_ARGUMENTS}))(?P=arguments)\) += "
    r"(?P<result>-?\d+|0x[0-9a-f]+|\?)(?:<(?P<path>[^>]*)>)?"
    r"(?: /\* (?P<here>\d+) in strace's PID NS \*/)?"
    r"(?:\(deleted\))?(?: (?P<error>E\w+) \(.*\))?.*? <(?P<seconds>\d+)\.(?P<fraction>\d{9})>",
    re.DOTALL,
)
_UNFINISHED = re.compile(r" <(?:unfinished|pid changed to \d+) \.\.\.>$")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>")
# A later thread of a process that executes a program becomes the first.
_SUPERSEDED = re.compile(r"\+\+\+ superseded by execve in pid (\d+) \+\+\+")
_SIGNAL = re.compile(r"--- (SIG\w+ \{.*\}|stopped by SIG\w+) ---")
_EXIT = re.compile(r"\+\+\+ (exited with \d+|killed by \w+.*) \+\+\+")
_NAMES = re.compile(rf"(?P<text>{_QUOTED})|(?P<fd>-?\w+)(?P<path>{_MEANING})", re.DOTALL)


_RWF_APPEND = 0x10
_NUMBER_OF = {
    **{word: number for module in (os, fcntl) for word, number in vars(module).items()
       if word.startswith(("O_", "F_", "FD_"))},
    **{word: getattr(calls, word) for word in ("CLONE_FS", "CLONE_FILES", "CLONE_NEWNS",
                                               "CLOSE_RANGE_CLOEXEC", "RENAME_EXCHANGE")},
    "RWF_APPEND": _RWF_APPEND,
}  # fmt: skip
"""Words of arguments -> what they mean."""
_FOLDER = -1
"""Stands for a descriptor where strace prints AT_FDCWD."""


def _descriptors_in(arguments: str) -> list[tuple[Descriptor, int]]:
    """The descriptors, and where in the arguments the next one begins."""
    return [
        (Descriptor(_number(match["fd"], _FOLDER), _unescape(match["path"][1:-1])), match.end())
        for match in _NAMES.finditer(arguments)
        if match["fd"]
    ]


def _texts_in(arguments: str) -> list[str]:
    texts = (texts["text"] for texts in _NAMES.finditer(arguments))
    return [_unescape(text[1:-1]) for text in texts if text]


def _flags_in(arguments: str) -> int:
    """The words known by _NUMBER_OF; names are skipped, because they may hold any words."""
    flags = 0
    for word in re.findall(r"\w+", _NAMES.sub("", arguments)):
        flags |= _NUMBER_OF.get(word, 0)
    return flags


def _last_numbers(arguments: str, count: int) -> list[int]:
    """The last arguments as numbers, 0 for words; strings and vectors come before them.

    There may be fewer, if the line is damaged.
    """
    return [_number(part) for part in arguments.rsplit(", ", count)[1:]]


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return codecs.escape_decode(text.encode())[0].decode("utf-8", "backslashreplace")


class Birth(NamedTuple):
    """How a thread or process began."""

    maker: int
    """The thread that made it."""
    is_thread: bool
    flags: int
    """What a process shares with its maker instead of a copy: CLONE_FS, CLONE_FILES."""


class _Call(NamedTuple):
    tid: int
    stamp_ns: int
    text: str
    superseded: int | None = None
    """The thread that executes and becomes `tid`."""


def _whole_calls(lines: Iterable[str], begun: dict[int, _Call]) -> Iterator[_Call | None]:
    """Calls and exits, in the order in which they end; None for a line that is not understood.

    `begun` holds, by thread, the calls that have not returned.
    """
    for line in lines:
        match = _LINE.match(line)
        if not match or not line.endswith("\n"):
            yield None
            continue
        call = _Call(int(match[1]), int(match[2]) * 10**9 + int(match[3]), match[4].rstrip("\n"))
        # Lines of other threads stand between the halves of a call.
        if unfinished := _UNFINISHED.search(call.text):
            begun[call.tid] = call._replace(text=call.text[: unfinished.start()])
        elif superseded := _SUPERSEDED.match(call.text):
            if first := begun.pop(int(superseded[1]), None):
                begun[call.tid] = first._replace(tid=call.tid, superseded=first.tid)
        elif resumed := _RESUMED.match(call.text):
            first, rest = begun.pop(call.tid, None), call.text[resumed.end() :]
            if first and first.superseded:
                rest = f") = 0 {rest[rest.rfind('<') :]}"  # strace prints another result here
            yield first and first._replace(text=first.text + rest)
        else:
            yield call


_HERE = r"(\d+)(?: /\* (\d+) in strace's PID NS \*/)?"
_MADE = re.compile(rf"(?:clone3?|v?fork)\(.*\) += {_HERE} <[\d.]+>$", re.DOTALL)


def births_in(lines: Iterable[str]) -> dict[int, list[Birth]]:
    """How each thread and process of a trace began; its lines may come before the maker's call.

    A number that was used again has several births, in order of time.
    """
    makings = (line for line in lines if "clone" in line or "fork" in line)
    births: dict[int, list[Birth]] = {}
    for call in _whole_calls(makings, {}):
        if call and (made := _MADE.match(call.text)):
            birth = Birth(call.tid, "CLONE_THREAD" in call.text, _flags_in(call.text))
            births.setdefault(int(made[2] or made[1]), []).append(birth)
    return births


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
        # The threads that are there now.
        self._process_of = dict(process_of_thread or {})
        self._is_shared = False

    def parse(self, lines: Iterable[str]) -> Iterator[Row]:
        """Yields (table, row) in the order in which calls end."""
        begun: dict[int, _Call] = {}
        for call in _whole_calls(lines, begun):
            if call is None:
                self._note_damage()
                continue
            self._appear(call.tid)
            try:
                yield from self._rows(call)
            except (ValueError, IndexError):
                self._note_damage()
        self.losses.calls_cut_short += len(begun)

    def _appear(self, tid: int) -> None:
        """Notes a thread at its first line or at the end of its maker's call: the earlier one."""
        if not self._process_of:
            self._process_of[tid] = tid  # it is the command
        if tid in self._process_of:
            return
        births, number = self._births.get(tid, ()), self._num_begun[tid]
        self._num_begun[tid] += 1
        if number >= len(births):
            # Its maker is unknown, and so are its descriptors and the positions that it moves.
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
        self._inherit(tid, maker, birth.flags)
        self._lose_those_of(maker)  # the child may move them too

    def _end(self, tid: int) -> None:
        """Forgets a thread, because its number may be used again."""
        if self._process_of.pop(tid, None) == tid:
            self._ends(tid)

    def _rows(self, call: _Call) -> Iterator[Row]:
        pid = self._process_of.get(call.tid, call.tid)
        row = {"realtime_ns": call.stamp_ns, "pid": pid, "tid": call.tid}
        if exited := _EXIT.match(call.text):
            self._end(call.tid)
            yield "process_events", {**row, "event": "exit", "detail": exited[1]}
            return
        if _SIGNAL.fullmatch(call.text):
            return
        done = _DONE.fullmatch(call.text)
        if not done:
            # Calls that a kill or an exit cut short have no result; anything else is damage.
            if not re.search(r"\) += \?|<unfinished|\?\s*<unavail", call.text):
                self._note_damage()
            return
        row["latency_ns"] = int(done["seconds"]) * 10**9 + int(done["fraction"])
        failed = done["error"] is not None or done["result"] == "?"
        if done["name"] in KIND_OF:
            yield from self._file_rows(row, done)
        elif done["name"] in PROCESS_CALLS and not failed:
            if call.superseded:
                self._end(call.superseded)
            yield from self._process_rows(row, done)
        elif done["name"] in DESCRIPTOR_CALLS and not failed:
            self._note_call(pid, done)
        elif done["name"] in ASYNCHRONOUS_CALLS and not failed:
            self._note_asynchronous(pid)

    def _process_rows(self, row: dict, done: re.Match) -> Iterator[Row]:
        pid, name, arguments = row["pid"], done["name"], done["arguments"]
        if name not in ("chdir", "chroot", "execve"):
            child, is_thread = int(done["here"] or done["result"]), "CLONE_THREAD" in arguments
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
        elif name != "execve":
            self._enters(pid, name, names[0])
        else:
            yield "process_events", {**row, "event": "exec", "detail": names[0]}

    def _note_call(self, pid: int, done: re.Match) -> None:
        """Notes one of DESCRIPTOR_CALLS."""
        name, arguments = done["name"], done["arguments"]
        descriptors = [descriptor for descriptor, _ in _descriptors_in(arguments)]
        descriptors.append(Descriptor(_number(arguments.partition(", ")[0])))
        value, flags = 0, _flags_in(arguments)
        if name == "close_range":
            value, _ = _last_numbers(arguments, 2)
        elif name == "fcntl":
            _, command, *rest = _NAMES.sub("", arguments).split(", ")
            value, flags = _NUMBER_OF.get(command, -1), _flags_in(" ".join(rest))
        self._note_descriptors(pid, name, descriptors[0], int(done["result"], 0), value, flags)

    def _file_rows(self, row: dict, done: re.Match) -> Iterator[Row]:
        name, arguments = done["name"], done["arguments"]
        failed = done["result"].startswith("-") or done["result"] == "?"
        row |= {"kind": KIND_OF[name], "operation": name, "error": done["error"]}
        row["size_bytes"] = 0
        result = None if failed else int(done["result"], 0)
        descriptors = _descriptors_in(arguments)
        if row["kind"] in ("open", "create", "remove", "rename"):
            yield self._of_path(row, arguments, result, done["path"])
        elif row["kind"] == "copy":
            yield from self._rows_of_copy(row, _ends_of_copy(name, arguments), result)
        elif descriptors and row["kind"] == "map":
            row["requested_bytes"] = _number(arguments.split(", ", 2)[1])
            row["size_bytes"] = 0 if failed else row["requested_bytes"]
            [row["offset_bytes"]] = _last_numbers(arguments, 1)
            yield self._row_of_file(row, self._path_of(row["pid"], descriptors[0][0]))
        elif descriptors:
            offset, appends = None, False
            if row["kind"] in ("read", "write"):
                row["requested_bytes"], offset = _count_and_offset(name, arguments)
                appends = bool(_flags_in(arguments) & _RWF_APPEND)
            yield self._on_descriptor(row, descriptors[0][0], result, offset, appends=appends)

    def _of_path(self, row: dict, arguments: str, result: int | None, opened: str | None) -> Row:
        pid, flags = row["pid"], _flags_in(arguments)
        descriptors = [descriptor for descriptor, _ in _descriptors_in(arguments)]
        if descriptors and descriptors[0].fd == _FOLDER:
            self._folder_of(pid).path = self._path_of(pid, descriptors[0])
        folders: list[str | None] = [descriptor.path for descriptor in descriptors]
        names = _texts_in(arguments)
        folders += [None] * (len(names) - len(folders))
        paths = [self._absolute(pid, name, folder) for name, folder in zip(names, folders)]
        paths += [UNKNOWN] * 2  # for names that strace could not read
        if row["operation"] in _OPENING:
            opening = self._on_opening(
                row, _unescape(opened) if opened else paths[0], result, flags
            )
            if self._is_shared and result is not None:
                self._files[pid][result].lose_position()
            return opening
        return self._on_path(row, paths[0], result, paths[1], flags)


def _count_and_offset(name: str, arguments: str) -> tuple[int | None, int | None]:
    """Bytes asked for, None for vectors; and the offset, None for the position."""
    if name.endswith("64"):  # pread64, pwrite64
        count, offset = _last_numbers(arguments, 2)
        return count, offset
    if name.endswith("v2"):
        offset, _ = _last_numbers(arguments, 2)
        return None, offset if offset != -1 else None
    [last] = _last_numbers(arguments, 1)
    return (last, None) if name in ("read", "write") else (None, last if name[0] == "p" else None)


def _ends_of_copy(name: str, arguments: str) -> list[tuple[Descriptor, int | None, bool]]:
    """(descriptor, offset, whether its position is moved) of source and target."""
    ends: list[tuple[Descriptor, int | None, bool]] = []
    for descriptor, behind in _descriptors_in(arguments):
        # [OFFSET] or NULL follows a descriptor.
        offset = re.compile(r"(?:\(deleted\))?, \[(\d+)\]").match(arguments, behind)
        ends.append((descriptor, int(offset[1]) if offset else None, not offset))
    if len(ends) < 2:
        return []  # one is not open
    return ends[::-1] if name == "sendfile" else ends  # sendfile has its source second


def _number(text: str, of_words: int = 0) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return of_words
