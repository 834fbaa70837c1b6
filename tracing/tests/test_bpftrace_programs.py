"""The bpftrace programs on events by hand: few machines let bpftrace itself run."""

import fcntl
import os
import re
from termios import FIOCLEX, FIONCLEX
from types import SimpleNamespace

import pytest

from tracing import bpftrace

TEXTS = [path.read_text() for path in bpftrace.PROGRAMS.glob("*.bt")]
EVENTS = {name.replace(":", "/") for name in re.findall(r"tracepoint:([\w:]+)", str(TEXTS))}
# Of bpftrace's language what the programs use -> Python.
_PYTHON = (
    (r"delete\(@(\w+)\[([^]]*)\]\)", r"maps.\1.pop((\2), None)"), (r"clear\(", "dict.clear("),
    (r"\*\(u?int64\*\)uptr", "memory"), (r"\(u?int64\)", ""), (r"args->", "args."),
    (r"@(\w+)", r"maps.\1"), ("&&", "and"), (r"\|\|", "or"), ("%ll", "%"), ("%u", "%d"),
    (r"= (.*) \? (.*) : (.*)", r"= \2 if \1 else \3"),
)  # fmt: skip


class _Map(dict):
    def __missing__(self, key):
        return 0


class Machine:
    """Runs programs that trace the process 7; a call lasts 5 ns, and 100 from one to the next."""

    def __init__(self, *names: str):
        text = bpftrace.program_text(names, [7], EVENTS)
        for pattern, python in _PYTHON:
            text = re.sub(pattern, python, text)
        self.actions = re.findall(r"([^{}/]+)(?:/([^{}]+)/)?\s*\{([^}]*)\}", text)
        self.maps = SimpleNamespace(**{name: _Map() for name in re.findall(r"maps\.(\w+)", text)})
        self.lines, self.now = [], 0
        self.at("BEGIN", 0, 0)

    def at(self, probe: str, pid: int, tid: int, /, memory=(), **args) -> None:
        """An event; `memory` is what pointers point to."""
        known = {
            "pid": pid, "tid": tid, "args": SimpleNamespace(**args), "nsecs": self.now,
            "probe": probe, "comm": "cat", "maps": self.maps, "memory": dict(memory).get,
            "printf": lambda form, *values: self.lines.append(form % values),
        }  # fmt: skip
        for probes, condition, action in self.actions:
            if probe in re.split(r"[,\s]+", probes) and eval(condition or "1", known):
                exec("\n".join(part.strip() for part in action.split(";")), known)

    def call(self, name: str, result: int, pid: int = 7, tid: int = 17, **given) -> None:
        """A call, within which another thread makes one."""
        self.now += 100
        self.at(f"tracepoint:syscalls:sys_enter_{name}", pid, tid, **given)
        if tid == 17:
            self.call("fsync", 0, pid, 18, fd=99)
        self.now += 5
        self.at(f"tracepoint:syscalls:sys_exit_{name}", pid, tid, ret=result)

    def rows(self) -> list[dict]:
        """Those of the threads other than 18, of which nothing is kept."""
        assert not [kept for name, kept in vars(self.maps).items() if kept and name != "tree"]
        parser = bpftrace.Parser(folder="/d")
        found = [row for _, row in parser.parse(self.lines) if row.get("tid") != 18]
        assert parser.losses.damaged_lines == 0
        return found


