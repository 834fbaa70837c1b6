"""One reader of what a user names: every kind of folder, repeated and resumed runs.

No command replaces a log that it has read, a file of any run, or one output by another.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tensorflow import errors

from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.signals import Interrupted
from mlperf_bert.submission import report, run_logs
from mlperf_results import standing
from tests.fixtures import REPOSITORY
from tests.mlperf.example_log import write_submission
from tests.submission.timed_log import write_log, write_results

RESUMED = ["bert.log", "bert.resumed-9.log", "bert.resumed-10.log"]


def found(place):
    return [
        (files.name, [log.name for log in files.logs]) for files in run_logs.runs_in(str(place))
    ]


@pytest.fixture(name="place")
def every_kind_of_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "run" / "bert.log", 20)
    for seed, name in enumerate(("10", "9", "9.repeat-9", "9.repeat-10", "seed_a")):
        write_log(tmp_path / "campaign" / "runs" / name / "bert.log", 20, seed=seed)
        write_log(tmp_path / "runs of mine" / name / "bert.log", 20, seed=seed)
    (tmp_path / "campaign" / "campaign.json").write_text("{}")
    (tmp_path / "campaign" / "runs" / "11").mkdir()
    write_results(tmp_path / "org" / "results" / "System" / "bert", [20] * 11)
    write_log(tmp_path / "offline" / "bert.log", 20)
    write_log(tmp_path / "offline" / "bert.offline.log", 20)
    write_log(tmp_path / "resumed" / "bert.log", 20)
    for number in (10, 9):
        write_log(tmp_path / "resumed" / f"bert.resumed-{number}.log", 20)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("run/bert.log", [("run/bert.log", ["bert.log"])]),
        ("run", [("run", ["bert.log"])]),
        ("campaign", [("9", ["bert.log"]), ("10", ["bert.log"]), ("11", [])]),
        ("runs of mine", [("seed_a", ["bert.log"]), ("9", ["bert.log"]), ("10", ["bert.log"])]),
        ("org", [(f"result_{n}.txt", [f"result_{n}.txt"]) for n in range(11)]),
        ("org/results/System", [(f"result_{n}.txt", [f"result_{n}.txt"]) for n in range(11)]),
        ("offline", [("offline", ["bert.offline.log"])]),
        ("resumed", [("resumed", RESUMED)]),
        ("resumed/bert.resumed-9.log", [("resumed/bert.resumed-9.log", RESUMED)]),
    ],
)
def test_every_kind_of_folder_is_read(place, name, runs):
    assert found(name) == runs


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere", "nowhere: there is no such file or folder; give a log, a folder with bert.log"),
        ("empty", "empty: no run in it; give a log"),
        ("two", "two: results of 2 systems; give one, as two/results/A/bert"),
        ("gs:/x", "give a local path or gs://BUCKET/FOLDER"),
    ],
)
def test_what_holds_no_runs_is_refused(place, name, reason):
    (place / "empty").mkdir()
    for system in "AB":
        write_results(place / "two" / "results" / system / "bert", [20])
    with pytest.raises(ValueError, match=reason):
        run_logs.runs_in(name)


def test_a_log_that_only_looks_like_a_piece_of_a_run_is_a_run(tmp_path):
    kept = write_log(tmp_path / "bert.resumed-1.old.log", 20)
    assert [files.logs for files in run_logs.runs_in(kept)] == [(kept,)]


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
        (Interrupted("a: stopped"), 75, "name: a: stopped"),
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


@pytest.fixture
def org_dir(tmp_path, monkeypatch) -> Path:
    """A submitter's folder with a result of three logs, as the current folder."""
    org = write_submission(tmp_path / "org", [[0.5, 0.6, 0.73]] * 3)
    (tmp_path / "other").mkdir()
    for copy in ("../other/bert.log", "my.log", "my.json"):
        shutil.copy(org / "results/box/bert/result_0.txt", org / copy)
    monkeypatch.chdir(org)
    return org


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}


LOG = "results/box/bert/result_1.txt"
ITSELF = f"results/../{LOG}"
REPLACING = [
    (standing, [LOG, "--csv=../other/bert.log"], None),  # of a run that is not read
    (standing, [LOG, "--csv=link.json"], "../other/bert.log"),
    (standing, [".", f"--csv={ITSELF}"], None),
    (standing, [".", "--csv=link.json"], LOG),
    (standing, ["my.log", "--csv=my.log"], None),
    (report, [".", "--output=link.html"], LOG),  # the numbers, link.json
]


@pytest.mark.parametrize(("command", "words", "link"), REPLACING)
def test_nothing_that_was_read_is_replaced(org_dir, refusal, command, words, link):
    if link:
        Path("link.json").symlink_to(Path(link).absolute())
    before = contents(org_dir)
    line = refusal(command, *words)
    assert re.search(r": is (an input too|a file of a run); name another file$", line)
    assert contents(org_dir) == before


def test_no_output_replaces_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=": is the same file as "):
        run_logs.require_free({"--output": "new", "its table": "./new"})


def test_what_a_command_has_written_is_replaced_when_it_is_repeated(org_dir):
    for _ in range(2):
        assert standing.main([".", "--csv=table.csv"]) == 0
