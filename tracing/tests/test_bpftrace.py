"""The bpftrace programs, and their lines as rows; `test_whole` has those of a program."""

import errno
import fcntl
import os
import re
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.helpers import programs
from tracing import backends, bpftrace, calls, processes
from tracing.tests.conftest import require

NEW_KERNEL = frozenset(event for a in bpftrace.ALTERNATIVES.values() for event in a.values())


EXIT = "tracepoint:syscalls:sys_exit_"
OPEN = ["name\t7\tx\n", f"open\t10\t7\t7\t{EXIT}openat\t5\t3\t-100\t0\n"]


def call(at: int, pid: int, name: str, result: int, *numbers: int, latency: int = 5) -> str:
    words = [at, pid, pid, EXIT + name, latency, result, *numbers]
    return "\t".join(["call", *map(str, words)]) + "\n"


READ = call(20, 7, "read", 10, 3, 10, -1)
EXEC = "exec\t16\t7\t7\t/bin/x\n"
FORK = "fork\t30\t7\t7\t8\t0\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # Lines of several processors come in any order.
        ([READ, call(20, 7, "pread64", 10, 3, 10, 40), *OPEN], [(7, "/d/x", 0), (7, "/d/x", 40)]),
        # Nobody saw what came in place of a file that was closed, or what was copied to it.
        *(([*OPEN, call(16, 7, *words, latency=1), READ], [(7, "unknown:", None)])
          for words in (
              ("close", 0, 3, -1, -1), ("dup2", 3, 8, -1, 0), ("close_range", 0, 3, 9, 2))),
        # What failed, or concerns other flags or descriptors, changed nothing.
        *(([*OPEN, call(15, 7, *words, latency=0), EXEC, READ], [(7, "/d/x", 0)]) for words in (
            ("ioctl", -errno.EBADF, 3, 0x5451, 0), ("fcntl", 0, 3, fcntl.F_SETFD, 2),
            ("fcntl", 0, 8, fcntl.F_SETFL, os.O_APPEND))),
        # What an exec closes, and what it keeps.
        ([*OPEN, EXEC, READ], [(7, "/d/x", 0)]),
        ([*OPEN, call(15, 7, "ioctl", 0, 3, 0x5451, 0, latency=1), EXEC, READ],
         [(7, "unknown:", None)]),
        ([*OPEN, call(15, 7, "ioctl", 0, 3, 0x5451, 0, latency=0),
          call(15, 7, "ioctl", 0, 3, 0x5450, 0, latency=1), EXEC, READ], [(7, "/d/x", 0)]),
        ([OPEN[0], OPEN[1].replace("\t0\n", f"\t{os.O_CLOEXEC}\n"),
          call(15, 7, "dup2", 3, 3, -1, 0, latency=1), EXEC, READ], [(7, "unknown:", None)]),
        *(([*OPEN, call(15, 7, "fcntl", 4, 3, how, 4, latency=0), EXEC,
            READ.replace("\t3\t", "\t4\t")], [(7, path, at)])
          for how, path, at in (
              (fcntl.F_DUPFD_CLOEXEC, "unknown:", None), (fcntl.F_DUPFD, "/d/x", 0))),
        # With its maker a process shares no more, once it executes a program.
        ([*OPEN, FORK.replace("\t0\n", "\t1024\n"), EXEC.replace("\t7", "\t8").replace("16", "35"),
          call(40, 8, "close", 0, 3, -1, -1), call(50, 7, "read", 10, 3, 10, -1)],
         [(7, "/d/x", None)]),
        # The line with the name was lost.
        ([OPEN[1], READ], [(7, "unknown:", 0)]),
        ([f"path\t5\t7\t7\t{EXIT}chdir\t1\t0\t-100\n", *OPEN, READ], [(7, "unknown:/x", 0)]),
        ([*OPEN, OPEN[1].replace("open\t10", "open\t11"), READ], [(7, "unknown:", 0)]),
        # A folder that a process could not change to is not its own.
        (["name\t7\tnone\n", f"path\t5\t7\t7\t{EXIT}chdir\t1\t-2\t-100\n", *OPEN, READ],
         [(7, "/d/x", 0)]),
        (["name\t7\t/r\n", f"path\t5\t7\t7\t{EXIT}chroot\t1\t0\t-100\n", "name\t7\t/x\n",
          OPEN[1], READ], [(7, "/r/x", 0)]),
        # Relative names begin in the folder that a descriptor means.
        (["name\t7\tdeep\n", f"open\t1\t7\t7\t{EXIT}openat\t5\t9\t-100\t0\n",
          call(8, 7, "fchdir", 0, 9, -1, -1, latency=1), *OPEN, READ], [(7, "/d/deep/x", 0)]),
        ([call(8, 7, "fchdir", 0, 5, -1, -1, latency=1), "name\t7\t../x\n", OPEN[1], READ],
         [(7, "unknown:/../x", 0)]),
        # The first thread may end before the others, which go on with its files.
        ([*OPEN, FORK, "exit\t32\t7\t7\n", "exit\t35\t7\t8\n",
          call(40, 7, "read", 10, 3, 10, -1)], [(7, "unknown:", None)]),
        ([*OPEN, FORK, call(31, 7, "dup", 4, 3, -1, 0).replace("\t7\t7\t", "\t7\t8\t"),
          "exit\t38\t7\t7\n", call(40, 7, "read", 10, 4, 10, -1).replace("\t7\t7\t", "\t7\t8\t")],
         [(7, "/d/x", 0)]),
        # A process that it made is none of them.
        ([*OPEN, FORK, call(31, 8, "close", 0, 3, -1, -1), "exit\t38\t7\t7\n",
          call(40, 7, "read", 10, 3, 10, -1)], [(7, "unknown:", None)]),
        # Nor need its second have done anything by then.
        ([*OPEN, FORK, "exit\t32\t7\t7\n",
          call(40, 7, "read", 10, 3, 10, -1).replace("\t7\t7\t", "\t7\t8\t")],
         [(7, "/d/x", 0)]),
        # A thread ends that was there before.
        ([*OPEN, "exit\t18\t7\t5\n", READ], [(7, "/d/x", 0)]),
        # A thread that ends leaves its process the files.
        ([*OPEN, FORK, "exit\t35\t7\t8\n", call(40, 7, "read", 10, 3, 10, -1)], [(7, "/d/x", 0)]),
        # A child has the files of the moment of its making, which it may move too.
        ([*OPEN, FORK, call(40, 7, "close", 0, 3, -1, -1), call(60, 8, "read", 10, 3, 10, -1)],
         [(8, "/d/x", None)]),
        # It may have the number of a disk, such as that of the first in memory.
        ([*OPEN, FORK.replace("\t8\t", "\t1048576\t"),
          "block\t35\t7\t1048576\t0\t512\t1\tR\tcat\n", call(60, 1048576, "read", 10, 3, 10, -1)],
         [(1048576, "/d/x", None)]),
        # A thread changes the descriptors of its process.
        ([*OPEN, FORK, call(35, 7, "dup", 4, 3, -1, 0).replace("\t7\t7\t", "\t7\t8\t"),
          call(40, 7, "read", 10, 4, 10, -1)], [(7, "/d/x", 0)]),
        ([*OPEN, READ, "Lost 12 events\n", call(50, 7, "read", 10, 3, 10, -1)],
         [(7, "/d/x", 0), (7, "/d/x", None)]),
        # Another process may have taken it by pidfd_getfd.
        ([*OPEN, READ, "taken\t35\t8\t8\n", call(50, 7, "read", 10, 3, 10, -1)],
         [(7, "/d/x", 0), (7, "/d/x", None)]),
        # A message may have given it to others.
        ([*OPEN, READ, "sent\t35\t7\t7\n", call(50, 7, "read", 10, 3, 10, -1)],
         [(7, "/d/x", 0), (7, "/d/x", None)]),
        # Written at the end (RWF_APPEND), wherever that is, it stands there.
        ([*OPEN, READ, call(40, 7, "pwritev2", 5, 3, -1, -2), call(50, 7, "read", 10, 3, 10, -1)],
         [(7, "/d/x", 0), (7, "/d/x", None)]),
        # What was open before may be closed by an exec.
        ([EXEC, *(call(20 + fd, 7, "read", 10, fd, 10, -1) for fd in (9, 10))],
         [(7, "/d/old", None), (7, "unknown:", None)]),
        # It may be shared with anybody.
        ([call(20, 7, "lseek", 5, 9, -1, -1), call(30, 7, "read", 10, 9, 10, -1)],
         [(7, "/d/old", None)]),
    ],
)  # fmt: skip
def test_offsets_are_those_that_nobody_else_moves(lines, expected):
    before = {5: 7, 7: 7} if any("\t7\t5\n" in line for line in lines) else {}
    parser = bpftrace.Parser(
        folder="/d",
        process_of_thread=before,
        opened_before=[(7, 9, "/d/old", False), (7, 10, "/d/shut", True)],
    )
    reads = [row for _, row in parser.parse(lines) if row.get("kind") == "read"]
    assert [(row["pid"], row["path"], row.get("offset_bytes")) for row in reads] == expected


