"""Which tracer is chosen, and what is said of the others."""

import os
import subprocess

import pytest

from tracing import backends, bpftrace, processes
from tracing.tests.conftest import require


def test_without_root_strace_is_taken_and_root_is_asked_for(monkeypatch):
    require(backends.STRACE)
    monkeypatch.setattr(bpftrace, "missing", lambda: "it needs root; take the trace with sudo")
    found = backends.choose(None)
    assert found.chosen == backends.STRACE
    assert found.line() == (
        "strace records every call on files; no block I/O, page faults only as counts "
        "(bpftrace: it needs root; take the trace with sudo)"
    )
    with pytest.raises(ValueError, match="--backend=bpftrace: it needs root"):
        backends.choose(backends.BPFTRACE)


def test_without_ptrace_the_counters_remain(monkeypatch):
    monkeypatch.setattr(bpftrace, "missing", lambda: "bpftrace is not installed")
    answers = {
        ("strace", "-V"): (0, "strace -- version 5.6\n", ""),
        ("strace", "-o"): (1, "", "strace: PTRACE_TRACEME: Operation not permitted\n"),
    }
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(
        subprocess, "run",
        lambda command, **_: subprocess.CompletedProcess(command, *answers[tuple(command[:2])]),
    )  # fmt: skip
    found = backends.choose(None)
    assert found.chosen == backends.PROC
    assert found.reasons["strace"] == (
        "ptrace is not allowed here: strace: PTRACE_TRACEME: Operation not permitted"
    )
    answers["strace", "-V"] = (0, "strace -- version 5.5\n", "")
    assert "version 5.5 is too old; 5.6 or later" in backends.choose(None).reasons["strace"]
    monkeypatch.setattr("shutil.which", lambda name: None)
    found = backends.choose(None)
    assert found.line().endswith(
        " (bpftrace: bpftrace is not installed; strace: strace is not installed; apt-get install "
        "strace)"
    )


def test_a_process_that_is_traced_already(monkeypatch):
    require(backends.STRACE)
    monkeypatch.setattr(processes, "tracer_of", lambda pid: 99 if pid == 4711 else 0)
    with pytest.raises(ValueError, match="process 4711 is traced already, by process 99"):
        backends.choose(backends.STRACE, attaches_to=4711)
    monkeypatch.setattr(processes, "tracer_of", lambda pid: 99 if pid == os.getpid() else 0)
    with pytest.raises(ValueError, match="--backend=strace: this trace is itself being traced"):
        backends.choose(backends.STRACE)
