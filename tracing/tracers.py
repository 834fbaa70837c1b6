"""Runs the tracer on the command and its containers: strace, bpftrace, or none."""

import dataclasses
import fcntl
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tracing import backends, bpftrace, clocks, processes, strace
from tracing.containers import Container
from tracing.processes import Target
from tracing.recording import RawFile

# On a busy machine the kernel takes a minute for all of bpftrace's probes.
_READY_WITHIN_S = 300.0
_ENDS_WITHIN_S = 300.0
_CHUNK_BYTES = 1 << 20
# The command stops itself, and continues when the tracer is ready.
_HOLD = ["/bin/sh", "-c", 'kill -STOP $$; exec "$@"', "hold"]


@dataclasses.dataclass(frozen=True)
class User:
    """The user who called sudo: the command runs as this user, who also owns the files."""

    name: str
    uid: int
    gid: int


class Session(threading.Thread):
    """One process of a tracer; its lines come through a pipe into a file, while there is room.

    A full disk loses lines, and never stops the program that is traced.
    """

    def __init__(self, file: Path, container: Container | None = None):
        """Makes the pipe; `start` it together with the tracer."""
        super().__init__(name=f"lines of {file.name}", daemon=True)
        self.raw_file = RawFile(file.name, container)
        self.process: subprocess.Popen
        self.num_lost_lines = 0
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - `finish` closes it
        """Takes what the tracer prints on standard error."""
        self._file = file
        self._reading_end, self.writing_end = os.pipe()
        # If the tracer had to wait for this process, the traced program would wait too.
        fcntl.fcntl(self._reading_end, fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)

    @property
    def pipe(self) -> Path:
        """The pipe's name; a descriptor would be inherited by all that strace starts."""
        return Path(f"/proc/{os.getpid()}/fd/{self.writing_end}")

    def run(self) -> None:
        """Copies the pipe into the file until no process writes."""
        chunks = iter(lambda: os.read(self._reading_end, _CHUNK_BYTES), b"")
        try:
            with self._file.open("wb", buffering=0) as file:
                for chunk in chunks:
                    self._write(file, chunk)
        except OSError:
            for chunk in chunks:
                self.num_lost_lines += chunk.count(b"\n")
        finally:
            os.close(self._reading_end)

    def _write(self, file, chunk: bytes) -> None:
        written = 0
        try:
            while written < len(chunk):
                written += file.write(chunk[written:])
        except OSError:
            self.num_lost_lines += chunk.count(b"\n", written)
            raise

    def let_go(self) -> None:
        """Asks the tracer to end; what it traces continues."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # both tracers detach

    def finish(self) -> None:
        """Waits for the tracer, and takes its last lines."""
        try:
            self.process.wait(timeout=_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.writing_end)
        self.join()
        self.errors.close()

    def last_error(self) -> str:
        """The last line of the tracer's standard error; empty if it printed nothing."""
        # A plain read would move the position, which the tracer shares.
        text = os.pread(self.errors.fileno(), _CHUNK_BYTES, 0).decode(errors="replace")
        return text.strip().rpartition("\n")[2]


