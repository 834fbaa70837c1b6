"""The bpftrace programs, and their lines as rows; `test_recorded` has those of a program."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.helpers import programs
from tracing import backends, bpftrace
from tracing.tests.conftest import require

RECORDED = Path(__file__).parent / "recorded_bpftrace.txt"
NEW_KERNEL = frozenset(event for a in bpftrace.ALTERNATIVES.values() for event in a.values())


def test_block_io_with_device_sector_and_latency():
    parser = bpftrace.Parser(folder="/")
    _, block = next(row for row in parser.parse(RECORDED.open()) if row[0] == "block_io")
    assert block == {
        "boottime_ns": 29_008_502_078_096, "pid": 23056, "command": "python3", "device": "254:0",
        "operation": "WS", "sector": 99_689_376, "size_bytes": 4096, "latency_ns": 99_143,
    }  # fmt: skip


def test_page_faults_by_inode():
    parser = bpftrace.Parser(folder="/", path_of_inode={260811: "/usr/bin/x"})
    [(_, known), (_, unknown)] = parser.parse(
        ["fault\t1\t7\t8\t266338304\t260811\t1667\n", "fault\t2\t7\t8\t266338304\t5\t0\n"]
    )
    assert (known["path"], known["offset_bytes"]) == ("/usr/bin/x", 1667 * 4096)
    assert unknown["path"] == "unknown:inode 5"


def test_pages_that_come_into_the_cache_are_no_faults():
    [(_, row)] = bpftrace.Parser(folder="/").parse(["cached\t1\t7\t8\t266338304\t5\t3\n"])
    assert (row["operation"], row["offset_bytes"]) == ("add_to_page_cache", 3 * 4096)
    program = (bpftrace.PROGRAMS / "faults_page_cache.bt").read_text()
    assert 'printf("cached\\t' in program


def test_lines_of_several_processors_come_in_any_order():
    parser = bpftrace.Parser(folder="/d")
    found = list(
        parser.parse(
            [
                "call\t50\t7\t8\ttracepoint:syscalls:sys_exit_read\t5\t4\t3\t4\t-1\n",
                "name\t7\tpart-0\n",
                "open\t10\t7\t7\ttracepoint:syscalls:sys_exit_openat\t5\t3\t-100\t0\n",
            ]
        )
    )
    assert [row["path"] for _, row in found] == ["/d/part-0", "/d/part-0"]


EXIT = "tracepoint:syscalls:sys_exit_"
OPEN = ["name\t7\tx\n", f"open\t10\t7\t7\t{EXIT}openat\t5\t3\t-100\t0\n"]


def call(at: int, pid: int, name: str, result: int, *numbers: int, latency: int = 5) -> str:
    words = [at, pid, pid, EXIT + name, latency, result, *numbers]
    return "\t".join(["call", *map(str, words)]) + "\n"


def offsets(lines: list[str]) -> list[int | None]:
    found = [row for _, row in bpftrace.Parser(folder="/d").parse(lines)]
    return [row.get("offset_bytes") for row in found if row.get("kind") == "read"]


def test_what_a_child_may_move_is_unknown_and_it_has_the_files_of_the_moment_of_its_making():
    lines = [
        *OPEN,
        call(20, 7, "read", 10, 3, 10, -1),
        "fork\t30\t7\t7\t8\n",
        call(40, 7, "close", 0, 3, -1, -1),
        call(60, 8, "read", 10, 3, 10, -1),
    ]
    *_, (_, read) = bpftrace.Parser(folder="/d").parse(lines)
    assert (read["pid"], read["path"], read["offset_bytes"]) == (8, "/d/x", None)
    assert offsets(lines) == [0, None]


def test_a_thread_changes_the_descriptors_of_its_process():
    by_thread = call(30, 7, "dup", 4, 3, -1, 0).replace("\t7\t7\t", "\t7\t8\t")
    lines = [*OPEN, "fork\t20\t7\t7\t8\n", by_thread, call(40, 7, "read", 10, 4, 10, -1)]
    assert offsets(lines) == [0]


def test_after_lost_events_no_position_is_known():
    lines = [
        *OPEN,
        call(20, 7, "read", 10, 3, 10, -1),
        "Lost 12 events\n",
        call(30, 7, "read", 10, 3, 10, -1),
    ]
    assert offsets(lines)[-1] is None


def test_what_was_open_before_may_be_shared_with_anybody():
    lines = [call(20, 7, "lseek", 5, 3, -1, -1), call(30, 7, "read", 10, 3, 10, -1)]
    parser = bpftrace.Parser(folder="/d", path_of_fd={(7, 3): "/d/x"})
    found = [(row["path"], row.get("offset_bytes")) for _, row in parser.parse(lines)]
    assert found == [("/d/x", 5), ("/d/x", None)]


def test_a_name_may_have_tabs_and_lines_and_one_that_was_cut_is_counted():
    lines = ["name\t7\ta\tb\n", "c\td\n", OPEN[1], f"name\t7\t{'x' * 199}\n", OPEN[1]]
    parser = bpftrace.Parser(folder="/d")
    first, _ = parser.parse(lines)
    assert first[1]["path"] == "/d/a\tb\nc\td"
    assert parser.losses.damaged_lines == 1


def test_lost_events_and_damaged_lines_are_counted():
    parser = bpftrace.Parser(folder="/d")
    lines = ["Lost 12 events\n", "call\t1\t2\n", "open\tx\n", "gibberish\tof\tfields\n", "ready\n"]
    assert list(parser.parse(lines)) == []
    assert (parser.losses.lost_events, parser.losses.damaged_lines) == (12, 3)


@pytest.mark.parametrize(
    ("version", "user", "events", "reason"),
    [
        ("bpftrace v0.9.4", 0, NEW_KERNEL, "bpftrace v0.9.4 is too old; 0.14 or later"),
        ("bpftrace v0.17.0", 1000, NEW_KERNEL, "it needs root; take the trace with sudo"),
        ("bpftrace v0.17.0", 0, frozenset({"sched/x"}), "none of the tracepoints in question"),
        ("bpftrace v0.17.0", 0, NEW_KERNEL, "None"),
    ],
)
def test_what_is_missing_is_said(tmp_path, monkeypatch, version, user, events, reason):
    programs.stand_in(tmp_path / "bpftrace", f"echo {version}")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(bpftrace, "tracepoints", lambda: events)
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


def test_probes_that_a_kernel_lacks_are_left_out():
    events = NEW_KERNEL | {"syscalls/sys_enter_read", "syscalls/sys_exit_read"}
    text = bpftrace.program_text(["files.bt", "block_io.bt"], [7, 8], events)
    assert "@tree[7] = 1; @tree[8] = 1;" in text
    assert "sys_enter_read /" in text and "sys_enter_write" not in text
    assert text.count("END {") == 1


@pytest.fixture
def events():
    """The tracepoints of this kernel, where bpftrace can use them."""
    require(backends.BPFTRACE)
    return bpftrace.tracepoints()


@pytest.mark.parametrize("program", sorted(p.name for p in bpftrace.PROGRAMS.glob("*.bt")))
def test_programs_pass_a_dry_run(program, events, tmp_path):
    programs = [program] if program.startswith(("files", "block")) else ["files.bt", program]
    path = tmp_path / "program.bt"
    path.write_text(bpftrace.program_text(programs, [os.getpid()], events))
    command = bpftrace.command("bpftrace", "-d", str(path))
    done = subprocess.run(command, capture_output=True, text=True, env=bpftrace.environment())
    assert done.returncode == 0, done.stderr[-2000:]
