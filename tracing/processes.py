"""Finds the processes of the target: process trees, and the cgroups of containers.

psutil answers where it can. Its `process_iter` takes more than twice as long as `Target.pids`,
which is called ten times a second. /proc is read for what psutil lacks: cgroups, page faults,
tracers, descriptors of pipes and of files that only a container sees; and for command lines,
whose undecodable bytes psutil leaves as surrogates that the tables cannot hold.
"""

import contextlib
import os
import threading
from pathlib import Path

import psutil

PROC = Path("/proc")


def sees_whole_machine() -> bool:
    """Whether this process is in the machine's own name space of process ids."""
    # PROC_PID_INIT_INO of the kernel's proc_ns.h.
    return (PROC / "self" / "ns" / "pid").stat().st_ino == 0xEFFFFFFC


def text_of(pid: int, name: str) -> str:
    """The text of a file below /proc/PID; empty if the process is gone or hidden from us."""
    try:
        return (PROC / str(pid) / name).read_bytes().decode(errors="backslashreplace")
    except OSError:
        return ""


def link_of(pid: int, name: str) -> str:
    """The target of a link below /proc/PID; empty if the process is gone or hidden from us."""
    try:
        return str((PROC / str(pid) / name).readlink())
    except OSError:
        return ""


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, field 3 first; empty if it is gone."""
    return text_of(pid, "stat").rpartition(") ")[2].split()


def is_running(pid: int) -> bool:
    """Whether a process runs; False for ended ones too whose parent has not noticed."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except (psutil.NoSuchProcess, ValueError):  # ValueError: a number below 0
        return False


def tree(root: int) -> set[int]:
    """A process and its descendants, except below a parent that has ended."""
    try:
        return {root, *(child.pid for child in psutil.Process(root).children(recursive=True))}
    except psutil.NoSuchProcess:
        return {root}


def cgroup_of(pid: int) -> str | None:
    """The process's cgroup, as a path below the mount of cgroup2; None if it is gone."""
    # "0::/path" is cgroup2's; on older hosts the first hierarchy serves as well.
    lines = sorted(text_of(pid, "cgroup").splitlines(), key=lambda line: line[:3] != "0::")
    return lines[0].split(":", 2)[2] if lines else None


def uses_asynchronous_io(pid: int) -> bool:
    """Whether it holds a ring of io_uring or libaio; False if it is gone or hidden from us."""
    if any(path.startswith("anon_inode:[io_uring]") for _, path in open_paths(pid)):
        return True
    # This counts the whole machine's: if it is 0, no long list of mappings need be read.
    with contextlib.suppress(OSError):
        return (PROC / "sys/fs/aio-nr").read_text() != "0\n" and "/[aio]" in text_of(pid, "maps")
    return False


def has_ended(child: int) -> bool:
    """Whether a child of this process has ended; its counters stay until it is waited for."""
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True  # another part of the process has waited for it


class Target:
    """The processes to watch; each stays until it ends, even when its parent has ended."""

    def __init__(self):
        self._roots: set[int] = set()
        self._cgroups: set[str] = set()
        self._known: set[int] = set()
        self._tracers: set[int] = set()
        self._lock = threading.Lock()

    def add_tree(self, root: int) -> None:
        """Watches a process and all that it starts."""
        self._roots.add(root)

    def tracers(self) -> list[int]:
        """The tracers that are left out."""
        return sorted(self._tracers)

    def starters(self) -> list[int]:
        """The tracers that have started the command themselves."""
        return sorted(self._tracers & self._roots)

    def leave_out(self, tracer: int) -> None:
        """Leaves out a tracer that is the parent of what it traces."""
        self._tracers.add(tracer)

    def add_container(self, pid: int) -> None:
        """Watches a container by its first process: its cgroup and its tree."""
        self.add_tree(pid)
        cgroup = cgroup_of(pid)
        if cgroup and cgroup not in ("/", cgroup_of(1), cgroup_of(os.getpid())):
            with self._lock:  # another thread may iterate over them
                self._cgroups.add(cgroup)

    def pids(self) -> list[int]:
        """The processes that are there now."""
        with self._lock:
            present = psutil.pids()
            members = (self._known | self._roots) & set(present)
            if self._cgroups:
                members |= {pid for pid in present if self._is_inside(cgroup_of(pid))}
            pids: set[int] = set()
            for pid in sorted(members):  # parents first, mostly: their trees hold the others
                if pid not in pids:
                    pids |= tree(pid)
            self._known = pids
            return sorted(pid for pid in pids - self._tracers if not self._is_a_tracers_fork(pid))

    def _is_a_tracers_fork(self, pid: int) -> bool:
        """Whether it is a tracer's child that is not the command yet, or that tests the kernel."""
        parent = parent_of(pid)
        return parent in self._tracers and arguments_of(pid) == arguments_of(parent)

    def _is_inside(self, cgroup: str | None) -> bool:
        return cgroup is not None and any(
            cgroup == own or cgroup.startswith(own + "/") for own in self._cgroups
        )


def arguments_of(pid: int) -> list[str]:
    """The command line; empty if the process is gone or a kernel thread."""
    return [part for part in text_of(pid, "cmdline").split("\0") if part]


def threads_of(pid: int) -> list:
    """A process's threads as psutil's (id, user_time, system_time), in seconds; empty if gone."""
    try:
        return psutil.Process(pid).threads()
    except psutil.Error:
        return []


def open_paths(pid: int) -> list[tuple[int, str]]:
    """(descriptor, path) of all that it holds open; empty if it is gone or hidden from us."""
    try:
        fds = [path.name for path in (PROC / str(pid) / "fd").iterdir()]
    except OSError:
        return []
    links = ((int(fd), link_of(pid, f"fd/{fd}")) for fd in fds)
    return [(fd, path) for fd, path in links if path]


def is_closed_by_exec(pid: int, fd: int) -> bool:
    """Whether exec closes a descriptor; False if the process is gone or hidden from us."""
    flags = text_of(pid, f"fdinfo/{fd}").partition("flags:")[2].split()
    return bool(flags) and bool(int(flags[0], 8) & os.O_CLOEXEC)


def tracer_of(pid: int) -> int:
    """The process that traces a process with ptrace; 0 if there is none."""
    number = text_of(pid, "status").partition("TracerPid:")[2].split()
    return int(number[0]) if number else 0


def traced_by(tracer: int) -> list[int]:
    """The processes that a process traces with ptrace."""
    return [pid for pid in psutil.pids() if tracer_of(pid) == tracer]


def parent_of(pid: int) -> int:
    """The parent of a process; 0 if the process is gone."""
    fields = stat_fields(pid)
    return int(fields[1]) if fields else 0


def name_of(pid: int) -> str:
    """The short name of the program that a process runs."""
    return text_of(pid, "comm").strip() or "a process that has ended"
