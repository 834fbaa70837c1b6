"""The log of a killed run gets its end from the next start; checkers and readers take it."""

import pytest

from mlperf_bert.mlperf import logs
from mlperf_bert.mlperf.log import close_log
from mlperf_bert.submission import compliance
from tests.mlperf.example_log import metadata, read_log, values, write_log


def cut(path, *, after: str, mid_line: bool = False):
    """Leaves the lines up to the first one with `after`, as `kill -9` does."""
    lines = path.read_text().splitlines(keepends=True)
    last = next(number for number, line in enumerate(lines) if f'"key": "{after}"' in line)
    path.write_text("".join(lines[: last + 1]) + (lines[last + 1][:40] if mid_line else ""))


@pytest.mark.parametrize(
    ("after", "mid_line", "samples"),
    [
        ("run_start", False, 0),
        ("block_start", True, 0),
        ("eval_start", False, 150_080),
        ("eval_accuracy", True, 150_080),
    ],
)
def test_a_killed_run_gets_its_run_stop(tmp_path, after, mid_line, samples):
    path = write_log(tmp_path / "bert.log", [0.5, 0.73])
    cut(path, after=after, mid_line=mid_line)
    last_ms = int(path.read_text().split('"time_ms": ')[-2 if mid_line else -1].split(",")[0])
    assert close_log(path)
    records = read_log(path)
    assert [record["key"] for record in records[-2:]] == ["train_samples", "run_stop"]
    assert values(records, "train_samples") == [samples]
    assert [record["time_ms"] for record in records[-2:]] == [last_ms] * 2
    [stop] = metadata(records, "run_stop")
    assert stop["status"] == "aborted" and stop["written_ms"] > last_ms
    run = logs.read_run(path)
    assert (run.status, run.samples_to_converge) == ("aborted", None)
    before = path.read_bytes()
    assert not close_log(path) and path.read_bytes() == before


@pytest.mark.parametrize("ruleset", compliance.RULESETS)
def test_the_checker_says_of_it_what_it_says_of_any_aborted_run(tmp_path, ruleset):
    complete = write_log(tmp_path / "aborted.log", [0.5, 0.6])
    path = write_log(tmp_path / "killed.log", [0.5, 0.6])
    cut(path, after="eval_accuracy")
    close_log(path)
    verdicts = [compliance.check_log(log, ruleset) for log in (complete, path)]
    assert verdicts[0].passed == verdicts[1].passed


@pytest.mark.parametrize("content", ["", "no log\n", ':::MLLOG {"key": "init_start"}\n'])
def test_a_log_without_a_run_is_left_alone(tmp_path, content):
    path = tmp_path / "bert.log"
    path.write_text(content)
    assert not close_log(path) and path.read_text() == content
