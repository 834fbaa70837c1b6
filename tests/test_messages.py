"""How a command ends, how its progress is shown, and what its signals do. A second."""

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest

from mlperf_bert import command_line, messages, signals
from mlperf_bert.messages import Progress, ends_in_one_line


def test_output_that_finds_no_room_is_a_failure(monkeypatch, capsys):
    @ends_in_one_line("name")
    def main():
        print("the result")  # which stays in Python's buffer

    with contextlib.suppress(OSError), Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main() == messages.exit_code == 1
    told = "name: No space left on device; make room and repeat the command\n"
    assert capsys.readouterr().err == told


def test_progress_goes_on_where_it_was_and_is_lines_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(messages, "SECONDS_BETWEEN_LINES", 0)
    with Progress(total=10, unit="files", description="copy", initial=4) as progress:
        progress.advance(3, "the third")
        progress.expect(12)
        progress.advance(2)
        progress.line("a whole line")
    assert progress.done == 9
    _, first, second, last = capsys.readouterr().err.splitlines()  # it begins with what is there
    assert re.fullmatch(r"copy: 7 of 10 files, .*/s, .* left, the third", first)
    assert re.fullmatch(r"copy: 9 of 12 files, .*/s, .* left", second)
    assert last == "a whole line"
    with Progress(total=2e6, unit="B", description="load", silent=True) as progress:
        progress.advance(10**6)
        progress.line("nobody sees it")
    assert progress.done == 10**6 and not capsys.readouterr().err
    with Progress(total=2_000_000, unit="B", description="load") as progress:
        progress.advance(1_500_000)
    assert "load: 1.50MB of 2.00MB, " in capsys.readouterr().err


@pytest.fixture
def handlers():
    """Those of both signals, which stand again afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield lambda: [signal.getsignal(number) for number in before]
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("pid, action", [(1, signals._exit), (2, signal.SIG_DFL)])
def test_imports_are_ended_by_signals_that_are_not_ignored(handlers, monkeypatch, pid, action):
    """As nohup and a shell's & ignore them; process 1 has no default."""
    monkeypatch.setattr(os, "getpid", lambda: pid)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signals.ends_at_once()
    assert handlers() == [signal.SIG_IGN, action]
    signals.raise_on_ctrl_c()
    assert handlers() == [signal.SIG_IGN, signal.default_int_handler]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals.raise_on_ctrl_c()
    assert handlers() == [signal.SIG_IGN] * 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
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
