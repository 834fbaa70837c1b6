"""Takes a trace: starts everything, waits, passes signals on, ends everything in order."""

import argparse
import contextlib
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tracing import STOPS, backends, containers, processes, recording
from tracing.backends import Backends
from tracing.containers import Container
from tracing.processes import Target
from tracing.recording import RAW, Recording
from tracing.sampling import Sampler
from tracing.tracers import Tracer, User

_POLL_S = 0.1  # between two looks at what runs
_LOOK_S = 1.0  # between two looks for leftover processes: those that end sooner are not told
_MOST_NAMED = 5
_RESERVE_BYTES = 128 << 10  # for recording.json, when the tracer has filled the disk
_FROM_TERMINAL = 0x80  # SI_KERNEL: Ctrl-C, which the whole foreground group has received already


def record(options: argparse.Namespace, user: User | None, say: Callable[[str], None]) -> Recording:
    """Takes the trace into a new folder; its raw files await their conversion.

    Signals are blocked: they wait until they are asked for.

    Args:
      options: of the command line.
      user: who called sudo; None without sudo.
      say: is given lines for the user.

    Raises:
      ValueError: bad input, or the folder is there already; nothing is left.
      OSError: the folder cannot be made.
    """
    container = _checked_container(options)
    attaches_to = container.pid if container else options.pid
    available = backends.choose(options.backend, attaches_to=attaches_to)
    say(available.line())
    folder = options.output
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already: name another folder")
    (folder / RAW).mkdir(parents=True)
    try:
        return _Recorder(options, user, available, say).run(container)
    except (ValueError, OSError):
        if not (folder / RAW / recording.FILE).exists():
            shutil.rmtree(folder)
        raise
    finally:
        # A signal that came after the end would stop the conversion.
        while signal.sigtimedwait(STOPS, 0):
            pass


def _checked_container(options: argparse.Namespace) -> Container | None:
    """The container, if one is to be traced."""
    if (processes.PROC / "self").readlink().name != str(os.getpid()):
        raise ValueError(
            "/proc shows the processes of another name space than this process is in: mount it "
            "again (unshare --mount-proc, mount -t proc proc /proc)"
        )
    if (options.pid is not None) + (options.container is not None) + bool(options.command) != 1:
        raise ValueError("name one thing to trace: -- COMMAND..., --pid or --container")
    if not 0 < options.interval_s <= 3600:  # NaN too
        raise ValueError(f"--interval_s={options.interval_s} must be above 0 and at most 3600")
    if options.command and shutil.which(options.command[0]) is None:
        raise ValueError(f"{options.command[0]}: no such command")
    if options.pid is not None and not processes.is_running(options.pid):
        raise ValueError(f"--pid={options.pid}: no such process")
    container = options.container and containers.inspect(options.engine, options.container)
    if options.container and not container:
        raise ValueError(
            f"--container={options.container}: {options.engine} runs no such container"
        )
    return container


