"""Reading logs of any vendor, and what those of a run say of its budget of time.

Long because every way in which a log cannot be true stands in one table.
"""

import pytest

from mlperf_bert.mlperf import ledger, log_reader
from mlperf_bert.mlperf.energy import Energy
from mlperf_bert.mlperf.log_reader import seconds_spent
from mlperf_bert.options import duration, parse_duration
from tests.mlperf.example_log import (
    EPOCH_MS,
    INTERVAL_SAMPLES,
    write_lines,
    write_log,
    write_log_of_minutes,
)


@pytest.fixture
def read(tmp_path):
    """Returns a function that reads the log of a minute with lines before and within it."""

    def read(*lines, before=(), name="result_0.txt") -> log_reader.RunResult:
        size, start = (0, "global_batch_size", 448, {}), (0, "run_start", None, {})
        stop = (60_000, "run_stop", None, {"status": "success"})
        return log_reader.read_run(write_lines(tmp_path / name, size, *before, start, *lines, stop))

    return read


def test_all_that_a_log_says_is_read(tmp_path):
    """Also what several ranks say, or one says twice."""
    seconds = dict.fromkeys(ledger.KINDS, 1.0) | {ledger.COMPUTE: 295.0}
    taken = Energy(joules=9.256789, about="of the GPUs")
    value, about = taken.as_event()
    configuration: dict[str, object] = {"opt_name": "lamb", "lowest_numerical_precision_in_x": "b"}
    configuration |= {f"{kind}_parallelism": 2 for kind in ("tensor", "pipeline", "context")}
    configuration |= {"expert_parallelism": 3, "micro_batch_size": 4, "num_warmup_steps": 5}
    configuration |= {"gradient_accumulation_steps": 6, "start_warmup_step": -7}
    configuration["time_budget_seconds"] = 8.5
    log = write_lines(
        tmp_path / "result_0.txt",
        (1_000, "cache_clear", True, {}),
        *((ms, "init_start", None, {}) for ms in (1_200, 1_000)),
        (1_500, "submission_benchmark", "BERT", {}),
        (1_500, "submission_division", "closed", {}),
        *((1_500, "global_batch_size", size, {}) for size in (9, 448)),
        *((1_500, "eval_samples", number, {}) for number in (None, [10_000], 9)),
        *((1_500, "seed", seed, {}) for seed in (7, "8")),
        (1_500, "max_sequence_length", 512, {}),
        (1_500, "num_replicas", 16, {}),
        *((1_500, key, value, {}) for key, value in configuration.items()),
        (1_500, "config_filename", "run.json", {}),
        (1_500, "provenance", {"commit": "ab", "image": 5}, {}),
        *((1_500, "weights_initialization", None, {"tensor": name}) for name in "abba"),
        (1_500, "weights_initialization", None, None),
        *((ms, "init_stop", None, {}) for ms in (3_000, 4_000)),
        (6_000, "run_start", None, {}),
        *((ms, "block_start", None, {}) for ms in (6_000, 9_000)),
        (30_000, "checkpoint_start", None, {}),
        (36_000, "checkpoint_stop", None, {}),
        (66_000, "block_stop", None, {}),
        (66_000, "tracked_stats", ledger.as_fields(seconds | {"host": 3.0}), {"of": "block"}),
        (66_000, "eval_start", None, {}),
        (126_000, "eval_accuracy", 0.5, {"epoch_num": 448}),
        (156_000, "eval_stop", None, {}),
        (246_000, "eval_accuracy", 0.73, {"epoch_num": 1344}),
        (246_000, "tracked_stats", ledger.as_fields(seconds), {"of": "run"}),
        *((246_000, "energy", each, {"of": "run", **about}) for each in (value, {"joules": 3})),
        (306_000, "run_stop", None, {"status": "success"}),
        (0, "submission_org", "late", {}),
    )
    with log.open("a") as lines:
        lines.write("not of the log\n")
    assert log_reader.read_run(log) == log_reader.RunResult(
        path=log,
        status="success",
        minutes=5.0,
        init_minutes=0.05,
        samples_to_converge=1344,
        counts_by_train_samples=False,
        global_batch_size=448,
        num_eval_samples=10_000,
        seeds=(7, 8),
        evaluations=(
            log_reader.LoggedEvaluation(minutes=2.0, samples=448, accuracy=0.5),
            log_reader.LoggedEvaluation(minutes=4.0, samples=1344, accuracy=0.73),
        ),
        benchmark="bert",
        division="closed",
        cache_cleared=True,
        hyperparameters=configuration | {"global_batch_size": 448},
        provenance={"commit": "ab", "image": "5"},
        seconds=seconds,
        energy=taken,
        max_sequence_length=512,
        num_weights=2,
        num_replicas=16,
        planned_samples=None,
        started_ms=EPOCH_MS + 6_000,
    )
    assert log_reader.read_run(log).samples_per_second == 1344 / 300


