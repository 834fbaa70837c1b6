"""The recorder with tracers and engines that are stand-ins: whom it watches, tells and leaves.

Long because each way of recording needs a stand-in of its own.
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.helpers import programs, waiting
from tracing import (
    STOPS,
    backends,
    bpftrace,
    containers,
    processes,
    recorder,
    recording,
    sampling,
    signals_blocked,
    tables,
    tracers,
)
from tracing.__main__ import _arguments
from tracing.processes import Target
from tracing.tests import by_hand
from tracing.tests.conftest import require
from tracing.tracers import Tracer

NO_BPFTRACE = "bpftrace is not installed"
WATCHES = "watching what runs already; Ctrl-C ends the trace"
STRACE = '[ "$1" = -V ] && echo version 6.1; case "$*" in *" -p "*) {} ;; esac; exit 0'


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Returns a function that records into `trace`, and returns the recording and what was said.

    A line that begins as a key of `signals` is followed by its signal or call. strace is the best
    tracer.
    """
    monkeypatch.setattr(bpftrace, "missing", lambda: NO_BPFTRACE)
    monkeypatch.setattr(recorder, "_LOOK_S", 0.05)
    # A shell's & ignores SIGINT, and nohup SIGHUP, for all tests.
    ignored = [number for number in STOPS if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)

    def record(*words, signals=None):
        said: list[str] = []

        def say(line: str) -> None:
            said.append(line)
            for beginning, action in (signals or {}).items():
                if line.startswith(beginning) and callable(action):
                    action()
                elif line.startswith(beginning):
                    signal.pthread_kill(threading.main_thread().ident, action)

        given = _arguments([f"--output={tmp_path / 'trace'}", "--interval_s=0.1", *words])
        with signals_blocked():
            try:
                return recorder.record(given, None, say), said
            finally:
                pending = signal.sigpending() & set(STOPS)
                while signal.sigtimedwait(STOPS, 0):  # one would end all tests
                    pass
                assert not pending

    yield record
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def watched():
    process = subprocess.Popen(["sleep", "600"])
    # A trace that misses its signal ends with what it watches.
    timer = threading.Timer(300, process.kill)
    timer.start()
    yield process
    timer.cancel()
    process.kill()
    process.wait()


def stand_in(monkeypatch, path, text):
    programs.stand_in(path, text)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)


OF_BPFTRACE = pytest.param(backends.BPFTRACE, marks=pytest.mark.all)


@pytest.mark.parametrize("backend", [backends.PROC, backends.STRACE, OF_BPFTRACE])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_runs_already_is_watched_until_a_signal_and_continues(
    record, watched, tmp_path, monkeypatch, backend, number
):
    if backend == backends.BPFTRACE:
        monkeypatch.undo()
    require(backend)
    found, said = record(
        f"--pid={watched.pid}", f"--backend={backend}", signals={"watching": number}
    )
    assert said[1:] == [WATCHES, "the trace ends; what it watched continues"]
    assert (found.exit_code, found.ended_by, found.backend) == (None, number.name, backend)
    assert (found.command, watched.poll()) == ([], None)
    assert processes.tracer_of(watched.pid) == 0
    traced = [(file.process_of_thread, file.folder_of) for file in found.raw_files]
    there = ([(watched.pid, watched.pid)], [(watched.pid, str(Path.cwd()))])
    assert traced == [there] * (backend != backends.PROC)
    assert not (tmp_path / "trace" / "raw" / "reserve").exists()


