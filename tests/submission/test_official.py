"""What the official tools print is not taken for a success that it is not; stand-ins for them."""

import json
from pathlib import Path

import pytest

from mlperf_bert.submission import official
from mlperf_bert.submission.official import RcpVerdict, ToolVerdict

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
    assert official.check_rcp(Path("bert"), "5.0.0", **given) == RcpVerdict(
        True, "RCP found, RCP test PASSED", 2414421.3, 2274732.0, 2300000.5, 1.0497
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
