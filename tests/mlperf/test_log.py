"""One log per run, one run_start and one run_stop, whatever happens in between, a kill too."""

import numpy as np
import pytest

from mlperf_bert.mlperf import log as log_module
from mlperf_bert.mlperf import log_reader
from mlperf_bert.mlperf.log import MlperfLog, SubmissionInfo, close_log
from tests.mlperf.example_log import (
    initialise,
    metadata,
    read_log,
    values,
    without_site,
    write_log,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "result_0.txt"


@pytest.fixture
def log(path):
    """A log that is ready for its run."""
    with MlperfLog(path) as log:
        initialise(log)
        yield log


@pytest.mark.parametrize("shift", [3600.0, -3600.0, -0.5, 0.06, 0.04])
def test_times_do_not_depend_on_the_hosts_clock(path, monkeypatch, shift):
    """It is set in the middle of the run; the log says so, and counts on."""
    host, monotonic = [1e9], [50.0]

    def passed(seconds):
        host[0], monotonic[0] = host[0] + seconds, monotonic[0] + seconds

    monkeypatch.setattr(log_module.time, "time", lambda: host[0])
    monkeypatch.setattr(log_module.time, "monotonic", lambda: monotonic[0])
    with MlperfLog(path) as log:
        initialise(log)
        passed(2)
        with log.run() as run:
            passed(10)
            host[0] += shift
            passed(1)
            run.succeed()
    records = read_log(path)
    times = {record["key"]: record["time_ms"] for record in records}
    assert (times["run_start"], times["run_stop"]) == (1e12 + 2000, 1e12 + 13_000)
    # As little as 0.04 s is what a clock is slewed by.
    assert values(records, "clock_shift_seconds") == [shift] * (shift != 0.04)


def test_successful_run(path):
    records = read_log(write_log(path, [0.5, 0.73]))
    begin = [record["key"] for record in records].index("run_start")
    told = [(r["key"], r["value"], without_site(r["metadata"])) for r in records[begin:]]
    first, second = 150_080, 300_160
    rest: list[tuple] = []
    for before, samples, accuracy in ((0, first, 0.5), (first, second, 0.73)):
        at = {"epoch_num": samples, "samples_count": samples}
        trained = {"first_epoch_num": before, "samples_count": samples}
        rest += [
            ("block_start", None, trained | {"samples_count": before, "epoch_count": 150_080}),
            ("block_stop", None, trained),
            ("tracked_stats", None, trained | {"of": "block"}),
            ("eval_start", None, at),
            ("eval_stop", None, at),
            ("eval_accuracy", accuracy, at | {"step_num": samples // 448}),
        ]
    assert [(k, None if k == "tracked_stats" else value, about) for k, value, about in told] == [
        ("run_start", None, {}),
        *rest,
        ("tracked_stats", None, at | {"of": "run"}),
        ("train_samples", second, {}),
        ("run_stop", None, {"status": "success"}),
    ]
    assert values(records, "opt_epsilon") == values(records, "opt_lamb_epsilon") == [1e-6]
    assert values(records, "cache_clear") == [True]
    assert {record["metadata"]["file"] for record in records} == {"mlperf_bert/mlperf/log.py"}
    kinds = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}
    for record in records:
        assert record["event_type"] == kinds.get(record["key"].split("_")[-1], "POINT_IN_TIME")
    *blocks, whole = values(records, "tracked_stats")
    assert whole["compute_seconds"] > 0 and whole["saving_seconds"] == 0
    assert sum(block["compute_seconds"] for block in blocks) <= whole["compute_seconds"] + 1e-5
    assert 0 < whole["accelerator_utilization"] < 1


@pytest.mark.parametrize("mishap", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_any_exception_ends_the_run_once_and_passes_through(log, path, mishap):
    with pytest.raises(mishap), log.run() as run:
        run.block_start(0, num_samples=448)
        raise mishap
    records = read_log(_closed(log, path))
    assert metadata(records, "run_stop") == [{"status": "aborted"}]
    assert [record["key"] for record in records].count("run_start") == 1


def test_the_clock_stops_at_success_even_if_the_end_goes_wrong(log, path):
    """The last checkpoint is written after it."""
    with pytest.raises(OSError, match="disk"), log.run() as run:
        run.succeed()
        run.checkpoint_start(1)
        run.checkpoint_stop(1)
        raise OSError("disk full")
    records = read_log(_closed(log, path))
    assert metadata(records, "run_stop") == [{"status": "success"}]
    last = [record["key"] for record in records[-3:]]
    assert last == ["run_stop", "checkpoint_start", "checkpoint_stop"]


def test_nothing_of_a_run_follows_run_stop(log, path):
    with log.run() as run:
        run.succeed()
        assert run.is_stopped and run.ledger.read() == run.ledger.read()
        for late in (
            run.succeed,
            lambda: run.block_stop(448),
            lambda: run.eval_start(448),
            lambda: run.eval_accuracy(0.8, 448, 1),
        ):
            with pytest.raises(RuntimeError, match="run_stop has been logged"):
                late()
    assert len(metadata(read_log(_closed(log, path)), "run_stop")) == 1


def test_values_become_plain_json(log, path):
    with log.run() as run:
        log.event("throughput", np.float32(0.5), {"rows": np.arange(2), "steps": np.int64(3)})
        log.event("loss", float("nan"))
        log.event("range", (float("inf"), np.float64("-inf")))
        with pytest.raises(TypeError, match=r"object .* cannot be written as JSON to the log"):
            log.event("odd", object())
        run.eval_accuracy(np.float32(0.75), np.int64(448), np.int64(1))
    records = read_log(_closed(log, path))
    assert values(records, "throughput") == [0.5]
    assert metadata(records, "throughput") == [{"rows": [0, 1], "steps": 3}]
    assert values(records, "loss") == ["nan"]
    assert values(records, "range") == [["inf", "-inf"]]
    assert values(records, "train_samples") == [448]


@pytest.mark.parametrize("accuracy", [float("nan"), float("inf"), -0.1, 1.01])
def test_impossible_accuracy_aborts_the_run(log, path, accuracy):
    message = "after 448 samples: must be from 0 to 1"
    with pytest.raises(ValueError, match=message), log.run() as run:
        run.eval_accuracy(accuracy, 448, 1)
    records = read_log(_closed(log, path))
    assert metadata(records, "run_stop") == [{"status": "aborted"}]
    assert values(records, "eval_accuracy") == []


def test_every_evaluation_covers_the_number_of_samples_that_is_logged(log):
    with log.run() as run:
        run.eval_samples(50)
        run.eval_accuracy(0.1, 448, step=1, num_eval_samples=50)
        for number in (49, 51):
            message = f"after 896 samples covered {number} examples, but the log says 50 for all"
            with pytest.raises(ValueError, match=message):
                run.eval_accuracy(0.9, 896, step=2, num_eval_samples=number)


def test_a_log_has_one_run(log, path):
    with log.run():
        pass
    with pytest.raises(RuntimeError, match="one log, one run"), log.run():
        pass
    assert [record["key"] for record in read_log(_closed(log, path))].count("run_start") == 1


def test_two_runs_in_one_process_do_not_mix(tmp_path):
    first, second = MlperfLog(tmp_path / "first.txt"), MlperfLog(tmp_path / "second.txt")
    initialise(first, seed=1)
    initialise(second, seed=2)
    for samples, log in ((2, second), (1, first)):
        with log.run() as run:
            run.samples = samples
            run.succeed()
        log.commit()
    for number, log in ((1, first), (2, second)):
        records = read_log(log.path)
        assert values(records, "seed") == values(records, "train_samples") == [number]
    assert len(read_log(first.path)) == len(read_log(second.path))


def test_file_gets_its_name_at_commit_and_writing_goes_on(path):
    with MlperfLog(path) as log:
        log.init_start(cache_cleared=False)
        assert not path.exists()
        log.commit()
        log.commit()
        for write in (log.init_stop, lambda: log.event("seed", 1)):
            before = len(read_log(path))
            write()  # at once: a killed run leaves what it has logged
            assert len(read_log(path)) == before + 1
    assert [record["key"] for record in read_log(path)] == (
        ["cache_clear", "init_start", "init_stop", "seed"]
    )
    assert list(path.parent.iterdir()) == [path]


def test_discard_leaves_nothing(tmp_path):
    path = tmp_path / "new" / "folders" / "result_0.txt"
    with pytest.raises(ValueError, match="bad data"), MlperfLog(path) as log:
        initialise(log)
        with log.run():
            log.discard()
            raise ValueError("bad data")
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_written_ends_the_run(small_disk):
    path = small_disk(64) / "bert.log"
    with MlperfLog(path) as log:
        initialise(log)
        with pytest.raises(OSError, match="No space left"), log.run() as run:
            log.commit()
            for number in range(1000):
                log.event("filler", "x" * 100, {"number": number})
    assert run.is_stopped and path.stat().st_size <= 64 * 1024


def test_what_is_found_before_the_file_appears_opens_the_division(log, path):
    with log.run():
        log.declare_open()
        log.commit()
    records = read_log(_closed(log, path))
    assert values(records, "submission_division") == ["open"]
    assert [record["key"] for record in records].count("submission_division") == 1


def test_existing_log_is_never_touched(path):
    path.write_text("the log of another run")
    with pytest.raises(ValueError, match="already holds the log of a run: name another file"):
        MlperfLog(path)
    path.unlink()
    log = MlperfLog(path)
    path.write_text("the log of another run")  # which has begun since
    with pytest.raises(ValueError, match="already holds the log of a run: name another file"):
        log.commit()
    assert path.read_text() == "the log of another run"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"org": " ", "platform": "p"}, "submission org is empty"),
        ({"org": "o", "platform": ""}, "submission platform is empty"),
        ({"org": "o", "platform": "p", "status": "live"}, "status='live': use one of onprem"),
    ],
)
def test_submission_that_the_checker_would_refuse(entries, message):
    with pytest.raises(ValueError, match=message):
        SubmissionInfo(**entries)


