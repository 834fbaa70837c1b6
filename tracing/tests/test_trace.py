"""Whole traces of a small program, with every backend that works here."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from tests.helpers import programs, waiting
from tracing import _in_one_line, backends, ends_in_one_line, processes, tables
from tracing.__main__ import _arguments, main
from tracing.tests import example_training as example
from tracing.tests.conftest import command_line, environment, observed, require, trace

refusal = functools.partial(programs.refusal, main, name="trace")

FILE_BYTES = example.NUM_RECORDS * (example.RECORD_BYTES + 16)


# --- what is recorded ---------------------------------------------------------------------------


def test_tables_have_the_documented_columns_and_both_stamps(traced):
    names = {path.name for path in traced.folder.iterdir()}
    others = {"summary.json", "summary.html", "trace.pftrace"}
    assert names == {*(f"{table}.parquet" for table in tables.COLUMNS), *others}
    first, last = traced.began_ns - 10**7, traced.ended_ns + 10**7  # by two clocks
    for table in tables.COLUMNS:
        found = pq.read_table(traced.folder / f"{table}.parquet")
        assert found.schema == tables.schema(table)
        assert all(field.metadata[b"description"] for field in found.schema)
        stamps = found["monotonic_ns"].to_pylist()
        realtime = found["realtime_ns"].to_pylist()
        assert all(first < stamp < last for stamp in stamps), table
        ahead = [r - m for r, m in zip(realtime, stamps)]
        assert not ahead or max(ahead) - min(ahead) < 5_000_000
    block_io = tables.read_table(traced.folder, "block_io")
    clocks = tables.read_table(traced.folder, "clock_pairs")
    assert (block_io["monotonic_ns"] >= clocks["monotonic_ns"].min()).all()
    assert traced.summary["backend"] == backends.BPFTRACE or block_io.empty
    viewed = (traced.folder / "trace.pftrace").read_bytes()
    assert all(name in viewed for name in (b"init", b"run", b"checkpoint", b"resident_bytes"))
    assert (b"pread64" in viewed) == (traced.summary["backend"] != backends.PROC)


def test_bytes_of_tfrecords_and_checkpoints_are_those_on_disk(traced):
    if traced.summary["backend"] == backends.PROC:
        pytest.skip("/proc tells no single calls")
    found = [f for f in traced.summary["files"] if f["file_class"] == "tfrecords"]
    assert len(found) == example.NUM_FILES
    for file in found:
        assert (file["size_bytes"], file["read_bytes"]) == (FILE_BYTES, 2 * FILE_BYTES)
    [checkpoint] = traced.summary["checkpoints"]
    assert (checkpoint["step"], checkpoint["num_files"]) == (3, 2)
    assert checkpoint["written_bytes"] == example.CHECKPOINT_BYTES + 700
    assert 0 < checkpoint["writing_seconds"] < checkpoint["span_seconds"] + 0.002


def test_phases_processes_threads_and_their_ends(traced):
    spans = tables.read_table(traced.folder, "spans").set_index("name")
    assert set(spans.index) == {"init", "run", "block", "checkpoint"}
    assert spans["is_closed"].all()
    assert spans.loc["block", "end_monotonic_ns"] <= spans.loc["run", "end_monotonic_ns"]
    processes = tables.read_table(traced.folder, "processes")
    assert processes["command"].str.contains("example_training").any()
    assert not processes["command"].str.contains("strace -f|bpftrace -q").any()
    if traced.summary["backend"] == backends.PROC:
        return
    events = tables.read_table(traced.folder, "process_events")
    assert {"exec", "thread", "exit"} <= set(events["event"])
    threads = events[events["event"] == "thread"]
    assert len(threads) >= 2 * example.NUM_FILES  # readers


def test_counters_are_sampled_and_agree_with_the_calls(traced):
    summary = traced.summary
    # Imports are read, too.
    in_epochs = summary["usage"]["read_call_bytes"] / (FILE_BYTES * example.NUM_FILES)
    assert 0.9 * 2 <= in_epochs < 10
    assert 10_000_000 < summary["usage"]["peak_resident_bytes"] < 500_000_000
    for table in ("cpus", "memory", "networks"):
        stamps = tables.read_table(traced.folder, table)["monotonic_ns"].drop_duplicates()
        assert len(stamps) >= example.NUM_SAMPLES + 2, table  # and one at each end
    memory = tables.read_table(traced.folder, "memory").iloc[0]
    assert 0 < memory["page_cache_bytes"] < memory["total_bytes"]
    opened = tables.read_table(traced.folder, "open_files")
    assert opened["path"].str.contains("/bert.log", regex=False).any()


def test_nothing_is_left_mounted_or_running(traced):
    assert str(traced.folder) not in Path("/proc/mounts").read_text()
    running = [" ".join(processes.arguments_of(pid)) for pid in psutil.pids()]
    assert any("pytest" in command for command in running)
    assert not [command for command in running if str(traced.folder.parent) in command]


# --- ends of all kinds --------------------------------------------------------------------------


@pytest.mark.all
def test_ctrl_c_on_a_terminal_reaches_the_command_once(tmp_path, terminal):
    """The terminal signals the whole group: a second signal by the tracer would be a hard stop."""
    require(backends.STRACE)
    ready = tmp_path / "ready"
    counting = f"""if True:
        import pathlib, signal, sys, time
        came = []
        signal.signal(signal.SIGINT, lambda *a: came.append(1))
        pathlib.Path({str(ready)!r}).touch()
        deadline = time.monotonic() + 300
        while not came and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.7)
        sys.exit(10 + len(came))
    """
    words = [sys.executable, "-c", counting]
    leader, follower = terminal
    process = subprocess.Popen(
        command_line(tmp_path / "trace", *words, options=["--backend=strace"]), stdin=follower,
        stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
    )  # fmt: skip
    waiting.until(ready.exists, process)
    os.write(leader, b"\x03")
    _, lines = process.communicate(timeout=waiting.HANGS_AFTER_SECONDS)
    assert process.returncode == 11, lines


@pytest.mark.parametrize(
    ("backend", "number"),
    [
        (backends.PROC, signal.SIGTERM),
        pytest.param(backends.STRACE, signal.SIGTERM, marks=pytest.mark.gate),
        pytest.param(backends.BPFTRACE, signal.SIGINT, marks=pytest.mark.all),
    ],
)
def test_signals_reach_the_command_and_its_code_is_the_traces(tmp_path, backend, number):
    require(backend)
    ready, first = tmp_path / "ready", tmp_path / "first"
    script = f"""
        trap 'touch {first}' USR1
        trap 'exit 7' INT TERM
        touch {ready}
        while :; do sleep 0.05; done
    """
    command = command_line(tmp_path / "trace", "sh", "-c", script, options=[f"--backend={backend}"])
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    waiting.until(ready.exists, process)
    # Ctrl-Z and fg, for longer than a look takes: the trace continues.
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.4)
    process.send_signal(signal.SIGCONT)
    time.sleep(0.4)
    assert process.poll() is None
    process.send_signal(signal.SIGUSR1)
    waiting.until(first.exists, process)
    process.send_signal(number)
    _, lines = process.communicate(timeout=waiting.HANGS_AFTER_SECONDS)
    summary = json.loads((tmp_path / "trace" / "summary.json").read_text())
    assert (process.returncode, summary["exit_code"], summary["ended_by"]) == (7, 7, number.name)
    for name in ("SIGUSR1", number.name):
        assert f"{name}: waiting for the command to end" in lines


@pytest.mark.parametrize(
    ("backend", "told"),
    [
        pytest.param(backends.STRACE, "TFRecords read", marks=pytest.mark.all),
        (backends.PROC, "single calls were not recorded"),
    ],
)
def test_a_command_that_ends_at_once(tmp_path, backend, told):
    require(backend)
    # What still runs is waited for by strace, and named by the others, once they have seen it.
    left = """
        sleep 600 > /dev/null 2>&1 & echo $! > $0
        last=$(($(wc -c < $SAMPLES) + 2))
        until [ $(wc -c < $SAMPLES) -ge $last ]; do sleep 0.05; done
    """ * (backend == backends.PROC)
    words = ["sh", "-c", f"{left} kill -USR1 $$", tmp_path / "left"]
    options = [f"--backend={backend}", "--interval_s=0.1"]
    found = trace(
        tmp_path / "trace", *words, options=options, env=environment(**observed(tmp_path))
    )
    code = 128 + signal.SIGUSR1
    assert (found.done.returncode, found.summary["exit_code"]) == (code, code)
    assert f"{backend} records " in found.done.stderr
    assert told in (found.folder / "summary.html").read_text()
    if left:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGTERM)
        assert "the trace ends with the command; sleep (" in found.done.stderr


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words", "message"),
    [
        ([], [], "name one thing to trace: -- COMMAND..., --pid or --container"),
        (["--pid=1"], ["true"], "name one thing to trace"),
        ([], ["no-such-command"], "no-such-command: no such command"),
        (["--pid=999999999"], [], "--pid=999999999: no such process"),
        (["--interval_s=0"], ["true"], "--interval_s=0.0 must be above 0"),
        (["--interval_s=3601"], ["true"], "--interval_s=3601.0 must be above 0 and at most 3600"),
        (["--container=x", "--engine=no-engine"], [], "no-engine is not installed"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, options, words, message):
    output = tmp_path / "trace"
    assert message in refusal(f"--output={output}", *options, "--", *words)
    assert not output.exists()


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("7 is odd"), "x: 7 is odd", ""),
        (FileNotFoundError(2, "No such file", "/a b"), "x: /a b: No such file", ""),
        (OSError("cannot"), "x: cannot", ""),
        (OSError(5, "broken", 7), "x: [Errno 5] broken: 7", ""),
        (KeyboardInterrupt(), 130, "x: interrupted\n"),
        (KeyboardInterrupt("SIGTERM came"), 130, "x: SIGTERM came\n"),
        (SystemExit(3), 3, ""),
    ],
)
def test_a_command_ends_in_one_line(capsys, error, code, line):
    with pytest.raises(SystemExit) as raised, ends_in_one_line("x"):
        raise error
    assert (raised.value.code, capsys.readouterr().err) == (code, line)


@pytest.mark.parametrize("exits", [False, True])
def test_a_command_whose_reader_has_ended_says_nothing(capfd, monkeypatch, exits):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:  # noqa: PTH123 - of a descriptor
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as raised, ends_in_one_line("x"):
            print("help")
            if exits:
                sys.exit()
        assert raised.value.code == 128 + signal.SIGPIPE
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ModuleNotFoundError(name="none_such.part"), f"{sys.executable} lacks none_such: run make"),
        (ModuleNotFoundError(name="json.none"), None),
        (ModuleNotFoundError("plain"), None),
        (ImportError(name="none_such"), None),
        (ValueError("bad"), None),
    ],
)
def test_a_package_that_is_missing_is_named_and_other_errors_are_shown_as_before(
    capsys, monkeypatch, error, told
):
    shown = []
    monkeypatch.setattr("tracing._before", lambda *given: shown.append(given))
    _in_one_line(type(error), error, None)
    told = f"tracing: {told} setup, or pip install tracing/\n" if told else ""
    assert capsys.readouterr().err == told
    assert shown == ([] if told else [(type(error), error, None)])


def test_the_words_of_the_command_are_behind_two_dashes(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["trace", "--pid=7", "--", "ls", "--pid=8", "--", "x"])
    found = _arguments(None)
    assert (found.pid, found.command) == (7, ["ls", "--pid=8", "--", "x"])
    usual = (None, "docker", None, 1.0, False, None)
    names = ("backend", "engine", "container", "interval_s", "keep_raw", "convert")
    assert tuple(vars(found)[name] for name in names) == usual
    assert re.fullmatch(rf"traces/\d{{8}}-\d{{6}}-{os.getpid()}", str(found.output))
    assert _arguments(["--output=~/x"]).output == Path.home() / "x"


@pytest.mark.parametrize("option", ["--output=", "--engine= ", "--container=", "--convert="])
def test_an_empty_word_is_wrong_usage(capsys, option):
    with pytest.raises(SystemExit) as raised:
        main([option, "--", "true"])
    assert raised.value.code == 2
    line = f"argument {option.partition('=')[0]}: is empty, perhaps a variable that is not set; "
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("backend", "user", "number"),
    [
        (backends.PROC, "no-such-user", 54321),  # as in a container that keeps its host's variables
        pytest.param(backends.STRACE, "nobody", 65534, marks=pytest.mark.all),
        pytest.param(backends.BPFTRACE, "nobody", 65534, marks=pytest.mark.all),
    ],
)
def test_under_sudo_the_command_and_the_files_are_the_users(tmp_path, backend, user, number):
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    require(backend)
    tmp_path.chmod(0o777)
    output, whose = tmp_path / "x", {"SUDO_UID": str(number), "SUDO_GID": str(number)}
    words = ["sh", "-c", "id -u; id -G"]
    options = [f"--backend={backend}"]
    done = trace(output, *words, options=options, env=environment(SUDO_USER=user, **whose)).done
    assert (done.returncode, done.stdout) == (0, f"{number}\n{number}\n"), done.stderr
    owners = [(path.stat().st_uid, path.stat().st_gid) for path in [output, *output.rglob("*")]]
    assert set(owners) == {(number, number)}


def test_a_folder_that_is_no_trace_keeps_its_owner(tmp_path, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    (tmp_path / "mine").touch()
    for name, value in (("USER", "nobody"), ("UID", "65534"), ("GID", "65534")):
        monkeypatch.setenv(f"SUDO_{name}", value)
    assert "the raw files are needed" in refusal(f"--convert={tmp_path}")
    assert {path.stat().st_uid for path in (tmp_path, tmp_path / "mine")} == {0}


def test_a_full_disk_costs_the_trace_and_not_the_command(small_disk, tmp_path):
    require(backends.STRACE)
    disk, end = small_disk(200), tmp_path / "end"
    words = [sys.executable, "-c", f"import unittest, http.client; open({str(end)!r}, 'w')"]
    found = trace(disk / "trace", *words, options=["--backend=strace"])
    assert found.done.returncode == 1 and end.exists()
    last = found.done.stderr.strip().splitlines()[-1]
    assert re.search(r"No space left.*lies in .*raw: make room, then .*--convert", last), last
    assert not list((disk / "trace").glob("*.unfinished"))


def test_a_trace_is_finished_later(copied):
    before = json.loads((copied / "summary.json").read_text())
    for options, is_kept in ((["--keep_raw"], True), ([], False)):
        (copied / "summary.json").unlink()
        main([f"--convert={copied}", *options])
        assert json.loads((copied / "summary.json").read_text()) == before
        assert (copied / "raw").exists() == is_kept
    assert "the raw files are needed" in refusal(f"--convert={copied}")


@pytest.mark.parametrize(
    ("error", "above"), [(OSError(28, "No space left"), "traces"), (KeyboardInterrupt(), "mine")]
)
def test_tables_that_are_broken_off_are_made_later_and_the_folder_is_the_users(
    copied, monkeypatch, error, above
):
    def broken_off(*_):
        raise error

    monkeypatch.setattr("tracing.outputs.write_all", broken_off)
    owners: dict = {}
    monkeypatch.setattr(os, "chown", lambda path, *ids, **_: owners.update({path: ids}))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name, value in (("USER", "me"), ("UID", "7"), ("GID", "8")):
        monkeypatch.setenv(f"SUDO_{name}", value)
    (folder := copied.parent / above / "1").parent.mkdir()
    copied.rename(folder)
    reason = str(error) or "interrupted"
    assert refusal(f"--convert={folder}") == (
        f"trace: {folder}: {reason}; what was recorded lies in {folder}/raw: make room, then "
        f"python -m tracing --convert {folder}"
    )
    assert (folder / "raw" / "recording.json").exists()
    its = [*[folder.parent] * (above == "traces"), folder, *folder.rglob("*")]
    assert owners == dict.fromkeys(its, (7, 8))


def test_no_thread_takes_a_signal_that_ends_the_trace():
    program = """if True:
        import pathlib, tracing
        with tracing.signals_blocked():
            from tracing import recorder
        texts = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/status")]
        masks = [int(text.split("SigBlk:")[1].split()[0], 16) for text in texts]
        print(len(masks), sum(mask >> 1 & 1 for mask in masks))  # SIGINT's bit
    """
    done = programs.run(sys.executable, "-c", program, env=environment())
    threads, blocked = map(int, done.stdout.split())
    assert threads == blocked + 1, "only this one's mask is as before"
