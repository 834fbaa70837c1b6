"""strace as a tracer: its command line, and its lines as rows of file_ops and process_events."""

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tracing.calls import KIND_OF, CallParser

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
    calls = ",".join([*KIND_OF, *PROCESS_CALLS, *FIRST_CALLS_OF_A_THREAD])
    return [
        "strace",
        *["-f", *(["--seccomp-bpf"] if can_filter else []), "--decode-fds=path,socket", "-s", "0"],
        "--quiet=attach,personality,thread-execve",
        *["--absolute-timestamps=format:unix,precision:ns", "--syscall-times=ns"],
        *["-e", "signal=none", "-e", f"trace={calls}", "-o", str(output)],
    ]


_LINE = re.compile(r"(\d+) +(\d+)\.(\d{9}) (.*)", re.DOTALL)
_DONE = re.compile(
    r"(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+|0x[0-9a-f]+|\?)(?:<(?P<path>[^>]*)>)?"
    r"(?:\(deleted\))?(?: (?P<error>E\w+) \(.*\))?.*? <(?P<seconds>\d+)\.(?P<fraction>\d{9})>",
    re.DOTALL,
)
_UNFINISHED = " <unfinished ...>"
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>")
_EXIT = re.compile(r"\+\+\+ (exited with \d+|killed by \w+.*) \+\+\+")
# What a socket is connected to has an arrow: TCP:[ADDRESS->ADDRESS].
_FILE = re.compile(r"(-?\w+)<([A-Z][\w-]*:\[[^<>]*(?:->[^<>]*)?\]|[^>]*)>")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return codecs.escape_decode(text.encode())[0].decode("utf-8", "backslashreplace")


