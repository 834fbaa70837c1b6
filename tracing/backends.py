"""Finds the tracer that works here, bpftrace, strace, or /proc alone, by trying each."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from tracing import bpftrace, processes

BPFTRACE, STRACE, PROC = "bpftrace", "strace", "proc"
NAMES = (BPFTRACE, STRACE, PROC)  # the best one first
OLDEST_STRACE = (5, 9)  # the first with --pidns-translation


_RECORDS = {
    BPFTRACE: "every call, page faults and block I/O, from the kernel's tracepoints",
    STRACE: "every call on files; no block I/O, page faults only as counts",
    PROC: "counters and open files at each sample; no single calls",
}


@dataclass(frozen=True)
class Backends:
    """The chosen tracer, and why the better ones cannot be used."""

    chosen: str
    reasons: dict[str, str]
    """tracer -> what is missing here."""

    def without_the_chosen(self, reason: str) -> "Backends":
        """The next best, when the chosen one turned out not to work."""
        reasons = {**self.reasons, self.chosen: reason}
        return Backends(_best(reasons), reasons)

    def line(self) -> str:
        """A line: what is recorded, and why no more is."""
        better = NAMES[: NAMES.index(self.chosen)]
        reasons = [f"{name}: {self.reasons[name]}" for name in better if name in self.reasons]
        without = f" ({'; '.join(reasons)})" if reasons else ""
        return f"{self.chosen} records {_RECORDS[self.chosen]}{without}"


def choose(wanted: str | None, *, attaches_to: int | None = None) -> Backends:
    """Picks the best tracer that works here.

    Args:
      wanted: one of NAMES; None = the best.
      attaches_to: a process that runs already; None: the tracer starts the command.

    Raises:
      ValueError: the wanted one does not work here.
    """
    missing = {BPFTRACE: bpftrace.missing(), STRACE: _missing_strace(attaches_to)}
    reasons = {name: reason for name, reason in missing.items() if reason}
    if wanted in reasons:
        raise ValueError(
            f"--backend={wanted}: {reasons[wanted]}; without --backend the best that works is taken"
        )
    return Backends(wanted or _best(reasons), reasons)


def _best(reasons: dict[str, str]) -> str:
    return next(name for name in NAMES if name not in reasons)


def _missing_strace(attaches_to: int | None) -> str | None:
    if shutil.which("strace") is None:
        return "strace is not installed; apt-get install strace"
    text = subprocess.run(["strace", "-V"], capture_output=True, text=True).stdout
    match = re.search(r"version (\d+)\.(\d+)", text)
    if not match or tuple(map(int, match.groups())) < OLDEST_STRACE:
        return (
            f"{text.splitlines()[0] if text else 'this strace'} is too old; 5.9 or later is needed"
        )
    if attaches_to is not None and (tracer := processes.tracer_of(attaches_to)):
        return f"process {attaches_to} is traced already, by process {tracer}"
    if processes.tracer_of(os.getpid()):
        return "this trace is itself being traced, and a process has one tracer at most"
    command = ["strace", "-o", os.devnull, "-e", "trace=none", "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return f"ptrace is not allowed here: {lines[0]}"
    return None
