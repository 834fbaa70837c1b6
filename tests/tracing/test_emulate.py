"""One host feeds several emulated devices: their shards, their figures, and how they end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.helpers import waiting
from tests.helpers.programs import refusal
from tracing import emulate

# Takes the flags of a training: logs two blocks of which it waits for 3 of 4 and 1 of 5 seconds.
TRAINING = """
import json, pathlib, sys, time
given = dict(word[2:].split("=", 1) for word in sys.argv[1:])
folder = pathlib.Path(given["output_dir"])
folder.mkdir()
(folder / "given.json").write_text(json.dumps(given))
if "fails" in given and folder.name == "device-1":
    sys.exit(7)
if "fails" in given or "waits" in given:
    time.sleep(60)
def event(key, at, value=None, **metadata):
    fields = {"key": key, "event_type": "POINT_IN_TIME", "value": value, "metadata": metadata}
    log.write(":::MLLOG " + json.dumps(fields | {"time_ms": 10**12 + at * 1000}) + "\\n")
with (folder / "bert.log").open("w") as log:
    for begin, samples, waiting, computing in ((0, 0, 3, 1), (4, 100, 1, 4)):
        if "no_block" in given:
            break
        event("block_start", begin, first_epoch_num=samples)
        event("block_stop", begin + 5, first_epoch_num=samples, samples_count=samples + 100)
        ledger = {"input_wait_seconds": waiting, "compute_seconds": computing}
        if "no_ledger" not in given:
            event("tracked_stats", begin + 5, ledger, of="block")
"""


@pytest.fixture
def command(tmp_path) -> list[str]:
    (tmp_path / "training.py").write_text(TRAINING)
    for number in range(5):
        (tmp_path / f"part-{number}").touch()
    words = [sys.executable, str(tmp_path / "training.py"), "--emulate_step_seconds=0.1"]
    return [*words, f"--input_file={tmp_path}/part-*", f"--output_dir={tmp_path}/out"]


def feed(command: list[str], *more: str, devices: int = 2) -> None:
    emulate.main([f"--emulate_devices={devices}", "--", *command, *more])


def test_every_file_is_read_by_one_device_and_the_first_block_does_not_count(
    command, tmp_path, capsys
):
    feed(command, devices=2)
    given = [json.loads((tmp_path / f"out/device-{n}/given.json").read_text()) for n in range(2)]
    parts = [str(tmp_path / f"part-{number}") for number in range(5)]
    assert [each["input_file"].split(",") for each in given] == [parts[::2], parts[1::2]]
    assert all(each["emulate_step_seconds"] == "0.1" for each in given)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:4] == [["0", "20.0", "80.0%"], ["1", "20.0", "80.0%"], ["all", "40.0", "80.0%"]]
    assert " ".join(lines[4]).endswith("asks for 90%: this host's storage is too little")


def test_without_a_ledger_utilization_is_unknown(command, capsys):
    feed(command, "--no_ledger=1")
    told = capsys.readouterr().out
    assert told.count("unknown") == 3 and "MLPerf" not in told


def test_options_as_two_words_are_taken_and_of_two_the_last_one_counts(tmp_path):
    (tmp_path / "part-0").touch()
    words = ["true", "--input_file=/none", "-input_file", f"{tmp_path}/part-*"]
    words += ["--output_dir", f"{tmp_path}/out", "--emulate_step_seconds=1", "--more"]
    [(folder, made)] = emulate.commands(words, 1)
    assert folder == tmp_path / "out/device-0"
    assert made == [
        *["true", "--input_file=/none", f"--input_file={tmp_path}/part-0"],
        *[f"--output_dir={folder}", "--emulate_step_seconds=1", "--more"],
    ]


def refused(command: list[str], *more: str, devices: int = 2) -> str:
    return refusal(emulate.main, f"--emulate_devices={devices}", "--", *command, *more)


@pytest.mark.parametrize("name", ["emulate_step_seconds", "input_file", "output_dir"])
def test_a_command_lacks_an_option(command, name):
    command = [word for word in command if not word.startswith(f"--{name}=")]
    assert f"give the command --{name}: devices that are not there need it" in refused(command)


def test_bad_input_is_one_line(command, tmp_path):
    assert "--emulate_devices=0: give at least 1" in refused(command, devices=0)
    assert refused(["no-such", *command]) == "emulate: no-such: no such command"
    line = refused(command, devices=6)
    assert "--emulate_devices=6: 5 files match --input_file, and each device reads" in line
    line = refused(command, "--no_block=1")
    assert "no finished block of training; give the command more steps" in line
    assert f"--output_dir={tmp_path / 'out'}: exists; give a folder that" in refused(command)


def test_a_device_that_fails_ends_the_others(command, capsys):
    began = time.monotonic()
    with pytest.raises(SystemExit) as raised:
        feed(command, "--fails=1", devices=3)
    assert raised.value.code == 7 and time.monotonic() - began < 30
    assert "a device ended with exit code 7; see " in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_devices(command, tmp_path, number):
    words = [sys.executable, "-m", "tracing.emulate", "--emulate_devices=2", "--", *command]
    process = subprocess.Popen([*words, "--waits=1"], cwd=REPOSITORY, start_new_session=True)
    given = [tmp_path / f"out/device-{n}/given.json" for n in range(2)]
    waiting.until(lambda: all(path.exists() for path in given), process)
    process.send_signal(number)
    assert process.wait(timeout=20) == 128 + number
    with pytest.raises(ProcessLookupError):  # nobody of its session is left
        os.killpg(process.pid, 0)


def test_a_log_of_one_block_counts_it(tmp_path):
    lines = [("block_start", 0, {"first_epoch_num": 0}),
             ("block_stop", 2, {"first_epoch_num": 0, "samples_count": 30})]  # fmt: skip
    events = [{"key": key, "event_type": "P", "value": None, "metadata": metadata,
               "time_ms": 1000 * at} for key, at, metadata in lines]  # fmt: skip
    log = Path(tmp_path / "bert.log")
    log.write_text("".join(f":::MLLOG {json.dumps(event)}\n" for event in events))
    assert emulate.fed(log) == emulate.Fed(30, 2.0, None)