def test_an_offset_is_unknown_if_an_event_before_it_may_be_lost(monkeypatch):
    monkeypatch.setattr(bpftrace, "_MOST_EVENTS_OUT_OF_ORDER", 1)
    parser = bpftrace.Parser(folder="/d")
    _, (_, read) = parser.parse([*OPEN, READ, "Lost 12 events\n"])  # READ still waits
    assert read["offset_bytes"] is None


def test_page_faults_by_disk_and_inode_and_pages_that_come_into_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "minor", lambda _: 5)  # many disks have 0
    at = tmp_path.stat().st_dev
    mounted = {f"{os.major(at)}:{os.minor(at)}": "ext4"}
    (tmp_path / "x").touch()
    found = (tmp_path / "x").stat()
    disk, inode = os.major(found.st_dev) << 20 | os.minor(found.st_dev), found.st_ino
    monkeypatch.setattr(bpftrace, "_kind_of_mounted", lambda: mounted)
    lines = [*OPEN, f"fault\t21\t7\t8\t{disk}\t{inode}\t1667\n"]
    lines += [f"fault\t22\t7\t8\t{disk + 1}\t{inode}\t1667\n"]
    lines += [f"fault\t22\t7\t8\t{disk}\t5\t1667\n", f"cached\t23\t7\t8\t{disk}\t5\t3\n"]
    parser = bpftrace.Parser(folder=str(tmp_path))
    columns = ("operation", "path", "offset_bytes")
    _, *rows = (tuple(row.get(column) for column in columns) for _, row in parser.parse(lines))
    mounted[f"{os.major(found.st_dev)}:{os.minor(found.st_dev)}"] = "overlay"
    elsewhere = [row.get("path") for _, row in bpftrace.Parser(folder=str(tmp_path)).parse(lines)]
    assert elsewhere == [str(tmp_path / "x")] * 3 + ["unknown:inode 5"] * 2
    # A container calls the folder otherwise.
    of_container = {"folder": "/in", "host_path": lambda path: path.replace("/in", str(tmp_path))}
    inside = [row.get("path") for _, row in bpftrace.Parser(**of_container).parse(lines)]
    assert inside == ["/in/x"] * 3 + ["unknown:inode 5"] * 2
    assert rows == [
        ("page_fault", str(tmp_path / "x"), 1667 * 4096),
        ("page_fault", f"unknown:inode {inode}", 1667 * 4096),
        ("page_fault", "unknown:inode 5", 1667 * 4096),
        ("add_to_page_cache", "unknown:inode 5", 3 * 4096),
    ]
    assert 'printf("cached\\t' in (bpftrace.PROGRAMS / "faults_page_cache.bt").read_text()