class _Recorder:
    """One trace under way."""

    def __init__(self, options: argparse.Namespace, user: User | None, available: Backends, say):
        self._options = options
        self._user = user
        self._say = say
        self._target = Target()
        self._raw = options.output / RAW
        self._backends = available
        self._notes: list[str] = []
        self._tracer = Tracer(available.chosen, self._raw, self._target)
        self._command: subprocess.Popen | None = None
        self._first: int | None = None
        """The command's own process, where strace is its parent."""
        self._containers: list[Container] = []
        self._ended_by: str | None = None

    def run(self, container: Container | None) -> Recording:
        """Records from the first to the last sample."""
        sampler = Sampler(self._target, self._options.output, interval_s=self._options.interval_s)
        reserve = self._raw / "reserve"
        reserve.write_bytes(bytes(_RESERVE_BYTES))
        self._begin_with_what_works(container)
        sampler.start()
        try:
            self._wait()
        finally:
            sampler.stop()
            self._tracer.stop()
        reserve.unlink()
        return self._finish(sampler)

    def _begin_with_what_works(self, container: Container | None) -> None:
        """Begins with the best tracer that works: a kernel may refuse one that seems to."""
        try:
            self._begin(container)
        except ValueError as error:
            if self._options.backend:
                raise
            self._backends = self._backends.without_the_chosen(str(error))
            self._say(self._backends.line())
            self._tracer = Tracer(self._backends.chosen, self._raw, self._target)
            self._begin_with_what_works(container)

    def _begin(self, container: Container | None) -> None:
        if self._options.command:
            self._command = self._tracer.launch(self._options.command, self._user)
        elif container:
            self._note_container(container, is_wanted=True)
        elif self._options.pid is not None:
            self._target.add_tree(self._options.pid)
            self._tracer.attach(self._target.pids())
        if not self._command:
            self._say("watching what runs already; Ctrl-C ends the trace")

    def _note_container(self, container: Container, *, is_wanted: bool = False) -> None:
        self._target.add_container(container.pid)
        if container not in self._containers:
            self._containers.append(container)
        tree, cgroup = processes.tree(container.pid), processes.cgroup_of(container.pid)
        pids = self._target.pids()
        inside = [pid for pid in pids if pid in tree or processes.cgroup_of(pid) == cgroup]
        try:
            self._tracer.attach(inside, container)
        except (ValueError, OSError) as error:
            if is_wanted:
                raise
            self._note(f"container {container.name}: {error}; only its counters are recorded")
            return
        self._say(f"container {container.name}: its process {container.pid} is traced")

    def _note(self, line: str) -> None:
        self._notes.append(line)
        self._say(line)

    def _wait(self) -> None:
        """Waits until the command and its containers have ended, or a signal ends the trace."""
        watcher = containers.Watcher(self._target, self._note_container)
        announced = False
        left, next_look_s = set[int](), time.monotonic() + _LOOK_S
        while True:
            came = signal.sigtimedwait(STOPS, _POLL_S)
            # If it was stopped and continued meanwhile, Python returns a signal without a number.
            if came and came.si_signo in STOPS and self._stop_requested(came):
                return
            has_ended = self._command is not None and processes.has_ended(self._command.pid)
            watcher.look()  # the command may have started one in its last moment
            if (has_ended or not self._command) and not self._still_runs():
                if has_ended and (pids := list(filter(processes.is_running, self._target.pids()))):
                    self._note(f"the trace ends with the command; {_names_of(pids)} continues")
                return
            if has_ended and not announced:
                announced = True
                self._say("the command has ended; its container continues, and so does the trace")
            if not has_ended and not announced and time.monotonic() > next_look_s:
                now_left = set(self._left_behind())
                if still := sorted(left & now_left):
                    announced = True
                    self._tell_of(still)
                left, next_look_s = now_left, time.monotonic() + _LOOK_S

    def _left_behind(self) -> list[int]:
        """Processes that strace waits for although the command has ended; empty before that."""
        if not self._command or self._tracer.chosen != backends.STRACE:
            return []
        strace = self._command.pid
        if self._first and processes.parent_of(self._first) == strace:
            return []  # the command itself still runs
        traced = processes.traced_by(strace)
        self._first = next((pid for pid in traced if processes.parent_of(pid) == strace), None)
        return [] if self._first else traced

    def _tell_of(self, pids: list[int]) -> None:
        for pid in pids:
            self._target.add_tree(pid)
        self._note(
            f"the command has ended, but {_names_of(pids)}, which it started, did not: the trace "
            f"continues until then; to end it: kill {' '.join(map(str, pids))}, or Ctrl-C"
        )

    def _still_runs(self) -> bool:
        if self._command:
            return any(processes.is_running(container.pid) for container in self._containers)
        return any(processes.is_running(pid) for pid in self._target.pids())

    def _stop_requested(self, came: signal.struct_siginfo) -> bool:
        """Passes a signal on; returns whether the trace ends at once."""
        self._ended_by = signal.Signals(came.si_signo).name
        if not self._command:
            self._say("the trace ends; what it watched continues")
            return True
        if left := self._left_behind():
            # They are not let go: their calls fail without strace, whose filter they have.
            self._say(f"{self._ended_by}: waiting for what the command has left to end")
            for pid in left:
                _send(pid, signal.SIGTERM)  # a shell's background processes ignore SIGINT
        elif not processes.has_ended(self._command.pid):
            self._say(f"{self._ended_by}: waiting for the command to end")
            if came.si_code != _FROM_TERMINAL:
                self._signal_the_tree(self._command.pid, came.si_signo)
        else:
            for container in self._containers:
                containers.signal(container, self._ended_by)
        return False

    def _signal_the_tree(self, root: int, number: int) -> None:
        """Signals as a terminal does; containers get the signal from the client that runs them."""
        for pid in processes.tree(root):
            if pid not in self._target.tracers():
                _send(pid, number)

    def _finish(self, sampler: Sampler) -> Recording:
        code = self._command.wait() if self._command else None
        self._notes = [self._backends.line(), *self._notes, f"GPUs: {sampler.gpu_status}"]
        self._notes += sampler.errors
        recording_so_far = Recording(
            command=self._options.command,
            folder=str(Path.cwd()),
            exit_code=128 - code if code is not None and code < 0 else code,
            ended_by=self._ended_by,
            backend=self._tracer.chosen,
            notes=self._notes,
            containers=self._containers,
            raw_files=[session.raw_file for session in self._tracer.sessions],
            num_lost_lines=sum(s.num_lost_lines for s in self._tracer.sessions),
            num_asynchronous=len(sampler.asynchronous),
            pairs=[self._tracer.began, *sampler.pairs],
            machine=_machine(),
        )
        recording.save(recording_so_far, self._options.output)
        return recording_so_far


def _names_of(pids: list[int]) -> str:
    named = [f"{processes.name_of(pid)} ({pid})" for pid in pids[:_MOST_NAMED]]
    more = f" and {len(pids) - _MOST_NAMED} more" if len(pids) > _MOST_NAMED else ""
    return ", ".join(named) + more


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _machine() -> dict:
    return {
        "kernel": platform.release(),
        "hostname": platform.node(),
        "num_cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