class Parser(CallParser):
    """Turns strace's lines into rows."""

    def __init__(self, *, process_of_thread: Mapping[int, int], **where):
        """Takes the answer of `threads_in`, and what `CallParser` takes."""
        super().__init__(**where)
        self._process_of = process_of_thread
        self._unfinished: dict[int, tuple[int, str]] = {}

    def parse(self, lines: Iterable[str]) -> Iterator[_Row]:
        """Yields (table, row) in the order of the lines."""
        for line in lines:
            found = _LINE.match(line)
            if not found or not line.endswith("\n"):
                self.num_damaged_lines += 1
                continue
            tid, stamp = int(found[1]), int(found[2]) * 10**9 + int(found[3])
            text = found[4].rstrip("\n")
            if text.endswith(_UNFINISHED):
                self._unfinished[tid] = (stamp, text.removesuffix(_UNFINISHED))
                continue
            if resumed := _RESUMED.match(text):
                began = self._unfinished.pop(tid, None)
                if began is None:
                    self.num_damaged_lines += 1
                    continue
                stamp, text = began[0], began[1] + text[resumed.end() :]
            yield from self._rows(tid, stamp, text)
        self.num_calls_cut_short = len(self._unfinished)

    def _rows(self, tid: int, stamp: int, text: str) -> Iterator[_Row]:
        pid = self._process_of.get(tid, tid)
        row = {"realtime_ns": stamp, "pid": pid, "tid": tid}
        if exited := _EXIT.match(text):
            yield "process_events", {**row, "event": "exit", "detail": exited[1]}
            return
        found = _DONE.fullmatch(text)
        if not found:
            # Calls that a kill or an exit cut short have no result; anything else is damage.
            self.num_damaged_lines += not re.search(r"\) += \?|<unfinished|\?\s*<unavail", text)
            return
        row["latency_ns"] = int(found["seconds"]) * 10**9 + int(found["fraction"])
        if found["name"] in PROCESS_CALLS:
            yield from self._process_rows(row, found)
        elif found["name"] in KIND_OF:
            yield from self._file_rows(row, found)

    def _process_rows(self, row: dict, found: re.Match) -> Iterator[_Row]:
        if found["error"] or found["result"] == "?":
            return
        pid, name, arguments = row["pid"], found["name"], found["arguments"]
        if name in ("chdir", "execve"):
            if not (path := _QUOTED.match(arguments)):
                self.num_damaged_lines += 1
            elif name == "chdir":
                self._folders[pid] = self._absolute(pid, _unescaped(path[1]))
            else:
                yield "process_events", {**row, "event": "exec", "detail": _unescaped(path[1])}
        else:
            child = int(found["result"])
            is_thread = "CLONE_THREAD" in arguments
            if not is_thread:
                self._inherit(pid, child)
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

    def _file_rows(self, row: dict, found: re.Match) -> Iterator[_Row]:
        name, arguments = found["name"], found["arguments"]
        failed = found["result"].startswith("-") or found["result"] == "?"
        row |= {"kind": KIND_OF[name], "operation": name, "error": found["error"]}
        row["size_bytes"] = 0
        result = None if failed else int(found["result"], 0)
        if row["kind"] in ("open", "create", "remove", "rename"):
            yield self._of_path(row, arguments, result, found["path"])
        elif row["kind"] == "copy":
            yield from self._copies(row, arguments, result)
        elif row["kind"] == "map":
            if mapped := self._mapping(row, arguments, failed):
                yield mapped
        elif file := _FILE.match(arguments):
            yield self._of_descriptor(row, file, arguments, result)

    def _of_path(self, row: dict, arguments: str, result: int | None, opened: str | None) -> _Row:
        pid = row["pid"]
        if at := re.match(r"AT_FDCWD<([^>]*)>", arguments):
            self._folders[pid] = _unescaped(at[1])
        folders: list[str | None] = [_unescaped(folder) for _, folder in _FILE.findall(arguments)]
        names = [_unescaped(name) for name in _QUOTED.findall(arguments)]
        folders += [None] * (len(names) - len(folders))
        paths = [self._absolute(pid, name, folder) for name, folder in zip(names, folders)]
        paths += ["unknown:"] * 2  # for names that strace could not read
        if opened is not None:
            paths[0] = _unescaped(opened)
        if opened is not None and result is not None:
            row["fd"] = result
            self._opened((pid, result), appends="O_APPEND" in arguments)
            if "O_CREAT" in arguments:
                row["kind"] = "create"
        if row["kind"] == "rename":
            row["new_path"] = paths[1]
        return self._named(row, paths[0])

    def _of_descriptor(self, row: dict, file: re.Match, arguments: str, result: int | None) -> _Row:
        place = (row["pid"], int(file[1]))
        numbers = [_number(part) for part in arguments[file.end() :].split(", ")[1:]]
        kind, name = row["kind"], row["operation"]
        row["fd"] = place[1]
        if kind == "seek":
            if result is not None:
                self._positions[place] = row["offset_bytes"] = result
        elif kind == "close":
            self._positions.pop(place, None)
        elif kind in ("read", "write"):
            is_vector = "v" in name
            row["requested_bytes"] = None if is_vector else numbers[1]
            row["size_bytes"] = result or 0
            offset = numbers[2] if name.startswith("p") else None
            if offset is not None and offset < 0:  # preadv2 with offset -1 reads at the position
                offset = None
            row["offset_bytes"] = self._moved(place, offset, result or 0)
        elif kind in ("receive", "send"):
            row["size_bytes"] = result or 0
        return self._named(row, _unescaped(file[2]))

    def _copies(self, row: dict, arguments: str, result: int | None) -> Iterator[_Row]:
        ends = [_unescaped(path) for _, path in _FILE.findall(arguments)][:2]
        if row["operation"] == "sendfile":
            ends.reverse()
        for kind, path in zip(("read", "write"), ends):
            yield self._named({**row, "kind": kind, "size_bytes": result or 0}, path)

    def _mapping(self, row: dict, arguments: str, failed: bool) -> _Row | None:
        parts = arguments.split(", ")
        file = _FILE.match(parts[4]) if len(parts) > 5 else None
        if not file:
            return None  # memory without a file
        row["requested_bytes"] = _number(parts[1])
        row["size_bytes"] = 0 if failed else row["requested_bytes"]
        row["offset_bytes"] = _number(parts[5])
        return self._named(row, _unescaped(file[2]))


def _number(text: str) -> int | None:
    try:
        return int(text, 0)
    except ValueError:
        return None


_CHILD = re.compile(r"^(\d+) .*(?:clone3?|vfork|fork)(\(| resumed>).*= (\d+) <", re.DOTALL)
_CLONE_BEGAN = re.compile(r"^(\d+) .*clone3?\(.*<unfinished")


def threads_in(lines: Iterable[str], known: Mapping[int, int] | None = None) -> dict[int, int]:
    """Thread -> process, for all of a trace: a thread's lines may stand before its creation's."""
    process_of = dict(known or {})
    unfinished: dict[str, bool] = {}
    parents: list[tuple[int, int, bool]] = []
    for line in lines:
        if "clone" not in line:
            continue
        if began := _CLONE_BEGAN.match(line):
            unfinished[began[1]] = "CLONE_THREAD" in line
        elif made := _CHILD.match(line):
            is_thread = "CLONE_THREAD" in line or unfinished.pop(made[1], False)
            parents.append((int(made[1]), int(made[3]), is_thread))
    for parent, child, is_thread in parents:
        process_of[child] = process_of.get(parent, parent) if is_thread else child
    return process_of