def _closed(log, path):
    log.commit()
    return path


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
        ("train_samples", True, 300_160),  # within its run_stop
    ],
)
def test_a_killed_run_gets_its_run_stop(tmp_path, after, mid_line, samples):
    path = write_log(tmp_path / "bert.log", [0.5, 0.73])
    cut(path, after=after, mid_line=mid_line)
    last_ms = int(path.read_text().split('"time_ms": ')[-2 if mid_line else -1].split(",")[0])
    assert close_log(path)
    records = read_log(path)
    assert [record["key"] for record in records[-2:]] == ["train_samples", "run_stop"]
    assert values(records, "train_samples")[-1] == samples
    assert [record["time_ms"] for record in records[-2:]] == [last_ms] * 2
    [stop] = metadata(records, "run_stop")
    assert stop["status"] == "aborted" and stop["written_ms"] >= last_ms
    run = log_reader.read_run(path)
    assert (run.status, run.samples_to_converge) == ("aborted", None)
    before = path.read_bytes()
    assert not close_log(path) and path.read_bytes() == before


@pytest.mark.parametrize("content", ["", "no log\n", ':::MLLOG {"key": "init_start"}\n'])
def test_a_log_without_a_run_is_left_alone(tmp_path, content):
    path = tmp_path / "bert.log"
    path.write_text(content)
    assert not close_log(path) and path.read_text() == content
