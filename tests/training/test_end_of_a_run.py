"""How a run ends: what is saved and evaluated, in which order; also after a kill at its end.

The loop is the real one; stand-ins train by a clock that they move.
"""

import dataclasses
import re

import pytest

from mlperf_bert.mlperf import log_reader
from mlperf_bert.signals import Interrupted
from mlperf_bert.training import workers
from mlperf_bert.training.inspection import inspect_closely
from mlperf_bert.training.output import OutputDirectory
from tests.mlperf.example_log import Clock, write_log_of_minutes
from tests.training.stand import EVALUATION, Stand


def keys(path):
    wanted = ("block_start", "block_stop", "eval_start", "eval_accuracy")
    return [record.key for record in log_reader.read_records(path) if record.key in wanted]


BLOCK, EVAL = ["block_start", "block_stop"], ["eval_start", "eval_accuracy"]


def test_a_line_of_metrics_has_loss_and_rates_of_its_step(tmp_path):
    stand = Stand(evaluates=False, num_train_steps=20)
    stand.loss_of = float
    stand.run(tmp_path / "bert.log")
    assert {line["kind"] for line in stand.written} == {"train"}
    # A step is 8 samples and a second.
    wanted = ("step", "samples", "loss", "learning_rate", "samples_per_second", "host_seconds")
    assert [[line[name] for name in wanted] for line in stand.written] == [
        [7, 56, 7.0, 0.6, 8.0, 7.0],  # rates count from step 0, seconds from the line before
        [14, 112, 14.0, 1.3, 8.0, 7.0],
    ]