def test_the_trace_of_a_process_ends_with_it(record, watched):
    signals = {"watching": watched.terminate}
    found, said = record(f"--pid={watched.pid}", "--backend=proc", signals=signals)
    assert (found.ended_by, said[1:]) == (None, [WATCHES])
    assert found.machine == {
        "kernel": platform.release(), "hostname": platform.node(), "num_cpus": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }  # fmt: skip


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_a_tracer_that_cannot_attach_is_replaced_or_leaves_nothing(
    record, watched, tmp_path, monkeypatch, is_asked_for
):
    stand_in(monkeypatch, tmp_path / "bin" / "strace", STRACE.format("echo no right >&2; exit 1"))
    words = [f"--pid={watched.pid}", *["--backend=strace"] * is_asked_for]
    if is_asked_for:
        with pytest.raises(ValueError, match=r"^strace cannot attach: no right$"):
            record(*words, signals={"watching": signal.SIGTERM})
        assert not (tmp_path / "trace").exists()
        return
    found, said = record(*words, signals={"watching": signal.SIGTERM})
    reasons = f"(bpftrace: {NO_BPFTRACE}; strace: strace cannot attach: no right)"
    assert said[0].startswith("strace records ") and said[1].startswith("proc records ")
    assert said[1].endswith(reasons) and found.notes[0] == said[1]
    assert (found.backend, found.raw_files) == (backends.PROC, [])


def test_one_process_may_end_before_strace_has_attached_to_all(watched, tmp_path, monkeypatch):
    # Ctrl-C is not for strace: it has its own group of processes.
    group = "read -r _ _ _ _ group _ < /proc/$$/stat; [ $group = $$ ] && echo no right >&2"
    stand_in(monkeypatch, tmp_path / "bin" / "strace", f"sleep 0.1; {group}; exit 1")
    (ended := subprocess.Popen(["true"])).wait()
    with pytest.raises(ValueError, match=r"^strace cannot attach: no right$"):
        Tracer(backends.STRACE, tmp_path, Target()).attach([ended.pid, watched.pid])


def test_a_folder_that_is_there_is_kept(record, tmp_path):
    place, refused = tmp_path / "trace", "trace is there already: name another folder"
    for make in (place.touch, (place / "x").mkdir):
        make()
        with pytest.raises(ValueError, match=refused):
            record("--backend=proc", "--", "true")
        assert place.exists()
        if place.is_file():
            place.unlink()
            place.mkdir()
    (place / "x").rmdir()  # an empty one is taken
    found, _ = record("--backend=proc", "--", "sh", "-c", "kill -9 $$")
    assert found.exit_code == 128 + signal.SIGKILL


def test_a_signal_after_the_end_is_not_left_to_the_conversion(record, tmp_path, monkeypatch):
    pids, seen = Target.pids, tmp_path / "seen"

    def pids_and_tell(target):
        found = pids(target)
        if ["sleep", "600"] in map(processes.arguments_of, found):
            seen.touch()
        return found

    monkeypatch.setattr(Target, "pids", pids_and_tell)
    script = f"sleep 600 > /dev/null 2>&1 & until [ -e {seen} ]; do sleep 0.05; done"
    words = ["--backend=proc", "--", "sh", "-c", script]
    found, said = record(*words, signals={"the trace ends": signal.SIGUSR2})
    pid = said[1].partition("sleep (")[2].partition(")")[0]
    os.kill(int(pid), signal.SIGKILL)
    assert said[1:] == [f"the trace ends with the command; sleep ({pid}) continues"]
    assert found.ended_by is None


def test_what_a_command_leaves_behind_is_named_and_a_signal_ends_it(record, tmp_path):
    """One ignores it: the trace ends after both."""
    require(backends.STRACE)
    begins = 'until [ "$(cat /proc/$one/comm /proc/$!/comm | uniq)" = sleep ]; do sleep 0.05; done'
    stays = "sh -c 'trap \"\" TERM; exec sleep 200'"
    script = f"sleep 200 & one=$!; {stays} & echo $one $! > {tmp_path}/left; {begins}; exit 7"

    def end_the_other():
        first, second = map(int, (tmp_path / "left").read_text().split())
        waiting.until(lambda: not processes.is_running(first))
        time.sleep(0.5)  # longer than the trace looks away
        os.kill(second, signal.SIGKILL)

    ending = threading.Thread(target=end_the_other)
    signals = {"the command has ended, but": signal.SIGINT, "SIGINT: waiting": ending.start}
    found, said = record("--backend=strace", "--", "sh", "-c", script, signals=signals)
    ending.join(timeout=0.1)
    assert not ending.is_alive()
    _, named, waits = said
    first, second = (tmp_path / "left").read_text().split()
    assert named == (
        f"the command has ended, but sleep ({first}), sleep ({second}), which it started, did not: "
        f"the trace continues until then; to end it: kill {first} {second}, or Ctrl-C"
    )
    assert waits == "SIGINT: waiting for what the command has left to end"
    assert (found.exit_code, found.ended_by, named in found.notes) == (7, "SIGINT", True)
    assert found.end_ns - found.begin_ns < 180 * 10**9  # it was ended, and did not end by itself


