"""Counters of a machine whose files in /proc are made by hand."""

import os
import subprocess
import types
from pathlib import Path

import psutil
import pytest

from mlperf_bert.data import tfrecord
from tests.helpers import waiting
from tracing import backends, figures, loaded, processes, sampling, tables

STAT = "7 (a ) b) S 5 7 7 0 -1 4 1001 1002 1003 1004 1005 1006 1007 1008 20 0 3 0 900 8000 77 18"


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """The folder of process 7, in a /proc by hand."""
    folder = tmp_path / "7"
    for name in ("fd", "fdinfo", "task"):
        (folder / name).mkdir(parents=True)
    (folder / "stat").write_text(STAT)
    (folder / "cmdline").write_bytes(b"python\0train.py\0\xff\0")
    (folder / "fd" / "5").symlink_to("/data/model.ckpt-3.index")
    (folder / "fd" / "6").symlink_to("/dev/null")
    (folder / "fdinfo" / "5").write_text("pos:\t77\nflags:\t0100\n")
    monkeypatch.setattr(sampling, "PROC", tmp_path)
    monkeypatch.setattr(processes, "PROC", tmp_path)
    return folder


def test_rows_of_the_machine(proc, monkeypatch):
    moved = types.SimpleNamespace(bytes_sent=1, bytes_recv=2, packets_sent=3, packets_recv=4)
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: {"eth0": moved})
    assert [list(row.values()) for row in sampling.network_rows()] == [["eth0", 2, 4, 1, 3]]
    names = ("read_count", "read_bytes", "read_time", "write_count", "write_bytes", "write_time")
    devices = {"vda": range(1, 7), "vdb": [0] * 6, "loop0": [9] * 6, "ram0": [9] * 6}
    devices |= {"r": [1, 2, 3, 0, 0, 0], "w": [0, 0, 0, 4, 5, 6]}
    used = {name: types.SimpleNamespace(**dict(zip(names, n))) for name, n in devices.items()}
    monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: used)
    expected = [[name, *devices[name]] for name in ("vda", "r", "w")]
    assert [list(row.values()) for row in sampling.disk_rows()] == expected
    keys = sampling.MEMINFO_KEYS
    lines = [f"{key}: {number} kB\n" for number, key in enumerate(keys.values(), 1)]
    (proc.parent / "meminfo").write_text("Active: 99 kB\n" + "".join(lines))
    [row] = sampling.memory_rows()
    assert row == {column: 1024 * number for number, column in enumerate(keys, 1)}
    assert (keys["page_cache_bytes"], keys["writeback_bytes"]) == ("Cached", "Writeback")
    times = types.SimpleNamespace(
        user=1, nice=2, system=4, irq=8, softirq=16, iowait=32, idle=64, steal=128
    )
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [times])
    assert [list(row.values()) for row in sampling.cpu_rows()] == [
        [0, 3000, 28_000, 32_000, 64_000, 128_000]
    ]


