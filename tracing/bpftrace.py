"""bpftrace as a tracer: which programs fit the kernel, and their lines as rows."""

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tracing import files
from tracing.strace import KIND_OF

PROGRAMS = Path(__file__).parent / "programs"
OLDEST_VERSION = (0, 14)  # the first with comparisons of 64-bit arguments as the programs make them
TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
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


def version(text: str) -> tuple[int, ...]:
    """The numbers in what `bpftrace --version` prints; empty if there are none."""
    found = re.search(r"v?(\d+)\.(\d+)", text)
    return tuple(int(number) for number in found.groups()) if found else ()


def event_folder(roots: Iterable[Path] = TRACEFS) -> Path | None:
    """Where this kernel describes its tracepoints; None if it has none or hides them."""
    for root in roots:
        if (root / "events" / "syscalls").is_dir() or (root / "events" / "block").is_dir():
            return root / "events"
    return None


def missing(*, is_root: bool, version_text: str | None, events: Path | None) -> str | None:
    """Why bpftrace cannot serve here; None if it can."""
    if version_text is None:
        return "bpftrace is not installed"
    if version(version_text) < OLDEST_VERSION:
        oldest = ".".join(str(number) for number in OLDEST_VERSION)
        return f"{version_text.strip() or 'this bpftrace'} is too old; {oldest} or later is needed"
    if not is_root:
        return "it needs root; call tracing/trace.sh with sudo"
    if events is None:
        return "this kernel has no tracepoints (built without ftrace, or tracefs is not mounted)"
    if not chosen_programs(events):
        return "this kernel has none of the tracepoints in question"
    return None


def installed_version() -> str | None:
    """What `bpftrace --version` prints; None if it is not installed."""
    if shutil.which("bpftrace") is None:
        return None
    return subprocess.run(["bpftrace", "--version"], capture_output=True, text=True).stdout


def chosen_programs(events: Path) -> dict[str, str]:
    """what -> program, the first alternative whose tracepoint is there."""
    chosen = {}
    for what, alternatives in ALTERNATIVES.items():
        for program, tracepoint, _ in alternatives:
            if (events / tracepoint).is_dir():
                chosen[what] = program
                break
    # Faults are filtered by the tree that the program of calls keeps.
    if "calls" not in chosen:
        chosen.pop("page faults", None)
    return chosen


def program_text(programs: Iterable[str], pids: Iterable[int], events: Path) -> str:
    """One program of several files; probes that this kernel lacks are taken out."""
    text = "\n".join((PROGRAMS / program).read_text() for program in programs)
    text = re.sub(r"^\s*//.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\bTARGET\b", " ".join(f"@tree[{pid}] = 1;" for pid in pids), text)

    def only_present(found: re.Match) -> str:
        probes = re.split(r",\s*", found["probes"])
        kept = [p for p in probes if (events / "/".join(p.strip().split(":")[1:])).is_dir()]
        return ", ".join(kept) + found["rest"] if kept else ""

    pattern = r"^(?P<probes>tracepoint:[\w:]+(?:,\s*tracepoint:[\w:]+)*)(?P<rest>[^{]*\{[^}]*\}\n?)"
    return re.sub(pattern, only_present, text, flags=re.MULTILINE)


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


