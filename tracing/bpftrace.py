"""bpftrace as a tracer: which programs fit the kernel, and their lines as rows."""

import errno
import fcntl
import functools
import heapq
import os
import re
import shutil
import subprocess
import termios
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tracing.calls import DESCRIPTOR_CALLS, KIND_OF, CallParser
from tracing.descriptors import MOVING, OpenFile, Thread

PROGRAMS = Path(__file__).parent / "programs"
OLDEST_VERSION = (0, 14)  # the first with comparisons of 64-bit arguments as the programs make them
TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
# In a mount name space of its own: nothing stays mounted.
_WITH_TRACEFS = [
    *["unshare", "--mount", "/bin/sh", "-c"],
    f'mount -t tracefs nodev {TRACEFS[0]} && exec "$@"',
    "sh",
]
ADD_TO_PAGE_CACHE = "add_to_page_cache"
PAGE_BYTES = os.sysconf("SC_PAGESIZE")

# what -> alternatives: (program, tracepoint it needs, kernels that have it), the best one first.
ALTERNATIVES: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "calls": (("files.bt", "syscalls/sys_enter_openat", "with CONFIG_FTRACE_SYSCALLS"),),
    "page faults": (
        ("faults_filemap_fault.bt", "filemap/mm_filemap_fault", "6.12 and later"),
        ("faults_page_cache.bt", "filemap/mm_filemap_add_to_page_cache", "3.13 and later"),
    ),
    "block I/O": (
        ("block_io.bt", "block/block_io_start", "6.5 and later"),
        ("block_rq.bt", "block/block_rq_issue", "4.7 and later"),
    ),
}


def event_folder() -> Path | None:
    """Where this kernel describes its tracepoints; None if it has none or hides them."""
    return next((r / "events" for r in TRACEFS if (r / "events" / "block").is_dir()), None)


def command(*words: str) -> list[str]:
    """A command line under which tracepoints are visible where tracefs is not mounted, too."""
    return [*([] if event_folder() else _WITH_TRACEFS), *words]


def tracepoints() -> frozenset[str]:
    """All "category/name" of this kernel; empty if it has none, or hides them from us."""
    folder = event_folder() or TRACEFS[0] / "events"
    listing = ["find", str(folder), "-mindepth", "2", "-maxdepth", "2", "-type", "d"]
    try:
        done = subprocess.run(command(*listing), capture_output=True, text=True)
    except FileNotFoundError:
        return frozenset()  # a system without unshare or find
    return frozenset(line.removeprefix(f"{folder}/") for line in done.stdout.splitlines())


def missing(*, is_root: bool, version_text: str | None, events: frozenset[str]) -> str | None:
    """Why bpftrace cannot be used here; None if it can."""
    if version_text is None:
        return "bpftrace is not installed"
    found = re.search(r"(\d+)\.(\d+)", version_text)
    if not found or tuple(map(int, found.groups())) < OLDEST_VERSION:
        oldest = ".".join(str(number) for number in OLDEST_VERSION)
        return f"{version_text.strip() or 'this bpftrace'} is too old; {oldest} or later is needed"
    if not is_root:
        return "it needs root; take the trace with sudo"
    if not events:
        return "this kernel has no tracepoints (built without ftrace), or hides them"
    if not chosen_programs(events):
        return "this kernel has none of the tracepoints in question"
    return None


def installed_version() -> str | None:
    """What `bpftrace --version` prints; None if it is not installed."""
    if shutil.which("bpftrace") is None:
        return None
    return subprocess.run(["bpftrace", "--version"], capture_output=True, text=True).stdout


def chosen_programs(events: frozenset[str]) -> dict[str, str]:
    """What is traced -> its program, the first alternative whose tracepoint is there."""
    chosen = {}
    for what, alternatives in ALTERNATIVES.items():
        for program, tracepoint, _ in alternatives:
            if tracepoint in events:
                chosen[what] = program
                break
    # Faults are filtered by the tree that the program of calls keeps.
    if "calls" not in chosen:
        chosen.pop("page faults", None)
    return chosen


