"""A time budget as it is written, and what a run's logs say of the time that is over."""

import pytest

from mlperf_bert.mlperf.logs import seconds_spent
from mlperf_bert.options import duration, parse_duration
from tests.mlperf.example_log import write_log_of_minutes

SECONDS = {"90s": 90, "45m": 2700, "24h": 86400, "1h30m": 5400, "1.5h": 5400, "0.5s": 0.5} | {
    "2h5s": 7205,
    "0h3s": 3,
    ".5h": 1800,
    "1.m": 60,
}


@pytest.mark.parametrize("text", SECONDS)
def test_a_budget_has_hours_minutes_and_seconds(text):
    assert parse_duration(text) == SECONDS[text]
    assert parse_duration(duration(SECONDS[text])) == SECONDS[text]


def test_a_budget_in_words():
    assert [duration(s) for s in (0, 0.04, 59.96, 5400, 86400, 90061.2)] == [
        *("0s", "0s", "1m", "1h30m", "24h", "25h1m1.2s"),
    ]


BAD = ["", "0", "0s", "0h0m", "-5m", "90", "5 m", "5M", "m", "1m2h", "1.2.3h", ".s", "nan", "infs"]


@pytest.mark.parametrize("text", [*BAD, "1" * 400 + "h", "٣s", "5m\n", "1e3s", "-1h30m"])
def test_what_is_no_time_is_refused(text):
    message = r"must be a time above 0 with its unit, such as 90s, 45m, 24h or 1h30m"
    with pytest.raises(ValueError, match=message) as refusal:
        parse_duration(text)
    assert str(refusal.value).startswith(f"--time_budget={text} must")


def test_the_times_of_all_processes_count(tmp_path):
    logs = [tmp_path / name for name in ("bert.log", "bert.resumed-1.log")]
    write_log_of_minutes(logs[0], minutes=3, noted=[1, 2, 5])
    write_log_of_minutes(logs[1], minutes=2, noted=[5, 9])
    assert seconds_spent(logs) == 300
    assert seconds_spent([]) == 0


def test_of_a_killed_process_the_time_up_to_its_last_line_counts(tmp_path):
    path = tmp_path / "bert.log"
    write_log_of_minutes(path, minutes=3, noted=[1])
    path.write_bytes(path.read_bytes() + b':::MLLOG {"namespace": "", "time_ms": 99')
    assert seconds_spent([path]) == 180
    before_the_clock = path.read_text().partition("run_start")[0]
    path.write_text(before_the_clock.rpartition("\n")[0] + "\n")
    assert seconds_spent([path]) == 0