def test_odd_names_are_kept_and_what_is_lost_or_damaged_is_counted():
    lines = ["ready\n", "name\t7\tLost 9 events\tb\n", "c\td\n", "Lost 12 events\n"]
    lines += [OPEN[1], "Lost 5 events\n"]
    lines += ["call\t1\t2\n", "open\tx\n", "fork\t1\t7\t7\n", "name\n"]
    lines += ["gibberish\tof\tfields\n", "\n", FORK, FORK.replace("\t8\t", "\t9\t")]
    lines += ["exit\t40\t7\t9\n"]
    lines += [f"asynchronous\t{n}\t{pid}\t{pid}\n" for n, pid in enumerate((7, 7, 8))]
    parser = bpftrace.Parser(folder="/d")
    first, *others = (row for _, row in parser.parse(lines))
    assert first["path"] == "/d/Lost 9 events\tb\nc\td"
    events = [(row["event"], row["pid"]) for row in others]
    assert events == [("thread", 7), ("exit", 7), ("process", 8)]  # which does nothing
    lost = calls.Losses(lost_events=12 + 5, damaged_lines=5, asynchronous_processes=2)
    assert vars(parser.losses) == vars(lost)


def test_events_are_sorted_within_what_is_kept(monkeypatch):
    monkeypatch.setattr(bpftrace, "_MOST_EVENTS_OUT_OF_ORDER", 2)
    events = [(end, str(end), []) for end in (5, 3, 4, 1, 9)]
    sort = bpftrace.Parser(folder="/")._in_order
    assert [word for word, _ in sort(iter(events))] == ["3", "1", "4", "5", "9"]


