"""The tracer bpftrace: chooses programs that fit the kernel, and turns their lines into rows."""

import collections
import contextlib
import errno
import fcntl
import functools
import heapq
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tracing import processes
from tracing.calls import (
    DESCRIPTOR_CALLS,
    KIND_OF,
    LONGEST_NAME_BYTES,
    UNKNOWN,
    CallParser,
    Descriptor,
    Row,
)

PROGRAMS = Path(__file__).parent / "programs"
OLDEST_VERSION = (0, 14)  # the first with comparisons of 64-bit arguments as the programs make them
TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
# In a mount name space of its own, so that nothing stays mounted.
_WITH_TRACEFS = [
    *["unshare", "--mount", "/bin/sh", "-c"],
    f'mount -t tracefs nodev {TRACEFS[0]} && exec "$@"',
    "sh",
]
ADD_TO_PAGE_CACHE = "add_to_page_cache"
PAGE_BYTES = os.sysconf("SC_PAGESIZE")

# What is traced -> program -> tracepoint that it needs, the best one first; docs/record.md says
# which kernels have them.
ALTERNATIVES: Mapping[str, dict[str, str]] = {
    "calls": {"files.bt": "syscalls/sys_enter_openat"},
    "page faults": {
        "faults_filemap_fault.bt": "filemap/mm_filemap_fault",
        "faults_page_cache.bt": "filemap/mm_filemap_add_to_page_cache",
    },
    "block I/O": {
        "block_io.bt": "block/block_io_start",
        "block_rq.bt": "block/block_rq_issue",
    },
}


def event_folder() -> Path | None:
    """The folder that describes this kernel's tracepoints; None if it is absent or hidden."""
    return next((r / "events" for r in TRACEFS if (r / "events" / "block").is_dir()), None)


def command(*words: str) -> list[str]:
    """The beginning of a command line that makes tracepoints visible, even without tracefs."""
    return [*([] if event_folder() else _WITH_TRACEFS), *words]


def tracepoints() -> frozenset[str]:
    """All "category/name" of this kernel; empty if it has none, or hides them from us."""
    folder = event_folder() or TRACEFS[0] / "events"
    listing = ["find", str(folder), "-mindepth", "2", "-maxdepth", "2", "-type", "d"]
    try:
        done = subprocess.run(command(*listing), capture_output=True, text=True)
    except FileNotFoundError:
        return frozenset()  # the system lacks unshare or find
    return frozenset(line.removeprefix(f"{folder}/") for line in done.stdout.splitlines())


def missing() -> str | None:
    """Why bpftrace cannot be used here; None if it can."""
    if shutil.which("bpftrace") is None:
        return "bpftrace is not installed"
    version = subprocess.run(["bpftrace", "--version"], capture_output=True, text=True).stdout
    match = re.search(r"(\d+)\.(\d+)", version)
    if not match or tuple(map(int, match.groups())) < OLDEST_VERSION:
        oldest = ".".join(map(str, OLDEST_VERSION))
        return f"{version.strip() or 'this bpftrace'} is too old; {oldest} or later is needed"
    if not processes.sees_whole_machine():
        return "this is a container, where processes have other numbers; take the trace on its host"
    if os.geteuid() != 0:
        return "it needs root; take the trace with sudo"
    # Checked last, because it lists some thousand folders.
    if not chosen_programs(tracepoints()):
        return "this kernel has none of the tracepoints in question, or hides them"
    return None


def chosen_programs(events: frozenset[str]) -> dict[str, str]:
    """What is traced -> its program, the first alternative whose tracepoint is there."""
    chosen = {}
    for what, alternatives in ALTERNATIVES.items():
        if present := [name for name, needed in alternatives.items() if needed in events]:
            chosen[what] = present[0]
    # The program of calls keeps the process tree by which faults are filtered.
    if "calls" not in chosen:
        chosen.pop("page faults", None)
    return chosen


def program_text(programs: Iterable[str], pids: Iterable[int], events: frozenset[str]) -> str:
    """One program of several files; probes that this kernel lacks are taken out."""
    text = "\n".join((PROGRAMS / program).read_text() for program in programs)
    text = re.sub(r"^\s*//.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\bTARGET\b", " ".join(f"@tree[{pid}] = 1;" for pid in pids), text)

    def only_present(match: re.Match) -> str:
        probes = re.split(r",\s*", match["probes"])
        kept = [p for p in probes if "/".join(p.split(":")[1:]) in events]
        return ", ".join(kept) + match["rest"] if kept else ""

    pattern = r"^(?P<probes>tracepoint:[\w:]+(?:,\s*tracepoint:[\w:]+)*)(?P<rest>[^{]*\{[^}]*\}\n?)"
    text = re.sub(pattern, only_present, text, flags=re.MULTILINE)
    # bpftrace allows one END; with none, it would print maps behind the last event.
    ends = re.findall(r"^END \{(.*)\}\n", text, flags=re.MULTILINE)
    return re.sub(r"^END .*\n", "", text, flags=re.MULTILINE) + f"END {{{''.join(ends)}}}\n"


