"""Whole runs leave what was recorded of them; `python -m tests.frozen` says how to record again.

A redesign is compared after every step. Each run alone shows something:

| run | what |
|---|---|
| plain | each file, line, figure and parameter of an undisturbed run |
| aggregated_and_killed | other values of the options; kills before and after the first checkpoint |
| killed_at_its_target | a second process that finds nothing left to train |
| packed | packed rows: other losses of a step, the same samples |
| diverged | a run that fails, and leaves no checkpoint |
| offline | a training without evaluation, evaluations after it, and their own log |
| check | what --check says |

The weights of a disturbed run, signals and time budgets are held more strictly by
tests/training/test_disturbances.py, test_end_of_a_run.py and test_budget.py.
"""

import copy
import functools
import operator

import pytest

from tests.frozen import records
from tests.frozen.comparison import differences

MARKS = dict.fromkeys(["diverged", "aggregated_and_killed", "offline"], pytest.mark.gate)
MARKS |= dict.fromkeys(["killed_at_its_target", "packed"], pytest.mark.all)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, ())) for name in records.NAMES]
)
def test_a_whole_run_leaves_what_was_recorded(tmp_path, name):
    """Seconds each, and two of them quick nevertheless: they find what nobody has thought of."""
    assert list(records.compare(tmp_path, [name])) == []


@pytest.fixture(scope="module")
def recorded() -> dict:
    return records.read()


def test_what_was_recorded_is_of_all_runs_and_as_recorded(recorded):
    assert tuple(recorded) == records.NAMES
    assert list(differences(recorded, copy.deepcopy(recorded))) == []


def differing(recorded: dict, name: str, *place, value) -> list[str]:
    """The lines about a run of which one value is another now; `value` makes it of the old one."""
    then, now = {name: recorded[name]}, {name: copy.deepcopy(recorded[name])}
    *way, last = name, *place
    found = functools.reduce(operator.getitem, way, now)
    found[last] = value(found[last])
    return list(differences(then, now))


@pytest.mark.parametrize(
    "place, value, line",
    [
        (["plain", "processes", 0, "exit"], 1, "plain.processes[0].exit: 0 -> 1"),
        (["packed", "record", "seed"], 7.0, "packed.record.seed: 7 -> 7.0"),
        (["packed", "record", "status"], "new", 'packed.record.status: "aborted" -> "new"'),
    ],
)
def test_one_other_value_is_one_line(recorded, place, value, line):
    assert differing(recorded, *place, value=lambda _: value) == [line]


def test_an_event_more_or_less_is_told(recorded):
    events = ["aggregated_and_killed", "logs", 1, "events"]
    for change in (lambda all: all[1:], lambda all: [*all, {"key": "new"}]):
        assert len(differing(recorded, *events, value=change)) == 1


def test_a_figure_may_be_rounded_otherwise_but_not_be_another(recorded):
    def assert_tolerance(*place, tolerance):
        for by, number in ((0.5 * tolerance, 0), (2 * tolerance, 1)):
            found = differing(recorded, "plain", *place, value=by.__add__)
            assert len(found) == number, (place, by)

    for index, line in enumerate(recorded["plain"]["metrics"]["lines"]):
        place = ["metrics", "lines", index]
        assert_tolerance(*place, "loss", tolerance=1e-5)
        assert len(differing(recorded, "plain", *place, "step", value=(1).__add__)) == 1
        if line["kind"] == "eval":
            assert_tolerance(*place, "masked_lm_accuracy", tolerance=1e-6)
        elif line["learning_rate"]:
            assert_tolerance(*place, "learning_rate", tolerance=1e-6 * line["learning_rate"])
    norms = recorded["plain"]["checkpoints"]["norms"]
    assert_tolerance("checkpoints", "norms", "model", tolerance=1e-6 * norms["model"])