def test_a_machine_without_its_programs_and_what_is_mounted(tmp_path, monkeypatch):
    mounted = {each.mountpoint: each.fstype for each in psutil.disk_partitions(all=True)}
    for place in mounted.keys() & {"/proc", "/dev/shm"}:
        disk = Path(place).stat().st_dev
        kind = bpftrace._kind_of_mounted()[f"{os.major(disk)}:{os.minor(disk)}"]
        assert kind == mounted[place]
    (tmp_path / "info").write_bytes(b"36 35 98:0 / /mnt/\xff rw - ext4 /dev/x rw\n")
    with monkeypatch.context() as patched:
        patched.setattr(bpftrace, "Path", lambda _: tmp_path / "info")
        assert bpftrace._kind_of_mounted.__wrapped__() == {"98:0": "ext4"}
    monkeypatch.setenv("PATH", "/none")
    assert bpftrace.tracepoints() == frozenset()
    assert bpftrace.missing() == "bpftrace is not installed"


def test_tracepoints_are_those_of_a_tracefs_that_is_or_can_be_mounted(tmp_path, monkeypatch):
    hidden, mounted = tmp_path / "hidden", tmp_path / "mounted"
    monkeypatch.setattr(bpftrace, "TRACEFS", (hidden, mounted))
    (hidden / "events" / "sched" / "x").mkdir(parents=True)
    programs.stand_in(tmp_path / "unshare", 'shift 5; exec "$@"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert bpftrace.tracepoints() == {"sched/x"}
    assert bpftrace.command("x")[0] == "unshare"
    (mounted / "events" / "block" / "y").mkdir(parents=True)
    assert bpftrace.tracepoints() == {"block/y"}
    assert bpftrace.command("x") == ["x"]


def test_what_a_call_asked_for_and_returned_is_told_and_how_it_renamed():
    lines = [call(20 + n, 7, "read", result, 3, 10, -1) for n, result in enumerate((-2, -512, 8))]
    lines += [call(24, 7, "readv", 4, 3, -1, -1)]
    lines += [f"copy\t25\t7\t7\t{EXIT}sendfile64\t5\t9\t3\t4\t1\t1\n"]
    for flags in (1, 2):
        lines += ["name\t7\tx\n", "new_name\t7\ty\n"]
        lines += [f"rename\t{30 + flags}\t7\t7\t{EXIT}renameat2\t5\t0\t-100\t-100\t{flags}\n"]
    rows = [row for _, row in bpftrace.Parser(folder="/d").parse(lines)]
    columns = ("kind", "operation", "error", "size_bytes", "requested_bytes")
    assert [tuple(row.get(column) for column in columns) for row in rows] == [
        ("read", "read", "ENOENT", 0, 10), ("read", "read", "512", 0, 10),
        ("read", "read", None, 8, 10), ("read", "readv", None, 4, None),
        ("read", "sendfile", None, 9, None), ("write", "sendfile", None, 9, None),
        ("rename", "renameat2", None, 0, None), ("exchange", "renameat2", None, 0, None),
    ]  # fmt: skip


def test_names_that_are_cut_are_called_cut_and_nothing_else():
    long, short = "n" * 199, "n" * 198
    no_utf8 = "n" * 150 + r"\xff" * 48
    lines = [
        f"name\t7\t{long}\n", OPEN[1],
        f"name\t7\t{short}\n", OPEN[1],
        f"name\t7\t{'n' * 100}\n", f"{'n' * 98}\n", OPEN[1],  # its second line ends at byte 199
        f"name\t7\t{no_utf8}\n", OPEN[1],  # 198 bytes
        f"new_name\t7\t{long}\n", f"name\t7\t{short}\n",
        f"rename\t10\t7\t7\t{EXIT}rename\t5\t0\t-100\t-100\t0\n",
        f"exec\t16\t7\t7\t{long}\n",
    ]  # fmt: skip
    parser = bpftrace.Parser(folder="/d")
    assert len(list(parser.parse(lines))) == 6
    assert vars(parser.losses) == vars(calls.Losses(cut_names=4))
    assert str(parser.losses) == "nothing was lost; 4 names are cut at 199 bytes"
    assert str(calls.Losses(*range(1000, 1007))) == (
        "1,000 events for which bpftrace had no room, 1,001 lines for which the disk had no room, "
        "1,002 lines that were not understood, 1,003 calls that an end cut short, 1,006 threads or "
        "processes whose making was not seen; 1,005 names are cut at 199 bytes; 1,004 processes "
        "use libaio or io_uring: what is read and written by these is not recorded"
    )
    given = {name: n for name, n in bpftrace.environment().items() if name not in os.environ}
    assert given == {
        "BPFTRACE_STRLEN": "200", "BPFTRACE_MAX_STRLEN": "200", "BPFTRACE_PERF_RB_PAGES": "1024",
        "BPFTRACE_MAP_KEYS_MAX": "65536", "BPFTRACE_MAX_MAP_KEYS": "65536",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("version", "user", "events", "reason"),
    [
        ("bpftrace v0.13.9", 0, NEW_KERNEL, "bpftrace v0.13.9 is too old; 0.14 or later"),
        ("", 0, NEW_KERNEL, "this bpftrace is too old"),
        ("bpftrace v0.17.0", 1000, NEW_KERNEL, "it needs root; take the trace with sudo"),
        ("bpftrace v0.17.0", 7, NEW_KERNEL, "processes have other numbers; take the trace on its"),
        ("bpftrace v0.17.0", 0, frozenset({"sched/x"}), "none of the tracepoints in question"),
        ("bpftrace v0.14.0", 0, NEW_KERNEL, "None"),
    ],
)
def test_what_is_missing_is_said(tmp_path, monkeypatch, version, user, events, reason):
    programs.stand_in(tmp_path / "bpftrace", f"echo {version}")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(bpftrace, "tracepoints", lambda: events)
    monkeypatch.setattr(processes, "sees_whole_machine", lambda: user != 7)
    assert reason in str(bpftrace.missing())


def test_older_kernels_fall_back_to_older_tracepoints():
    chosen = bpftrace.chosen_programs(NEW_KERNEL)
    assert chosen["page faults"] == "faults_filemap_fault.bt"
    assert chosen["block I/O"] == "block_io.bt"
    older = NEW_KERNEL - {"filemap/mm_filemap_fault", "block/block_io_start"}
    chosen = bpftrace.chosen_programs(older)
    assert chosen["page faults"] == "faults_page_cache.bt"
    assert chosen["block I/O"] == "block_rq.bt"
    without_calls = older - {"syscalls/sys_enter_openat"}
    assert bpftrace.chosen_programs(without_calls) == {"block I/O": "block_rq.bt"}
    # Probes that a kernel lacks are left out.
    read = NEW_KERNEL | {"syscalls/sys_enter_read", "syscalls/sys_exit_read"}
    text = bpftrace.program_text(["files.bt", "block_io.bt"], [7, 8], read)
    assert "@tree[7] = 1; @tree[8] = 1;" in text
    assert "sys_enter_read /" in text and "sys_enter_write" not in text
    assert text.count("END {") == 1 and "END {}" not in text
    assert not re.search(r"^ ?/", text, re.M)  # a comment, or a condition without its probe


def test_programs_pass_a_dry_run(tmp_path):
    require(backends.BPFTRACE)
    events = bpftrace.tracepoints()
    blocks = [
        name for name, needed in bpftrace.ALTERNATIVES["block I/O"].items() if needed in events
    ]
    faults = bpftrace.ALTERNATIVES["page faults"]
    path = tmp_path / "program.bt"
    path.write_text(bpftrace.program_text(["files.bt", *faults, *blocks], [os.getpid()], events))
    command = bpftrace.command("bpftrace", "-d", str(path))
    done = subprocess.run(command, capture_output=True, text=True, env=bpftrace.environment())
    assert done.returncode == 0, done.stderr[-2000:]
