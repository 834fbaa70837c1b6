"""A training's log and later evaluations become one log that the official checker accepts."""

import dataclasses

import pytest

from mlperf_bert.checkpoints import names
from mlperf_bert.mlperf import energy, joining
from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.mlperf.log_reader import read_records, read_run
from mlperf_bert.submission import compliance
from tests.mlperf.example_log import EPOCH_MS, HYPERPARAMETERS, SUBMISSION, without_site

INTERVAL_STEPS, MICRO_BATCH, MINUTE_MS = 670, 224, 60_000
START_MS = EPOCH_MS + 1_000_000
STEPS = [INTERVAL_STEPS * number for number in range(1, 6)]


def training_log(path, *, steps=STEPS, start_ms=START_MS, division="closed", meter=None):
    """The log of a training by steps of 224, two for an update, that saves once in ten minutes."""
    with MlperfLog(path) as log:
        log.time_ms = start_ms - MINUTE_MS
        log.init_start(cache_cleared=True)
        log.events(dataclasses.replace(SUBMISSION, division=division).events())
        log.events(HYPERPARAMETERS | {"gradient_accumulation_steps": 2})
        log.weights_initialization(weight.tf1_name for weight in names.weights(24))
        log.time_ms = start_ms
        log.init_stop()
        with log.run(meter=meter) as run:
            run.block_start(0, num_samples=STEPS[-1] * MICRO_BATCH)
            for step in steps:
                saved_ms = start_ms + 10 * MINUTE_MS * step // INTERVAL_STEPS
                log.time_ms = saved_ms - 5000
                run.checkpoint_start(step)
                log.time_ms = saved_ms
                run.checkpoint_stop(step)
            run.block_stop(STEPS[-1] * MICRO_BATCH)
    return path


def join(folder, accuracies, logs=None, num_eval_samples=10_000, steps=STEPS):
    return joining.join(
        logs or [folder / "bert.log"],
        dict(zip(steps, accuracies)),
        num_eval_samples=num_eval_samples,
        target_accuracy=0.72,
        output=folder / "result.txt",
    )


@pytest.mark.parametrize("ruleset", ["1.0.0", "5.0.0"])
def test_the_result_passes_the_official_checker(tmp_path, ruleset):
    training_log(tmp_path / "bert.log")
    assert join(tmp_path, [0.5, 0.6, 0.72, 0.7195, 0.73]) == ("success", 3 * 150_080)
    verdict = compliance.check_log(tmp_path / "result.txt", ruleset)
    assert verdict.passed, verdict.messages


@pytest.mark.parametrize(
    "num_examples, division", [(10_000, "closed"), (9_999, "open"), (10_001, "open")]
)
def test_another_number_of_evaluation_examples_is_division_open(tmp_path, num_examples, division):
    training_log(tmp_path / "bert.log")
    join(tmp_path, [0.5, 0.6, 0.7201], num_eval_samples=num_examples)
    assert read_run(tmp_path / "result.txt").division == division


def test_the_clock_stops_at_the_first_checkpoint_that_passes(tmp_path):
    training_log(tmp_path / "bert.log")
    result, accuracies = tmp_path / "result.txt", [0.5, 0.6, 0.7201, 0.7195, 0.73]
    join(tmp_path, accuracies)
    told = [(r.time_ms, r.key, r.value, without_site(r.metadata)) for r in read_records(result)]
    begin = [key for _, key, _, _ in told].index("run_start")
    expected = [(START_MS, "run_start", None, {}), (START_MS, "eval_samples", 10_000, {})]
    for number, accuracy in enumerate(accuracies[:3]):
        before, samples = 150_080 * number, 150_080 * (number + 1)
        began_ms = START_MS + 10 * MINUTE_MS * number
        saved_ms = began_ms + 10 * MINUTE_MS
        trained = {"first_epoch_num": before, "samples_count": before, "epoch_count": 150_080}
        at = {"epoch_num": samples, "samples_count": samples}
        expected += [
            (began_ms, "block_start", None, trained),
            (saved_ms, "block_stop", None, {"first_epoch_num": before, "samples_count": samples}),
            (saved_ms, "eval_start", None, at),
            (saved_ms, "eval_stop", None, at),
            (saved_ms, "eval_accuracy", accuracy, at | {"step_num": STEPS[number]}),
        ]
    expected += [
        (START_MS + 30 * MINUTE_MS, "train_samples", 450_240, {}),
        (START_MS + 30 * MINUTE_MS, "run_stop", None, {"status": "success"}),
    ]
    assert told[begin:] == expected
    lines = (tmp_path / "bert.log").read_text().splitlines()
    assert result.read_text().splitlines()[:begin] == lines[:begin]
    before = result.read_bytes()
    join(tmp_path, accuracies)
    assert result.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"bert.log", "result.txt"}


def test_no_checkpoint_that_passes_is_an_aborted_run(tmp_path):
    training_log(tmp_path / "bert.log", steps=[0, *STEPS])  # 0: nothing is trained yet
    assert join(tmp_path, [0.5, 0.6, 0.61, 0.62, 0.719]) == ("aborted", 5 * 150_080)
    run = read_run(tmp_path / "result.txt")
    assert (run.status, run.minutes) == ("aborted", 50.0)


def test_a_resumed_training_runs_on_the_first_clock_and_is_no_submission(tmp_path):
    logs = [
        training_log(tmp_path / "bert.log", steps=STEPS[:3]),
        training_log(
            tmp_path / "bert.resumed-1.log",
            steps=STEPS[2:],
            start_ms=START_MS + 60 * MINUTE_MS,
            division="open",
        ),
    ]
    # Step 3 was saved again after the interruption, 90 minutes after the start.
    assert join(tmp_path, [0.5, 0.6, 0.73], logs) == ("success", 3 * 150_080)
    assert read_run(tmp_path / "result.txt").minutes == 90.0
    text = (tmp_path / "result.txt").read_text()
    assert text.count('"submission_division"') == text.count('"value": "open"') == 1


def test_a_result_has_no_energy_because_the_training_went_on(tmp_path):
    training_log(tmp_path / "bert.log", meter=energy.meter(power_watts=100))
    join(tmp_path, [0.5, 0.73])
    assert read_run(tmp_path / "bert.log").energy.joules > 0
    assert read_run(tmp_path / "result.txt").energy is None


def test_an_earlier_checkpoint_must_have_been_evaluated(tmp_path):
    training_log(tmp_path / "bert.log")
    with pytest.raises(ValueError, match="the checkpoint of step 670 has not been evaluated"):
        join(tmp_path, [0.73], steps=[1340])
    with pytest.raises(ValueError, match="step 2680 has not been evaluated"):
        join(tmp_path, [0.5, 0.6, 0.7])
    assert not (tmp_path / "result.txt").exists()


def test_logs_without_a_run_or_checkpoints_are_refused(tmp_path):
    training_log(tmp_path / "bert.log", steps=[])
    with pytest.raises(ValueError, match="the training saved no checkpoint"):
        join(tmp_path, [0.73])
    lines = (tmp_path / "bert.log").read_text().splitlines(keepends=True)
    (tmp_path / "bert.log").write_text("".join(lines[:20]))
    with pytest.raises(ValueError, match="copy the log of a training of this project again"):
        join(tmp_path, [0.73])
