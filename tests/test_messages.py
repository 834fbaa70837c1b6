"""How a command ends, how its progress is shown, and what its signals do. A second."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from absl import flags
from google.api_core.exceptions import ServiceUnavailable
from jax.errors import JaxRuntimeError
from safetensors import SafetensorError
from tensorflow import errors as tf_errors

from mlperf_bert import command_line, messages, signals, tensorflow_import
from mlperf_bert.files import errors
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


def test_progress_is_a_bar_on_a_terminal(terminal, monkeypatch):
    leader, follower = terminal
    termios.tcsetwinsize(leader, (24, 80))
    os.set_blocking(leader, False)
    with os.fdopen(os.dup(follower), "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        with Progress(total=4, unit="files", description="copy") as progress:
            progress.advance(1)
    assert re.match(rb"\s*copy: +\d+%\|", os.read(leader, 1000))


def test_work_that_lasts_and_counts_nothing_says_so(monkeypatch, capsys):
    def next_lines():
        """Who speaks until three more lines have come: a thread may write one late."""
        came: list[str] = []
        ends = time.monotonic() + 60
        while len(came) < 3 and time.monotonic() < ends:
            time.sleep(0.01)
            came += re.findall(r"(?m)^(\w+): \d+ s so far$", capsys.readouterr().err)
        return set(came)

    with lasting("short"):
        pass
    assert not capsys.readouterr().err
    monkeypatch.setattr(messages, "SECONDS_BETWEEN_LINES", 0.05)
    with lasting("converting"):
        with pytest.raises(KeyError), lasting("drawing"):
            next_lines()
            assert next_lines() == {"drawing"}  # the inner one alone
            raise KeyError
        next_lines()
        assert next_lines() == {"converting"}
    capsys.readouterr()
    time.sleep(0.2)
    assert not capsys.readouterr().err


@pytest.fixture
def handlers():
    """Those of SIGTERM, SIGINT and SIGHUP; those of all stand again afterwards."""
    before = {number: signal.getsignal(number) for number in signals.SIGNALS}
    for number in signals.SIGNALS:  # nohup and a shell's & ignore some for all tests
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
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


def test_a_terminal_that_is_closed_ends_nothing(terminal, monkeypatch):
    """As by the end of a connection, also before the signal that tells of it has come."""
    leader, follower = terminal
    written = os.fdopen(os.dup(follower), "w")
    monkeypatch.setattr(sys, "stdout", written)
    monkeypatch.setattr(sys, "stderr", written)

    @ends_in_one_line("script")
    def main():
        print("before", flush=True)
        assert os.read(leader, 100) == b"before\r\n"
        os.dup2(unconnected := os.open(os.devnull, os.O_RDONLY), leader)  # closes the terminal
        os.close(unconnected)
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


NO_FILE = "/d/part-7; Too many open files"
IN_A_GRAPH = """Graph execution error:

Detected at node IteratorGetNext defined at (most recent call last):
  File "a.py", line 15, in f

