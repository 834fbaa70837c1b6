"""The number of replicas does not change the mathematics: real processes on loopback, CPU.

Twenty steps of the golden trajectories on 1, 2 and 4 logical devices and on 2 and 3 processes, with
and without gradient aggregation: every case as recorded on one of these layouts, and in the soak
tests with and without aggregation on all of them. The trajectories of the generated task were
recorded from the reference too; the soak tests also take those of `shared`.
"""

import itertools
import json
import sys

import numpy as np
import pytest

from tests.helpers import starts
from tests.training.oracles import oracle_of

pytestmark = pytest.mark.gate

BATCH_SIZE = 12  # shared by 1, 2, 3 and 4 replicas


@pytest.fixture(
    scope="module", params=["generated", pytest.param("golden", marks=pytest.mark.soak)]
)
def task(request, tmp_path_factory) -> dict:
    """Files, shape and trajectories of the generated task, or of the one in `shared`."""
    oracle = oracle_of(request, tmp_path_factory)
    shared_by_replicas = {"generated": 12, "golden": 156}[request.param]
    return oracle.plan() | {
        "eval_batch_size": shared_by_replicas,  # no divisor of the number of examples
        "trajectories": oracle.trajectories,
    }


def case_of(task: dict, name: str, *, normalization="global", **changed) -> dict:
    """A recorded case, with some flags changed."""
    return {
        "name": name,
        "recorded": name,
        "flags": task["trajectories"][name]["flags"] | changed,
        "normalization": normalization,
        "compiled": False,  # the passes between the products
    }


def run_cases(task, folder, cases, *, devices=1, num_workers=1) -> list[dict]:
    """What each process found: case -> losses, and the evaluation after them."""
    folder.mkdir()
    plan = folder / "plan.json"
    plan.write_text(json.dumps({**task, "cases": cases}))
    outputs = [folder / f"found-{index}.json" for index in range(num_workers)]
    module = [sys.executable, "tests/training/distributed_losses.py", plan]
    started = starts.workers([[*module, output, f"--devices={devices}"] for output in outputs])
    for code, _, errors in starts.ends(started, seconds=1500):
        assert code == 0, errors
    return [json.loads(output.read_text()) for output in outputs]


# name -> devices, processes
LAYOUTS = {
    "2 devices": {"devices": 2},
    "4 devices": {"devices": 4},
    "2 processes": {"num_workers": 2},
    "3 processes": {"num_workers": 3},
}


def with_and_without_aggregation(task: dict) -> list[dict]:
    """The cases as recorded, and each with the gradients of four steps in one update."""
    cases = [case_of(task, name) for name in task["trajectories"]]
    for name, recorded in task["trajectories"].items():
        if "steps_per_update" not in recorded["flags"]:
            aggregated = case_of(task, name, steps_per_update=4)
            cases.append({**aggregated, "name": f"{name} aggregated"})
    return cases


def shared_by(case: dict, num_replicas: int) -> dict:
    """The case with a batch that so many replicas can share, if its own is not."""
    if case["flags"]["train_batch_size"] % num_replicas == 0:
        return case
    changed = {**case["flags"], "train_batch_size": BATCH_SIZE}
    return {**case, "name": f"{case['name']}, batch {BATCH_SIZE}", "flags": changed}


def assert_layouts_agree(task, folder, cases_of: dict[str, list[dict]]) -> None:
    """Compares every layout's losses and evaluation with one device's, which equal the oracle's."""
    cases_of = {
        layout: [shared_by(case, max(LAYOUTS[layout].values())) for case in cases]
        for layout, cases in cases_of.items()
    }
    alone = {case["name"]: case for cases in cases_of.values() for case in cases}
    [expected] = run_cases(task, folder / "1 device", list(alone.values()))
    for name, case in alone.items():
        recorded = task["trajectories"][case["recorded"]]
        if case["flags"] == recorded["flags"]:
            losses = expected[name]["losses"]
            np.testing.assert_allclose(losses, recorded["losses"], rtol=0, atol=1e-5, err_msg=name)
    for layout, cases in cases_of.items():
        everyone = run_cases(task, folder / layout, cases, **LAYOUTS[layout])
        assert all(found == everyone[0] for found in everyone)
        assert everyone[0].keys() == {case["name"] for case in cases}
        for name, found in everyone[0].items():
            message = f"{layout}: {name}"
            np.testing.assert_allclose(
                found["losses"], expected[name]["losses"], rtol=0, atol=1e-5, err_msg=message
            )
            assert found["evaluation"] == pytest.approx(expected[name]["evaluation"], abs=1e-5)


