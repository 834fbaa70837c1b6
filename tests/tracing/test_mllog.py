"""MLPerf logs as events and spans."""

import json
import os

import pytest

from tracing import mllog


def line(key: str, time_ms: int, kind: str, **metadata) -> str:
    event = {"namespace": "", "time_ms": time_ms, "event_type": kind, "key": key, "value": None}
    return f":::MLLOG {json.dumps(event | {'metadata': metadata})}\n"


def test_spans_of_a_run_that_was_cut(tmp_path):
    path = tmp_path / "bert.log"
    path.write_text(
        line("run_start", 900, "INTERVAL_START")  # of an earlier session
        + line("init_start", 1000, "INTERVAL_START")
        + line("init_stop", 1500, "INTERVAL_END")
        + line("run_start", 1500, "INTERVAL_START")
        + "not of MLPerf\n"
        + line("block_start", 1600, "INTERVAL_START", first_epoch_num=0)
        + line("block_stop", 1700, "INTERVAL_END")
        + line("eval_start", 1700, "INTERVAL_START")
        + line("eval_accuracy", 1750, "POINT_IN_TIME")
        + ':::MLLOG {"time_ms": 17'
    )
    assert mllog.is_log(path)
    events = list(mllog.event_rows(path, begin_ns=999 * 10**6, end_ns=2000 * 10**6))
    assert len(events) == 7
    spans = mllog.span_rows(events, end_ns=2000 * 10**6)
    assert [(s["name"], s["realtime_ns"] // 10**6, s["end_realtime_ns"] // 10**6, s["is_closed"]) for s in spans] == [  # noqa: E501
        ("init", 1000, 1500, True),
        ("run", 1500, 2000, False),
        ("block", 1600, 1700, True),
        ("eval", 1700, 2000, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[1]",
        "[" * 100_000,
        '{"time_ms": 1e999, "key": "run_start"}',
        '{"time_ms": 1000, "key": ["run_start"]}',
        '{"time_ms": 1000, "key": "run_start", "event_type": 1}',
        '{"time_ms": 1000, "key": "\\ud800"}',
    ],
    ids=lambda text: text[:40],
)
def test_a_line_that_is_no_event_is_passed_over(tmp_path, text):
    path = tmp_path / "bert.log"
    path.write_text(f":::MLLOG {text}\n" + line("run_start", 1000, "INTERVAL_START"))
    [event] = mllog.event_rows(path, begin_ns=0, end_ns=2**62)
    assert event["key"] == "run_start" and len(mllog.span_rows([event], end_ns=2**62)) == 1


def test_other_files_are_no_logs(tmp_path):
    os.mkfifo(tmp_path / "fifo.log")
    assert not mllog.is_log(tmp_path / "fifo.log")
    (tmp_path / "x.log").write_text("hello")
    assert not mllog.is_log(tmp_path / "x.log")
    assert not mllog.is_log(tmp_path / "absent.log")
