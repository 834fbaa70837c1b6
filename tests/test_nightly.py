"""The demo as a machine's acceptance test: its nights, its baseline and its exit codes."""

import json

import pytest

from demo import miniature, nightly
from mlperf_bert.files import locks
from mlperf_bert.mlperf.logs import CAMPAIGN_RECORD
from mlperf_bert.submission import campaign
from mlperf_results import compare
from tests.submission.timed_log import write_log


@pytest.fixture(name="machine")
def machine_of_a_given_speed(monkeypatch):
    """Stands for trainings: `machine.minutes` of a run, scattered by 0.1%; and how a night ends."""

    class Machine:
        minutes, status, nights = 2.0, 0, []

    def one_night(words):
        given = dict(word.lstrip("-").split("=", 1) for word in words if "=" in word)
        folder = nightly.Path(given["output_dir"])
        Machine.nights.append(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CAMPAIGN_RECORD).write_text("{}")
        if Machine.status:
            return Machine.status
        for number in range(int(given["runs"])):
            run = folder / "runs" / str(number)
            run.mkdir(parents=True)
            minutes = Machine.minutes * (1 + 0.001 * (number % 3))
            write_log(run / "bert.log", minutes=minutes, samples=12_480)
            (run / "run.json").write_text(json.dumps({"status": "success"}))
        (folder / "submission").mkdir()
        return 0

    monkeypatch.setattr(campaign, "main", one_night)
    monkeypatch.setattr(miniature, "prepare", lambda folder: None)
    Machine.nights = []
    return Machine


def night(folder):
    return nightly.main([f"--output_dir={folder}", "--runs=5"])


def test_the_first_night_is_the_baseline_and_the_same_machine_passes(machine, tmp_path, capsys):
    assert night(tmp_path) == 0
    assert "baseline.json" in capsys.readouterr().out
    machine.nights[0].rename(tmp_path / "first")  # of the same second
    machine.minutes = 2.001
    assert night(tmp_path) == 0
    assert "verdict on samples/s, slower by 5% or more: no" in capsys.readouterr().out


@pytest.mark.parametrize("minutes, code", [(2.2, compare.EXIT_SLOWER), (1.8, 0)])
def test_a_slower_machine_fails(machine, tmp_path, minutes, code):
    night(tmp_path)
    machine.nights[0].rename(tmp_path / "first")
    machine.minutes = minutes
    assert night(tmp_path) == code


@pytest.mark.parametrize("status", [campaign.EXIT_TRY_AGAIN, 130, 141])
def test_an_interrupted_night_goes_on(machine, tmp_path, status):
    machine.status = status
    assert night(tmp_path) == status
    machine.status = 0
    assert night(tmp_path) == 0
    assert machine.nights[0] == machine.nights[1]


def test_a_failed_preparation_is_one_line(machine, tmp_path, monkeypatch, capsys):
    def refuses(folder):
        raise ValueError(f"{folder} holds other things: name an empty --output_dir")

    monkeypatch.setattr(miniature, "prepare", refuses)
    assert night(tmp_path) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("nightly: ") and "holds other things" in line


def test_a_night_whose_runs_failed_is_over(machine, tmp_path, capsys):
    """The next one is a new one: runs that failed stay failed."""
    machine.status = 1
    assert night(tmp_path) == 1
    assert "the runs failed, see above; nothing is compared" in capsys.readouterr().err
    assert not (tmp_path / "baseline.json").exists()
    machine.nights[0].rename(machine.nights[0].with_name("2020-01-01"))  # of the same second
    machine.status = 0
    assert night(tmp_path) == 0
    assert (tmp_path / "nights" / "2020-01-01").exists() and (tmp_path / "baseline.json").exists()


@pytest.mark.parametrize("word", ["--runs=1", "--runs=x", "--fail_if_slower=5"])
def test_a_bad_option_is_told_before_the_night(machine, tmp_path, word):
    with pytest.raises(SystemExit) as ended:
        nightly.main([f"--output_dir={tmp_path}", word])
    assert ended.value.code == 2 and machine.nights == []


def test_two_nights_at_once_are_refused(machine, tmp_path, capsys):
    with locks.held(tmp_path, file_name=".nightly.lock"):
        assert night(tmp_path) == 1
    assert "another night goes on; wait for it, or stop it" in capsys.readouterr().err