def test_what_a_command_leaves_behind_for_a_moment_is_not_named(record, monkeypatch):
    looks = iter([[1], [2]])
    monkeypatch.setattr(recorder._Recorder, "_left_behind", lambda self: next(looks, []))
    _, said = record("--backend=proc", "--", "sleep", "0.8")
    assert next(looks, None) is None and len(said) == 1


def test_a_signal_goes_to_the_command_and_not_to_its_tracer(record, tmp_path):
    require(backends.STRACE)
    ready, me = tmp_path / "ready", threading.main_thread().ident

    def send():
        waiting.until(ready.exists)
        signal.pthread_kill(me, signal.SIGTERM)

    threading.Thread(target=send).start()
    # The shell starts nothing: its child could take the signal in the shell's place.
    waits = "i=0; while [ $i -lt 5000000 ]; do i=$((i+1)); done"
    script = f"trap 'exit 7' TERM; : > {ready}; {waits}"
    found, said = record("--backend=strace", "--", "sh", "-c", script)
    assert said[1:] == ["SIGTERM: waiting for the command to end"]
    assert (found.exit_code, found.ended_by) == (7, "SIGTERM")
    lines = (tmp_path / "trace" / "raw" / "strace-0.txt").read_text().splitlines()
    assert lines[-1].endswith("+++ exited with 7 +++")


@pytest.mark.parametrize(("number", "more"), [(1, ""), (5, ""), (7, " and 2 more")])
def test_some_of_many_processes_are_named(monkeypatch, number, more):
    monkeypatch.setattr(processes, "name_of", "p{}".format)
    named = ", ".join(f"p{pid} ({pid})" for pid in range(min(number, 5)))
    assert recorder._names_of(list(range(number))) == named + more


ENGINE = """
case "$1" in
  container) [ $3 = box ] && cat {folder}/inspected && touch {folder}/asked ;;
  kill) echo "$@" > {folder}/killed; kill {pid} ;;
esac
"""


@pytest.fixture
def engine(watched, tmp_path, monkeypatch):
    """A docker whose container `box` is the watched process."""
    inspected = [{"Name": "/box", "State": {"Pid": watched.pid}}]
    (tmp_path / "inspected").write_text(json.dumps(inspected))
    text = ENGINE.format(folder=tmp_path, pid=watched.pid)
    stand_in(monkeypatch, tmp_path / "bin" / "docker", text)
    lasts = f"until [ -e {tmp_path}/asked ]; do sleep 0.05; done"
    client = f"exec -a docker sh -c '{lasts}; exit 4' run --name box image"
    return ["--backend=proc", "--", "bash", "-c", client]


def test_a_container_is_traced_by_its_name(record, watched, engine):
    with pytest.raises(ValueError, match=r"^--container=crate: docker runs no such container$"):
        record("--container=crate")
    words = ["--container=box", "--backend=proc"]
    found, said = record(*words, signals={"watching": signal.SIGINT})
    traced = f"container box: its process {watched.pid} is traced"
    assert said[1:] == [traced, WATCHES, "the trace ends; what it watched continues"]
    assert [(each.name, each.pid) for each in found.containers] == [("box", watched.pid)]
    assert watched.poll() is None


