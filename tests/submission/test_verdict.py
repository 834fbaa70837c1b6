"""The arithmetic of a result, what makes runs none, and what official tools print of them.

Stand-ins for the tools print lines: none is taken for a success that it is not.
"""

import dataclasses
import json
from pathlib import Path

import pytest

from mlperf_bert.mlperf import logs
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


FAILED: dict[str, object] = {"status": "aborted", "samples_to_converge": None}
PLANNED: dict[str, object] = {"samples_to_converge": None, "planned_samples": 3_000_256}


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        ({3: FAILED}, []),
        ({3: FAILED, 8: FAILED}, ["2 runs did not converge, the rules forgive 1"]),
        ({2: {"seeds": (5,)}}, ["the same seed in several runs"]),  # that of run 5
        ({2: {"seeds": ()}}, ["no seed in result_2.txt"]),
        ({9: {"global_batch_size": 256}}, ["different global batch sizes: ['256', '448']"]),
        (
            {9: {"num_eval_samples": 9_999}},
            ["evaluated on 9999 samples, the rules require 10,000"],
        ),
        ({9: {"num_eval_samples": 9_999, "division": "open"}}, []),
        (
            {1: {"provenance": {"init_checkpoint": "b"}}},
            ["the runs differ in init checkpoint, which their logs name"],
        ),
        (
            {0: PLANNED},
            ["samples unknown: train_samples, 3,000,256, is a plan or the size of the data set"],
        ),
    ],
)
def test_problems_of_a_result(tmp_path, changes, problems):
    run = logs.read_run(write_log(tmp_path / "result.txt", [0.73]))
    runs = [
        # The first seed of a log is the run's.
        dataclasses.replace(run, **{"path": Path(f"result_{n}.txt"), "seeds": (n, 4)} | changed)
        for n, changed in ((n, changes.get(n, {})) for n in range(10))
    ]
    assert verdict.problems_of_result(runs) == problems
    too_few = verdict.problems_of_result(runs[:9])
    assert "9 logs, the rules require 10" in too_few


MISSED = "says success, and no evaluation has an accuracy of 0.720 or more"


@pytest.mark.parametrize(
    ("second", "problems"),
    [
        ({"status": "aborted"}, []),
        ({"accuracy": 0.7199}, ["9 logs, the rules require 10",
                                f"left out, result_2.txt: {MISSED}"]),
    ],
)  # fmt: skip
def test_a_run_that_failed_or_does_not_count_is_the_slowest_that_is_left_out(
    tmp_path, monkeypatch, second, problems
):
    folder = tmp_path / "box" / "bert"
    for number in range(1, 11):
        changes = second if number == 2 else {}
        timed_log.write_log(folder / f"result_{number}.txt", number, seed=number, **changes)
    passed = RcpVerdict(True, "", None, None, None, 1.0)
    monkeypatch.setattr(verdict, "check_rcp", lambda *_, **__: passed)
    monkeypatch.setattr(verdict, "check_log", lambda log, ruleset: Verdict(log, ruleset, True, ()))
    monkeypatch.setattr(official, "check_seeds", lambda *_: ToolVerdict("seed checker", True))
    found = verdict.judge(folder.parent, "5.0.0")
    assert found.olympic_minutes == pytest.approx(sum(range(3, 11)) / 8)
    assert (list(found.problems), found.passed) == (problems, not problems)
    for log in folder.iterdir():
        timed_log.write_log(log, 5, accuracy=0.7199)
    with pytest.raises(ValueError, match=f"box: no run in it counts; .* and 9 more: {MISSED}"):
        verdict.judge(folder.parent, "5.0.0")


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"refused_logs": 1}, True),
        ({"refused_logs": 2}, False),
        ({"logs": 1, "refused_logs": 1}, False),
        ({"rcp": False}, False),
        ({"rcp": None}, False),  # nobody knows whether it converged credibly
        ({"seeds": None}, True),  # does not apply
        ({"seeds": False}, False),
        ({"problems": ("9 logs",)}, False),
        ({"olympic_minutes": None}, False),
    ],
)
def test_a_result_passes_if_all_that_applies_does(changes, passed):
    given = {"rcp": True, "seeds": True, "problems": (), "olympic_minutes": 9.0}
    given |= {"logs": 10, "refused_logs": 0} | changes
    accepted = [number >= given["refused_logs"] for number in range(given["logs"])]
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


@pytest.mark.parametrize(
    ("counts", "told"), [((True, True), True), ((True, False), False), ((False, False), False)]
)
def test_the_rcp_checker_is_told_what_all_logs_count_by(tmp_path, monkeypatch, counts, told):
    run = logs.read_run(write_log(tmp_path / "result.txt", [0.73]))
    runs = tuple(dataclasses.replace(run, counts_by_train_samples=each) for each in counts)
    calls = []
    monkeypatch.setattr(verdict, "check_rcp", lambda *_, **options: calls.append(options))
    system = verdict.System(name="box", runs=runs)
    verdict.with_convergence(system, "5.0.0")
    assert calls == [{"by_train_samples": told, "custom_rcps": None}]
    # Whatever a log says it would count.
    planned = tuple(dataclasses.replace(each, **PLANNED) for each in runs)
    for changes, why in (
        ({"copies": ("a: the same run as b",)}, "it would count copies, a: the same run as b"),
        ({"left_out": ("a: cut",)}, "it would count runs that do not count, a: cut"),
        ({"runs": planned}, "samples unknown: train_samples, 3,000,256, is a plan or the size of "
         "the data set"),
    ):  # fmt: skip
        found = verdict.with_convergence(dataclasses.replace(system, **changes), "5.0.0")
        assert (found.rcp.passed, found.rcp.reason, found.rcp.word) == (None, why, "no verdict")
    assert len(calls) == 1