def environment() -> dict[str, str]:
    """Variables for bpftrace: long paths, large maps and buffers."""
    return {
        **os.environ,
        "BPFTRACE_STRLEN": str(LONGEST_NAME_BYTES + 1),  # the most that versions before 0.20 allow
        "BPFTRACE_MAX_STRLEN": str(LONGEST_NAME_BYTES + 1),
        "BPFTRACE_MAP_KEYS_MAX": "65536",
        "BPFTRACE_MAX_MAP_KEYS": "65536",
        "BPFTRACE_PERF_RB_PAGES": "1024",
    }


_LOST = re.compile(r"Lost (\d+) events$")
_ERRNO_BITS = 4096
_AT_FDCWD = -100  # in calls that end in "at": the path is relative to the process's folder
_MOST_EVENTS_OUT_OF_ORDER = 40_000
_FIOCLEX = 0x5451
_AT_POSITION, _AT_END = -1, -2  # what the programs print for an offset
_DISKS_TOLD_OTHERWISE = ("overlay", "btrfs")  # stat(2) and faults name different disks


@functools.cache
def _kind_of_mounted() -> dict[str, str]:
    """MAJOR:MINOR -> kind of file system; subvolumes of a btrfs are missing."""
    lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    return {line.split()[2]: line.rpartition(" - ")[2].split()[0] for line in lines}


class _Line(NamedTuple):
    """The fields of a line of the programs, which its first word decides."""

    num_fields: int
    texts: tuple[int, ...] = (3,)
    """The places of the fields that are no numbers."""
    latency: int | None = None
    """The place of the latency: the event ends so long after its stamp."""


_LINES = {
    "fork": _Line(5, ()), "exec": _Line(4), "exit": _Line(3, ()), "call": _Line(9, latency=4),
    "open": _Line(8, latency=4), "path": _Line(7, latency=4), "rename": _Line(9, latency=4),
    "copy": _Line(10, latency=4), "fault": _Line(6, ()), "cached": _Line(6, ()),
    "block": _Line(8, (6, 7), latency=5), "asynchronous": _Line(3, ()), "sent": _Line(3, ()),
    "taken": _Line(3, ()),
}  # fmt: skip
_NAMED = ("open", "path", "rename")