def test_a_container_that_the_command_runs_is_waited_for_and_signalled(
    record, watched, engine, tmp_path
):
    found, said = record(*engine, signals={"the command has ended": signal.SIGTERM})
    assert said[1:] == [
        f"container box: its process {watched.pid} is traced",
        "the command has ended; its container continues, and so does the trace",
    ]
    assert (tmp_path / "killed").read_text() == "kill --signal=SIGTERM box\n"
    assert (found.exit_code, found.ended_by, len(found.containers)) == (4, "SIGTERM", 1)


def test_a_tracer_attaches_to_the_processes_of_a_container_and_no_others(
    record, watched, engine, monkeypatch
):
    attached: list = []
    monkeypatch.setattr(Tracer, "attach", lambda self, pids, container: attached.extend(pids))
    with subprocess.Popen(["sleep", "600"]) as other:  # as `docker exec` starts one
        cgroups = {watched.pid: "/box", other.pid: "/box"}
        monkeypatch.setattr(processes, "cgroup_of", lambda pid: cgroups.get(pid, "/user"))
        record(*engine, signals={"the command has ended": signal.SIGTERM, "container box":
                                 other.kill})  # fmt: skip
    assert attached == sorted(cgroups)


def test_a_container_that_the_command_starts_in_its_last_moment_is_traced(
    record, engine, tmp_path, monkeypatch
):
    box, has_ended, seen = containers.inspect("docker", "box"), processes.has_ended, []
    monkeypatch.setattr(processes, "has_ended", lambda pid: has_ended(pid) and not seen.append(pid))
    monkeypatch.setattr(containers.Watcher, "look", lambda self: seen and self._on_container(box))
    signals = {"the command has ended": signal.SIGTERM}
    found, _ = record("--backend=proc", "--", "true", signals=signals)
    assert (found.containers, found.ended_by) == ([box], "SIGTERM")


def test_a_container_that_is_traced_already_is_refused(record, watched, engine, monkeypatch):
    require(backends.STRACE)
    monkeypatch.setattr(Tracer, "attach", lambda *_: 1 / 0)
    monkeypatch.setattr(processes, "tracer_of", lambda pid: 99 if pid == watched.pid else 0)
    with pytest.raises(ValueError, match=f"process {watched.pid} is traced already, by process 99"):
        record("--container=box", "--backend=strace")


def test_what_samples_and_tracers_lack_is_in_the_recording(record, monkeypatch):
    sessions = [
        SimpleNamespace(num_lost_lines=n, raw_file=recording.RawFile(str(n), None)) for n in (3, 4)
    ]
    monkeypatch.setattr(Tracer, "stop", lambda self: self.sessions.extend(sessions))
    monkeypatch.setattr(processes, "uses_asynchronous_io", lambda pid: True)
    monkeypatch.setitem(sampling.SYSTEM_TABLES, "disks", lambda: iter([{"num_reads": "none"}]))
    found, _ = record("--backend=proc", "--", "sleep", "0.3")
    assert (found.num_lost_lines, found.num_asynchronous) == (7, 1)
    assert any(note.startswith("table disks: ") for note in found.notes)


def test_a_container_that_cannot_be_attached_to_is_noted(record, engine, tmp_path, monkeypatch):
    def refuse(self, pids, container=None):
        raise ValueError("no right")

    monkeypatch.setattr(Tracer, "attach", refuse)
    line = "container box: no right; only its counters are recorded"
    found, said = record(*engine, signals={"the command has ended": signal.SIGTERM})
    ended = "the command has ended; its container continues, and so does the trace"
    assert said[1:] == [line, ended] and line in found.notes
    shutil.rmtree(tmp_path / "trace")
    with pytest.raises(ValueError, match=r"^no right$"):
        record("--container=box", "--backend=proc", signals={"watching": signal.SIGTERM})


# --- bpftrace -----------------------------------------------------------------------------------


