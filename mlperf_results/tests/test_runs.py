"""Every kind of folder that a user names, repeated and resumed runs in it."""

import pytest

from mlperf_results import runs
from tests.submission.timed_log import write_log, write_results

RESUMED = ["bert.log", "bert.resumed-9.log", "bert.resumed-10.log"]


def found(place):
    return [(files.name, [log.name for log in files.logs]) for files in runs.runs_in(str(place))]


@pytest.fixture(name="place")
def every_kind_of_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "run" / "bert.log", 20)
    # Repetitions enough that the newest is not the last one of a folder by chance.
    names = ["10", "9", *(f"9.repeat-{number}" for number in range(1, 11)), "seed_a"]
    for seed, name in enumerate(names):
        write_log(tmp_path / "campaign" / "runs" / name / "bert.log", 20, seed=seed)
        write_log(tmp_path / "runs of mine" / name / "bert.log", 20, seed=seed)
    (tmp_path / "campaign" / "campaign.json").write_text("{}")
    (tmp_path / "campaign" / "runs" / "11").mkdir()
    write_results(tmp_path / "org" / "results" / "System" / "bert", [20] * 11)
    for folder in ("runs/1", "not/of/them", "notes"):
        write_log(tmp_path / "no record" / folder / "bert.log", 20)
    write_log(tmp_path / "offline" / "bert.log", 20)
    write_log(tmp_path / "offline" / "bert.offline.log", 20)
    write_log(tmp_path / "resumed" / "bert.log", 20)
    for number in (10, 9):
        write_log(tmp_path / "resumed" / f"bert.resumed-{number}.log", 20)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("run/bert.log", [("run/bert.log", ["bert.log"])]),
        ("run", [("run", ["bert.log"])]),
        ("campaign", [("9", ["bert.log"]), ("10", ["bert.log"]), ("11", [])]),
        ("runs of mine", [("seed_a", ["bert.log"]), ("9", ["bert.log"]), ("10", ["bert.log"])]),
        ("org", [(f"result_{n}.txt", [f"result_{n}.txt"]) for n in range(11)]),
        ("org/results/System", [(f"result_{n}.txt", [f"result_{n}.txt"]) for n in range(11)]),
        ("no record", [("1", ["bert.log"])]),
        ("offline", [("offline", ["bert.offline.log"])]),
        ("resumed", [("resumed", RESUMED)]),
        ("resumed/bert.resumed-9.log", [("resumed/bert.resumed-9.log", RESUMED)]),
    ],
)
def test_every_kind_of_folder_is_read(place, name, expected):
    assert found(name) == expected


def test_of_a_run_that_was_repeated_the_newest_counts(place):
    nine, *_ = runs.runs_in("campaign")
    assert [log.parent.name for log in nine.logs] == ["9.repeat-10"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere", "nowhere: there is no such file or folder; give a log, a folder with bert.log"),
        ("empty", "empty: no run in it; give a log"),
        ("two", "two: results of 2 systems; give one, as two/results/A/bert"),
        ("gs://bucket/x", "gs://bucket/x: give a local path, and copy it from or to the bucket"),
    ],
)
def test_what_holds_no_runs_is_refused(place, name, reason):
    (place / "empty").mkdir()
    for system in "AB":
        write_results(place / "two" / "results" / system / "bert", [20])
    with pytest.raises(ValueError, match=reason):
        runs.runs_in(name)


def test_a_log_that_only_looks_like_a_piece_of_a_run_is_a_run(tmp_path):
    kept = write_log(tmp_path / "bert.resumed-1.old.log", 20)
    assert [files.logs for files in runs.runs_in(kept)] == [(kept,)]