class Tracer:
    """Starts the command under a tracer, attaches to containers, ends in order."""

    def __init__(self, chosen: str, folder: Path, target: Target):
        """Takes the backend, the folder for raw lines, and the target."""
        self.chosen = chosen
        self.sessions: list[Session] = []
        self.began = clocks.read_pair()
        """The moment before the target's first traced call."""
        self._folder = folder
        self._target = target

    def launch(self, command: Sequence[str], user: User | None) -> subprocess.Popen:
        """Starts the command, traced from its first call; returns the process to wait for.

        Raises:
          OSError: there is no such command.
          ValueError: the tracer does not start.
        """
        if self.chosen == backends.BPFTRACE:
            return self._launch_beside_bpftrace(command, user)
        if self.chosen == backends.STRACE:
            session = self._new_session()
            options = [*strace.options(session.pipe), *(["-u", user.name] if user else [])]
            self.began = clocks.read_pair()
            process = self._begin(session, _start([*options, "--", *command], None))
        else:
            process = _start(command, user)
        self._target.add_tree(process.pid)
        return process

    def _launch_beside_bpftrace(self, command, user: User | None) -> subprocess.Popen:
        process = _start([*_HOLD, *command], user)
        self._target.add_tree(process.pid)
        try:
            self._attach_bpftrace([process.pid], None, has_block_io=True)
        except BaseException:
            process.kill()
            process.wait()
            raise
        self.began = clocks.read_pair()
        # Sent only after it has stopped: before, the signal would be lost.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WCONTINUED | os.WEXITED | os.WNOWAIT)
        process.send_signal(signal.SIGCONT)
        return process

    def attach(self, pids: Sequence[int], container: Container | None = None) -> None:
        """Traces processes that run already, and all that they start."""
        if self.chosen == backends.BPFTRACE:
            self._attach_bpftrace(pids, container, has_block_io=not self.sessions)
        elif self.chosen == backends.STRACE:
            self._attach_strace(pids, container)

    def _attach_strace(self, pids: Sequence[int], container: Container | None) -> None:
        session = self._new_session(container)
        _note_what_is_there(session.raw_file, pids)
        options = strace.options(session.pipe, can_filter=False)
        arguments = [word for pid in pids for word in ("-p", str(pid))]
        # In its own process group: Ctrl-C is for the traced program, whose end the tracer records.
        process = self._begin(
            session,
            _start([*options, *arguments], None, stderr=session.errors, process_group=0),
        )
        while process.poll() is None and not any(
            processes.tracer_of(pid) == process.pid for pid in pids if processes.is_running(pid)
        ):
            if not any(processes.is_running(pid) for pid in pids):
                return
            time.sleep(0.01)
        if process.poll():
            self._give_up(session, f"strace cannot attach: {session.last_error()}")

    def _attach_bpftrace(self, pids, container: Container | None, *, has_block_io: bool) -> None:
        events = bpftrace.tracepoints()
        programs = bpftrace.chosen_programs(events)
        if not has_block_io:
            programs.pop("block I/O", None)
        text = bpftrace.program_text(programs.values(), pids, events)
        session = self._new_session(container)
        self._begin(
            session,
            _start(
                # Buffered by lines, so that readiness is seen when it comes.
                bpftrace.command("bpftrace", "-q", "-B", "line", "-e", text),
                None,
                stdout=session.writing_end,
                stderr=session.errors,
                process_group=0,
                env=bpftrace.environment(),
            ),
        )
        if "calls" in programs:
            self._await_readiness(session)
        _note_what_is_there(session.raw_file, pids)
        for pid in pids:
            for fd, path in processes.open_paths(pid):
                opened = (pid, fd, path, processes.is_closed_by_exec(pid, fd))
                session.raw_file.opened_before.append(opened)

    def _await_readiness(self, session: Session) -> None:
        file = self._folder / session.raw_file.name
        deadline = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < deadline and session.process.poll() is None:
            if file.exists() and b"ready" in file.read_bytes()[:100]:
                return
            time.sleep(0.05)
        reason = session.last_error() or f"it was not ready within {_READY_WITHIN_S:.0f} s"
        self._give_up(session, f"bpftrace does not start: {reason}")

    def _new_session(self, container: Container | None = None) -> Session:
        return Session(self._folder / f"{self.chosen}-{len(self.sessions)}.txt", container)

    def _begin(self, session: Session, process: subprocess.Popen) -> subprocess.Popen:
        session.process = process
        session.start()
        self.sessions.append(session)
        self._target.leave_out(process.pid)
        return process

    def _give_up(self, session: Session, reason: str) -> NoReturn:
        self.sessions.remove(session)
        session.let_go()
        session.finish()
        raise ValueError(reason)

    def stop(self) -> None:
        """Lets go of what still runs, and takes the last lines."""
        for session in self.sessions:
            session.let_go()
        for session in self.sessions:
            session.finish()


def _note_what_is_there(raw_file: RawFile, pids: Sequence[int]) -> None:
    threads = [(thread.id, pid) for pid in pids for thread in processes.threads_of(pid)]
    raw_file.process_of_thread.extend(threads)
    folders = ((pid, processes.link_of(pid, "cwd")) for pid in pids)
    raw_file.folder_of.extend((pid, folder) for pid, folder in folders if folder)


def _start(command: Sequence[str], user: User | None, **more) -> subprocess.Popen:
    whose: dict = {}
    if user:
        groups = os.getgrouplist(user.name, user.gid)
        whose = {"user": user.uid, "group": user.gid, "extra_groups": groups}
    return subprocess.Popen(command, preexec_fn=_unblock_signals, **whose, **more)


def _unblock_signals() -> None:
    """Unblocks signals: children inherit the mask with which the recorder waits for them."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