@pytest.mark.parametrize(
    "numbers",
    [(1, 2, 3), (0, 1, 2), (0.05, 0.1, 0.15), (1, 1, 1), (2, 2, 3), (335, 670, 1005)],
    ids=["evaluations", "from 0", "parts of an epoch", "epochs", "later epochs", "steps"],
)
@pytest.mark.parametrize("train_samples", [(450_240,), ()])
def test_an_epoch_num_that_is_no_number_of_samples_is_not_taken_for_one(
    read, numbers, train_samples
):
    run = read(
        *((9, "eval_accuracy", 0.72, {"epoch_num": number}) for number in numbers),
        *((9, "train_samples", number, {}) for number in train_samples),
    )
    assert run.samples_to_converge == (train_samples[0] if train_samples else None)
    assert run.counts_by_train_samples
    assert [evaluation.samples for evaluation in run.evaluations] == [None] * 3


PLAN = 156_725_653


@pytest.mark.parametrize(
    ("at_init", "after_start", "each_time", "at_end", "expected"),
    [
        ([PLAN], [], [], [], None),
        ([3_000_256], [], [], [], None),
        ([], [3_000_256], [], [], None),
        ([], [], [3_000_256], [], None),  # the same beside each evaluation
        ([3_000_256], [], [], [3_000_256], None),  # the plan, said again
        ([], [], [], [PLAN], None),  # as many as the data set has
        ([3_000_256], [], [], [2_700_096], 2_700_096),
        ([PLAN] * 8, [], [], [2_700_096] * 8, 2_700_096),  # of every rank
        ([], [], [], [2_700_096, 2_700_096], 2_700_096),
    ],
)
def test_train_samples_of_before_the_training_are_a_plan(
    read, at_init, after_start, each_time, at_end, expected
):
    def logged(values):
        return [(9, "train_samples", value, {}) for value in values]

    accuracies = [0.5, 0.6, 0.72]
    evaluated = [
        [(9, "eval_accuracy", accuracy, {"epoch_num": 1}), *logged(each_time)]
        for accuracy in accuracies
    ]
    run = read(
        *logged(after_start),
        (0, "block_start", None, {}),
        *(line for lines in evaluated for line in lines),
        *logged(at_end),
        before=[(0, "eval_accuracy", 0.34, {"epoch_num": 0}), *logged(at_init)],
    )
    assert (run.samples_to_converge, run.samples_per_second is None) == (expected, not expected)
    planned = next(iter(at_init + after_start + each_time + at_end))
    assert run.planned_samples == (None if expected else planned)


@pytest.mark.parametrize(
    ("accuracies", "samples"),
    [((0.5, 0.72), None), ((0.72, 0.72), 3_000_256)],  # the latter of two ranks
)
def test_one_epoch_num_beside_several_results_is_a_plan(read, accuracies, samples):
    lines = ((9, "eval_accuracy", value, {"epoch_num": 3_000_256}) for value in accuracies)
    assert read(*lines).samples_to_converge == samples


@pytest.mark.parametrize(
    ("numbers", "train_samples", "expected"),
    [
        ((448, 896), 3_000_256, (896, False)),
        ((500, 1000), 448_000, (448_000, True)),  # steps of 448
        ((1, 1, 1), 448_000, (448_000, True)),  # before the last line of another rank
    ],
)
def test_a_plan_does_not_replace_samples_nor_do_they_replace_what_counts_none(
    read, numbers, train_samples, expected
):
    accuracies = (0.5, 0.72, 0.72)
    evaluated = [
        (9, "eval_accuracy", accuracy, {"epoch_num": number})
        for accuracy, number in zip(accuracies, numbers)
    ]
    run = read(*evaluated[:2], (9, "train_samples", train_samples, {}), *evaluated[2:])
    assert (run.samples_to_converge, run.counts_by_train_samples) == expected


