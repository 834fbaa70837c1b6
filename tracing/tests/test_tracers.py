"""How tracers' lines are taken, and how tracers end."""

import os
import signal
import subprocess
import types
from pathlib import Path

import pytest

from tracing import backends
from tracing.processes import Target
from tracing.tracers import Session, Tracer


def ended(session: Session) -> Session:
    """The session of a tracer that has ended."""
    session.process = subprocess.Popen(["true"])
    session.finish()
    return session


def test_a_session_takes_all_lines_and_ends_without_any(tmp_path):
    session = Session(tmp_path / "file")
    session.start()
    Path(session.pipe).write_bytes(b"x\n" * 100_000)
    ended(session)
    assert (tmp_path / "file").read_bytes() == b"x\n" * 100_000
    unused = Session(tmp_path / "none")
    unused.start()
    assert (ended(unused).num_lost_lines, (tmp_path / "none").read_bytes()) == (0, b"")


def test_lines_that_a_full_disk_does_not_take_are_counted_and_the_tracer_goes_on(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    session = Session(tmp_path / "full")
    session.start()
    with Path(session.pipe).open("wb", buffering=0) as pipe:
        for _ in range(40):
            pipe.write(b"line\n" * 50_000)  # more than the pipe holds
    assert ended(session).num_lost_lines == 40 * 50_000


def test_of_a_chunk_the_lines_that_were_written_are_not_lost(tmp_path):
    room = iter([6, 3])

    def write(data: bytes) -> int:
        if size := next(room, 0):
            return size
        raise OSError("full")

    session = Session(tmp_path / "file")
    with pytest.raises(OSError, match="full"):
        session._write(types.SimpleNamespace(write=write), b"a\nb\nc\nd\ne\nf\n")
    assert session.num_lost_lines == 2


def test_all_tracers_are_let_go_before_their_last_lines_are_taken(tmp_path):
    tracer = Tracer(backends.PROC, tmp_path, Target())
    done = []
    for n in range(2):
        session = types.SimpleNamespace(
            let_go=lambda n=n: done.append(n), finish=lambda n=n: done.append(f"{n} finished")
        )
        tracer.sessions.append(session)
    tracer.stop()
    assert done == [0, 1, "0 finished", "1 finished"]
    session = Session(tmp_path / "file")
    session.process = subprocess.Popen(["sleep", "600"])
    session.start()
    session.let_go()
    session.finish()
    assert session.process.poll() == -signal.SIGINT


def test_the_command_runs_with_no_signal_blocked(tmp_path):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        target = Target()
        tracer = Tracer(backends.PROC, tmp_path, target)
        process = tracer.launch(["sleep", "600"], None)
        assert target.pids() == [process.pid]
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=60) == -signal.SIGTERM
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
