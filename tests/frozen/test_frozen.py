"""Whole runs leave what was recorded of them; `python -m tests.frozen` says how to record again.

A redesign is compared after every step. What other tests hold more strictly is not recorded here:

| what | held by |
|---|---|
| losses and weights of five recipes, as the reference's | tests/training/test_trajectories.py |
| the same losses on any number of devices and processes | tests/training/test_distributed.py |
| the weights of a disturbed run, bitwise | tests/training/test_resume.py |
| the same with a bucket that fails | tests/stores/test_training.py |
| flags, their defaults and their help | tests/test_cli.py |
| prepared data, byte for byte as the reference's | tests/data/test_pretraining_data.py |
"""

import copy

import pytest

from tests.frozen import records
from tests.frozen.comparison import differences
from tracing.tests.conftest import require


@pytest.mark.soak
def test_whole_runs_leave_what_was_recorded(tmp_path):
    require("strace")
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
        (["killed", "record", "seed"], lambda _: 7.0, "killed.record.seed: 7 -> 7.0"),
        (
            ["killed", "record", "status"],
            lambda _: "success",
            'killed.record.status: "aborted" -> "success"',
        ),
    ],
)
def test_one_other_value_is_one_line(recorded, place, value, line):
    assert changed(recorded, place, value) == [line]


def test_an_event_more_or_less_is_told(recorded):
    events = ["killed", "logs", 1, "events"]
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
