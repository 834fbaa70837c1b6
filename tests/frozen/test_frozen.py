"""Whole runs leave what was recorded of them; `python -m tests.frozen` says how to record again.

A redesign is compared after every step. Each run alone shows something:

| run | what |
|---|---|
| plain | each file, line, figure and parameter of an undisturbed run |
| aggregated_and_killed | other values of the options; kills before and after the first checkpoint |
| killed_at_its_target | a second process that finds nothing left to train |
| signalled_in_a_save | a signal, while a thread writes a checkpoint |
| over_time_and_killed | the end of a time budget, and a kill in the save that follows it |
| packed | packed rows: other losses of a step, the same samples |
| diverged | a run that fails, and leaves no checkpoint |
| offline | a training without evaluation, evaluations after it, and their own log |
| check | what --check says |

What other tests hold more strictly is not recorded here:

| what | held by |
|---|---|
| losses and weights of five recipes, as the reference's | tests/training/test_trajectories.py |
| the same losses on any number of devices and processes | tests/training/test_distributed.py |
| the weights of a disturbed run, bitwise | tests/training/test_disturbances.py |
| the same with a bucket that fails | tests/stores/test_training.py |
| the same with several processes | tests/training/test_faults.py |
| what ends a run, in which order | tests/training/test_end_of_a_run.py |
| flags, their defaults and their help | tests/test_cli.py |
| prepared data, byte for byte as the reference's | tests/data/test_pretraining_data.py |
| campaigns and reports | tests/submission |
| fine-tuning | tests/finetuning |
| traces | tracing/tests |
"""

import copy

import pytest

from tests.frozen import records
from tests.frozen.comparison import differences


@pytest.mark.all
def test_whole_runs_leave_what_was_recorded(tmp_path):
    assert list(records.compare(tmp_path)) == []


@pytest.mark.parametrize("name", ["plain", "diverged", "aggregated_and_killed", "offline", "check"])
def test_a_quick_run_leaves_what_was_recorded(tmp_path, name):
    """Seconds each, and quick nevertheless: they find mistakes that nobody has thought of."""
    assert list(records.compare(tmp_path, [name])) == []


@pytest.fixture(scope="module")
def recorded() -> dict:
    return records.read()


def changed(recorded: dict, place: list, value) -> list[str]:
    recorded = {place[0]: recorded[place[0]]}
    now = copy.deepcopy(recorded)
    *way, last = place
    found = now
    for step in way:
        found = found[step]
    found[last] = value(found[last])
    return list(differences(recorded, now))


def test_what_was_recorded_is_of_all_runs_and_as_recorded(recorded):
    assert tuple(recorded) == records.NAMES
    assert list(differences(recorded, copy.deepcopy(recorded))) == []


@pytest.mark.parametrize(
    "place, value, line",
    [
        (["plain", "processes", 0, "exit"], lambda _: 1, "plain.processes[0].exit: 0 -> 1"),
        (["packed", "record", "seed"], lambda _: 7.0, "packed.record.seed: 7 -> 7.0"),
        (
            ["packed", "record", "status"],
            lambda _: "success",
            'packed.record.status: "aborted" -> "success"',
        ),
    ],
)
def test_one_other_value_is_one_line(recorded, place, value, line):
    assert changed(recorded, place, value) == [line]


def test_an_event_more_or_less_is_told(recorded):
    events = ["signalled_in_a_save", "logs", 1, "events"]
    for change in (lambda all: all[1:], lambda all: [*all, {"key": "new"}]):
        assert len(changed(recorded, events, change)) == 1


def test_a_figure_may_be_rounded_otherwise_but_not_be_another(recorded):
    def moved(place, by):
        return len(changed(recorded, ["plain", *place], lambda value: value + by))

    for index, line in enumerate(recorded["plain"]["metrics"]["lines"]):
        place = ["metrics", "lines", index]
        assert moved([*place, "loss"], 0.5e-5) == 0 and moved([*place, "loss"], 2e-5) == 1
        assert moved([*place, "step"], 1) == 1
        if line["kind"] == "eval":
            accuracy = [*place, "masked_lm_accuracy"]
            assert moved(accuracy, 0.5e-6) == 0 and moved(accuracy, 2e-6) == 1
        elif line["learning_rate"]:
            assert moved([*place, "learning_rate"], 2e-6 * line["learning_rate"]) == 1
    norm = recorded["plain"]["checkpoints"]["norms"]["model"]
    assert moved(["checkpoints", "norms", "model"], 0.5e-6 * norm) == 0
    assert moved(["checkpoints", "norms", "model"], 2e-6 * norm) == 1