@pytest.fixture
def stand_in_bpftrace(tmp_path, monkeypatch):
    """Returns a function that makes one of a script's text; it keeps its program in `programs`."""
    events = frozenset(event for each in bpftrace.ALTERNATIVES.values() for event in each.values())
    monkeypatch.setattr(bpftrace, "missing", lambda: None)
    monkeypatch.setattr(bpftrace, "tracepoints", lambda: events)
    monkeypatch.setattr(bpftrace, "command", lambda *words: list(words))

    def make(text: str) -> None:
        text = f'for program; do :; done; echo "$program" >> {tmp_path}/programs\n{text}'
        stand_in(monkeypatch, tmp_path / "bin" / "bpftrace", text)

    return make


@pytest.fixture
def tracer(tmp_path):
    found = Tracer(backends.BPFTRACE, tmp_path, Target())
    yield found
    found.stop()


def test_the_command_begins_when_bpftrace_is_ready(stand_in_bpftrace, tracer, tmp_path):
    stand_in_bpftrace(
        f"sleep 0.2; touch {tmp_path}/before; echo ready $BPFTRACE_STRLEN $1 $2 $3; exec sleep 600"
    )
    made_ns = time.monotonic_ns()
    words = ["sh", "-c", f"[ -e {tmp_path}/before ] && sleep 0.1; exit 5"]
    process = tracer.launch(words, None)
    assert process.pid in tracer._target.pids()
    assert process.wait(timeout=60) == 5
    [session] = tracer.sessions
    assert f"@tree[{process.pid}] = 1;" in (tmp_path / "programs").read_text()
    assert tracer.began.monotonic_ns > made_ns + 10**8
    assert (tmp_path / "bpftrace-0.txt").read_text() == "ready 200 -q -B line\n"
    # Ctrl-C is for the command alone.
    assert os.getpgid(session.process.pid) == session.process.pid


@pytest.mark.parametrize(
    ("hold", "code"),
    [("kill -KILL $$", -signal.SIGKILL), ('sleep 0.5; kill -STOP $$; exec "$@"', 0)],
)
def test_a_command_may_be_killed_or_stop_late_before_it_begins(
    stand_in_bpftrace, tracer, monkeypatch, hold, code
):
    monkeypatch.setattr(tracers, "_HOLD", ["sh", "-c", hold, "hold"])
    # Where bpftrace records only the disks, it does not say that it is ready.
    monkeypatch.setattr(bpftrace, "tracepoints", lambda: {"block/block_io_start"})
    monkeypatch.setattr(tracers, "_READY_WITHIN_S", 0.1)
    stand_in_bpftrace("exec sleep 600")
    assert tracer.launch(["true"], None).wait(timeout=30) == code


def test_of_two_that_are_attached_one_records_the_disks(
    stand_in_bpftrace, tracer, watched, tmp_path
):
    stand_in_bpftrace("echo ready; exec sleep 600")
    with (tmp_path / "data").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        holder = subprocess.Popen(["sleep", "600"], pass_fds=[file.fileno()])
    waiting.until(lambda: processes.arguments_of(holder.pid)[:1] == ["sleep"])
    for pid in (holder.pid, watched.pid):
        tracer.attach([pid])
        text = (tmp_path / "programs").read_text()
        (tmp_path / "programs").unlink()
        assert ("tracepoint:block:" in text) == (pid == holder.pid)
    holder.kill()
    holder.wait()
    first, second = (session.raw_file for session in tracer.sessions)
    assert [each[2:] for each in first.opened_before if each[2] == str(tmp_path / "data")] == [
        (str(tmp_path / "data"), False)
    ]
    assert second.process_of_thread == [(watched.pid, watched.pid)]
    assert second.folder_of == [(watched.pid, str(Path.cwd()))]


