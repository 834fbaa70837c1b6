"""The arithmetic of a result, and what makes runs none."""

import dataclasses
import re
from pathlib import Path

import pytest

from mlperf_bert.mlperf import logs
from mlperf_bert.mlperf.energy import Energy
from mlperf_bert.submission import official, verdict
from mlperf_bert.submission.compliance import Verdict
from mlperf_bert.submission.official import RcpVerdict, ToolVerdict
from tests.mlperf.example_log import write_log
from tests.submission import timed_log


def test_olympic_mean():
    ten = [5.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0, 100.0]
    assert verdict.olympic_mean(ten) == pytest.approx(5.5)
    assert verdict.olympic_mean(ten[:9], num_failed=1) == pytest.approx(5.5)
    assert verdict.olympic_mean(ten[:8], num_failed=2) is None
    assert verdict.olympic_mean([1.0, 2.0]) is None


def test_problems_of_a_result(tmp_path):
    paths = [tmp_path / f"result_{number}.txt" for number in range(9)]
    runs = [logs.read_run(write_log(path, [0.5])) for path in paths[:2]]
    runs += [logs.read_run(write_log(path, [0.73])) for path in paths[2:]]
    assert verdict.problems_of_result(runs) == [
        "9 logs, the rules require 10",
        "the same seed in several runs",
        "2 runs did not converge, the rules forgive 1",
    ]


def test_a_failed_run_is_the_slowest_that_is_left_out(tmp_path, monkeypatch):
    for number in range(1, 11):
        status = "aborted" if number == 2 else "success"
        timed_log.write_log(
            tmp_path / "box" / "bert" / f"result_{number}.txt", number, seed=number, status=status
        )
    passed = RcpVerdict(True, "", None, None, None, 1.0)
    monkeypatch.setattr(verdict, "check_rcp", lambda *_, **__: passed)
    monkeypatch.setattr(verdict, "check_log", lambda log, ruleset: Verdict(log, ruleset, True, ()))
    monkeypatch.setattr(official, "check_seeds", lambda *_: ToolVerdict("seed checker", True))
    found = verdict.judge(tmp_path / "box", "5.0.0")
    assert found.olympic_minutes == pytest.approx(sum(range(3, 11)) / 8) and found.passed


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"refused_logs": 1}, True),
        ({"refused_logs": 2}, False),
        ({"rcp": False}, False),
        ({"rcp": None}, False),  # nobody knows whether it converged credibly
        ({"seeds": None}, True),  # does not apply
        ({"seeds": False}, False),
        ({"problems": ("9 logs",)}, False),
        ({"olympic_minutes": None}, False),
    ],
)
def test_a_result_passes_if_all_that_applies_does(changes, passed):
    given = {"refused_logs": 0, "rcp": True, "seeds": True, "problems": (), "olympic_minutes": 9.0}
    given |= changes
    accepted = [number >= given["refused_logs"] for number in range(10)]
    found = verdict.SystemVerdict(
        name="box",
        runs=(),
        ruleset="5.0.0",
        compliance=tuple(Verdict(Path("log"), "5.0.0", good, ()) for good in accepted),
        rcp=RcpVerdict(given["rcp"], "", None, None, None, 1.0),
        seeds=ToolVerdict("seed checker", given["seeds"]),
        problems=given["problems"],
        olympic_minutes=given["olympic_minutes"],
    )
    assert found.passed is passed


def test_another_number_of_evaluation_samples_is_a_problem_of_the_closed_division(tmp_path):
    log = write_log(tmp_path / "result_0.txt", [0.73], eval_samples=9_999)
    problem = "evaluated on 9999 samples, the rules require 10,000"
    assert problem in verdict.problems_of_result([logs.read_run(log)])
    log.write_text(log.read_text().replace('"closed"', '"open"'))
    assert problem not in verdict.problems_of_result([logs.read_run(log)])


def test_mixed_batch_sizes_and_missing_seeds_are_problems(tmp_path):
    sized = write_log(tmp_path / "result_0.txt", [0.73], global_batch_size=256)
    sized.write_text(re.sub(r'.*"key": "seed".*\n', "", sized.read_text()))
    runs = [logs.read_run(sized), logs.read_run(write_log(tmp_path / "result_1.txt", [0.73]))]
    problems = verdict.problems_of_result(runs)
    assert "different global batch sizes: ['256', '448']" in problems
    assert "no seed in result_0.txt" in problems


def test_a_mean_energy_needs_the_same_parts_in_all_runs(tmp_path):
    run = logs.read_run(write_log(tmp_path / "bert.log", [0.73]))
    one, other, third = (
        dataclasses.replace(run, energy=Energy(parts=parts))
        for parts in ({"GPUs": 4.0}, {"GPUs": 6.0}, {"GPUs": 5.0, "processors": 1.0})
    )
    assert verdict.mean_energy([one, other]).joules == 5
    found = verdict.mean_energy([one, third])
    assert found.joules is None and "not the same parts" in found.unknown
    assert verdict.mean_energy([one, dataclasses.replace(run, energy=None)]) is None
