"""How a run ends: what is saved and evaluated, in which order; also after a kill at its end.

The loop is the real one; stand-ins train by a clock that they move.
"""

import dataclasses
import types

import numpy as np
import pytest

from mlperf_bert.mlperf import results
from mlperf_bert.mlperf.ledger import Ledger
from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.signals import Interrupted
from mlperf_bert.training import agreement, checks
from mlperf_bert.training.budget import TimeBudget
from mlperf_bert.training.config import Schedule
from mlperf_bert.training.loop import TrainingLoop
from mlperf_bert.training.output import OutputDirectory
from mlperf_bert.training.steps import FIGURES
from tests.mlperf.example_log import initialise
from tests.mlperf.test_budget import write_log
from tests.mlperf.test_ledger import Clock
from tests.training.test_checks import config  # noqa: F401 - a fixture

EVALUATION = 30.0
"""Seconds of one."""


class Stand:
    """Everything around the loop: a step takes a second; `events` has what happens."""

    batch_size = 8

    def __init__(self, *, step=0, num_train_steps=100, interval=20, used=0.0, **changed):
        self.clock, self.events, self.signal_name = Clock(), [], None
        self.step = types.SimpleNamespace(numpy=lambda: step)
        self.any_process = lambda value: value
        given = {"seconds": None, "steps_per_update": 1} | changed
        budget = TimeBudget(
            **given,
            before=used,
            num_train_steps=num_train_steps,
            num_warmup_steps=0,
            evaluation_interval_steps=interval,
            batch_size=self.batch_size,
            of_chief=lambda values: values,
            progress=self,
        )
        self.loop = TrainingLoop(
            trainer=self,
            batches=iter(()),
            schedule=Schedule(
                num_train_steps=num_train_steps,
                evaluation_interval_steps=interval,
                save_checkpoints_steps=10**6,
                log_every_steps=7,
                iterations_per_loop=10,
            ),
            target_accuracy=0.7,
            learning_rate_at=lambda step: 0.1,
            evaluate=self.evaluate,
            saves=self,
            publish=lambda: None,
            metrics=types.SimpleNamespace(write=lambda *args, **figures: None),
            progress=self,
            profiler=types.SimpleNamespace(
                begin_if_due=lambda step: None,
                end_if_due=lambda step: None,
                next_stop=lambda step: None,
            ),
            budget=budget,
            stop_request=self,
        )

    def train(self, batches, num_steps):
        num_steps = int(num_steps)
        self.clock.pass_by(num_steps)
        return types.SimpleNamespace(numpy=lambda: np.zeros((num_steps, len(FIGURES))))

    def evaluate(self, ledger):
        self.events.append("evaluate")
        self.clock.pass_by(EVALUATION)
        return Evaluation(
            masked_lm_accuracy=0.5,
            masked_lm_loss=1.0,
            next_sentence_accuracy=0.5,
            next_sentence_loss=1.0,
            loss=2.0,
            num_examples=45,
        )

    def save(self, step, run):
        self.events.append(f"save {step}")

    def wait(self):
        self.events.append("saved")

    def require_no_failure(self):
        pass

    def advance(self, samples, text):
        pass

    def expect(self, total):
        pass

    def line(self, text):
        pass

    def run(self, path):
        """The outcome; `events` and the log's blocks are there even if it fails."""
        with MlperfLog(path, echo=False) as log:
            initialise(log)
            with log.run() as run:
                run.ledger = Ledger(clock=lambda: self.clock.now)
                return self.loop.run(run)


def keys(path):
    wanted = ("block_start", "block_stop", "eval_start", "eval_accuracy")
    return [record.key for record in results.read_records(path) if record.key in wanted]


BLOCK, EVAL = ["block_start", "block_stop"], ["eval_start", "eval_accuracy"]


def test_what_a_budget_allowed_is_saved_before_it_is_evaluated(tmp_path):
    """Killed during this evaluation, the same command finds the checkpoint and no time left."""
    stand = Stand(seconds=55.0)
    outcome = stand.run(tmp_path / "bert.log")
    # 20 steps, an evaluation of 30 s, 5 steps.
    assert outcome.step == 25 and outcome.accuracy == 0.5
    assert stand.events == ["evaluate", "save 25", "saved", "evaluate"]
    assert keys(tmp_path / "bert.log") == 2 * (BLOCK + EVAL)


def test_also_where_the_evaluation_was_due_at_that_step(tmp_path):
    stand = Stand(seconds=20.0)
    assert stand.run(tmp_path / "bert.log").step == 20
    assert stand.events == ["save 20", "saved", "evaluate"]


