"""Which tracer is chosen, how its lines are taken; who belongs to the target; the clocks."""

import contextlib
import io
import json
import os
import signal
import subprocess
import threading
import time
from types import SimpleNamespace
from unittest import mock

import psutil
import pytest

from tests.helpers import programs, waiting
from tracing import backends, bpftrace, clocks, containers, processes, tracers
from tracing.clocks import Alignment, ClockPair, read_pair
from tracing.processes import Target
from tracing.recording import RawFile
from tracing.tests.conftest import require
from tracing.tracers import Session, Tracer


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
        ("strace", "-V"): (0, "strace -- version 5.9\n", ""),
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
    answers["strace", "-V"] = (0, "strace -- version 5.8\n", "")
    assert "version 5.8 is too old; 5.9 or later" in backends.choose(None).reasons["strace"]
    for answer, reason in (
        (("version 5.10\n", 7, ""), "ptrace is not allowed here: exit code 7"),
        (("version 6.10\n", 0, "warning"), None),
        (("", 0, ""), "this strace is too old; 5.9 or later is needed"),
    ):
        answers["strace", "-V"] = (0, answer[0], "")
        answers["strace", "-o"] = (answer[1], "", answer[2])
        assert backends.choose(None).reasons.get("strace") == reason
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


def heed_sigint() -> None:
    """A shell's background processes ignore SIGINT, and these tests may be of one."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ended(session: Session) -> Session:
    """The session of a tracer that has ended."""
    session.process = subprocess.Popen(["true"])
    session.finish()
    return session


def test_a_session_takes_all_lines_and_ends_without_any(tmp_path):
    session = Session(tmp_path / "file")
    os.set_blocking(session.writing_end, False)
    lines = b"x\n" * 100_000
    assert os.write(session.writing_end, lines) == len(lines)  # nobody need read yet
    session.start()
    session.pipe.write_bytes(lines)
    ended(session)
    assert (tmp_path / "file").read_bytes() == lines * 2
    unused = Session(tmp_path / "none")
    unused.start()
    assert (ended(unused).num_lost_lines, (tmp_path / "none").read_bytes()) == (0, b"")


def test_lines_that_a_full_disk_does_not_take_are_counted_and_the_tracer_continues(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    session = Session(tmp_path / "full")
    session.start()
    with session.pipe.open("wb", buffering=0) as pipe:
        for _ in range(40):
            pipe.write(b"line\n" * 50_000)  # more than the pipe holds
    assert ended(session).num_lost_lines == 40 * 50_000


def test_what_follows_lost_lines_is_lost_too(tmp_path):
    """A line that was cut is not continued by another one."""

    class Disk(io.BytesIO):
        def write(self, chunk: bytes) -> int:
            if self.tell() == 4 and not session.num_lost_lines:
                raise OSError("No space left")  # afterwards somebody makes room
            return super().write(chunk[:2])

    session, disk = Session(tmp_path / "file"), Disk()
    session._file = SimpleNamespace(open=lambda *_, **__: contextlib.nullcontext(disk))
    session.start()
    session.pipe.write_bytes(b"one\ntwo\n")
    waiting.until(lambda: session.num_lost_lines)
    session.pipe.write_bytes(b"three\n")
    assert (ended(session).num_lost_lines, disk.getvalue()) == (2, b"one\n")


def test_the_command_is_the_users_who_called_sudo(monkeypatch):
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [name, gid])
    monkeypatch.setattr(subprocess, "Popen", lambda command, preexec_fn, **whose: whose)
    assert tracers._start(["true"], None) == {}
    expected = {"user": 5, "group": 6, "extra_groups": ["me", 6]}
    assert tracers._start(["true"], tracers.User("me", 5, 6)) == expected


@pytest.mark.parametrize("backend", backends.NAMES)
def test_every_tracer_starts_the_command_as_that_user(tmp_path, monkeypatch, backend):
    def start(command, user, **_):
        started.append((user, command[command.index("-u") + 1] if "-u" in command else None))
        return subprocess.Popen(["true"])

    started, me = [], tracers.User("me", 5, 6)
    monkeypatch.setattr(tracers, "_start", start)
    monkeypatch.setattr(Tracer, "_attach_bpftrace", lambda *_, **__: None)
    tracer = Tracer(backend, tmp_path, Target())
    tracer.launch(["true"], me).wait(timeout=60)
    tracer.stop()
    # strace itself stays root's, which may trace what is the user's.
    assert started == [(None, "me") if backend == backends.STRACE else (me, None)]


def test_a_tracer_that_cannot_attach_ends_alone_and_its_last_words_are_told(tmp_path):
    tracer, other = Tracer(backends.PROC, tmp_path, Target()), object()
    session = Session(tmp_path / "lines")
    words = ["sh", "-c", r"printf 'one\nno \377right\n'; exec sleep 60"]
    tracer._begin(session, subprocess.Popen(words, stdout=session.errors, preexec_fn=heed_sigint))
    waiting.until(lambda: session.last_error() == "no �right")
    tracer.sessions.append(other)
    with pytest.raises(ValueError, match=r"^it cannot: no �right$"):
        tracer._give_up(session, f"it cannot: {session.last_error()}")
    assert tracer.sessions == [other] and not session.is_alive()
    assert session.process.returncode == -signal.SIGINT


@pytest.mark.parametrize(
    ("text", "ends_within_s", "code"),
    [("exec sleep 600", 60, -signal.SIGINT), ("trap '' INT; exec sleep 600", 0.1, -9)],
)
def test_a_tracer_is_let_go_and_killed_if_it_stays(
    tmp_path, monkeypatch, text, ends_within_s, code
):
    monkeypatch.setattr("tracing.tracers._ENDS_WITHIN_S", ends_within_s)
    tracer, session = Tracer(backends.PROC, tmp_path, Target()), Session(tmp_path / "lines")
    process = subprocess.Popen(["sh", "-c", text], preexec_fn=heed_sigint)
    late = threading.Timer(20, process.send_signal, [signal.SIGTERM])  # one that is not ended
    late.start()
    tracer._begin(session, process)
    waiting.until(lambda: processes.arguments_of(process.pid)[:1] == ["sleep"], process)
    tracer.stop()
    late.cancel()
    late.function(*late.args)
    assert process.returncode == code and not session.is_alive()


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


def test_a_trace_by_strace_begins_with_its_command(tmp_path):
    require(backends.STRACE)
    tracer = Tracer(backends.STRACE, tmp_path, Target())
    made_ns = time.monotonic_ns()
    process = tracer.launch(["true"], None)
    assert process.wait(timeout=60) == 0
    tracer.stop()
    assert tracer.began.monotonic_ns > made_ns
    assert tracer._target.tracers() == [process.pid]


MOUNTS = [
    {"Type": "bind", "Source": "/srv/tfrecords", "Destination": "/data/"},
    {"Type": "bind", "Source": "/home/me/out", "Destination": "/data/out"},
    {"Type": "tmpfs", "Destination": "/tmp"},
]
INSPECTED = json.dumps([{"Name": "/bert-7", "State": {"Pid": 4711}, "Mounts": MOUNTS}])


def test_process_and_mounts_of_a_container():
    found = containers.from_inspect("docker", INSPECTED)
    assert (found.engine, found.name, found.pid) == ("docker", "bert-7", 4711)
    assert found.host_path("/data/part-0") == "/srv/tfrecords/part-0"
    assert found.host_path("/data/out/bert.log") == "/home/me/out/bert.log"
    assert found.host_path("/data/out") == "/home/me/out"
    assert found.host_path("/database") == "/proc/4711/root/database"
    assert containers.from_inspect("docker", INSPECTED.replace("4711", "0")) is None  # it has ended


def test_an_engine_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch, capfd):
    programs.stand_in(tmp_path / "docker", "exec sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(containers, "ANSWERS_WITHIN_S", 0.1)
    with pytest.raises(ValueError, match=r"docker does not answer within 0\.1 s: restart it, or"):
        containers.inspect("docker", "name", 0.1)
    box = containers.from_inspect("docker", INSPECTED)
    containers.signal(box, "SIGINT")
    programs.stand_in(tmp_path / "docker", f'echo name; echo "$@" > {tmp_path}/asked; exit 1')
    containers.signal(box, "SIGINT")
    assert (tmp_path / "asked").read_text() == "kill --signal=SIGINT bert-7\n"
    assert containers.inspect("docker", "name") is None
    assert (tmp_path / "asked").read_text() == "container inspect name\n"
    assert capfd.readouterr().out == ""  # what an engine prints is not the command's


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("docker run --rm --name mlperf-bert-1 --user 5:5 image ./train_model.sh", "mlperf-bert-1"),
        ("/usr/bin/podman run --name=b image train --name=c", "b"),
        ("docker run image", None),
        ("docker run --name= image", None),
        ("docker ps --name x", None),
        ("vim --name run", None),
        ("", None),
    ],
)
def test_command_lines_that_start_containers(line, expected):
    found = containers.started_by(line.split())
    assert (found and found[1]) == expected


def test_a_process_that_has_ended_runs_no_more_before_its_parent_notices():
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert processes.is_running(process.pid)
    process.stdin.close()
    waiting.until(lambda: not processes.is_running(process.pid))
    assert process.wait() == 0
    assert not processes.is_running(-1)
    # Whoever asks for what it had gets nothing.
    assert processes.tree(process.pid) == {process.pid}
    tracers._note_what_is_there(raw_file := RawFile("x", None), [process.pid])
    assert (raw_file.process_of_thread, raw_file.folder_of) == ([], [])


def test_a_container_belongs_to_the_target_by_tree_and_cgroup(monkeypatch):
    parents = {1: 0, 50: 1, 60: 1, 66: 50, 70: 1, 80: 1, 90: 1, 95: 1}
    cgroups = {1: "/", 50: "/docker/abc", 60: "/docker/abc/child", 70: "/docker/abc", 80: "/user"}
    cgroups |= {66: "/user", 90: "/docker/abcd"}

    def tree(root):
        return {root}.union(*(tree(pid) for pid, parent in parents.items() if parent == root))

    monkeypatch.setattr(psutil, "pids", lambda: list(parents))
    monkeypatch.setattr(processes, "tree", tree)
    monkeypatch.setattr(processes, "cgroup_of", cgroups.get)
    target = processes.Target()
    target.add_container(50)
    target.add_container(80)
    assert target.pids() == [50, 60, 66, 70, 80]  # 60, 70: started by exec, no children of 50
    del parents[50]
    parents[66] = 1
    assert target.pids() == [60, 66, 70, 80]  # what once belonged stays


@pytest.mark.parametrize("cgroup", ["/", "/init", "/own", None])
def test_a_container_in_a_cgroup_of_others_is_its_tree_alone(monkeypatch, cgroup):
    cgroups = {1: "/init", os.getpid(): "/own", 50: cgroup, 60: cgroup}
    monkeypatch.setattr(psutil, "pids", lambda: list(cgroups))
    monkeypatch.setattr(processes, "tree", lambda root: {root})
    monkeypatch.setattr(processes, "cgroup_of", cgroups.get)
    target = processes.Target()
    target.add_container(50)
    assert target.pids() == [50]


def test_every_container_is_found_once_whatever_the_engine_says_of_others(monkeypatch):
    lines = {5: "docker run --name a image", 6: "docker run --name b image", 7: "vim"}
    lines[8] = "docker run --name c image"
    monkeypatch.setattr(processes, "arguments_of", lambda pid: lines[pid].split())
    answers: dict = {"a": [None, "A"], "b": [ValueError("no answer"), "B"]}
    answers["c"] = [PermissionError("docker"), KeyError("State"), None]

    def inspect(engine: str, name: str, within_s: int):
        assert within_s <= 2  # meanwhile no signal reaches the command
        answer = answers[name].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(containers, "inspect", inspect)
    monkeypatch.setattr("shutil.which", {"docker": "/bin/docker"}.get)
    found: list = []
    watcher = containers.Watcher(SimpleNamespace(pids=lambda: list(lines)), found.append)
    for expected in ([], ["A", "B"], ["A", "B"]):
        watcher.look()
        assert sorted(found) == expected
    monkeypatch.setattr("shutil.which", lambda name: None)  # without an engine nobody is asked
    containers.Watcher(SimpleNamespace(pids=lambda: 1 // 0), found.append).look()


def test_a_tracers_fork_is_no_process_of_the_command_until_it_becomes_one(monkeypatch):
    words, parents = {5: "strace -f cat", 6: "strace -f cat", 7: "cat"}, {6: 5, 7: 5}
    monkeypatch.setattr(psutil, "pids", lambda: list(words))
    monkeypatch.setattr(processes, "tree", lambda root: set(words))
    monkeypatch.setattr(processes, "parent_of", lambda pid: parents.get(pid, 0))
    monkeypatch.setattr(processes, "arguments_of", lambda pid: words[pid].split())
    target = processes.Target()
    target.leave_out(5)
    target.add_tree(5)
    assert target.pids() == [7]
    words[6] = "cat"
    assert target.pids() == [6, 7]


def test_conversion_follows_the_drift_and_bounds_its_error():
    pairs = [
        ClockPair(10**9, 10**18, 2 * 10**9, 40),
        ClockPair(2 * 10**9, 10**18 + 10**9 - 600, 3 * 10**9, 40),
    ]
    alignment = Alignment(pairs)
    assert alignment.drift_ns == -600
    assert alignment.error_bound_ns == 600 + 80
    half, half_real = 15 * 10**8, 10**18 + 5 * 10**8 - 300
    assert alignment.converted(half, "monotonic_ns", "realtime_ns") == half_real
    assert abs(alignment.converted(half_real, "realtime_ns", "monotonic_ns") - half) <= 2
    assert alignment.converted(25 * 10**8, "boottime_ns", "monotonic_ns") == half
    back = Alignment([*pairs, ClockPair(3 * 10**9, 10**18 + 2 * 10**9 + 100, 4 * 10**9, 50)])
    assert (back.drift_ns, back.error_bound_ns) == (100, 700 + 100)
    one = Alignment([ClockPair(5, 105, 5, 1)])
    assert (one.drift_ns, one.error_bound_ns) == (0, 2)
    assert one.converted([107], "realtime_ns", "monotonic_ns").tolist() == [7]
    read = {time.CLOCK_MONOTONIC: [140, 100], time.CLOCK_REALTIME: [5], time.CLOCK_BOOTTIME: [7]}
    with mock.patch.object(time, "clock_gettime_ns", lambda clock: read[clock].pop()):
        assert clocks._one_pair() == ClockPair(120, 5, 7, 40)
    tries = iter([9, *range(8, 4, -1), *range(6, 90)])
    with mock.patch.object(clocks, "_one_pair", lambda: ClockPair(0, 0, 0, next(tries))):
        assert read_pair().uncertainty_ns == 5  # the tightest try
    before, now, after = time.time_ns(), read_pair(), time.time_ns()
    assert 0 <= now.uncertainty_ns < 1_000_000
    assert before <= now.realtime_ns <= after