def test_evaluations_outside_the_clock(tmp_path):
    """One before it belongs to the start, one after it to a model that the run has left."""
    log = write_lines(
        tmp_path / "result_0.txt",
        (0, "eval_accuracy", 0.34, {"epoch_num": 0}),
        (5_000, "run_start", None, {}),
        (65_000, "eval_accuracy", 0.72, {"epoch_num": 448}),
        (65_000, "run_stop", None, {"status": "success"}),
        (90_000, "eval_accuracy", 0.73, {"epoch_num": 896}),
    )
    run = log_reader.read_run(log)
    assert [evaluation.samples for evaluation in run.evaluations] == [0, 448]
    assert (run.samples_to_converge, run.minutes, run.cache_cleared) == (448, 1.0, False)


def test_letters_beyond_ascii_do_not_end_a_line(tmp_path):
    log = write_log(tmp_path / "result_0.txt", [0.73])
    log.write_text(log.read_text().replace('"1xExample"', '"Å\u2028box"'), encoding="utf-8")
    assert log_reader.read_run(log).succeeded


RUN_START, RUN_STOP = (1000, "run_start", None, {}), (2000, "run_stop", None, {"status": "aborted"})
SUCCESS = (2000, "run_stop", None, {"status": "success"})


def evaluated(accuracy, ms=1500):
    return (ms, "eval_accuracy", accuracy, {"epoch_num": 448})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([RUN_START], "0 lines run_stop, a log of one run has 1"),
        ([RUN_START, RUN_STOP, RUN_STOP], "2 lines run_stop, a log of one run has 1"),
        ([RUN_START, (1, "run_stop", None, {})], "the clocks ran backwards"),
        ([(9_000_000, "run_stop", None, {}), RUN_START], "the clocks ran backwards"),
        ([RUN_START, (1, "seed", "x", {}), RUN_STOP], "a seed is not a whole number"),
        ([RUN_START, (1, "seed", None, {}), RUN_STOP], "a seed is not a whole number"),
        (
            [RUN_START, (1, "eval_accuracy", None, {}), RUN_STOP],
            "eval_accuracy None is not a number",
        ),
        ([("soon", "run_start", None, {})], "line 1: cut or damaged"),
        ([(1, "run_start", None, [1])], "line 1: cut or damaged"),
        ([(float("inf"), "run_start", None, {})], "line 1: cut or damaged"),
        ([(1, ["run_start"], None, {})], "line 1: cut or damaged"),
        ([RUN_START, (1, "seed", float("inf"), {}), RUN_STOP], "a seed is not a whole number"),
        ([RUN_START, (1, "eval_accuracy", 10**400, {}), RUN_STOP], "eval_accuracy 1000.* is no"),
        (
            [RUN_START, (1, "eval_accuracy", 0.5, {"epoch_num": "9"}), RUN_STOP],
            "epoch_num of eval_accuracy is '9', which is not a number of samples",
        ),
        (
            [(1.7e9, *RUN_START[1:]), RUN_STOP],
            "run_start is not in milliseconds .* but in seconds",
        ),
        ([RUN_START, (1.7e18, *RUN_STOP[1:])], "of run_stop is not in .* 1970 but in nanoseconds"),
        (
            [RUN_START, (0.5, *evaluated(0.72)[1:]), RUN_STOP],
            "eval_accuracy is .* but in something",
        ),
        ([RUN_START, evaluated(72.03), SUCCESS], "eval_accuracy is not from 0 to 1, is it in"),
        ([RUN_START, evaluated(-0.1), RUN_STOP], "eval_accuracy is not from 0 to 1, is it in"),
        (
            [RUN_START, (1, "submission_benchmark", "GPT3", {}), RUN_STOP],
            "a log of gpt3, not of be",
        ),
        (
            [RUN_START, evaluated(0.7199), SUCCESS],
            "success, and no evaluation has .* 0.720 or more",
        ),
        ([RUN_START, SUCCESS], "success, and no evaluation has an accuracy of 0.720 or more"),
        ([RUN_START, SUCCESS, evaluated(0.72, 9000)], "success, and no evaluation has an accuracy"),
        ([RUN_START, evaluated(float("nan")), SUCCESS], "says success with accuracy nan"),
        ([RUN_START, evaluated(0.72), (1000, *SUCCESS[1:])], "its log has no times, run_start and"),
        *(
            ([RUN_START, (1, key, value, {}), RUN_STOP], f"{key} is .*, which is not a number of")
            for key in ("global_batch_size", "eval_samples", "train_samples")
            for value in ([448, 448], "448", True, -1, float("nan"), 10**30)
        ),
    ],
)
def test_impossible_logs_are_refused(tmp_path, lines, message):
    with pytest.raises(ValueError, match=message):
        log_reader.read_run(write_lines(tmp_path / "result_0.txt", *lines))


