"""Runs the tracer on the command and its containers: strace, bpftrace, or none."""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tracing import backends, bpftrace, clocks, processes, strace
from tracing.containers import Container
from tracing.processes import Target
from tracing.recording import RawFile

_READY_WITHIN_S = 60.0
_CHUNK_BYTES = 1 << 20
_POLL_MS = 200
# The command waits at a pipe until the tracer is ready.
_HOLD = ["/bin/sh", "-c", 'read -r _ < "$0"; exec "$@"']


@dataclass(frozen=True)
class User:
    """Who called sudo: the command runs as this user, the files are theirs."""

    name: str
    uid: int
    gid: int


class Collector(threading.Thread):
    """Reads a named pipe to its end and writes a file, as long as there is room for it.

    A full disk loses lines, and never stops the program that is traced.
    """

    def __init__(self, pipe: Path, file: Path):
        """Makes the pipe, which the tracer opens for writing."""
        super().__init__(name=f"collector of {file.name}", daemon=True)
        self.num_lost_lines = 0
        self._file = file
        self._tracer_has_ended = threading.Event()
        os.mkfifo(pipe)
        self._reading_end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        # A tracer that waits for us holds up the program that it traces.
        fcntl.fcntl(self._reading_end, fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)

    def run(self) -> None:
        """Ends with the tracer."""
        chunks = self._chunks()
        try:
            with self._file.open("wb", buffering=0) as file:
                for chunk in chunks:
                    self._write(file, chunk)
        except OSError:
            for chunk in chunks:
                self.num_lost_lines += chunk.count(b"\n")
        finally:
            os.close(self._reading_end)

    def finish(self) -> None:
        """Call it when the tracer has ended: takes what is left in the pipe."""
        self._tracer_has_ended.set()
        self.join()

    def _chunks(self):
        poll = select.poll()
        poll.register(self._reading_end, select.POLLIN)
        while True:
            if poll.poll(_POLL_MS):
                chunk = os.read(self._reading_end, _CHUNK_BYTES)
                if not chunk:
                    return
                yield chunk
            elif self._tracer_has_ended.is_set():
                return  # it never opened the pipe

    def _write(self, file, chunk: bytes) -> None:
        written = 0
        try:
            while written < len(chunk):
                written += file.write(chunk[written:])
        except OSError:
            self.num_lost_lines += chunk.count(b"\n", written)
            raise


class Session(NamedTuple):
    """One process of a tracer, what it writes, and who takes it."""

    raw_file: RawFile
    process: subprocess.Popen
    collector: Collector