class Parser(CallParser):
    """Turns the programs' lines into rows."""

    def __init__(
        self,
        *,
        opened_before: Iterable[tuple[int, int, str, bool]] = (),
        process_of_thread: Mapping[int, int] | None = None,
        **where,
    ):
        """Takes what the lines do not contain.

        Args:
          opened_before: (process, descriptor, path, whether exec closes it).
          process_of_thread: of the threads that were there before.
          where: what `CallParser` takes.
        """
        super().__init__(**where)
        for pid, fd, path, closes in opened_before:
            self._files[pid].note(fd, self._note_opening(path), closed_by_exec=closes)
            self._files[pid][fd].lose_position()  # other processes may have it too
        self._latest_ns = 0
        self._num_threads = collections.Counter((process_of_thread or {}).values())
        # (the kernel's number of a disk, inode) -> path of an opened file; disk None: stat(2) names
        # another disk than faults do.
        self._path_of_inode: dict[tuple[int | None, int], str] = {}
        self._unborn: dict[int, dict] = {}
        self._names: dict[str, dict[int, str]] = {"name": {}, "new_name": {}}
        self._notes: dict[str, Callable[[int], None]] = {
            "asynchronous": self._note_asynchronous,
            "sent": self._lose_those_of,  # a message may give descriptors to others
            "taken": lambda _: self._lose_all(),  # descriptors of an unknown process
        }

    def parse(self, lines: Iterable[str]) -> Iterator[Row]:
        """Yields (table, row) in order of time; the stamps are CLOCK_BOOTTIME's."""
        for word, fields in self._in_order(self._events(lines)):
            if word == "lost":
                self._lose_all()
                continue
            if word != "block":
                yield from self._born(*fields[1:3])
            if word in self._notes:
                self._notes[word](fields[1])
            else:
                yield from getattr(self, f"_{word}")(*fields)
        yield from (("process_events", row) for row in self._unborn.values())

    def _events(self, lines: Iterable[str]) -> Iterator[tuple[int, str, list]]:
        """(stamp of its end, word, fields) of every event; names are joined with their calls."""
        names: dict[int, str] | None = None
        for line in lines:
            if lost := _LOST.match(line):
                self.losses.lost_events += int(lost[1])
                # Events were lost somewhere between those that wait and the next ones.
                yield from ((stamp, "lost", []) for stamp in (0, self._latest_ns))
                continue
            word, *fields = line.rstrip("\n").split("\t")
            try:
                if word in self._names:
                    names, tid = self._names[word], int(fields[0])
                    names[tid] = "\t".join(fields[1:])
                elif word in _LINES:
                    names = None
                    yield self._event(word, fields)
                elif names is not None:  # a name has several lines
                    names[tid] += "\n" + line.rstrip("\n")
                elif fields:  # the programs print empty lines and "ready"; other lines were cut
                    self._note_damage()
            except (IndexError, ValueError):
                self._note_damage()

    def _event(self, word: str, fields: list[str]) -> tuple[int, str, list]:
        line = _LINES[word]
        if len(fields) != line.num_fields:
            raise ValueError
        values: list = [f if n in line.texts else int(f) for n, f in enumerate(fields)]
        end = values[0] + (values[line.latency] if line.latency else 0)
        self._latest_ns = max(self._latest_ns, end)
        if word in _NAMED:
            values.append(self._name(values[2], "name"))
        if word == "rename":
            values.append(self._name(values[2], "new_name"))
        if word == "exec":
            self._note_cut(values[3])
        return end, word, values

    def _name(self, tid: int, which: str) -> str | None:
        name = self._names[which].pop(tid, None)
        if name is not None:
            self._note_cut(name)
        return name

    def _note_cut(self, name: str) -> None:
        # Bytes that are not UTF-8 were read as \xNN.
        num_bytes = len(re.sub(r"\\x[0-9a-f]{2}", "?", name).encode())
        self.losses.cut_names += num_bytes >= LONGEST_NAME_BYTES

    @staticmethod
    def _in_order(events: Iterable[tuple[int, str, list]]) -> Iterator[tuple[str, list]]:
        """Sorts events: each processor has a buffer, so an earlier one may be printed later."""
        waiting: list[tuple[int, int, str, list]] = []
        for number, (end, word, values) in enumerate(events):
            heapq.heappush(waiting, (end, number, word, values))
            if len(waiting) > _MOST_EVENTS_OUT_OF_ORDER:
                yield heapq.heappop(waiting)[2:]
        while waiting:
            yield heapq.heappop(waiting)[2:]

    def _born(self, pid: int, tid: int) -> Iterator[Row]:
        """Notes a child at its first event, which shows whether it is a thread or a process."""
        if (row := self._unborn.pop(tid, None)) is None:
            return
        if pid != tid:
            row |= {"event": "thread", "pid": pid}
            self._files.pop(tid, None)
        else:
            self._num_threads[pid] = 1
            self._lose_those_of(pid)  # both the child and its parent may move them
            self._one_ends(row["parent_pid"])
        yield "process_events", row

    def _one_ends(self, pid: int) -> None:
        """Notes that a thread ended; the first thread may end before the others."""
        self._num_threads[pid] = self._num_threads.get(pid, 1) - 1
        if self._num_threads[pid] <= 0:
            del self._num_threads[pid]
            self._ends(pid)

    @staticmethod
    def _stamps(began: int, pid: int, tid: int) -> dict:
        return {"boottime_ns": began, "pid": pid, "tid": tid}

    def _fork(self, began, pid, tid, child, flags) -> Iterator[Row]:
        row = {"event": "process", "parent_pid": pid}
        self._unborn[child] = {**self._stamps(began, child, child), **row}
        # Descriptors are copied now, because the parent may continue first.
        self._inherit(child, pid, flags)
        self._num_threads[pid] = self._num_threads.get(pid, 1) + 1  # until it shows to be a process
        yield from ()

    def _exec(self, began, pid, tid, program) -> Iterator[Row]:
        self._executed(pid)
        row = {"event": "exec", "detail": program}
        yield "process_events", {**self._stamps(began, pid, tid), **row}

    def _exit(self, began, pid, tid) -> Iterator[Row]:
        yield "process_events", {**self._stamps(began, pid, tid), "event": "exit"}
        self._one_ends(pid)

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

    def _result(self, row: dict, result: int) -> int | None:
        return None if row["error"] else result

    def _path_from(self, pid: int, name: str | None, folder_fd: int) -> str:
        if name is None:
            return UNKNOWN  # the line with the name was lost
        folder = None
        if folder_fd & 0xFFFFFFFF != _AT_FDCWD & 0xFFFFFFFF:  # kernels extend the sign or not
            folder = self._path_of(pid, Descriptor(folder_fd))
        return self._absolute(pid, name, folder)

    def _call(self, began, pid, tid, probe, latency, result, fd, wanted, offset) -> Iterator[Row]:
        row = self._row(began, pid, tid, probe, latency, result)
        if (call := row["operation"]) == "ioctl":
            call, wanted, offset = "fcntl", fcntl.F_SETFD, wanted == _FIOCLEX
        if call in DESCRIPTOR_CALLS:
            if not row["error"]:
                self._note_descriptors(pid, call, Descriptor(fd), result, wanted, offset)
            return
        row["requested_bytes"] = None if wanted == -1 else wanted
        at = None if offset in (_AT_POSITION, _AT_END) else offset
        returned, appends = self._result(row, result), offset == _AT_END
        yield self._on_descriptor(row, Descriptor(fd), returned, at, appends=appends)

    def _copy(
        self, began, pid, tid, probe, latency, result, source, target, moves_source, moves_target
    ) -> Iterator[Row]:
        row = self._row(began, pid, tid, probe, latency, result)
        row["operation"] = row["operation"].removesuffix("64")
        # Otherwise it begins at an offset that the program gave and nobody recorded.
        ends = ((source, moves_source), (target, moves_target))
        descriptors = [(Descriptor(fd), None, bool(moves)) for fd, moves in ends]
        yield from self._rows_of_copy(row, descriptors, self._result(row, result))

    def _open(self, began, pid, tid, probe, latency, result, folder, flags, name) -> Iterator[Row]:
        row = self._row(began, pid, tid, probe, latency, result)
        path = self._path_from(pid, name, folder)
        if not row["error"]:
            self._note_inode(path)
        yield self._on_opening(row, path, self._result(row, result), flags)

    def _path(self, began, pid, tid, probe, latency, result, folder, name) -> Iterator[Row]:
        row = self._row(began, pid, tid, probe, latency, result)
        if row["kind"]:
            path = self._path_from(pid, name, folder)
            yield self._on_path(row, path, self._result(row, result))
        elif not row["error"]:
            self._enters(pid, row["operation"], UNKNOWN if name is None else name)

    def _rename(
        self, began, pid, tid, probe, latency, result, folder, new_folder, flags, name, new_name
    ) -> Iterator[Row]:
        row = self._row(began, pid, tid, probe, latency, result)
        path, new = self._path_from(pid, name, folder), self._path_from(pid, new_name, new_folder)
        yield self._on_path(row, path, self._result(row, result), new, flags)

    def _note_inode(self, path: str) -> None:
        with contextlib.suppress(OSError):  # removed since: its faults stay without a path
            status = Path(self._host_path(path)).stat()
            number = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
            has_own = _kind_of_mounted().get(number, "btrfs") not in _DISKS_TOLD_OTHERWISE
            device = os.major(status.st_dev) << 20 | os.minor(status.st_dev) if has_own else None
            self._path_of_inode[device, status.st_ino] = path

    def _cached(self, began, pid, tid, device, inode, page) -> Iterator[Row]:
        yield from self._fault(began, pid, tid, device, inode, page, ADD_TO_PAGE_CACHE)

    def _fault(self, began, pid, tid, device, inode, page, operation="page_fault") -> Iterator[Row]:
        row = {**self._stamps(began, pid, tid), "kind": "fault", "operation": operation}
        row |= {"offset_bytes": page * PAGE_BYTES, "size_bytes": PAGE_BYTES}
        path = self._path_of_inode.get((device, inode)) or self._path_of_inode.get((None, inode))
        yield self._row_of_file(row, path or f"{UNKNOWN}inode {inode}")

    @staticmethod
    def _block(began, pid, device, sector, size, latency, operation, command) -> Iterator[Row]:
        yield (
            "block_io",
            {
                "boottime_ns": began, "pid": pid, "command": command,
                # The kernel's dev_t: 12 bits of major, 20 of minor.
                "device": f"{device >> 20}:{device & 0xFFFFF}",
                "operation": operation, "sector": sector, "size_bytes": size, "latency_ns": latency,
            },
        )  # fmt: skip
