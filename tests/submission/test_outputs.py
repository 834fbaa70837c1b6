"""No command replaces a log that it has read, a file of any run, or one output by another."""

import re
import shutil
from pathlib import Path

import pytest

from mlperf_bert.submission import report
from mlperf_results import compare, make_published, standing, watch
from tests.mlperf.example_log import write_log


@pytest.fixture
def org_dir(tmp_path, monkeypatch) -> Path:
    """A submitter's folder with a result of three logs, as the current folder."""
    results = tmp_path / "org" / "results" / "box" / "bert"
    results.mkdir(parents=True)
    for number in range(3):
        write_log(results / f"result_{number}.txt", [0.5, 0.6, 0.73], seed=number)
    (tmp_path / "other").mkdir()
    for copy in ("../other/bert.log", "my.log", "my.json"):
        shutil.copy(results / "result_0.txt", results.parents[2] / copy)
    monkeypatch.chdir(results.parents[2])
    return results.parents[2]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}


LOG = "results/box/bert/result_1.txt"
ITSELF = f"results/../{LOG}"
REPLACING = [
    (compare, [".", f"--write_baseline={ITSELF}"], None),
    (compare, [".", "--write_baseline=link.json"], LOG),
    (compare, [LOG, "--write_baseline=../other/bert.log"], None),  # of a run that is not read
    (compare, [LOG, "--write_baseline=link.json"], "../other/bert.log"),
    (standing, [".", f"--output={ITSELF}"], None),
    (standing, [".", "--csv=link.json"], LOG),
    (standing, ["my.log", "--output=my.log"], None),
    (compare, ["my.log", "--write_baseline=my.log"], None),
    (watch, ["my.json", "--reference=.", "--save=my.json"], None),
    (report, [".", "--output=link.html"], LOG),  # the numbers, link.json
    (watch, ["--reference=.", "--save=link.json"], LOG),
    (make_published, [".", f"--output={ITSELF}"], None),
]


@pytest.mark.parametrize(("command", "words", "link"), REPLACING)
def test_nothing_that_was_read_is_replaced(org_dir, refusal, command, words, link):
    if link:
        Path("link.json").symlink_to(Path(link).absolute())
    before = contents(org_dir)
    line = refusal(command, *words)
    assert re.search(r": is (an input too|a file of a run); name another file$", line)
    assert contents(org_dir) == before


def test_no_output_replaces_another(org_dir, refusal):
    before = contents(org_dir)
    assert ": is the same file as " in refusal(standing, ".", "--output=new", "--csv=./new")
    assert contents(org_dir) == before


def test_what_a_command_has_written_is_replaced_when_it_is_repeated(org_dir):
    for _ in range(2):
        assert standing.main([".", "--output=page.html", "--csv=table.csv"]) == 0
        assert compare.main([".", "--write_baseline=baseline.json"]) == 0
