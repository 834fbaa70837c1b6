"""Who belongs to the target: a process tree, containers' cgroups, as /proc tells them."""

import contextlib
import threading
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def stat_fields(pid: int, tid: int | None = None) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name, field 3 first; None if it is gone."""
    folder = PROC / str(pid) if tid is None else PROC / str(pid) / "task" / str(tid)
    try:
        return (folder / "stat").read_text(errors="replace").rpartition(") ")[2].split()
    except OSError:
        return None


def is_running(pid: int) -> bool:
    """False for processes that are gone, and for ended ones whose parent has not noticed."""
    fields = stat_fields(pid)
    return fields is not None and fields[0] not in "ZX"


def all_pids() -> list[int]:
    """Every process of the machine, in this process's pid name space."""
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]


def cgroup_of(pid: int) -> str | None:
    """The process's cgroup, as a path below the mount of cgroup2; None if it is gone."""
    try:
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    # "0::/path" is cgroup2's; on older hosts the first hierarchy serves as well.
    unified = [line.split(":", 2)[2] for line in lines if line.startswith("0::")]
    return (unified or [line.split(":", 2)[2] for line in lines] or [None])[0]


class Target:
    """The processes to watch; whoever once belonged stays, also when its parent is gone."""

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
        """Those left out."""
        return sorted(self._tracers)

    def leave_out(self, tracer: int) -> None:
        """Does not count a tracer that is the parent of what it traces."""
        self._tracers.add(tracer)

    def add_container(self, pid: int) -> None:
        """Watches a container by its first process: its cgroup and its tree."""
        self.add_tree(pid)
        cgroup = cgroup_of(pid)
        if cgroup and cgroup not in ("/", cgroup_of(1), cgroup_of_self()):
            self._cgroups.add(cgroup)

    def pids(self) -> list[int]:
        """Those that are there now."""
        with self._lock:
            return self._pids()

    def _pids(self) -> list[int]:
        present = all_pids()
        parents = {pid: int(fields[1]) for pid in present if (fields := stat_fields(pid))}
        members = (self._known | self._roots) & parents.keys()
        if self._cgroups:
            members |= {pid for pid in present if self._is_inside(cgroup_of(pid))}
        members |= _descendants(members, parents)
        self._known = members
        return sorted(members - self._tracers)

    def _is_inside(self, cgroup: str | None) -> bool:
        return cgroup is not None and any(
            cgroup == own or cgroup.startswith(own + "/") for own in self._cgroups
        )


def cgroup_of_self() -> str | None:
    """The tracer's own cgroup: a container in it cannot be told apart by cgroup."""
    try:
        return (PROC / "self" / "cgroup").read_text().strip().split(":", 2)[2]
    except (OSError, IndexError):
        return None


def _descendants(members: Iterable[int], parents: dict[int, int]) -> set[int]:
    found, frontier = set(), set(members)
    children: dict[int, set[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, set()).add(pid)
    while frontier:
        frontier = set().union(*(children.get(pid, set()) for pid in frontier)) - found
        found |= frontier
    return found


def tree(root: int) -> set[int]:
    """A process and all that it has started, as far as their parents live."""
    parents = {pid: int(fields[1]) for pid in all_pids() if (fields := stat_fields(pid))}
    return {root} | _descendants({root}, parents)


def arguments_of(pid: int) -> list[str]:
    """The command line; empty if the process is gone or a kernel thread."""
    try:
        content = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [part.decode(errors="backslashreplace") for part in content.split(b"\0") if part]


def threads_of(pid: int) -> list[int]:
    """Its threads; empty if it is gone."""
    try:
        return [int(entry.name) for entry in (PROC / str(pid) / "task").iterdir()]
    except OSError:
        return []


def open_paths(pid: int) -> list[tuple[int, str]]:
    """(descriptor, path) of all that it holds open; empty if it is gone or not ours to see."""
    found = []
    with contextlib.suppress(OSError):
        for descriptor in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.append((int(descriptor.name), str(descriptor.readlink())))
    return found


def tracer_of(pid: int) -> int:
    """Who traces it with ptrace; 0 if nobody."""
    try:
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        return 0
    return int(status.split("TracerPid:")[1].split()[0])