def test_a_sampler_reads_the_clocks_with_every_sample_and_at_its_end(tmp_path, monkeypatch):
    (tmp_path / "memory.parquet.unfinished").mkdir()
    with pytest.raises(OSError):
        sampling.Sampler(processes.Target(), tmp_path, interval_s=0.01)
    (tmp_path / "memory.parquet.unfinished").rmdir()
    target = processes.Target()
    target.add_tree(os.getpid())
    target.leave_out(os.getppid())

    def absent():
        yield {"cpu": Path("/none").read_text()}

    monkeypatch.setitem(sampling.SYSTEM_TABLES, "disks", lambda: iter([{"num_reads": "none"}]))
    monkeypatch.setitem(sampling.SYSTEM_TABLES, "cpus", absent)
    monkeypatch.setattr(processes, "uses_asynchronous_io", lambda pid: pid == os.getpid())
    sampler = sampling.Sampler(target, tmp_path, interval_s=0.01)
    with subprocess.Popen(["sleep", "600"]) as child:  # read after the one with a ring
        sampler.start()
        waiting.until(lambda: len(sampler.pairs) >= 3)
        sampler.stop()
        child.kill()
    *sampled, last = [pair.monotonic_ns for pair in sampler.pairs]
    assert sampled == sorted(sampled) and last > sampled[-1]
    for table in ("memory", "processes"):
        rows = tables.read_table(tmp_path, table)
        assert sorted(rows["monotonic_ns"].unique()) == sampled, table
        assert list(rows["realtime_ns"].unique()) == [p.realtime_ns for p in sampler.pairs[:-1]]
    # Beside it the processes that other tests have started and keep.
    assert os.getpid() in set(rows["pid"]) and os.getppid() not in set(rows["pid"])
    # A table that cannot be written is told once, and leaves nothing.
    missing, error = sampler.errors
    assert missing == "table cpus: [Errno 2] No such file or directory: '/none'"
    assert sampler.asynchronous == {os.getpid()}
    assert error.startswith("table disks: ") and not (tmp_path / "disks.parquet").exists()
    assert not list(tmp_path.glob("*.unfinished"))