{}
\t [[{{{{node IteratorGetNext}}}}]]
Hint: If you want to see a list of allocated tensors, add report_tensor_allocations_upon_oom.
 [Op:__inference_f_76]"""


def of_tensorflow(kind: str, text: str) -> tf_errors.OpError:
    return getattr(tf_errors, f"{kind}Error")(None, None, text)


OOM = IN_A_GRAPH.format("OOM when allocating [4]")
ENDS = [
    (ValueError("a: b\nc"), 1, "a: b\\nc"),
    (messages.Problems(["a\nb", "c"]), 1, "2 problems:\n  - a\\nb\n  - c"),
    (FileNotFoundError(2, "No such file", "b"), 1, "b: No such file"),
    (FloatingPointError("diverged"), 1, "diverged"),
    (OSError(24, "Too many open files", "/d/x"), 1, "/d/x: Too many open files; raise ulimit -n"),
    (OSError(5, "Input/output error"), 1, "Input/output error; its disk, or the way to it"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (KeyboardInterrupt("stopped; go on"), 130, "stopped; go on"),
    (signals.Interrupted("a: stopped"), 75, "a: stopped"),
    (errors.StoreUnavailable("gs://b/x: the store does not answer"), 75, "gs://b/x: the store"),
    (ServiceUnavailable("try later"), 75, "google failed: 503 try later; repeat the command later"),
    (RuntimeError("can't start new thread"), 1, "can't start new thread; raise ulimit -u"),
    (SafetensorError("bad header"), 1, "safetensors failed: bad header"),
    (flags.IllegalFlagValueError("flag --x: bad"), 1, "absl failed: flag --x: bad"),
    (of_tensorflow("NotFound", "HTTP response code 404"), 1, "TensorFlow failed: HTTP response"),
    (of_tensorflow("ResourceExhausted", "OOM"), 1, "out of memory (OOM); lower it, or end other"),
    (of_tensorflow("ResourceExhausted", OOM), 1, "out of memory (OOM when allocating [4]); lower"),
    (of_tensorflow("ResourceExhausted", IN_A_GRAPH.format(NO_FILE)), 1,
     "/d/part-7: Too many open files; raise ulimit -n, or read fewer files at once (--num_para"),
    (of_tensorflow("ResourceExhausted", "/d/e.v2; Disk quota exceeded"), 1,
     "/d/e.v2: Disk quota exceeded; make room in your quota and repeat the command"),
    (of_tensorflow("Unknown", "/d/part-7; Input/output error"), 1,
     "/d/part-7: Input/output error; its disk, or the way to it, has failed; repeat"),
    (of_tensorflow("Unavailable", ""), 75, "TensorFlow failed: UnavailableError; "),
    (of_tensorflow("Unavailable", "a device is gone"), 75,
     "TensorFlow failed: a device is gone; repeat the command later"),
    (of_tensorflow("Internal", "{{node a}} bad [Op:A]\nb"), 1, "TensorFlow failed: bad"),
    (of_tensorflow("Aborted", "10 tries"), 75, "TensorFlow failed: 10 tries; repeat"),
    (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4 bytes.\nbuffers:\n"), 1,
     "out of memory (RESOURCE_EXHAUSTED: Out of memory allocating 4 bytes.); lower it, or end "
     "other processes that hold memory of the device (nvidia-smi names a GPU's)"),
    (JaxRuntimeError("UNAVAILABLE: gone"), 75, "jax failed: UNAVAILABLE: gone; repeat the"),
    (JaxRuntimeError("INTERNAL: ptxas\nb"), 1, "jax failed: INTERNAL: ptxas"),
    (JaxRuntimeError("INTERNAL: CUDA error\nb"), 1,
     "jax failed: INTERNAL: CUDA error; if --kernels=triton is given, its kernels may do this"),
]  # fmt: skip
"""Whatever a command may raise -> its exit code, and how the line begins."""


@pytest.mark.parametrize("error, code, line", ENDS)
def test_what_ends_a_command_is_one_line_and_a_code(capsys, error, code, line):
    @ends_in_one_line("name", out_of_memory="lower it")
    def fails() -> None:
        raise error

    assert fails() == code
    told = capsys.readouterr().err
    assert told.startswith(f"name: {line}") and told.count("\n") == line.count("\n") + 1


@pytest.mark.parametrize("error", [AssertionError(), TypeError("x"), RuntimeError("x")])
def test_a_mistake_of_ours_is_traced_back(error):
    @ends_in_one_line("name")
    def fails() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        fails()
    assert raised.value is error


NAMED = [
    (ValueError("bad"), None, "f: bad"),
    (ValueError("f: bad"), None, "f: bad"),
    (ValueError("f line 3: bad"), None, "f line 3: bad"),
    (SafetensorError("bad"), None, "f: bad"),
    (TypeError("of ours"), None, TypeError),
    (FileNotFoundError(2, "No such file", "f"), "fetch it", FileNotFoundError),
    (ValueError("f: not JSON"), "fetch it", "f: damaged (not JSON); fetch it"),
    (KeyError("key"), "fetch it", "f: damaged (lacks 'key'); fetch it"),
    (StopIteration(), "", "f: damaged (StopIteration)"),
    (RecursionError("..."), "fetch it", "f: damaged (nested too deeply); fetch it"),
    (SafetensorError("bad"), "fetch it", "f: damaged (bad); fetch it"),
]


@pytest.mark.parametrize("error, damaged, told", NAMED)
def test_the_nearest_with_names_the_file(error, damaged, told):
    expected = ValueError if isinstance(told, str) else told
    with pytest.raises(expected) as raised, errors.named("f", damaged=damaged):
        raise error
    assert str(raised.value) == (told if expected is ValueError else str(error))


@pytest.fixture
def nobody() -> Iterator[TextIO]:
    """An output whose reader has ended."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with contextlib.suppress(BrokenPipeError), os.fdopen(write_end, "w") as output:
        yield output


def test_a_command_that_nobody_reads_on_ends_as_a_shell_has_it(nobody, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout", nobody)
    assert ends_in_one_line("name")(lambda: print("the result"))() == 128 + signal.SIGPIPE
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        ("-m tracing --help", ""),
        ("create_pretraining_data.py --helpfull", ""),
        ("pick_eval_samples.py --help", "1"),
    ],
)
def test_nobody_who_reads_on_is_no_trace_back(nobody, monkeypatch, command, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = [sys.executable, *command.split()]
    done = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, cwd=REPOSITORY, text=True)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