COLUMNS = ("kind", "path", "new_path", "offset_bytes", "size_bytes", "requested_bytes")
AT = {"dfd": -100, "flags": 0}
OLD, NEW = {"olddfd": -100, "oldname": "x"}, {"newdfd": 5, "newname": "z"}
X, Y, DEEP = "/d/x", "/d/y", "/d/deep"
READ = ("read", 9, {"fd": 3, "count": 30})
CLOEXEC, EXECUTES = {"flags": os.O_CLOEXEC}, ("execve", 0, {})


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([READ, READ], [("read", X, None, 0, 9, 30), ("read", X, None, 9, 9, 30)]),
        ([("write", 8, {"fd": 4, "count": 20}), ("readv", 7, {"fd": 3}), ("writev", 6, {"fd": 4})],
         [("write", Y, None, 0, 8, 20), ("read", X, None, 0, 7, None),
          ("write", Y, None, 8, 6, None)]),
        ([("pread64", 5, {"fd": 3, "count": 40, "pos": 70}),
          ("pwrite64", 4, {"fd": 4, "count": 50, "pos": 80})],
         [("read", X, None, 70, 5, 40), ("write", Y, None, 80, 4, 50)]),
        *(([(f"p{kind}v{end}", 5, {"fd": 3, "pos_l": 60, "flags": 1})],
           [(kind, X, None, 60, 5, None)]) for kind in ("read", "write") for end in ("", "2")),
        ([("preadv2", 5, {"fd": 3, "pos_l": -1, "flags": 0}), READ],
         [("read", X, None, 0, 5, None), ("read", X, None, 5, 9, 30)]),
        ([("pwritev2", 5, {"fd": 3, "pos_l": 60, "flags": 0x10}), READ],  # RWF_APPEND
         [("write", X, None, None, 5, None), ("read", X, None, None, 9, 30)]),
        ([("lseek", 50, {"fd": 3}), ("fsync", 0, {"fd": 3}), ("fdatasync", 0, {"fd": 4}), READ],
         [("seek", X, None, 50, 0, None), ("sync", X, None, None, 0, None),
          ("sync", Y, None, None, 0, None), ("read", X, None, 50, 9, 30)]),
        ([("close", 0, {"fd": 3}), READ],
         [("close", X, None, None, 0, None), ("read", "unknown:", None, None, 9, 30)]),
        # At a position, or at an offset that the program gave.
        *(([("sendfile64", 6, {"in_fd": 3, "out_fd": 4, "offset": given}), READ],
           [("read", X, None, None if given else 0, 6, None), ("write", Y, None, 0, 6, None),
            ("read", X, None, 0 if given else 6, 9, 30)]) for given in (0, 0x7F00)),
        *(([(name, 6, {"fd_in": 3, "fd_out": 4, "off_in": given, "off_out": 0x7F00 - given}), READ],
           [("read", X, None, None if given else 0, 6, None),
            ("write", Y, None, 0 if given else None, 6, None),
            ("read", X, None, 0 if given else 6, 9, 30)])
          for name in ("copy_file_range", "splice") for given in (0, 0x7F00)),
        # Names from the folder of the process, or of a descriptor.
        ([("open", -2, {"filename": "a", "flags": os.O_CREAT}),
          ("openat", -2, {"filename": "a", "flags": 0, "dfd": 5}),
          ("creat", -2, {"pathname": "a"}),
          ("openat2", -2, {"filename": "a", "how": 8, "dfd": 5, "memory": {8: os.O_CREAT}})],
         [(kind, f"{place}/a", None, None, 0, None) for kind, place in (
             ("create", "/d"), ("open", DEEP), ("create", "/d"), ("create", DEEP))]),
        *(([(name, 0, {"pathname": "a"}), (f"{name}at", 0, {"pathname": "b", "dfd": 5})],
           [(kind, "/d/a", None, None, 0, None), (kind, f"{DEEP}/b", None, None, 0, None)])
          for name, kind in (("unlink", "remove"), ("mkdir", "create"))),
        ([("rmdir", 0, {"pathname": "a"}), ("chdir", 0, {"filename": "deep"}),
          ("rmdir", 0, {"pathname": "a"}), ("chroot", 0, {"filename": "/r"}),
          ("rmdir", 0, {"pathname": "/a"})],
         [("remove", path, None, None, 0, None) for path in ("/d/a", f"{DEEP}/a", "/r/a")]),
        ([("fchdir", 0, {"fd": 5}), ("unlink", 0, {"pathname": "a"})],
         [("remove", f"{DEEP}/a", None, None, 0, None)]),
        ([("rename", 0, {"oldname": "x", "newname": "z"}), READ],
         [("rename", X, "/d/z", None, 0, None), ("read", "/d/z", None, 0, 9, 30)]),
        *(([(name, 0, {**OLD, **NEW, **flags}), READ],
           [(kind, X, f"{DEEP}/z", None, 0, None), ("read", f"{DEEP}/z", None, 0, 9, 30)])
          for name, flags, kind in (
              ("renameat", {}, "rename"), ("renameat2", {"flags": 1}, "rename"),
              ("renameat2", {"flags": 2}, "exchange"))),
        ([("fcntl", 0, {"fd": 4, "cmd": fcntl.F_SETFL, "arg": os.O_APPEND}),
          ("write", 8, {"fd": 4, "count": 20})], [("write", Y, None, None, 8, 20)]),
        # What becomes of descriptors.
        *(([*calls, ("close", 0, {"fd": 4}), EXECUTES, READ],
           [("close", Y, None, None, 0, None), ("read", path, None, at, 9, 30)])
          for path, at, *calls in (
              (Y, 0, ("dup", 6, {"fildes": 4}), ("dup2", 3, {"oldfd": 6, "newfd": 3})),
              (Y, 0, ("dup3", 3, {"oldfd": 4, "newfd": 3, "flags": 0})),
              ("unknown:", None, ("dup3", 3, {"oldfd": 4, "newfd": 3, **CLOEXEC})),
              (Y, 0, ("fcntl", 3, {"fd": 4, "cmd": fcntl.F_DUPFD, "arg": 3})),
              ("unknown:", None, ("fcntl", 3, {"fd": 4, "cmd": fcntl.F_DUPFD_CLOEXEC, "arg": 3})),
              ("unknown:", None, ("fcntl", 0, {"fd": 3, "cmd": fcntl.F_SETFD, "arg": 1})),
              (X, 0, ("fcntl", 0, {"fd": 3, "cmd": fcntl.F_SETFD, "arg": 0})),
              (X, 0, ("fcntl", 1, {"fd": 3, "cmd": fcntl.F_GETFD, "arg": 1})),
              ("unknown:", None, ("ioctl", 0, {"fd": 3, "cmd": FIOCLEX})),
              (X, 0, *(("ioctl", 0, {"fd": 3, "cmd": cmd}) for cmd in (FIOCLEX, FIONCLEX))),
              ("unknown:", None, ("close_range", 0, {"fd": 3, "max_fd": 3, "flags": 0})),
              ("unknown:", None, ("close_range", 0, {"fd": 2, "max_fd": 3, "flags": 6})),
              (X, 0, ("close_range", 0, {"fd": 4, "max_fd": 9, "flags": 6})))),
        # Others may move it now.
        *(([(name, 0, {each: 100, "memory": {140: held}}), READ],
           [("read", X, None, None if held else 0, 9, 30)])
          for name, each in (("sendmsg", "msg"), ("sendmmsg", "mmsg")) for held in (0, 24)),
        *(([("pidfd_getfd", result, {}), READ], [("read", X, None, at, 9, 30)])
          for result, at in ((8, None), (-1, 0))),
    ],
)  # fmt: skip
def test_a_call_is_recorded_by_its_own_arguments(steps, expected):
    machine, other = Machine("files.bt"), Machine("files.bt")
    for fd, name in ((3, "x"), (4, "y"), (5, "deep")):
        machine.call("openat", fd, filename=name, **AT)
    for name, result, given in steps:
        if name == "execve":
            exec_of = {"old_pid": 7, "filename": "/bin/x"}
            machine.at("tracepoint:sched:sched_process_exec", 7, 7, **exec_of)
        else:
            machine.call(name, result, **given)
            other.call(name, result, pid=99, **given)
            other.at(f"tracepoint:syscalls:sys_exit_{name}", 7, 7, ret=-1)  # began before
    found = [row for row in machine.rows() if "kind" in row][3:]
    assert [tuple(row.get(column) for column in COLUMNS) for row in found] == expected
    assert {(row["pid"], row["tid"], row["latency_ns"] % 100) for row in found} == {(7, 17, 10)}
    assert other.lines == ["ready\n"]