class Parser:
    """Turns the programs' lines into rows; counts lost events and damaged lines."""

    def __init__(
        self,
        *,
        folder: str,
        host_path: Callable[[str], str] = str,
        path_of_fd: Mapping[tuple[int, int], str] | None = None,
        path_of_inode: Mapping[int, str] | None = None,
    ):
        """Takes what the lines do not tell.

        Args:
          folder: where the command was started.
          host_path: where this machine finds a path of a container.
          path_of_fd: (process, descriptor) -> path, of what was open before.
          path_of_inode: inode -> path, for page faults; files seen open are added.
        """
        self.num_lost_events = 0
        self.num_damaged_lines = 0
        self._folder = folder
        self._host_path = host_path
        self._folders: dict[int, str] = {}
        self._paths = dict(path_of_fd or {})
        self._positions: dict[tuple[int, int], int] = {}
        self._path_of_inode = dict(path_of_inode or {})
        self._handlers = {
            "fork": self._fork, "exec": self._exec, "exit": self._exit, "call": self._call,
            "open": self._open, "path": self._path, "rename": self._rename,
            "fault": self._fault, "block": self._block,
        }  # fmt: skip

    def parse(self, lines: Iterable[str]) -> Iterator[tuple[str, dict]]:
        """Yields (table, row); the stamps are CLOCK_BOOTTIME's."""
        for line in lines:
            if lost := _LOST.search(line):
                self.num_lost_events += int(lost[1])
                continue
            word, *fields = line.rstrip("\n").split("\t")
            if word not in self._handlers:
                # Empty lines and "ready" are the programs' own; the rest was cut.
                self.num_damaged_lines += bool(fields)
                continue
            try:
                found = self._handlers[word](*fields)
            except (TypeError, ValueError):
                self.num_damaged_lines += 1
                continue
            if found:
                yield found

    @staticmethod
    def _stamps(began: str, pid: str, tid: str) -> dict:
        return {"boottime_ns": int(began), "pid": int(pid), "tid": int(tid)}

    def _fork(self, began, pid, tid, child):
        parent, child = int(pid), int(child)
        for (owner, fd), path in list(self._paths.items()):
            if owner == parent:
                self._paths.setdefault((child, fd), path)
        self._folders[child] = self._folders.get(parent, self._folder)
        # A thread and a process are told apart later: a thread's calls come with its process's pid.
        row = {"tid": child, "event": "process", "parent_pid": parent}
        return "process_events", {**self._stamps(began, str(child), tid), **row}

    def _exec(self, began, pid, tid, program):
        row = {"event": "exec", "detail": program}
        return "process_events", {**self._stamps(began, pid, tid), **row}

    def _exit(self, began, pid, tid):
        return "process_events", {**self._stamps(began, pid, tid), "event": "exit"}

    def _row(self, began, pid, tid, probe, latency, result) -> dict:
        call = probe.rpartition("sys_exit_")[2]
        result = int(result)
        failed = -_ERRNO_BITS < result < 0
        return {
            **self._stamps(began, pid, tid),
            "kind": KIND_OF.get(call),
            "operation": call,
            "latency_ns": int(latency),
            "size_bytes": 0,
            "error": errno.errorcode.get(-result, str(-result)) if failed else None,
        }

    def _named(self, row: dict, path: str) -> tuple[str, dict]:
        file_class = files.classify(path, seen_as=self._host_path(path))
        return "file_ops", {**row, "path": path, "file_class": file_class}

    def _absolute(self, pid: int, path: str) -> str:
        folder = self._folders.get(pid, self._folder)
        return path if path.startswith("/") else f"{folder.rstrip('/')}/{path}"

    def _call(self, began, pid, tid, probe, latency, result, fd, wanted, offset):
        row = self._row(began, pid, tid, probe, latency, result)
        place, result = (int(pid), int(fd)), int(result)
        path = self._paths.get(place, "unknown:")
        moved = 0 if row["error"] else result
        if row["kind"] in ("read", "write"):
            row |= {"size_bytes": moved, "requested_bytes": int(wanted) if wanted != "-1" else None}
            row["offset_bytes"] = int(offset) if offset != "-1" else self._positions.get(place)
            if offset == "-1" and place in self._positions:
                self._positions[place] += moved
        elif row["kind"] == "seek" and not row["error"]:
            self._positions[place] = row["offset_bytes"] = result
        elif row["kind"] == "close":
            self._paths.pop(place, None)
            self._positions.pop(place, None)
        return self._named(row, path)

    def _open(self, began, pid, tid, probe, latency, result, flags, path):
        row = self._row(began, pid, tid, probe, latency, result)
        path = self._absolute(int(pid), path)
        if int(flags) & os.O_CREAT:
            row["kind"] = "create"
        if not row["error"]:
            place = (int(pid), int(result))
            self._paths[place] = path
            self._positions.pop(place, None)
            if not int(flags) & os.O_APPEND:
                self._positions[place] = 0
            self._note_inode(path)
        return self._named(row, path)

    def _note_inode(self, path: str) -> None:
        try:
            self._path_of_inode[Path(self._host_path(path)).stat().st_ino] = path
        except OSError:
            return  # removed since: its faults stay without a path

    def _path(self, began, pid, tid, probe, latency, result, path):
        row = self._row(began, pid, tid, probe, latency, result)
        path = self._absolute(int(pid), path)
        if row["operation"] == "chdir":
            if not row["error"]:
                self._folders[int(pid)] = path
            return None
        return self._named(row, path)

    def _rename(self, began, pid, tid, probe, latency, result, path, new_path):
        row = self._row(began, pid, tid, probe, latency, result)
        row["new_path"] = self._absolute(int(pid), new_path)
        return self._named(row, self._absolute(int(pid), path))

    def _fault(self, began, pid, tid, device, inode, page):
        row = {**self._stamps(began, pid, tid), "kind": "fault", "operation": "page_fault"}
        row |= {"offset_bytes": int(page) * PAGE_BYTES, "size_bytes": PAGE_BYTES}
        return self._named(row, self._path_of_inode.get(int(inode), f"unknown:inode {inode}"))

    @staticmethod
    def _block(began, pid, device, sector, size, latency, operation, command):
        device = int(device)  # the kernel's dev_t: 12 bits of major, 20 of minor
        return "block_io", {
            "boottime_ns": int(began),
            "pid": int(pid),
            "command": command,
            "device": f"{device >> 20}:{device & 0xFFFFF}",
            "operation": operation,
            "sector": int(sector),
            "size_bytes": int(size),
            "latency_ns": int(latency),
        }