def program_text(programs: Iterable[str], pids: Iterable[int], events: frozenset[str]) -> str:
    """One program of several files; probes that this kernel lacks are taken out."""
    text = "\n".join((PROGRAMS / program).read_text() for program in programs)
    text = re.sub(r"^\s*//.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\bTARGET\b", " ".join(f"@tree[{pid}] = 1;" for pid in pids), text)

    def only_present(found: re.Match) -> str:
        probes = re.split(r",\s*", found["probes"])
        kept = [p for p in probes if "/".join(p.strip().split(":")[1:]) in events]
        return ", ".join(kept) + found["rest"] if kept else ""

    pattern = r"^(?P<probes>tracepoint:[\w:]+(?:,\s*tracepoint:[\w:]+)*)(?P<rest>[^{]*\{[^}]*\}\n?)"
    text = re.sub(pattern, only_present, text, flags=re.MULTILINE)
    # bpftrace allows one END; without it, maps would be printed behind the last event.
    ends = re.findall(r"^END \{(.*)\}\n", text, flags=re.MULTILINE)
    return re.sub(r"^END .*\n", "", text, flags=re.MULTILINE) + f"END {{{''.join(ends)}}}\n"


def environment() -> dict[str, str]:
    """Variables for bpftrace: long paths, large maps and buffers."""
    return {
        **os.environ,
        "BPFTRACE_STRLEN": "200",  # the most that versions before 0.20 allow
        "BPFTRACE_MAX_STRLEN": "200",
        "BPFTRACE_MAP_KEYS_MAX": "65536",
        "BPFTRACE_MAX_MAP_KEYS": "65536",
        "BPFTRACE_PERF_RB_PAGES": "1024",
    }


_LOST = re.compile(r"Lost (\d+) events")
_ERRNO_BITS = 4096
_AT_FDCWD = -100  # of the calls that end in "at": relative to the process's folder
_MOST_EVENTS_OUT_OF_ORDER = 40_000  # the beginnings of calls counted
_CLONE_FILES, _CLOSE_RANGE_UNSHARE, _CLOSE_RANGE_CLOEXEC = 0x400, 2, 4
_LONGEST_NAME_BYTES = 199  # of BPFTRACE_STRLEN; a longer one was cut
_AT_POSITION, _AT_END = -1, -2  # what the programs print for an offset

# word -> number of fields, which of them are text, and which is the latency.
_NUM_FIELDS = {"fork": 4, "shares": 4, "exec": 4, "exit": 3, "call": 9, "open": 8, "path": 7,
               "rename": 6, "copy": 10, "fault": 6, "cached": 6, "block": 8}  # fmt: skip
_TEXTS = {"fork": (), "shares": (), "exec": (3,), "exit": (), "call": (3,), "open": (3,),
          "path": (3,), "rename": (3,), "copy": (3,), "fault": (), "cached": (),
          "block": (6, 7)}  # fmt: skip
_LATENCY = {"call": 4, "open": 4, "path": 4, "rename": 4, "copy": 4, "block": 5}


def _call_of(probe: str) -> str:
    return probe.rpartition("sys_exit_")[2]


def _path(file: OpenFile | None) -> str:
    return file.path if file and file.path else "unknown:"