@pytest.mark.parametrize("makes", ["clone", "clone3"])
def test_what_the_target_makes_is_recorded_until_its_end_and_nothing_else(makes):
    machine, sched = Machine("files.bt"), "tracepoint:sched:sched_process_"
    machine.call("openat", 3, filename="x", **AT)
    given = {"clone_flags": 0x400, "uargs": 8, "memory": {8: 0x400}}  # CLONE_FILES
    machine.at(f"tracepoint:syscalls:sys_enter_{makes}", 7, 17, **given)
    machine.at(f"{sched}fork", 7, 17, child_pid=8)
    machine.at(f"tracepoint:syscalls:sys_exit_{makes}", 7, 17, ret=8)
    machine.at(f"{sched}fork", 7, 17, child_pid=9)  # by another call: it gets copies
    machine.at(f"{sched}fork", 99, 99, child_pid=10)
    for pid in (8, 9, 10):
        machine.call("openat", 4, pid, pid, filename="y", **AT)
    machine.call("read", 1, fd=4, count=2)
    # Another thread of 8 executes a program, and takes the number of the first, which has ended.
    machine.at(f"{sched}fork", 8, 8, child_pid=28)
    machine.call("openat", -2, 8, 28, filename="z", **AT)
    machine.at(f"{sched}exit", 8, 8)
    machine.at(f"{sched}exec", 8, 8, old_pid=28, filename="/bin/x")
    machine.at(f"{sched}free", 7, 7, pid=8)
    for pid in (8, 9, 28):
        machine.call("openat", -2, pid, pid, filename="z", **AT)
        machine.at(f"{sched}exit", pid, pid)
        machine.call("openat", -2, pid, 38, filename="z", **AT)  # it has other threads
        machine.at(f"{sched}free", 7, 7, pid=pid)
        machine.call("openat", -2, pid, pid, filename="z", **AT)
    found = [(row["pid"], row.get("event") or row["path"]) for row in machine.rows()]
    assert found == [
        (7, X), (8, "process"), (8, Y), (9, "process"), (9, Y), (7, Y), (8, "thread"),
        (8, "/d/z"), (8, "exit"), (8, "exec"), (8, "/d/z"), (8, "exit"), (8, "/d/z"), (9, "/d/z"),
        (9, "exit"), (9, "/d/z"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "probe", "operation"),
    [("faults_filemap_fault.bt", "mm_filemap_fault", "page_fault"),
     ("faults_page_cache.bt", "mm_filemap_add_to_page_cache", "add_to_page_cache")],
)  # fmt: skip
def test_a_page_of_the_target_is_recorded_by_its_inode_and_place(name, probe, operation):
    machine = Machine("files.bt", name)
    for pid in (7, 99):
        machine.at(f"tracepoint:filemap:{probe}", pid, 17, s_dev=8, i_ino=5, index=3)
    [row] = machine.rows()
    found = [row[column] for column in ("tid", "operation", "path", "offset_bytes")]
    assert found == [17, operation, "unknown:inode 5", 3 * bpftrace.PAGE_BYTES]