# Together every recorded case: one with the passes between the products compiled, one with
# recomputed blocks.
CHANGED = {"g5_lamb_poly": {"compiled": True}, "g3_lamb_accum4": {"recompute": "blocks"}}
IN_THE_GATE = {"2 devices": ["g1_lamb"], "2 processes": ["g3_lamb_accum4"]}
THE_OTHERS = {
    "2 devices": ["g5_lamb_poly"],
    "2 processes": ["g2_lamb_rcp8192"],
    "3 processes": ["g4_adamw"],
}


@pytest.mark.parametrize(
    "names_of", [IN_THE_GATE, pytest.param(THE_OTHERS, marks=pytest.mark.all)], ids=["two", "three"]
)
def test_every_recorded_case_loses_the_same_on_some_layout(task, tmp_path, names_of):
    cases_of = {
        layout: [case_of(task, name) | CHANGED.get(name, {}) for name in names]
        for layout, names in names_of.items()
    }
    assert_layouts_agree(task, tmp_path, cases_of)


def test_no_recorded_case_is_left_out(task):
    both = [names for names_of in (IN_THE_GATE, THE_OTHERS) for names in names_of.values()]
    assert sorted(n for names in both for n in names) == sorted(task["trajectories"])


@pytest.mark.soak
def test_losses_of_every_case_with_and_without_aggregation_are_the_same_on_all_layouts(
    task, tmp_path
):
    cases = with_and_without_aggregation(task)
    assert len(cases) == 9
    assert_layouts_agree(task, tmp_path, dict.fromkeys(LAYOUTS, cases))


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param(
            [("g1_lamb", "replica_sum"), ("g3_lamb_accum4", "replica_mean")], marks=pytest.mark.all
        ),
        pytest.param(None, marks=pytest.mark.soak),
    ],
    ids=["two", "every"],
)
def test_the_reference_mode_is_what_its_replicas_would_do_in_turn(task, tmp_path, pairs):
    every = itertools.product(task["trajectories"], ["replica_sum", "replica_mean"])
    cases = [
        case_of(task, name, normalization=way) | {"name": f"{name} {way}"}
        for name, way in pairs or every
    ]
    imitated = [{**case, "imitated_replicas": 2} for case in cases]
    [expected] = run_cases(task, tmp_path / "imitation", imitated)
    found = run_cases(task, tmp_path / "processes", cases, num_workers=2)[0]
    differences = []
    for case in cases:
        losses = found[case["name"]]["losses"]
        np.testing.assert_allclose(
            losses, expected[case["name"]]["losses"], rtol=0, atol=1e-5, err_msg=case["name"]
        )
        recorded = task["trajectories"][case["recorded"]]["losses"]
        differences.append(np.abs(np.subtract(losses, recorded)).max())
    assert min(differences) > 1e-5  # another computation than the global one


@pytest.mark.parametrize(
    "layout", ["2 devices", pytest.param("2 processes", marks=pytest.mark.all)]
)
def test_every_replica_drops_others(task, tmp_path, layout):
    """By the layers of the default, and by the passes of the options for speed."""
    precisions = ["float32", "bfloat16"]
    changed = {**task, "dropout_in": precisions}
    everyone = run_cases(changed, tmp_path / "found", [], **LAYOUTS[layout])
    assert all(found == everyone[0] for found in everyone)
    for precision in precisions:
        figures = everyone[0][precision]
        assert len(figures) == 4  # two replicas, two steps
        assert len(set(figures)) == 4