def test_an_evaluation_that_ends_the_budget_is_the_last(tmp_path):
    stand = Stand(seconds=40.0)
    assert stand.run(tmp_path / "bert.log").step == 20
    assert stand.events == ["evaluate", "save 20", "saved"]


def test_a_budget_without_evaluation_saves_and_ends(tmp_path):
    stand = Stand(seconds=15.0, interval=None)
    assert stand.run(tmp_path / "bert.log").accuracy is None
    assert stand.events == ["save 15", "saved"] and keys(tmp_path / "bert.log") == BLOCK


@pytest.mark.parametrize("seconds", [15, 16, 17, 23.5])
def test_a_budget_ends_on_a_whole_update(tmp_path, seconds):
    """Or the gradients added up so far would be lost."""
    stand = Stand(seconds=float(seconds), interval=None, steps_per_update=8)
    outcome = stand.run(tmp_path / "bert.log")
    assert outcome.step == -(-seconds // 8) * 8
    assert stand.clock.now - Clock().now < seconds + 8


@pytest.mark.parametrize(
    "at_the_end", [{"step": 100}, {"step": 60, "used": 55.0, "seconds": 55.0}, {"step": 108}]
)
@pytest.mark.parametrize("interval", [20, None])
def test_a_run_that_was_killed_at_its_end_is_evaluated_and_ends(tmp_path, at_the_end, interval):
    stand = Stand(**at_the_end, interval=interval)
    outcome = stand.run(tmp_path / "bert.log")
    assert (outcome.step, outcome.reached_target) == (at_the_end["step"], False)
    assert outcome.accuracy == (0.5 if interval else None)
    assert stand.events == ["evaluate"] * bool(interval)
    assert keys(tmp_path / "bert.log") == EVAL * bool(interval)
    *_, samples = [
        r.value for r in results.read_records(tmp_path / "bert.log") if r.key == "train_samples"
    ]
    assert samples == 8 * at_the_end["step"]


@pytest.mark.parametrize(
    ("target", "samples", "trains"),
    [(0.5, 20 * 8, False), (0.5, 40 * 8, True), (0.7, 20 * 8, True), (0.5, None, True)],
)
def test_a_run_that_was_cut_off_after_its_target_has_only_to_end(tmp_path, target, samples, trains):
    """It goes on where an evaluation does not confirm the target, or at another step."""
    stand = Stand(step=20)
    stand.loop.target_accuracy, stand.loop.samples_at_success = target, samples
    outcome = stand.run(tmp_path / "bert.log")
    assert outcome.reached_target is (target == 0.5)
    assert (outcome.step > 20) is trains
    assert keys(tmp_path / "bert.log")[:2] == (BLOCK if samples != 20 * 8 else EVAL)


def test_a_signal_after_the_last_step_does_not_stop_its_end(tmp_path):
    """It would leave a checkpoint of the last step, and nothing to train."""
    stand = Stand(num_train_steps=7)
    stand.signal_name = "SIGTERM"
    assert stand.run(tmp_path / "bert.log").step == 7
    stand = Stand(num_train_steps=8)
    stand.signal_name = "SIGTERM"
    with pytest.raises(Interrupted, match="SIGTERM after step 7"):
        stand.run(tmp_path / "other.log")


def killed_run(config, *, minutes):  # noqa: F811
    """The directory of a run that was killed after so long."""
    output = OutputDirectory(config.output_dir, config.parameters())
    output.time_budget = config.time_budget
    output.path.mkdir()
    output.record(status="running", seed=7)
    write_log(output.path / "bert.log", minutes=minutes, noted=[1])
    return output


@pytest.mark.parametrize("latest_step", [None, 0])
def test_a_budget_that_is_used_up_with_nothing_saved_is_refused(config, latest_step):  # noqa: F811
    given = dataclasses.replace(config, time_budget=120.0)
    output = killed_run(given, minutes=3)
    with pytest.raises(ValueError) as refusal:
        agreement.time_spent(given, output, latest_step=latest_step)
    assert str(refusal.value) == (
        f"--time_budget=2m: the run in --output_dir={given.output_dir} has used 3m already and has "
        "saved no step; give more"
    )
    found = checks.inspect_closely(given, measure_initial_accuracy=False)
    assert any(str(refusal.value) in error for error in found.errors)
    assert agreement.time_spent(given, output, latest_step=5) == 180