class Parser(CallParser):
    """Turns the programs' lines into rows."""

    def __init__(
        self,
        *,
        path_of_fd: Mapping[tuple[int, int], str] | None = None,
        path_of_inode: Mapping[int, str] | None = None,
        **where,
    ):
        """Takes what the lines do not contain.

        Args:
          path_of_fd: (process, descriptor) -> path, of what was open before.
          path_of_inode: inode -> path, for page faults; files seen open are added.
          where: what `CallParser` takes.
        """
        super().__init__(**where)
        for (pid, fd), path in (path_of_fd or {}).items():
            file = OpenFile(path)
            file.lose()  # who else has it is not known
            self._descriptors.open((pid, pid), fd, file, closes=False)
        self._begun: dict[int, dict[int, OpenFile]] = {}
        self._latest_ns = 0
        self._path_of_inode = dict(path_of_inode or {})
        self._unborn: dict[int, tuple[dict, Thread]] = {}
        self._name_of: dict[int, str] = {}
        self._new_name_of: dict[int, str] = {}
        self._handlers: dict[str, Callable[..., tuple[str, dict] | None]] = {
            "fork": self._fork, "shares": self._shares, "exec": self._exec, "exit": self._exit,
            "call": self._call, "open": self._open, "path": self._path, "rename": self._rename,
            "fault": functools.partial(self._fault, "page_fault"),
            "cached": functools.partial(self._fault, ADD_TO_PAGE_CACHE), "block": self._block,
        }  # fmt: skip

    def parse(self, lines: Iterable[str]) -> Iterator[tuple[str, dict]]:
        """Yields (table, row) in order of time; the stamps are CLOCK_BOOTTIME's."""
        for word, fields in self._in_order(self._events(lines)):
            yield from self._born(word, fields)
            if word == "lost":
                self._descriptors.lose()
            elif word == "begin":
                self._begin(*fields)
            elif word == "copy":
                yield from self._copy(*fields)
            elif found := self._handlers[word](*fields):
                yield found
        yield from (("process_events", row) for row, _ in self._unborn.values())

    def _events(self, lines: Iterable[str]) -> Iterator[tuple[int, str, list]]:
        """(stamp, word, fields) of every event; names are joined with their calls.

        The stamp is that of a call's end; its beginning is an event, too, if it moves a position.
        """
        names: dict[int, str] | None = None
        tid = 0
        for line in lines:
            if lost := _LOST.search(line):
                self.num_lost_events += int(lost[1])
                # Between what waits and what comes, nobody knows where.
                yield from ((stamp, "lost", [0, 0, 0]) for stamp in (0, self._latest_ns))
                continue
            word, *fields = line.rstrip("\n").split("\t")
            try:
                if word in ("name", "new_name"):
                    names, tid = (
                        self._name_of if word == "name" else self._new_name_of,
                        int(fields[0]),
                    )
                    names[tid] = "\t".join(fields[1:])
                    self.num_damaged_lines += len(names[tid].encode()) >= _LONGEST_NAME_BYTES
                elif word in _NUM_FIELDS:
                    names = None
                    yield from self._event(word, fields)
                elif names is not None:  # a name has several lines
                    names[tid] += "\n" + line.rstrip("\n")
                else:
                    # Empty lines and "ready" are the programs' own; the rest was cut.
                    if fields:
                        self._damaged()
            except (IndexError, ValueError):
                self._damaged()

    def _event(self, word: str, fields: list[str]) -> Iterator[tuple[int, str, list]]:
        if len(fields) != _NUM_FIELDS[word]:
            raise ValueError
        is_number = [number for number in range(len(fields)) if number not in _TEXTS[word]]
        values: list = [int(f) if n in is_number else f for n, f in enumerate(fields)]
        end = values[0] + (values[_LATENCY[word]] if word in _LATENCY else 0)
        self._latest_ns = max(self._latest_ns, end)
        if word in ("open", "path", "rename"):
            values.append(self._name_of.pop(values[2], None))
        if word == "rename":
            values.append(self._new_name_of.pop(values[2], None))
        if word == "copy":
            yield values[0], "begin", [*values[:3], values[6:8]]
        elif word == "call" and _call_of(values[3]) in MOVING and values[8] == _AT_POSITION:
            yield values[0], "begin", [*values[:3], values[6:7]]
        yield end, word, values

    @staticmethod
    def _in_order(events: Iterable[tuple[int, str, list]]) -> Iterator[tuple[str, list]]:
        """Each processor has its own buffer: an earlier event may be printed later."""
        waiting: list[tuple[int, int, str, list]] = []
        for number, (end, word, values) in enumerate(events):
            heapq.heappush(waiting, (end, number, word, values))
            if len(waiting) > _MOST_EVENTS_OUT_OF_ORDER:
                yield heapq.heappop(waiting)[2:]
        while waiting:
            yield heapq.heappop(waiting)[2:]

    def _born(self, word: str, values: list) -> Iterator[tuple[str, dict]]:
        """A fork may make a thread or a process; only the child's first event shows which."""
        if word == "block" or (born := self._unborn.pop(values[2], None)) is None:
            return
        row, maker = born
        pid, tid = values[1:3]
        if pid != tid:
            row |= {"event": "thread", "pid": pid}
            self._descriptors.born(maker, tid, shares=True)
        yield "process_events", row

    def _begin(self, began, pid, tid, fds):
        self._settle(tid)
        files = {fd: self._descriptors.get((pid, tid), fd) for fd in fds}
        self._begun[tid] = {fd: file for fd, file in files.items() if file}
        for file in self._begun[tid].values():
            file.begin()

    def _settle(self, tid: int) -> None:
        for file in self._begun.pop(tid, {}).values():
            file.end()

    def _file(self, pid: int, tid: int, fd: int) -> OpenFile | None:
        """The file of a call that returns: its descriptor may mean another one by now."""
        begun = self._begun.get(tid, {})
        return begun[fd] if fd in begun else self._descriptors.get((pid, tid), fd)

    @staticmethod
    def _stamps(began: int, pid: int, tid: int) -> dict:
        return {"boottime_ns": began, "pid": pid, "tid": tid}

    def _fork(self, began, pid, tid, child):
        row = {"event": "process", "parent_pid": pid}
        self._unborn[child] = {**self._stamps(began, child, child), **row}, (pid, tid)
        self._folders[child] = self._folder_of(pid)
        self._descriptors.born((pid, tid), child, shares=False)

    def _shares(self, began, pid, tid, child):
        self._descriptors.born((pid, tid), child, shares=True)

    def _exec(self, began, pid, tid, program):
        self._descriptors.executed((pid, tid))
        row = {"event": "exec", "detail": program}
        return "process_events", {**self._stamps(began, pid, tid), **row}

    def _exit(self, began, pid, tid):
        self._descriptors.ended(tid)
        return "process_events", {**self._stamps(began, pid, tid), "event": "exit"}

    def _row(self, began, pid, tid, probe, latency, result) -> dict:
        call = _call_of(probe)
        failed = -_ERRNO_BITS < result < 0
        return {
            **self._stamps(began, pid, tid),
            "kind": KIND_OF.get(call),
            "operation": call,
            "latency_ns": latency,
            "size_bytes": 0,
            "error": errno.errorcode.get(-result, str(-result)) if failed else None,
        }

    def _path_of(self, pid: int, tid: int, name: str | None, folder_fd: int = _AT_FDCWD) -> str:
        if name is None:
            return "unknown:"  # the line with the name was lost
        folder = None
        if folder_fd & 0xFFFFFFFF != _AT_FDCWD & 0xFFFFFFFF:  # kernels extend the sign or not
            folder = _path(self._descriptors.get((pid, tid), folder_fd))
        return self._absolute(pid, name, folder)

    def _call(self, began, pid, tid, probe, latency, result, fd, wanted, offset):
        row = self._row(began, pid, tid, probe, latency, result)
        if row["operation"] in (*DESCRIPTOR_CALLS, "ioctl", "sendmsg"):
            if not row["error"]:
                self._note((pid, tid), row["operation"], result, fd, wanted, offset)
            return None
        row["fd"] = fd
        file = self._file(pid, tid, fd)
        if row["kind"] in ("read", "write"):
            row["size_bytes"] = 0 if row["error"] else result
            row["requested_bytes"] = None if wanted == -1 else wanted
            if offset != _AT_END:
                at = None if offset == _AT_POSITION else offset
                row["offset_bytes"] = self._moved(file, row, at)
        elif row["kind"] == "seek" and not row["error"]:
            row["offset_bytes"] = result
            if file:
                file.sought(result)
        elif row["kind"] == "close":
            self._descriptors.close((pid, tid), [fd])
        self._settle(tid)
        return self._named(row, _path(file))

    def _note(self, thread: Thread, call: str, result: int, fd: int, value: int, flags: int):
        """What becomes of descriptors by calls that make no row."""
        if call == "sendmsg":
            self._descriptors.handed_on(None, thread)
        elif call == "pidfd_getfd":
            self._descriptors.handed_on([fd])
            self._descriptors.open(thread, result, None, closes=True)
        elif call in ("unshare", "close_range"):
            if flags & (_CLONE_FILES if call == "unshare" else _CLOSE_RANGE_UNSHARE):
                self._descriptors.unshared(thread)
            if call == "close_range":
                marks = bool(flags & _CLOSE_RANGE_CLOEXEC)
                self._close_range(thread, fd, value, marks=marks)
        elif call.startswith("dup") or value in (fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC):
            closes = value == fcntl.F_DUPFD_CLOEXEC or bool(flags & os.O_CLOEXEC)
            self._duplicate(thread, fd, result, closes=closes)
        else:
            self._note_flags(thread, fd, value, flags)

    def _note_flags(self, thread: Thread, fd: int, command: int, flags: int) -> None:
        if command != fcntl.F_SETFL:
            closes = command == termios.FIOCLEX or (command == fcntl.F_SETFD and flags & 1)
            self._descriptors.set_closing(thread, fd, bool(closes))
        elif file := self._descriptors.get(thread, fd):
            file.appends = bool(flags & os.O_APPEND)

    def _copy(
        self, began, pid, tid, probe, latency, result, source, target, moves_source, moves_target
    ):
        row = self._row(began, pid, tid, probe, latency, result)
        row |= {"operation": row["operation"].removesuffix("64"), "size_bytes": max(result, 0)}
        ends = (("read", source, moves_source), ("write", target, moves_target))
        for kind, fd, moves in ends:
            copied, file = {**row, "kind": kind}, self._file(pid, tid, fd)
            if moves:  # else where the program has told, which was not recorded
                copied["offset_bytes"] = self._moved(file, copied, None)
            yield self._named(copied, _path(file))
        self._settle(tid)

    def _open(self, began, pid, tid, probe, latency, result, folder, flags, name):
        row = self._row(began, pid, tid, probe, latency, result)
        path = self._path_of(pid, tid, name, folder)
        if flags & os.O_CREAT:
            row["kind"] = "create"
        if not row["error"]:
            row["fd"] = result
            file = OpenFile(path, position=0, appends=bool(flags & os.O_APPEND))
            self._descriptors.open((pid, tid), result, file, closes=bool(flags & os.O_CLOEXEC))
            self._note_inode(path)
        return self._named(row, path)

    def _note_inode(self, path: str) -> None:
        try:
            self._path_of_inode[Path(self._host_path(path)).stat().st_ino] = path
        except OSError:
            return  # removed since: its faults stay without a path

    def _path(self, began, pid, tid, probe, latency, result, folder, name):
        row = self._row(began, pid, tid, probe, latency, result)
        path = self._path_of(pid, tid, name, folder)
        if row["operation"] == "chdir":
            if not row["error"]:
                self._folders[pid] = path
            return None
        return self._named(row, path)

    def _rename(self, began, pid, tid, probe, latency, result, name, new_name):
        row = self._row(began, pid, tid, probe, latency, result)
        row["new_path"] = self._path_of(pid, tid, new_name)
        return self._named(row, self._path_of(pid, tid, name))

    def _fault(self, operation, began, pid, tid, device, inode, page):
        row = {**self._stamps(began, pid, tid), "kind": "fault", "operation": operation}
        row |= {"offset_bytes": page * PAGE_BYTES, "size_bytes": PAGE_BYTES}
        return self._named(row, self._path_of_inode.get(inode, f"unknown:inode {inode}"))

    @staticmethod
    def _block(began, pid, device, sector, size, latency, operation, command):
        return "block_io", {
            "boottime_ns": began,
            "pid": pid,
            "command": command,
            # The kernel's dev_t: 12 bits of major, 20 of minor.
            "device": f"{device >> 20}:{device & 0xFFFFF}",
            "operation": operation,
            "sector": sector,
            "size_bytes": size,
            "latency_ns": latency,
        }
