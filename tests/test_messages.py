"""How a command ends, how its progress is shown, and what its signals do. A second."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorflow import errors

from mlperf_bert import command_line, messages, signals, tensorflow_import
from mlperf_bert.files import paths
from mlperf_bert.messages import Progress, ends_in_one_line, lasting
from tests.fixtures import REPOSITORY
from tests.helpers import programs


def test_output_that_finds_no_room_is_a_failure(monkeypatch, capsys):
    @ends_in_one_line("name")
    def main():
        print("the result")  # which stays in Python's buffer

    with contextlib.suppress(OSError), Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main() == messages.exit_code == 1
    told = "name: No space left on device; make room and repeat the command\n"
    assert capsys.readouterr().err == told


def test_a_command_ends_well_where_its_output_is_closed(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    assert ends_in_one_line("name")(lambda: print("the result"))() == 0


def test_progress_goes_on_where_it_was_and_is_lines_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(messages, "SECONDS_BETWEEN_LINES", 0)
    with Progress(total=10, unit="files", description="copy", initial=4) as progress:
        progress.advance(3, "the third")
        progress.advance(2)
        progress.line("a whole line")
    assert progress.done == 9
    _, first, second, last = capsys.readouterr().err.splitlines()  # it begins with what is there
    assert re.fullmatch(r"copy: 7 of 10 files, .*/s, .* left, the third", first)
    assert re.fullmatch(r"copy: 9 of 10 files, .*/s, .* left", second)
    assert last == "a whole line"
    with Progress(total=2e6, unit="B", description="load", silent=True) as progress:
        progress.advance(10**6)
        progress.line("nobody sees it")
    assert progress.done == 10**6 and not capsys.readouterr().err
    with Progress(total=2_000_000, unit="B", description="load") as progress:
        progress.advance(1_500_000)
    assert "load: 1.50MB of 2.00MB, " in capsys.readouterr().err


def test_work_that_lasts_and_counts_nothing_says_so(monkeypatch, capsys):
    with lasting("short"):
        pass
    monkeypatch.setattr(messages, "SECONDS_BETWEEN_LINES", 0.05)
    with lasting("converting"), pytest.raises(KeyError), lasting("drawing"):
        time.sleep(0.3)
        raise KeyError
    lines = capsys.readouterr().err.splitlines()
    assert set(lines) == {"drawing: 0 s so far"} and len(lines) <= 6
    with lasting("converting"):
        with lasting("drawing"):
            pass
        time.sleep(0.3)
    assert set(capsys.readouterr().err.splitlines()) == {"converting: 0 s so far"}


@pytest.fixture
def handlers():
    """Those of SIGTERM, SIGINT and SIGHUP; those of all stand again afterwards."""
    before = {number: signal.getsignal(number) for number in signals.SIGNALS}
    yield lambda: [signal.getsignal(number) for number in signals.SIGNALS[:3]]
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("pid, action", [(1, signals._exit), (2, signal.SIG_DFL)])
def test_imports_are_ended_by_signals_that_are_not_ignored(handlers, monkeypatch, pid, action):
    """As nohup and a shell's & ignore them; process 1 has no default."""
    monkeypatch.setattr(os, "getpid", lambda: pid)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signals.ends_at_once()
    assert handlers() == [signal.SIG_IGN, action, action]
    signals.raise_on_ctrl_c()
    assert handlers() == [signal.SIG_IGN, signal.default_int_handler, action]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals.raise_on_ctrl_c()
    assert handlers() == [signal.SIG_IGN, signal.SIG_IGN, action]


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_script_that_is_stopped_asks_to_be_repeated(handlers, number, capsys):
    def lost(*_):
        raise AssertionError("the signal is not handled")

    signal.signal(signal.SIGTERM, lost)

    @ends_in_one_line("script")
    def main():
        with command_line.resumable():
            signal.raise_signal(number)

    assert main() == messages.EXIT_TRY_AGAIN
    told = "script: interrupted; run the same command again to resume\n"
    assert capsys.readouterr().err == told


def test_a_terminal_that_is_closed_ends_nothing(monkeypatch):
    """As by the end of a connection, also before the signal that tells of it has come."""
    leader, follower = os.openpty()
    written = os.fdopen(follower, "w")
    monkeypatch.setattr(sys, "stdout", written)
    monkeypatch.setattr(sys, "stderr", written)

    @ends_in_one_line("script")
    def main():
        print("before", flush=True)
        assert os.read(leader, 100) == b"before\r\n"
        os.close(leader)
        with pytest.raises(OSError, match="Input/output"):
            os.write(follower, b"the terminal is gone")
        with messages.Progress(total=3, unit="files", description="copy") as progress:
            progress.advance(1)
            progress.line("nobody sees it")
        print("after", flush=True)
        raise messages.Interrupted("saved")

    assert main() == messages.EXIT_TRY_AGAIN
    written.close()