@pytest.mark.parametrize(
    ("text", "seconds", "reason"),
    [("echo one; echo ERROR: not permitted >&2; exit 1", 60, "ERROR: not permitted"),
     ("trap exit INT; sleep 15 > /dev/null 2>&1 & wait $!; echo late >&2", 0.3,
      "it was not ready within 0 s")],
)  # fmt: skip
def test_a_bpftrace_that_does_not_start_ends_with_its_command(
    stand_in_bpftrace, tracer, tmp_path, monkeypatch, text, seconds, reason
):
    assert tracers._READY_WITHIN_S >= 120  # a busy kernel takes a minute for all probes
    monkeypatch.setattr(tracers, "_READY_WITHIN_S", seconds)
    stand_in_bpftrace(text)
    with pytest.raises(ValueError, match=f"^bpftrace does not start: {reason}$"):
        tracer.launch([sys.executable, "-c", f"open('{tmp_path}/began', 'w')"], None)
    assert tracer.sessions == [] and not (tmp_path / "began").exists()
    assert not [child for child in psutil.Process().children() if "hold" in child.cmdline()]


# --- what else the recorder tells ---------------------------------------------------------------


def test_what_was_recorded_stays_and_what_did_not_begin_leaves_nothing(record, watched, tmp_path):
    program = programs.stand_in(tmp_path / "program", "#!/none/sh\n")
    with pytest.raises(FileNotFoundError, match="program"):
        record("--backend=proc", "--", program)
    assert not (tmp_path / "trace").exists()
    file = tmp_path / "trace" / "raw" / recording.FILE
    signals = {"watching": lambda: (file.mkdir(), watched.kill())}
    with pytest.raises(IsADirectoryError):
        record(f"--pid={watched.pid}", "--backend=proc", signals=signals)
    assert file.exists()


def test_a_recording_is_read_back_or_told_to_be_damaged(tmp_path):
    (tmp_path / recording.RAW).mkdir()
    box = containers.Container("docker", "box", 1, [])
    pairs, file = [*by_hand.pairs(1), *by_hand.pairs(2)[1:]], recording.RawFile("strace-0.txt", box)
    taken = by_hand.recording(pairs=pairs, containers=[box], raw_files=[file])
    assert taken.end_ns - taken.begin_ns == 2 * 10**9
    recording.save(taken, tmp_path)
    assert recording.load(tmp_path) == taken
    for text in ("{", "[]", "{}"):
        (tmp_path / recording.RAW / recording.FILE).write_text(text)
        with pytest.raises(ValueError, match=r"recording\.json cannot be read .* are needed$"):
            recording.load(tmp_path)


def test_the_children_of_what_runs_already_are_watched_too(record, tmp_path):
    words = ["sh", "-c", "sleep 600 & echo $!; wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        words = [f"--pid={parent.pid}", "--backend=proc"]
        found, _ = record(*words, signals={"watching": signal.SIGINT})
        assert parent.poll() is None
        os.kill(child, signal.SIGKILL)
    sampled = tables.read_table(tmp_path / "trace", "processes")
    assert set(sampled["pid"]) == {parent.pid, child}
    assert found.pairs[0].monotonic_ns < sampled["monotonic_ns"].min()


def test_processes_of_another_name_space_are_refused(record, tmp_path, monkeypatch):
    (tmp_path / "self").symlink_to("1")
    monkeypatch.setattr(processes, "PROC", tmp_path)
    with pytest.raises(ValueError, match=r"^/proc shows the processes of another name space"):
        record("--", "true")


@pytest.mark.parametrize(("code", "comes_first"), [(0x80, signal.SIGTERM), (0, signal.SIGUSR1)])
def test_what_a_terminal_has_sent_is_not_sent_again(watched, tmp_path, code, comes_first):
    said: list[str] = []
    given = _arguments([f"--output={tmp_path}"])
    taking = recorder._Recorder(given, None, backends.Backends(backends.PROC, {}), said.append)
    taking._command = watched
    watched.send_signal(signal.SIGSTOP)  # of all that comes, it takes the lowest number first
    came = SimpleNamespace(si_signo=signal.SIGUSR1, si_code=code)
    assert not taking._stop_requested(came)
    watched.send_signal(signal.SIGTERM)
    watched.send_signal(signal.SIGCONT)
    assert watched.wait(timeout=60) == -comes_first
    assert said == ["SIGUSR1: waiting for the command to end"]