@pytest.mark.parametrize(
    ("name", "begins", "ends"),
    [("block_io.bt", "block_io_start", "block_io_done"),
     ("block_rq.bt", "block_rq_issue", "block_rq_complete")],
)  # fmt: skip
def test_a_request_of_a_disk_is_recorded_from_its_beginning_by_who_began_it(name, begins, ends):
    machine = Machine(name)
    first, second = {"dev": 8 << 20 | 1, "sector": 5}, {"dev": 259 << 20 | 300, "sector": 5}
    for pid, request in ((71, first), (72, second)):
        machine.now += 100
        machine.at(f"tracepoint:block:{begins}", pid, pid + 9, **request, bytes=pid * 512)
    for request in (first, second, first):  # the last is of one from before
        machine.now += 7
        machine.at(f"tracepoint:block:{ends}", 0, 0, **request, bytes=0, rwbs="WS")
    names = ("boottime_ns", "pid", "device", "sector", "size_bytes", "latency_ns")
    found = machine.rows()
    assert [tuple(row[column] for column in names) for row in found] == [
        (100, 71, "8:1", 5, 71 * 512, 107), (200, 72, "259:300", 5, 72 * 512, 14),
    ]  # fmt: skip
    assert {(row["operation"], row["command"]) for row in found} == {("WS", "cat")}