def test_a_success_needs_the_target_before_the_end_or_another_target(tmp_path):
    """Another rank's line may stand behind run_stop; an open run's target is its own."""

    def read(*lines):
        return log_reader.read_run(write_lines(tmp_path / "result_0.txt", RUN_START, *lines))

    assert read(evaluated(0.72), SUCCESS).succeeded
    assert read(evaluated(0.72), evaluated(0.71, 1600), SUCCESS).succeeded
    assert read(evaluated(0.71), SUCCESS, evaluated(0.72, 2000)).succeeded
    for division in ("open", "Open", "OPEN "):
        run = read((1, "submission_division", division, {}), evaluated(0.5), SUCCESS)
        assert run.succeeded and run.division == "open"
    assert read((1, "submission_division", "Closed", {}), RUN_STOP).division == "closed"


@pytest.mark.parametrize("between", ["", " ", "1: ", "[1,3]<stdout>:", "\x1b[0m", "\r"])
def test_records_on_one_line_are_all_read(tmp_path, between):
    """Concurrent writers leave them so, whatever each puts before or behind its own."""
    log = write_lines(
        tmp_path / "result_0.txt",
        RUN_START, evaluated(0.72), (1600, "text", "of :::MLLOG {}", {}), SUCCESS,
    )  # fmt: skip
    expected = log_reader.read_run(log)
    text = log.read_text().replace("\n0: ", between)
    log.write_text(text.replace(":::MLLOG ", ":::MLLOG", 1) + between)
    assert log_reader.read_run(log) == expected
    log.write_text(text.replace('"key": "eval', ':::MLLOG {"key": "eval'))
    with pytest.raises(ValueError, match=r"result_0.txt line \d: cut or damaged"):
        log_reader.read_run(log)


@pytest.mark.parametrize(
    "content, told",
    [
        (b":::MLPv0.5.0 bert 1541600000.5 (train.py:9) run_start\n",
         r"no line starts with :::MLLOG, its lines have :::MLPv0\.5"),
        (b'{"log":":::MLLOG {}\\n","stream":"stdout"}\n', "docker's own record .*`docker logs`"),
        (":::MLLOG {}\n".encode("utf-16"), "is UTF-16; write it as plain text"),
    ],
)  # fmt: skip
def test_lines_of_another_format_are_named(tmp_path, content, told):
    (tmp_path / "result_0.txt").write_bytes(content)
    with pytest.raises(ValueError, match=told):
        log_reader.read_run(tmp_path / "result_0.txt")


def test_runs_that_can_be_read_are_also_of_logs_that_end_anywhere(tmp_path):
    write_log(tmp_path / "aborted.log", [0.5])
    success = write_log(tmp_path / "success.log", [0.5, 0.73])
    (tmp_path / "damaged.log").write_text(":::MLLOG {\n")
    lines = success.read_text().splitlines(keepends=True)
    (tmp_path / "cut.log").write_text("".join(lines[:-1]) + lines[-1][:40])
    names = ["aborted", "damaged", "missing", "cut", "success"]
    found = list(log_reader.readable_runs([tmp_path / f"{name}.log" for name in names]))
    assert [run.status for run in found] == ["aborted", "running", "success"]
    assert [len(run.evaluations) for run in found] == [1, 2, 2]
    assert [run.samples_to_converge for run in found] == [None, None, 2 * INTERVAL_SAMPLES]


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
    write_log_of_minutes(logs[0], minutes=3, saved=[1, 2, 5])
    write_log_of_minutes(logs[1], minutes=2, saved=[5, 9])
    assert seconds_spent(logs) == 300
    for number in (10, 2):
        (tmp_path / f"bert.resumed-{number}.log").touch()
    names = [log.name for log in log_reader.logs_of_run(tmp_path)]
    assert names == ["bert.log", *(f"bert.resumed-{number}.log" for number in (1, 2, 10))]
    assert seconds_spent([]) == 0


def test_of_a_killed_process_the_time_up_to_its_last_line_counts(tmp_path):
    path = tmp_path / "bert.log"
    write_log_of_minutes(path, minutes=3, saved=[1])
    path.write_bytes(path.read_bytes() + b':::MLLOG {"namespace": "", "time_ms": 99')
    assert seconds_spent([path]) == 180
    write_log_of_minutes(tmp_path / "back.log", minutes=-3, saved=[1])
    assert seconds_spent([tmp_path / "back.log", path]) == 180
    before_the_clock = path.read_text().partition("run_start")[0]
    path.write_text(before_the_clock.rpartition("\n")[0] + "\n")
    assert seconds_spent([path]) == 0
