"""How tracers' lines are taken, and how tracers end."""

import os
import signal
import subprocess
import types

import pytest

from tracing import backends
from tracing.processes import Target
from tracing.recording import RawFile
from tracing.tracers import Collector, Session, Tracer


def test_a_collector_takes_all_lines_and_ends_without_any(tmp_path):
    collector = Collector(tmp_path / "pipe", tmp_path / "file")
    collector.start()
    (tmp_path / "pipe").write_bytes(b"x\n" * 100_000)
    collector.finish()
    assert (tmp_path / "file").read_bytes() == b"x\n" * 100_000
    unused = Collector(tmp_path / "other", tmp_path / "none")
    unused.start()
    unused.finish()
    assert (tmp_path / "none").read_bytes() == b"" and not unused.num_lost_lines


def test_lines_that_a_full_disk_does_not_take_are_counted_and_the_tracer_goes_on(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    collector = Collector(tmp_path / "pipe", tmp_path / "full")
    with (tmp_path / "pipe").open("wb", buffering=0) as pipe:
        collector.start()
        for _ in range(40):
            pipe.write(b"line\n" * 50_000)  # more than the pipe holds
    collector.finish()
    assert collector.num_lost_lines == 40 * 50_000


def test_of_a_chunk_the_lines_that_were_written_are_not_lost(tmp_path):
    room = iter([6, 3])

    def write(data: bytes) -> int:
        if size := next(room, 0):
            return size
        raise OSError("full")

    collector = Collector(tmp_path / "pipe", tmp_path / "file")
    with pytest.raises(OSError, match="full"):
        collector._write(types.SimpleNamespace(write=write), b"a\nb\nc\nd\ne\nf\n")
    assert collector.num_lost_lines == 2


def test_all_tracers_are_let_go_before_their_last_lines_are_taken(tmp_path):
    tracer = Tracer(backends.PROC, tmp_path, tmp_path, Target())
    codes = []
    for _ in range(2):
        process = subprocess.Popen(["sleep", "600"])
        finish = types.SimpleNamespace(finish=lambda p=process: codes.append(p.poll()))
        tracer.sessions.append(Session(RawFile("x", None), process, finish))
    tracer.stop()
    assert codes == [-signal.SIGINT] * 2


def test_the_command_runs_with_no_signal_blocked(tmp_path):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        target = Target()
        tracer = Tracer(backends.PROC, tmp_path, tmp_path, target)
        process = tracer.launch(["sleep", "600"], None)
        assert target.pids() == [process.pid]
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=60) == -signal.SIGTERM
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