class Tracer:
    """Starts the command under a tracer, attaches to containers, ends in order."""

    def __init__(self, chosen: str, folder: Path, pipes: Path, target: Target):
        """Takes the backend, the folder for raw lines, one for pipes, and the target."""
        self.chosen = chosen
        self.sessions: list[Session] = []
        self.began = clocks.read_pair()
        """The moment before the target's first traced call."""
        self._folder = folder
        self._pipes = pipes
        self._target = target

    def launch(self, command: Sequence[str], user: User | None) -> subprocess.Popen:
        """Starts the command, traced from its first call; returns the process to wait for.

        Raises:
          OSError: there is no such command.
          ValueError: the tracer does not start.
        """
        if self.chosen == backends.STRACE:
            return self._launch_under_strace(command, user)
        if self.chosen == backends.BPFTRACE:
            return self._launch_beside_bpftrace(command, user)
        process = _start(command, user)
        self._target.add_tree(process.pid)
        return process

    def _launch_under_strace(self, command, user: User | None) -> subprocess.Popen:
        pipe, collector, file = self._new_collector()
        options = [*strace.options(pipe), *(["-u", user.name] if user else [])]
        self.began = clocks.read_pair()
        process = _start([*options, "--", *command], None)
        self._begin(RawFile(file, None), process, collector)
        self._target.add_tree(process.pid)
        return process

    def _launch_beside_bpftrace(self, command, user: User | None) -> subprocess.Popen:
        gate = self._pipes / "gate"
        os.mkfifo(gate)
        if user:
            self._pipes.chmod(0o711)
            os.chown(gate, user.uid, user.gid)
        process = _start([*_HOLD, str(gate), *command], user)
        self._target.add_tree(process.pid)
        try:
            self._attach_bpftrace([process.pid], None, has_block_io=True)
        except BaseException:
            process.kill()
            process.wait()
            raise
        self.began = clocks.read_pair()
        _open_gate(gate, process)
        return process

    def attach(self, pids: Sequence[int], container: Container | None = None) -> None:
        """Traces processes that run already, and all that they start.

        Raises:
          ValueError: the tracer does not start.
        """
        if self.chosen == backends.BPFTRACE:
            self._attach_bpftrace(pids, container, has_block_io=not self.sessions)
        elif self.chosen == backends.STRACE:
            self._attach_strace(pids, container)

    def _attach_strace(self, pids: Sequence[int], container: Container | None) -> None:
        pipe, collector, file = self._new_collector()
        options = strace.options(pipe, can_filter=False)
        errors = self._pipes / f"{file}.errors"
        threads = [(thread.id, pid) for pid in pids for thread in processes.threads_of(pid)]
        with errors.open("wb") as stderr:
            arguments = [word for pid in pids for word in ("-p", str(pid))]
            # In a group of its own: Ctrl-C is for the traced program, the tracer sees it through.
            process = _start([*options, *arguments], None, stderr=stderr, process_group=0)
        self._begin(RawFile(file, container, threads), process, collector)
        while process.poll() is None and not any(
            processes.tracer_of(pid) == process.pid for pid in pids if processes.is_running(pid)
        ):
            if not any(processes.is_running(pid) for pid in pids):
                return
            time.sleep(0.01)
        if process.poll():
            collector.finish()
            raise ValueError(f"strace cannot attach: {_last_line(errors)}")

    def _attach_bpftrace(self, pids, container: Container | None, *, has_block_io: bool) -> None:
        events = bpftrace.tracepoints()
        programs = bpftrace.chosen_programs(events)
        if not has_block_io:
            programs.pop("block I/O", None)
        pipe, collector, file = self._new_collector()
        program = self._pipes / f"{file}.bt"
        program.write_text(bpftrace.program_text(programs.values(), pids, events))
        errors = self._pipes / f"{file}.errors"
        with errors.open("wb") as stderr, pipe.open("wb") as stdout:
            process = _start(
                # By lines: readiness must be seen when it comes.
                bpftrace.command("bpftrace", "-q", "-B", "line", str(program)),
                None,
                stdout=stdout,
                stderr=stderr,
                process_group=0,
                env=bpftrace.environment(),
            )
        raw_file = RawFile(file, container)
        self._begin(raw_file, process, collector)
        if "calls" in programs:
            self._await_readiness(process, self._folder / file, errors)
        opened = ((pid, *place) for pid in pids for place in processes.open_paths(pid))
        raw_file.path_of_fd.extend(opened)

    def _await_readiness(self, process: subprocess.Popen, file: Path, errors: Path) -> None:
        deadline = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < deadline and process.poll() is None:
            if file.exists() and b"ready" in file.read_bytes()[:100]:
                return
            time.sleep(0.05)
        self.stop()
        reason = _last_line(errors) or f"it was not ready within {_READY_WITHIN_S:.0f} s"
        raise ValueError(f"bpftrace does not start: {reason}")

    def _new_collector(self) -> tuple[Path, Collector, str]:
        file = f"{self.chosen}-{len(self.sessions)}.txt"
        pipe = self._pipes / f"{file}.pipe"
        return pipe, Collector(pipe, self._folder / file), file

    def _begin(self, raw_file: RawFile, process: subprocess.Popen, collector: Collector) -> None:
        collector.start()
        self.sessions.append(Session(raw_file, process, collector))
        self._target.leave_out(process.pid)

    def stop(self) -> None:
        """Lets go of what still runs, and takes the last lines."""
        for session in self.sessions:
            if session.process.poll() is None:
                # Both tracers detach on this signal; what they traced goes on.
                session.process.send_signal(signal.SIGINT)
        for session in self.sessions:
            with contextlib.suppress(subprocess.TimeoutExpired):
                session.process.wait(timeout=60)
            if session.process.poll() is None:
                session.process.kill()
                session.process.wait()
            session.collector.finish()


def _open_gate(gate: Path, process: subprocess.Popen) -> None:
    while process.poll() is None:
        try:
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
            return
        except OSError:
            time.sleep(0.001)  # the command does not wait there yet


def _start(command: Sequence[str], user: User | None, **more) -> subprocess.Popen:
    whose: dict = {}
    if user:
        groups = os.getgrouplist(user.name, user.gid)
        whose = {"user": user.uid, "group": user.gid, "extra_groups": groups}
    return subprocess.Popen(command, preexec_fn=_unblock_signals, **whose, **more)


def _unblock_signals() -> None:
    """The recorder waits for signals with a mask, which its children would inherit."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
