"""A run ends with its time: by a clock that tests move.

The whole runs at the end have some seconds. How many steps these allow depends on the machine; the
tests compare with what the runs have recorded.
"""

import re

import numpy as np
import pytest

from mlperf_bert.mlperf.ledger import Ledger
from mlperf_bert.training.events import LastStep
from mlperf_bert.training.loop import Event, next_multiple, train
from mlperf_bert.training.output import read_record
from mlperf_bert.training.time_budget import TimeBudget
from tests.helpers import starts
from tests.training.configurations import run_config
from tests.training.generated_task import SMALL
from tests.training.small_runs import command, metrics


class Machine(Event):
    """Trains steps by a clock that it moves itself; stands for the loop and the run."""

    def __init__(
        self,
        *,
        step_seconds=lambda step: 1.0,
        start=0,
        before=0.0,
        evaluates_every=None,
        **flags,
    ):
        self.now, self.step, self.start, self.said = 0.0, start, start, []
        self.step_seconds, self.evaluates_every = step_seconds, evaluates_every
        self.ledger = Ledger(clock=lambda: self.now)
        self.calls = []
        given = {
            "train_batch_size": 8,
            "num_train_steps": 10**6,
            "num_warmup_steps": 0,
            "time_budget": "1000s",
        }
        self.budget = TimeBudget(
            config=run_config(**given | flags),
            timed=self,
            before=before,
            # Another process, whose clock and steps say twice as much, decides nothing.
            gathered=lambda values: np.array([values, np.multiply(values, 2)]),
            progress=self,
        )

    def line(self, text):
        self.said.append(text)

    def next(self, step):
        every = self.evaluates_every or self.until
        return min(next_multiple(step, every), self.until)

    def at(self, trained):
        if self.evaluates_every and trained.step % self.evaluates_every == 0:
            self.now += 30

    def train_steps(self, num_steps):
        steps = range(self.step, self.step + num_steps)
        seconds = sum(self.step_seconds(step) for step in steps)
        self.calls.append(num_steps)
        self.now, self.step = self.now + seconds, self.step + num_steps
        return None, seconds

    def run(self, until=10**9):
        """Returns the step after which the time is over, or `until`."""
        self.until = until
        events = [self, self.budget, LastStep(until, longest_call_steps=10**9)]
        return train(self.train_steps, events, step=self.step)[0]


def test_a_run_ends_at_the_first_step_after_its_time_in_few_calls():
    machine = Machine(step_seconds=lambda step: 0.01, time_budget="100s")
    assert machine.run() in (10_000, 10_001)  # by the rounding of the sum
    assert machine.now == pytest.approx(100, abs=0.011)
    assert len(machine.calls) < 600 and max(machine.calls) > 50


def test_steps_of_any_length_overrun_the_end_by_one_step_only():
    """Slow at first, and an evaluation or two; three times as slow from a step on."""
    for change in (50, 400, 990):
        lengths = lambda step, change=change: 20.0 if step == 0 else 3.0 if step > change else 1.0  # noqa: E731
        for every, longest in ((None, 3), (300, 30)):  # an evaluation takes 30 s
            machine = Machine(step_seconds=lengths, evaluates_every=every)
            machine.run()
            assert 1000 <= machine.now < 1000 + longest


def test_steps_that_become_slow_are_measured_by_the_last_of_them():
    """Their average, of many fast ones, would make calls of several steps at the end."""
    machine = Machine(step_seconds=lambda step: 1.0 if step < 400 else 20.0)
    machine.run()
    assert 1000 <= machine.now < 1020 and set(machine.calls[-20:]) == {1}


def test_a_budget_that_was_used_up_trains_nothing_more():
    machine = Machine(start=70, before=1000.0)
    assert machine.run() == 70
    assert machine.said == ["the time budget of 16m40s was used up before: nothing more is trained"]


TASK = SMALL


BUDGET = {
    "num_train_steps": 10**6,
    "eval_interval_samples": 8 * 60,
    "save_checkpoints_steps": 50,
    "steps_per_update": 2,
    "log_every_steps": 1,
    "keep_checkpoint_max": 0,
}


@pytest.mark.gate
def test_a_run_ends_with_its_budget_evaluates_saves_and_says_what_it_reached(task, tmp_path):
    output = tmp_path / "out"
    done = starts.run(command(task, output, **BUDGET, time_budget="4s"), check=True)
    [accuracy, samples] = re.search(
        r"^RESULT,bert,7,.*,aborted,([\d.]+),(\d+)$", done.stdout, re.MULTILINE
    ).groups()
    lines = metrics(output, "train")  # under load there may be one step only
    last = lines[-1]
    assert int(samples) == last["samples"] == 8 * last["step"]
    over = {-(-line["step"] // 2) for line in lines if line["time_budget_spent_seconds"] >= 4}
    assert over <= {last["step"] // 2}  # the update in which it ended; none, if after its last line
    assert last["time_budget_seconds"] == 4
    evaluation = metrics(output, "eval")[-1]
    assert evaluation["step"] == last["step"]
    assert evaluation["time_budget_spent_seconds"] >= last["time_budget_spent_seconds"]
    assert float(re.search(r"4s is over after ([\d.]+)s and", done.stderr)[1]) >= 4
    assert f"{evaluation['masked_lm_accuracy']:.5f}" == accuracy
    assert (output / f"model.ckpt-{last['step']}.index").exists()
    log = (output / "bert.log").read_text()
    assert '"key": "time_budget_seconds", "value": 4.0' in log
    record = read_record(output)
    assert (record.status, record.time_budget_seconds) == ("aborted", 4.0)
    assert record.parameters["time_budget"] == 4.0
    assert max(4, last["time_budget_spent_seconds"]) <= record.time_budget_spent_seconds < 600
    assert f" and {last['step']:,} steps\n" in done.stderr.partition("4s is over after ")[2]