NO_ERRORS = "INFO - PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !"
CONVERGED = "INFO - RCP Test Passed: RCP found"


@pytest.fixture
def answers(monkeypatch):
    """Returns a function that lets every tool print some lines; it returns the words of calls."""

    def answers(*lines: str, has_ended: bool = True) -> list[str]:
        def ask(*words: str, ruleset: str) -> tuple[bool, str]:
            asked.extend([*words, f"under {ruleset}"])
            return has_ended, "\n".join(lines)

        asked: list[str] = []
        monkeypatch.setattr(official, "ask", ask)
        return asked

    return answers


@pytest.mark.parametrize(
    ("division", "lines", "reasons"),
    [
        ("closed", [CONVERGED, NO_ERRORS], []),
        ("open", [NO_ERRORS], []),
        ("closed", [NO_ERRORS], ["it did not reach the convergence check"]),
        (
            "close",
            [CONVERGED, NO_ERRORS],
            [
                "systems/*.json: division 'close' is neither closed nor open, so that it left out "
                "the checks of seeds and convergence"
            ],
        ),
        (
            "open",
            ["WARNING -  Skipping benchmark: bert", NO_ERRORS],
            ["it skipped the benchmark, so that its success means nothing"],
        ),
        ("open", ["ERROR - Seed checker failed", NO_ERRORS], ["Seed checker failed"]),
        ("open", ["INFO - checking", "KeyError: 'bert'"], ["KeyError: 'bert'"]),
        ("open", [], ["it gave no reason"]),
    ],
)
def test_the_package_checker_is_believed_if_it_has_looked(
    tmp_path, answers, division, lines, reasons
):
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "box.json").write_text(json.dumps({"division": division}))
    asked = answers(*lines)
    found = official.check_package(tmp_path, "5.0.0", by_train_samples=True)
    assert found == ToolVerdict("package checker", not reasons, tuple(reasons))
    words = ["package_checker", "--rcp-bert-train-samples", str(tmp_path), "training", "5.0.0"]
    assert asked == [*words, "under 5.0.0"]
    answers(*lines, has_ended=False)
    assert not official.check_package(tmp_path, "5.0.0").passed


RECORD = "INFO -  RCP Record: {'BS': 448, 'RCP Mean': np.float64(2414421.3), 'Min Epochs': 2274732}"
MEAN = "INFO -  Submission mean epochs: 2300000.5000"
SCALED = (
    "INFO -  Submission mean epochs faster than RCP mean but within max speedup range. Score "
    "should be normalized by factor of 2414421.3 / 2300000.5 = 1.0497"
)


def test_the_rcp_checkers_answer_is_read(answers):
    asked = answers(RECORD, MEAN, SCALED, "INFO - RCP found, RCP test PASSED")
    given = {"by_train_samples": True, "custom_rcps": Path("points.json")}
    how = "counted by train_samples (its option --bert_train_samples)"
    assert official.check_rcp(Path("bert"), "5.0.0", **given) == RcpVerdict(
        True, f"RCP found, RCP test PASSED, {how}", 2414421.3, 2274732.0, 2300000.5, 1.0497, 448.0
    )
    options = ["--rcp_usage", "training", "--rcp_version", "5.0.0", "--bert_train_samples"]
    options += ["--custom_rcps", "points.json"]
    assert asked == ["rcp_checker", *options, "bert", "under 5.0.0"]
    answers("INFO - RCP found, RCP test PASSED", has_ended=False)
    assert not official.check_rcp(Path("bert"), "5.0.0").passed
    answers("ERROR - RCP missing, RCP test FAILED, consider adding --rcp_bypass in when running")
    assert official.check_rcp(Path("bert"), "5.0.0") == RcpVerdict(
        False, "RCP missing, RCP test FAILED", None, None, None, 1.0
    )


def test_tools_that_end_with_0_whatever_they_find_are_asked_for_their_phrase(answers):
    described, repository = official.check_system_description, official.check_repository
    for check, phrase in (
        (described, "INFO - System description checker passed for 5.0.0"),
        (repository, "INFO - ALL CHECKS PASSED."),
    ):
        answers(phrase)
        assert check(Path("o"), "5.0.0").passed and not check(Path("o"), "5.0.0").reasons
        answers("ERROR - Missing field", "ERROR - too large", "INFO - done")
        found = check(Path("o"), "5.0.0")
        assert (found.passed, found.reasons) == (False, ("Missing field", "too large"))
    assert repository(Path("o"), "1.1.0").passed is None