# A step takes a second, an evaluation 30; one is due after every 20th step. What a budget allowed
# is saved before it is evaluated: killed then, the same command finds the checkpoint, and no time
# left. Any other last step is evaluated first: the time to its target would count the checkpoint.
ENDS = {
    "a budget": ({"time_budget": "55s"}, 25, "evaluate, save 25, saved, evaluate"),
    "a budget at a due step": ({"time_budget": "20s"}, 20, "save 20, saved, evaluate"),
    "a budget in an evaluation": ({"time_budget": "40s"}, 20, "evaluate, save 20, saved"),
    "a budget and nothing to evaluate": (
        {"time_budget": "15s", "evaluates": False}, 15, "save 15, saved",
    ),
    "a budget and the target": (
        {"time_budget": "15s", "target_accuracy": 0.5}, 15, "save 15, saved, evaluate",
    ),
    "the target at a checkpoint": (
        {"target_accuracy": 0.5, "save_checkpoints_steps": 20}, 20, "evaluate, save 20, saved",
    ),
    "the last step": ({"num_train_steps": 30}, 30, "evaluate, evaluate, save 30, saved"),
    "a target of before that is not confirmed": (
        {"step": 100, "samples_at_target": 100 * 8}, 100, "evaluate, saved",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS)
def test_what_ends_a_run_is_saved_and_evaluated_once_in_this_order(tmp_path, case):
    flags, last_step, events = ENDS[case]
    stand = Stand(**flags)
    outcome = stand.run(tmp_path / "bert.log")
    status = "success" if flags.get("target_accuracy") == 0.5 else "aborted"
    accuracy = 0.5 if "evaluate" in events.split(", ") else None
    assert (outcome.samples, outcome.status, outcome.accuracy) == (8 * last_step, status, accuracy)
    assert stand.events == events.split(", ")
    block = BLOCK if "step" not in flags else []
    assert keys(tmp_path / "bert.log") == (block + EVAL) * events.count("evaluate") or block


def test_a_resumed_run_has_spent_what_its_killed_process_has(tmp_path):
    stand = Stand(step=60, used=50.0, time_budget="1h")
    stand.run(tmp_path / "bert.log")
    spent = [line["time_budget_spent_seconds"] for line in stand.written]
    assert spent[0] == 50 + 3 and spent[-1] == 50 + 40 + 2 * EVALUATION


@pytest.mark.parametrize("seconds", [15, 16, 17, 23.5])
def test_a_budget_ends_on_a_whole_update(tmp_path, seconds):
    """Or the gradients added up so far would be lost."""
    stand = Stand(
        time_budget=f"{seconds}s", evaluates=False, steps_per_update=8, num_train_steps=800
    )
    outcome = stand.run(tmp_path / "bert.log")
    assert outcome.samples == 8 * -(-seconds // 8) * 8
    assert stand.clock.now - Clock().now < seconds + 8


@pytest.mark.parametrize(
    "at_the_end", [{"step": 100}, {"step": 60, "used": 55.0, "time_budget": "55s"}, {"step": 108}]
)
@pytest.mark.parametrize("evaluates", [True, False])
def test_a_run_that_was_killed_at_its_end_is_evaluated_and_ends(tmp_path, at_the_end, evaluates):
    stand = Stand(**at_the_end, evaluates=evaluates)
    outcome = stand.run(tmp_path / "bert.log")
    assert (outcome.samples, outcome.status) == (8 * at_the_end["step"], "aborted")
    assert outcome.accuracy == (0.5 if evaluates else None)
    assert stand.events == ["saved"] + ["evaluate"] * evaluates
    assert keys(tmp_path / "bert.log") == EVAL * evaluates
    *_, samples = [
        r.value for r in log_reader.read_records(tmp_path / "bert.log") if r.key == "train_samples"
    ]
    assert samples == 8 * at_the_end["step"]


@pytest.mark.parametrize(
    ("target", "samples", "trains"),
    [(0.5, 20 * 8, False), (0.5, 40 * 8, True), (0.7, 20 * 8, True), (0.5, None, True)],
)
def test_a_run_that_was_cut_off_after_its_target_has_only_to_end(tmp_path, target, samples, trains):
    """It goes on where an evaluation does not confirm the target, or at another step."""
    stand = Stand(step=20, target_accuracy=target, samples_at_target=samples)
    outcome = stand.run(tmp_path / "bert.log")
    assert outcome.status == ("success" if target == 0.5 else "aborted")
    assert (outcome.samples > 8 * 20) is trains
    assert keys(tmp_path / "bert.log")[:2] == (BLOCK if samples != 20 * 8 else EVAL)


def test_a_signal_after_the_last_step_does_not_stop_its_end(tmp_path):
    """It would leave a checkpoint of the last step, and nothing to train."""
    stand = Stand(num_train_steps=7)
    stand.signal_at = 7
    assert stand.run(tmp_path / "bert.log").samples == 8 * 7
    stand = Stand(num_train_steps=8)
    stand.signal_at = 7
    with pytest.raises(Interrupted, match="SIGTERM after step 7"):
        stand.run(tmp_path / "other.log")


def test_an_evaluation_is_in_the_file_before_it_is_published(tmp_path):
    stand = Stand(num_train_steps=20)
    stand.write = lambda kind, **figures: stand.events.append(f"write {kind}")
    stand.flush = lambda: stand.events.append("flush")
    stand.publish = lambda: stand.events.append("publish")
    stand.run(tmp_path / "bert.log")
    at = stand.events.index("write eval")
    assert stand.events[at - 1 : at + 3] == ["evaluate", "write eval", "flush", "publish"]


@pytest.mark.parametrize("error", [OSError, FloatingPointError])
def test_a_run_that_cannot_save_or_diverges_evaluates_saves_and_logs_no_more(tmp_path, error):
    stand = Stand(num_train_steps=20, save_checkpoints_steps=20, log_every_steps=20)
    if error is OSError:

        def require_no_failure():
            if stand.trained_step == 20:
                raise OSError("No space left on device")

        stand.require_no_failure = require_no_failure
    else:
        stand.loss_of = lambda step: float("nan") if step == 20 else 0.0
    with pytest.raises(error):
        stand.run(tmp_path / "bert.log")
    assert stand.trained_step == 20 and not stand.events and not stand.written


def test_the_seconds_of_saving_are_told_apart(tmp_path):
    stand = Stand(evaluates=False, save_checkpoints_steps=7, num_train_steps=21)
    stand.save = lambda step, run: stand.clock.pass_by(5)
    stand.wait = lambda: stand.clock.pass_by(2)
    stand.run(tmp_path / "bert.log")
    assert [line["saving_seconds"] for line in stand.written] == [0, 5, 5]
    spent = [
        r.value for r in log_reader.read_records(tmp_path / "bert.log") if r.key == "tracked_stats"
    ]
    assert spent[-1]["saving_seconds"] == 3 * 5 + 2


def test_positions_in_the_log_are_samples(tmp_path):
    Stand(num_train_steps=30).run(tmp_path / "bert.log")
    records = log_reader.read_records(tmp_path / "bert.log")
    assert [
        (record.key, record.metadata["first_epoch_num"], record.metadata["samples_count"])
        for record in records
        if record.key in BLOCK
    ] == [
        ("block_start", 0, 0), ("block_stop", 0, 160),
        ("block_start", 160, 160), ("block_stop", 160, 240),
    ]  # fmt: skip
    planned = [r.metadata["epoch_count"] for r in records if r.key == "block_start"]
    assert planned == [160, 80]  # the last is as long as the training
    evaluations = [record.metadata for record in records if record.key == "eval_accuracy"]
    assert [(each["epoch_num"], each["step_num"]) for each in evaluations] == [(160, 20), (240, 30)]


@pytest.mark.parametrize("saves_every", [20, 7, 13, 10**6])
@pytest.mark.parametrize("budget", [None, "20s", "33s", "50s", "51s"])
@pytest.mark.parametrize("signal_step", [None, 7, 20, 21, 100])
@pytest.mark.parametrize("steps_per_update", [1, 4])
def test_whatever_ends_a_run_its_last_step_is_saved_once_and_evaluated_at_most_once(
    tmp_path, saves_every, budget, signal_step, steps_per_update
):
    """Of all orders of evaluation, checkpoint, time limit and signal."""
    stand = Stand(
        save_checkpoints_steps=saves_every, time_budget=budget, steps_per_update=steps_per_update
    )
    stand.signal_at = signal_step
    try:
        ending = stand.run(tmp_path / "bert.log").status
    except Interrupted:
        ending = "interrupted"
    step = stand.trained_step
    saved = [event for event in stand.events if event.startswith("save ")]
    assert saved[-1] == f"save {step}" and len(set(saved)) == len(saved)
    assert all(int(each.split()[1]) % saves_every == 0 for each in saved[:-1])
    after = stand.events[stand.events.index(saved[-1]) + 1 :]
    assert after in (["saved"], ["saved", "evaluate"])
    # An interrupted run evaluates its last step only if that was due.
    assert stand.evaluated.count(step) == (ending != "interrupted" or step % 20 == 0)
    keys_of_log = [record.key for record in log_reader.read_records(tmp_path / "bert.log")]
    assert keys_of_log.count("run_stop") == 1
    if budget is None and signal_step is None:
        assert step == 100 and ending == "aborted"
    if ending == "interrupted":
        assert step >= signal_step and step < 100
        # It goes on within its last block.
        assert [key for key in keys_of_log if key in BLOCK][-1] == "block_start"


def killed_run(config, *, minutes):
    """The directory of a run that was killed after so long."""
    output = OutputDirectory.of(config)
    output.path.mkdir()
    output.record(status="running", seed=7)
    write_log_of_minutes(output.path / "bert.log", minutes=minutes, saved=[1])
    return output


@pytest.mark.parametrize("latest_step", [None, 0])
def test_a_budget_that_is_used_up_with_nothing_saved_is_refused(config, latest_step):
    given = dataclasses.replace(config, time_budget=180.0)
    output = killed_run(given, minutes=3)
    output.claim()
    with pytest.raises(ValueError, match=r"^--time_budget=3m: the run in .* has used 3m already"):
        output.beginning(None, latest_step=latest_step)
    assert output.beginning(None, latest_step=5)["spent_seconds"] == 180
    output.release()


def test_another_budget_that_is_used_up_is_refused(config):
    """By a run and by --check: every file stays as it is."""
    output = killed_run(dataclasses.replace(config, time_budget=240.0), minutes=3)
    before = {path: path.read_bytes() for path in output.path.iterdir()}
    given = dataclasses.replace(config, time_budget=120.0)
    message = (
        f"--time_budget=2m: the run in --output_dir={given.output_dir} has used 3m already; give "
        "more, or leave it out"
    )
    assert message in inspect_closely(given, measure_initial_accuracy=False).findings.errors
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        workers.agree(given)
    assert {path: path.read_bytes() for path in output.path.iterdir()} == before


def test_a_resumed_run_keeps_the_seed_that_was_drawn(config):
    """It must draw the same examples and the same dropout."""
    config = dataclasses.replace(config, seed=None)
    killed_run(config, minutes=1)
    _, team = workers.agree(config)
    team.output.release()
    assert team.was_started_before and team.seed == 7


@pytest.mark.parametrize("error", [Interrupted, FloatingPointError, ValueError])
def test_whatever_ends_a_run_its_directory_is_free(config, error):
    """At once: in a bucket the lock of a process that is gone counts for forty seconds more."""
    _, team = workers.agree(config)
    with pytest.raises(error), team.ending_together():
        raise error
    assert not team.output.location.exists()
