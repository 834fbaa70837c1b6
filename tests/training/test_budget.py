"""A run ends with its time: by a clock that tests move.

The whole run at the end has some seconds. How many steps these allow depends on the machine; the
test compares with what the run has recorded.
"""

import re

import pytest

from mlperf_bert.training.output import read_record
from tests.helpers import starts
from tests.training.generated_task import SMALL
from tests.training.small_runs import command, metrics
from tests.training.stand import Stand


@pytest.fixture
def trained(tmp_path):
    """Trains for 1,000 seconds, if the flags say no other, by steps of this length."""

    def trained(step_seconds=lambda step: 1.0, **changed) -> Stand:
        usual = {"num_train_steps": 10**6, "iterations_per_loop": 10**9, "log_every_steps": 10**6}
        stand = Stand(**usual | {"time_budget": "1000s", "evaluates": False} | changed)
        stand.step_seconds = step_seconds
        number = len(list(tmp_path.iterdir()))
        stand.run(tmp_path / f"{number}.log")
        return stand

    return trained


def test_a_run_ends_at_the_first_step_after_its_time_in_few_calls(trained):
    stand = trained(lambda step: 0.01, time_budget="100s")
    assert stand.trained_step in (10_000, 10_001)  # by the rounding of the sum
    assert stand.saved_at == pytest.approx(100, abs=0.011)
    assert len(stand.calls) < 600 and max(stand.calls) > 50


def test_a_call_has_at_most_twice_as_many_steps_as_were_trained(trained):
    """The first steps of a run say little of those after them."""
    calls = trained(lambda step: 0.01, time_budget="100s").calls
    assert calls[:5] == [1, 2, 6, 18, 54]  # each twice as many as before it


@pytest.mark.parametrize("change", [50, 400, 990])
def test_steps_of_any_length_overrun_the_end_by_one_step_only(trained, change):
    """Slow at first, and an evaluation or two; three times as slow from a step on."""
    lengths = lambda step: 20.0 if step == 0 else 3.0 if step > change else 1.0  # noqa: E731
    every_300 = {"evaluates": True, "eval_interval_samples": 8 * 300}  # it takes 30 s
    for flags, longest in (({}, 3), (every_300, 30)):
        assert 1000 <= trained(lengths, **flags).saved_at < 1000 + longest


def test_steps_that_become_slow_are_measured_by_the_last_of_them(trained):
    """Their average, of many fast ones, would make calls of several steps at the end."""
    stand = trained(lambda step: 1.0 if step < 400 else 20.0)
    assert 1000 <= stand.saved_at < 1020 and set(stand.calls[-20:]) == {1}


def test_a_budget_that_was_used_up_trains_nothing_more(trained):
    stand = trained(step=70, used=1000.0)
    assert stand.trained_step == 70 and not stand.calls
    assert stand.said == ["the time budget of 16m40s was used up before: nothing more is trained"]


TASK = SMALL


BUDGET = {
    "num_train_steps": 10**6,
    "eval_interval_samples": 8 * 60,
    "save_checkpoints_steps": 50,
    "steps_per_update": 2,
    "log_every_steps": 1,
    "keep_checkpoint_max": 0,
    "jit_compile": "false",
}


@pytest.mark.gate
def test_a_run_ends_with_its_budget_evaluates_saves_and_says_what_it_reached(task, tmp_path):
    output = tmp_path / "out"
    done = starts.run(command(task, output, **BUDGET, time_budget="2s"), check=True)
    [accuracy, samples] = re.search(
        r"^RESULT,bert,7,.*,aborted,([\d.]+),(\d+)$", done.stdout, re.MULTILINE
    ).groups()
    lines = metrics(output, "train")  # under load there may be one step only
    last = lines[-1]
    assert int(samples) == last["samples"] == 8 * last["step"]
    over = {-(-line["step"] // 2) for line in lines if line["time_budget_spent_seconds"] >= 2}
    assert over <= {last["step"] // 2}  # the update in which it ended; none, if after its last line
    assert last["time_budget_seconds"] == 2
    evaluation = metrics(output, "eval")[-1]
    assert evaluation["step"] == last["step"]
    assert evaluation["time_budget_spent_seconds"] >= last["time_budget_spent_seconds"]
    assert float(re.search(r"2s is over after ([\d.]+)s and", done.stderr)[1]) >= 2
    assert f"{evaluation['masked_lm_accuracy']:.5f}" == accuracy
    assert (output / f"model.ckpt-{last['step']}.index").exists()
    log = (output / "bert.log").read_text()
    assert '"key": "time_budget_seconds", "value": 2.0' in log
    record = read_record(output)
    assert (record.status, record.time_budget_seconds) == ("aborted", 2.0)
    assert record.parameters["time_budget"] == 2.0
    assert max(2, last["time_budget_spent_seconds"]) <= record.time_budget_spent_seconds < 600
    assert f" and {last['step']:,} steps\n" in done.stderr.partition("2s is over after ")[2]