def test_what_a_sample_takes_does_not_lengthen_the_interval(tmp_path, monkeypatch):
    """A sample that takes longer than the interval is followed by the next at once."""
    now, waits, lasting = [50.0], [], [0.25, 0.125, 2.5, 0.5, 0.0]

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        now[0] += seconds
        return len(waits) == 5

    monkeypatch.setattr(sampling, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    sampler = sampling.Sampler(processes.Target(), tmp_path, interval_s=1)
    sampler._done = types.SimpleNamespace(wait=wait, set=lambda: None)
    sampler._sample = lambda: now.append(now.pop() + lasting.pop(0))
    sampler.start()
    sampler.stop()
    assert (waits, lasting) == ([0, 0.75, 0.875, 0, 0.5], [])


BUSY = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done"


@pytest.mark.parametrize("is_started_by_a_tracer", [False, True])
def test_a_command_between_two_samples_and_all_it_waited_for_are_counted(
    tmp_path, is_started_by_a_tracer
):
    data = tmp_path / "data"
    data.write_bytes(bytes(3_000_000))
    script = f"(sh -c '{BUSY}'); cat {data} > /dev/null; true"
    target = processes.Target()
    # The tracer waits, as strace does, for what it has started.
    words = ["sh", "-c", 'sh -c "$0"; true', script] if is_started_by_a_tracer else None
    command = subprocess.Popen(words or ["sh", "-c", script])
    target.add_tree(command.pid)
    if is_started_by_a_tracer:
        target.leave_out(command.pid)
    sampler = sampling.Sampler(target, tmp_path, interval_s=3600)
    waiting.until(lambda: processes.has_ended(command.pid))
    spent = processes.stat_fields(command.pid)
    sampler.start()
    sampler.stop()
    command.wait()
    assert processes.has_ended(command.pid)
    summary = {"command": ["sh"], "backend": backends.PROC, "begin_monotonic_ns": 0}
    trace = loaded.Trace(tmp_path, summary)
    used_ms = int(trace.usage["cpu_ms"].iloc[-1])
    assert 0 < used_ms <= 10 * sum(int(field) for field in spent[11:15])
    if os.geteuid() == 0:  # nobody else may read the bytes of a process that has ended
        assert 3_000_000 <= trace.counters["read_call_bytes"].iloc[-1] < 3_500_000
    # What strace wrote are its lines.
    assert trace.table("processes")["write_call_bytes"].isna().all() >= is_started_by_a_tracer
    assert set(trace.table("processes")["num_threads"]) == {0 if is_started_by_a_tracer else 1}
    assert figures._usage(trace)["num_processes_sampled"] == (not is_started_by_a_tracer)


def test_rings_of_io_uring_and_libaio_are_seen(proc):
    assert not processes.uses_asynchronous_io(7)
    (proc / "fd" / "9").symlink_to("anon_inode:[io_uring]")
    assert processes.uses_asynchronous_io(7)
    (proc / "fd" / "9").unlink()
    (proc / "maps").write_text("7f00-7f01 rw-s 00000000 00:0b 77      /[aio] (deleted)\n")
    (proc.parent / "sys" / "fs").mkdir(parents=True)
    for number, expected in (("0", False), ("128", True)):
        (proc.parent / "sys" / "fs" / "aio-nr").write_text(f"{number}\n")
        assert processes.uses_asynchronous_io(7) == expected
    (proc / "maps").write_text("")
    assert not processes.uses_asynchronous_io(7)


def test_rows_of_a_process(proc, monkeypatch):
    io = types.SimpleNamespace(read_chars=1, write_chars=2, read_bytes=3, write_bytes=4)
    process = types.SimpleNamespace(io_counters=lambda: io, threads=lambda: [(9, 1.5, 2.25)])
    monkeypatch.setattr(psutil, "Process", lambda pid: process)
    tick, page = sampling._MS_PER_TICK, sampling._PAGE_BYTES
    assert sampling.process_row(7) == {
        "pid": 7, "parent_pid": 5, "command": "python train.py \\xff", "minor_faults": 1001,
        "major_faults": 1003, "user_ms": 1005 * tick, "system_ms": 1006 * tick, "num_threads": 3,
        "resident_bytes": 77 * page, "read_call_bytes": 1, "write_call_bytes": 2,
        "storage_read_bytes": 3, "storage_written_bytes": 4,
        "children_ms": (1007 + 1008) * tick, "children_minor_faults": 1002,
        "children_major_faults": 1004,
    }  # fmt: skip
    assert sampling.process_row(8) is None
    for fd, seen in enumerate(
        ("/dev/null", "/proc/7/stat", "pipe:[5]", "net:[5]", "/dev/shm/x"), 6
    ):
        (proc / "fd" / str(fd)).unlink(missing_ok=True)
        (proc / "fd" / str(fd)).symlink_to(seen)
        (proc / "fdinfo" / str(fd)).write_text("pos:\t1\n")
    row, shared = sorted(sampling.open_file_rows(7), key=lambda row: row["fd"])
    assert (shared["path"], shared["file_class"]) == ("/dev/shm/x", "other")
    (proc / "cmdline").write_bytes(b"x" * 300)
    assert sampling.process_row(7)["command"] == "x" * 200
    # A container calls it otherwise.
    (proc / "part").write_bytes(tfrecord.frame(b"x"))
    with monkeypatch.context() as patched:
        patched.setattr(processes, "open_paths", lambda pid: [(10, "/data/part")])
        (proc / "fd" / "10").unlink()
        (proc / "fd" / "10").symlink_to(proc / "part")
        assert [each["file_class"] for each in sampling.open_file_rows(7)] == ["tfrecords"]
    path = "/data/model.ckpt-3.index"
    assert row == {
        "pid": 7, "fd": 5, "path": path, "file_class": "checkpoints", "offset_bytes": 77
    }  # fmt: skip
    (proc / "task" / "9").mkdir()
    (proc / "task" / "9" / "comm").write_text("tf_data\n")
    assert list(sampling.thread_rows(7)) == [
        {"pid": 7, "tid": 9, "name": "tf_data", "user_ms": 1500, "system_ms": 2250}
    ]


def test_what_ends_while_it_is_read_leaves_nulls_or_no_row(proc, monkeypatch):
    def gone(*_):
        raise psutil.NoSuchProcess(7)

    process = types.SimpleNamespace(io_counters=gone, threads=lambda: [(9, 1, 2)])
    monkeypatch.setattr(psutil, "Process", lambda pid: process)
    assert "num_threads" in (row := sampling.process_row(7)) and "read_call_bytes" not in row
    assert list(sampling.thread_rows(7)) == []  # its name is gone
    (proc / "fdinfo" / "5").unlink()
    assert list(sampling.open_file_rows(7)) == list(sampling.open_file_rows(8)) == []
    process.status = lambda: psutil.STATUS_RUNNING
    assert sampling.starter_row(7) is None
    process.threads = gone
    assert processes.threads_of(7) == []


def test_what_proc_says_of_a_process(proc, monkeypatch):
    for text, cgroup in (
        ("12:cpu:/old\n0::/new:x\n", "/new:x"), ("5:cpu:/a\n3:io:/b\n", "/a"), ("", None)
    ):  # fmt: skip
        (proc / "cgroup").write_text(text)
        assert processes.cgroup_of(7) == cgroup
    (proc / "fdinfo" / "5").write_text("pos:\t0\nflags:\t0600000\n")  # an octal number
    (proc / "fdinfo" / "6").write_text(f"pos:\t0\nflags:\t0{os.O_CLOEXEC | 2:o}\n")
    assert [processes.is_closed_by_exec(7, fd) for fd in (5, 6, 9)] == [False, True, False]
    (proc.parent / "8").mkdir()
    for pid, tracer in (("7", 9), ("8", 0)):
        (proc.parent / pid / "status").write_text(f"Name:\tx\nTracerPid:\t{tracer}\nUid:\t5\n")
    monkeypatch.setattr(psutil, "pids", lambda: [6, 7, 8])
    assert [processes.tracer_of(pid) for pid in (6, 7, 8)] == [0, 9, 0]
    assert (processes.traced_by(9), processes.traced_by(10)) == ([7], [])
    (proc / "comm").write_text("python\n")
    names = [(processes.name_of(pid), processes.parent_of(pid)) for pid in (7, 6)]
    assert names == [("python", 5), ("a process that has ended", 0)]
    for inode, is_first in ((4_026_531_836, True), (4_026_532_177, False)):
        with monkeypatch.context() as patched:
            patched.setattr(Path, "stat", lambda _, n=inode: types.SimpleNamespace(st_ino=n))
            assert processes.sees_whole_machine() == is_first
    (proc / "fd" / "8").touch()  # was closed meanwhile: no link
    assert sorted(processes.open_paths(7)) == [(5, "/data/model.ckpt-3.index"), (6, "/dev/null")]


class NvmlError(Exception):
    pass


def test_counters_of_every_gpu_and_without_a_driver_it_is_said(monkeypatch):
    def unsupported(handle):
        raise NvmlError("Not Supported")

    module = types.SimpleNamespace(
        NVMLError=NvmlError,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "Example GPU",
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=70, memory=30),
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=5 * 10**9),
        nvmlDeviceGetPowerUsage=unsupported,
        nvmlDeviceGetTemperature=lambda handle, sensor: 55,
    )
    monkeypatch.setattr(sampling, "pynvml", module)
    found = sampling.Gpus()
    first, second = found.rows()
    assert first == {
        "gpu": 0, "name": "Example GPU", "busy_percent": 70, "memory_busy_percent": 30,
        "memory_used_bytes": 5 * 10**9, "power_mw": None, "temperature_c": 55,
    }  # fmt: skip
    assert second["gpu"] == 1
    module.nvmlDeviceGetUtilizationRates = module.nvmlDeviceGetMemoryInfo = unsupported
    bare = {"gpu": 0, "name": "Example GPU", "power_mw": None, "temperature_c": 55}
    assert next(found.rows()) == bare
    assert found.status == "2 recorded"

    def fail():
        raise NvmlError("NVML Shared Library Not Found")

    module.nvmlInit = fail
    found = sampling.Gpus()
    assert list(found.rows()) == []
    assert found.status == "none recorded: NVML Shared Library Not Found"
