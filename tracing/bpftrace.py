"""bpftrace as a tracer: which programs fit the kernel, and their lines as rows."""

import errno
import functools
import heapq
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tracing.calls import KIND_OF, CallParser

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
        return "it needs root; call tracing/trace.sh with sudo"
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
_MOST_EVENTS_OUT_OF_ORDER = 20_000

# word -> number of fields, which of them are text, and which is the latency.
_NUM_FIELDS = {"fork": 4, "exec": 4, "exit": 3, "call": 9, "open": 8, "path": 7, "rename": 6,
               "copy": 8, "fault": 6, "cached": 6, "block": 8}  # fmt: skip
_TEXTS = {"fork": (), "exec": (3,), "exit": (), "call": (3,), "open": (3,), "path": (3,),
          "rename": (3,), "copy": (3,), "fault": (), "cached": (), "block": (6, 7)}  # fmt: skip
_LATENCY = {"call": 4, "open": 4, "path": 4, "rename": 4, "copy": 4, "block": 5}


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
        self._paths = dict(path_of_fd or {})
        self._path_of_inode = dict(path_of_inode or {})
        self._unborn: dict[int, dict] = {}
        self._name_of: dict[int, str] = {}
        self._new_name_of: dict[int, str] = {}
        self._handlers: dict[str, Callable[..., tuple[str, dict] | None]] = {
            "fork": self._fork, "exec": self._exec, "exit": self._exit, "call": self._call,
            "open": self._open, "path": self._path, "rename": self._rename,
            "fault": functools.partial(self._fault, "page_fault"),
            "cached": functools.partial(self._fault, ADD_TO_PAGE_CACHE), "block": self._block,
        }  # fmt: skip

    def parse(self, lines: Iterable[str]) -> Iterator[tuple[str, dict]]:
        """Yields (table, row) in order of time; the stamps are CLOCK_BOOTTIME's."""
        for word, fields in self._in_order(self._events(lines)):
            yield from self._born(word, fields)
            if word == "copy":
                yield from self._copy(*fields)
            elif found := self._handlers[word](*fields):
                yield found
        yield from (("process_events", row) for row in self._unborn.values())

    def _events(self, lines: Iterable[str]) -> Iterator[tuple[int, str, list]]:
        """(stamp of its end, word, fields) of every event; names are joined with their calls."""
        for line in lines:
            if lost := _LOST.search(line):
                self.num_lost_events += int(lost[1])
                continue
            word, *fields = line.rstrip("\n").split("\t")
            try:
                if word == "name":
                    self._name_of[int(fields[0])] = fields[1]
                elif word == "new_name":
                    self._new_name_of[int(fields[0])] = fields[1]
                elif word in _NUM_FIELDS:
                    yield self._event(word, fields)
                else:
                    # Empty lines and "ready" are the programs' own; the rest was cut.
                    self.num_damaged_lines += bool(fields)
            except (IndexError, ValueError):
                self.num_damaged_lines += 1

    def _event(self, word: str, fields: list[str]) -> tuple[int, str, list]:
        if len(fields) != _NUM_FIELDS[word]:
            raise ValueError
        is_number = [number for number in range(len(fields)) if number not in _TEXTS[word]]
        values: list = [int(f) if n in is_number else f for n, f in enumerate(fields)]
        end = values[0] + (values[_LATENCY[word]] if word in _LATENCY else 0)
        if word in ("open", "path", "rename"):
            values.append(self._name_of.pop(values[2], None))
        if word == "rename":
            values.append(self._new_name_of.pop(values[2], None))
        return end, word, values

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
        if word == "block" or (row := self._unborn.pop(values[2], None)) is None:
            return
        pid, tid = values[1:3]
        if pid != tid:
            row |= {"event": "thread", "pid": pid}
        else:
            self._inherit(row["parent_pid"], pid)
        yield "process_events", row

    def _inherit(self, parent: int, child: int) -> None:
        self._folders.pop(child, None)  # of an earlier process with this number
        super()._inherit(parent, child)
        for (owner, fd), path in list(self._paths.items()):
            if owner == parent:
                self._paths.setdefault((child, fd), path)

    @staticmethod
    def _stamps(began: int, pid: int, tid: int) -> dict:
        return {"boottime_ns": began, "pid": pid, "tid": tid}

    def _fork(self, began, pid, tid, child):
        row = {"event": "process", "parent_pid": pid}
        self._unborn[child] = {**self._stamps(began, child, child), **row}

    def _exec(self, began, pid, tid, program):
        row = {"event": "exec", "detail": program}
        return "process_events", {**self._stamps(began, pid, tid), **row}

    def _exit(self, began, pid, tid):
        return "process_events", {**self._stamps(began, pid, tid), "event": "exit"}

    def _row(self, began, pid, tid, probe, latency, result) -> dict:
        call = probe.rpartition("sys_exit_")[2]
        failed = -_ERRNO_BITS < result < 0
        return {
            **self._stamps(began, pid, tid),
            "kind": KIND_OF.get(call),
            "operation": call,
            "latency_ns": latency,
            "size_bytes": 0,
            "error": errno.errorcode.get(-result, str(-result)) if failed else None,
        }

    def _path_of(self, pid: int, name: str | None, folder_fd: int = _AT_FDCWD) -> str:
        if name is None:
            return "unknown:"  # the line with the name was lost
        folder = None
        if folder_fd & 0xFFFFFFFF != _AT_FDCWD & 0xFFFFFFFF:  # kernels extend the sign or not
            folder = self._paths.get((pid, folder_fd), "unknown:")
        return self._absolute(pid, name, folder)

    def _call(self, began, pid, tid, probe, latency, result, fd, wanted, offset):
        row = self._row(began, pid, tid, probe, latency, result)
        place = (pid, fd)
        row["fd"] = fd
        path = self._paths.get(place, "unknown:")
        moved = 0 if row["error"] else result
        if row["kind"] in ("read", "write"):
            row |= {"size_bytes": moved, "requested_bytes": None if wanted == -1 else wanted}
            offset = None if offset == -1 else offset
            row["offset_bytes"] = self._moved(place, offset, moved)
        elif row["kind"] == "seek" and not row["error"]:
            self._positions[place] = row["offset_bytes"] = result
        elif row["kind"] == "close":
            self._paths.pop(place, None)
            self._positions.pop(place, None)
        return self._named(row, path)

    def _copy(self, began, pid, tid, probe, latency, result, source, target):
        row = self._row(began, pid, tid, probe, latency, result)
        row |= {"operation": row["operation"].removesuffix("64"), "size_bytes": max(result, 0)}
        for kind, fd in (("read", source), ("write", target)):
            yield self._named({**row, "kind": kind}, self._paths.get((pid, fd), "unknown:"))

    def _open(self, began, pid, tid, probe, latency, result, folder, flags, name):
        row = self._row(began, pid, tid, probe, latency, result)
        path = self._path_of(pid, name, folder)
        if flags & os.O_CREAT:
            row["kind"] = "create"
        if not row["error"]:
            place = (pid, result)
            row["fd"] = result
            self._paths[place] = path
            self._opened(place, appends=bool(flags & os.O_APPEND))
            self._note_inode(path)
        return self._named(row, path)

    def _note_inode(self, path: str) -> None:
        try:
            self._path_of_inode[Path(self._host_path(path)).stat().st_ino] = path
        except OSError:
            return  # removed since: its faults stay without a path

    def _path(self, began, pid, tid, probe, latency, result, folder, name):
        row = self._row(began, pid, tid, probe, latency, result)
        path = self._path_of(pid, name, folder)
        if row["operation"] == "chdir":
            if not row["error"]:
                self._folders[pid] = path
            return None
        return self._named(row, path)

    def _rename(self, began, pid, tid, probe, latency, result, name, new_name):
        row = self._row(began, pid, tid, probe, latency, result)
        row["new_path"] = self._path_of(pid, new_name)
        return self._named(row, self._path_of(pid, name))

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