@pytest.mark.parametrize("of", [1, 2])
def test_lines_that_match_are_left_out_whoever_writes_them_and_whatever_happens(capfd, of):
    with (
        contextlib.suppress(OSError),
        tensorflow_import.lines_left_out(re.compile(rb"^I\d{4} "), of=of),
    ):
        os.write(of, b"I0000 a library speaks of itself\nE0000 a failure\nnot I0000 at the start")
        raise OSError
    os.write(of, b"\nI0000 afterwards\n")
    kept = "E0000 a failure\nnot I0000 at the start\nI0000 afterwards\n"
    assert capfd.readouterr()[of - 1] == kept


PROGRAM = "from mlperf_bert.tensorflow_import import tensorflow; tensorflow()"


@pytest.mark.all
def test_tensorflow_speaks_where_it_is_asked_to():
    """tests/test_cli.py shows that it is silent where nothing is asked."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
    done = programs.run(sys.executable, "-c", PROGRAM, env=environment, check=True)
    assert "absl::InitializeLog" in done.stderr


@pytest.mark.all
def test_threads_wait_for_the_one_that_imports():
    program = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from mlperf_bert.tensorflow_import import tensorflow\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    list(pool.map(lambda _: tensorflow().train, 'abcd'))"
    )
    done = programs.run(sys.executable, "-c", program)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_processor_that_tensorflow_cannot_use_is_named(tmp_path, monkeypatch):
    about = tmp_path / "cpuinfo"
    about.write_text("flags\t\t: fpu sse sse4_2\n")
    monkeypatch.setattr(tensorflow_import, "_ABOUT", about)
    monkeypatch.setattr(tensorflow_import.platform, "machine", lambda: "x86_64")
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with pytest.raises(ImportError, match="needs a processor with AVX"):
        tensorflow_import.tensorflow()


@pytest.mark.parametrize("own", [None, "FASTEST_FIRST"])
def test_gpus_are_counted_as_nvml_counts_them_if_nothing_else_is_asked_for(monkeypatch, own):
    monkeypatch.setattr(os, "environ", {"CUDA_DEVICE_ORDER": own} if own else {})
    monkeypatch.setattr(tensorflow_import.importlib, "import_module", lambda name: None)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    tensorflow_import.tensorflow()
    assert os.environ["CUDA_DEVICE_ORDER"] == (own or "PCI_BUS_ID")


def test_files_that_are_compared_are_counted_one_by_one():
    counted = []
    assert paths.in_parallel(str, [1, 2, 3], counted.append) == ["1", "2", "3"]
    assert counted == [1, 1, 1]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("a: bad"), 1, "name: a: bad"),
        (FileNotFoundError(2, "No such file", "b"), 1, "name: b: No such file"),
        (
            errors.NotFoundError(None, None, "HTTP response code 404"),
            1,
            "name: HTTP response code 404",
        ),
        (KeyboardInterrupt(), 128 + signal.SIGINT, "name: interrupted"),
        (KeyboardInterrupt("stopped; go on"), 128 + signal.SIGINT, "name: stopped; go on"),
        (signals.Interrupted("a: stopped"), 75, "name: a: stopped"),
    ],
)
def test_a_command_ends_in_one_line(capsys, error, code, line):
    @ends_in_one_line("name")
    def fails() -> int:
        raise error

    assert fails() == code
    assert capsys.readouterr().err == f"{line}\n"


COMPARED = "3.1/Dell/XE9680x8H100-SXM-80GB 4.1/Dell/XE9680x8H200-SXM-141GB"


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        (f"-m mlperf_results.compare {COMPARED}", ""),
        ("-m mlperf_results.compare --help", ""),
        ("-m tracing --help", ""),
        ("create_pretraining_data.py --help", ""),
        ("create_pretraining_data.py --helpfull", ""),
        ("pick_eval_samples.py --help", "1"),
    ],
)
def test_nobody_who_reads_on_is_no_trace_back(monkeypatch, command, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as nobody:
        done = subprocess.run(
            [sys.executable, *command.split()],
            stdout=nobody, stderr=subprocess.PIPE, cwd=REPOSITORY, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
