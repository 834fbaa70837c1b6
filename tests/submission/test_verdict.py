"""The arithmetic of a result, what makes runs none, and what official tools print of them.

Stand-ins for the tools print lines: none is taken for a success that it is not.
"""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from mlperf_bert.mlperf import log_reader
from mlperf_bert.submission import official, verdict
from mlperf_bert.submission.compliance import Verdict
from mlperf_bert.submission.official import RcpVerdict, ToolVerdict
from mlperf_bert.submission.plan import result_files
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
        ({number: {"provenance": {"init_checkpoint": "b"}} for number in range(10)}, []),
        (
            {0: PLANNED},
            ["samples unknown: train_samples, 3,000,256, is a plan or the size of the data set"],
        ),
    ],
)
def test_problems_of_a_result(tmp_path, changes, problems):
    run = log_reader.read_run(write_log(tmp_path / "result.txt", [0.73]))
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
    passed, points, asked = RcpVerdict(True, "", None, None, None, 1.0), Path("own.json"), []

    def answer(found):
        return lambda *given, **options: asked.append((*given, *options.values())) or found

    monkeypatch.setattr(verdict, "check_rcp", answer(passed))
    monkeypatch.setattr(verdict, "check_log", lambda log, ruleset: Verdict(log, ruleset, True, ()))
    monkeypatch.setattr(official, "check_seeds", answer(ToolVerdict("seed checker", True)))
    found = verdict.judge(folder.parent, "4.0.0", custom_rcps=points)
    assert found.olympic_minutes == pytest.approx(sum(range(3, 11)) / 8)
    assert (list(found.problems), found.passed) == (problems, not problems)
    logs = [run.path for run in found.runs]
    assert [(each.path, each.ruleset) for each in found.compliance] == [(n, "4.0.0") for n in logs]
    of_rcps = [] if problems else [(folder, "4.0.0", False, points)]
    assert asked == [*of_rcps, (logs, "4.0.0")] and found.rcp_source == "own.json"
    (folder / "result_2.txt").write_bytes((folder / "result_3.txt").read_bytes())
    found = verdict.judge(folder.parent, "5.0.0")
    copy = "result_3.txt: the same run as result_2.txt"
    assert found.problems == ("9 logs, the rules require 10", copy)
    assert found.olympic_minutes == pytest.approx(6)  # as if it were not there
    assert found.rcp_source == "official points of 5.0.0"
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
    found = judged(
        compliance=tuple(Verdict(Path("log"), "5.0.0", good, ()) for good in accepted),
        rcp=RcpVerdict(given["rcp"], "", None, None, None, 1.0),
        seeds=ToolVerdict("seed checker", given["seeds"]),
        problems=given["problems"],
        olympic_minutes=given["olympic_minutes"],
    )
    assert found.passed is passed


def judged(**changes) -> verdict.SystemVerdict:
    usual = {"name": "box", "runs": (), "ruleset": "5.0.0", "compliance": (), "problems": ()}
    usual |= {"seeds": ToolVerdict("seed checker", True), "olympic_minutes": 9.0}
    usual["rcp"] = RcpVerdict(True, "RCP found", None, None, None, 1.0)
    return verdict.SystemVerdict(**usual | changes)


def test_the_lines_of_a_verdict_say_what_was_refused_and_only_what_is_known():
    last = "NOT PASSED under ruleset 5.0.0"
    logs = [("a.txt", True, ()), ("b.txt", False, ("no seed", "no run_stop"))]
    found = judged(
        compliance=tuple(Verdict(Path("o", n), "5.0.0", *said) for n, *said in logs),
        rcp=RcpVerdict(True, "RCP found", None, None, None, 1.25),
        rcp_source="own.json",
        olympic_minutes=None,
    )
    assert found.lines() == [
        "compliance checker: 1 of 2 logs accepted",
        "    b.txt: no seed; no run_stop",
        "RCP checker (own.json): passed, RCP found",
        "seed checker: passed",
        last,
    ]
    assert found.scaled_minutes is None and not found.passed
    *_, minutes, last = judged().lines()
    assert minutes == "time to train: 9.0000 minutes, olympic mean of 0 runs"
    assert last == "PASSED under ruleset 5.0.0" and judged().scaled_minutes == 9.0


def test_the_tools_for_a_whole_folder_are_asked_one_after_the_other(tmp_path, monkeypatch):
    """The package checker writes what the summarizer reads."""
    names = {"check_package": True, "check_system_description": None, "check_repository": False}
    tools = {name: ToolVerdict(name, passed) for name, passed in names.items()}
    answers = {**tools, "summarize": {"8xBox": 7.5, "box": 8.0}}
    system, asked = judged(description={"system_name": "8xBox"}), []

    def asks(name: str, answer):
        return lambda *given, **options: asked.append((name, *given, options)) or answer

    monkeypatch.setattr(verdict, "judge", asks("judge", system))
    for name, answer in answers.items():
        monkeypatch.setattr(official, name, asks(name, answer))
    points = {"custom_rcps": Path("own.json")}
    found = verdict.judge_submission(tmp_path, "box", "4.0.0", **points)
    assert asked == [
        ("judge", tmp_path / "results" / "box", "4.0.0", points),
        ("check_package", tmp_path, "4.0.0", {"by_train_samples": True}),
        ("check_system_description", tmp_path / "systems" / "box.json", "4.0.0", {}),
        ("check_repository", tmp_path, "4.0.0", {}),
        ("summarize", tmp_path, "4.0.0", {}),
    ]
    told = {"folder_tools": tuple(tools.values()), "official_minutes": 7.5}
    assert found == dataclasses.replace(system, **told) and not found.passed


@pytest.mark.parametrize(
    ("counts", "told"), [((True, True), True), ((True, False), False), ((False, False), False)]
)
def test_the_rcp_checker_is_told_what_all_logs_count_by(tmp_path, monkeypatch, counts, told):
    run = log_reader.read_run(write_log(tmp_path / "result.txt", [0.73]))
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


def test_the_seed_checker_is_believed_and_logs_are_in_the_order_of_their_numbers(tmp_path):
    for number, seed in ((10, 5), (2, 4), (0, 5)):
        write_log(tmp_path / f"result_{number}.txt", [0.73], seed=seed)
    files = result_files(tmp_path)
    assert [path.name for path in files] == [f"result_{number}.txt" for number in (0, 2, 10)]
    same, other = (official.check_seeds(some, "5.0.0") for some in (files, files[:2]))
    assert not same.passed and same.reasons and other.passed


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
    assert [repository(Path("o"), old).passed for old in ("1.0.0", "1.1.0")] == [None, None]


@pytest.fixture
def printed(monkeypatch):
    """Returns a function that lets every tool end so, and write a file to its last path."""

    def printed(code: int, errors: str, content: str | None, *, suffix: str, place: int) -> list:
        def python(*words: str, ruleset: str) -> subprocess.CompletedProcess:
            asked.append((*words, ruleset))
            if content is not None:
                Path(words[place]).with_suffix(suffix).write_text(content)
            return subprocess.CompletedProcess(words, code, "", errors)

        asked: list[tuple[str, ...]] = []
        monkeypatch.setattr(official, "_python", python)
        return asked

    return printed


CRASH = "Traceback (most recent call last):\n  File\nKeyError: 'bert'\n"


@pytest.mark.parametrize(
    ("code", "errors", "content", "expected"),
    [
        (0, "", "INFO - good", (True, "INFO - good")),
        (0, "a warning", "INFO - good", (True, "INFO - good")),
        (0, CRASH, "INFO - good", (True, "INFO - good")),  # of a worker, which it has caught
        (1, "a warning", "ERROR - bad", (False, "ERROR - bad")),
        (1, CRASH, "ERROR - bad", (False, CRASH)),
        (2, "usage: ", None, (False, "usage: ")),
        (0, "usage: ", "", (True, "usage: ")),
    ],
)
def test_a_tools_answer_is_its_log_unless_it_crashed(printed, code, errors, content, expected):
    asked = printed(code, errors, content, suffix=".log", place=3)
    assert official.ask("rcp_checker", "--x", "o", ruleset="5.0.0") == expected
    [(*words, output, option, folder, ruleset)] = asked
    assert words == ["-m", "mlperf_logging.rcp_checker", "--log_output"]
    assert (option, folder, ruleset) == ("--x", "o", "5.0.0") and not Path(output).exists()


def test_the_summarizers_minutes_are_read_by_system(printed):
    rows = json.dumps([{"system": "8xBox", "bert": 7.5}, {"system": "other"}])
    asked = printed(0, "", rows, suffix=".json", place=-1)
    assert official.summarize(Path("o"), "4.0.0") == {"8xBox": 7.5, "other": None}
    words = ("-m", "mlperf_logging.result_summarizer", "o", "training", "4.0.0", "--csv")
    assert asked[0][:-2] == words and asked[0][-1] == "4.0.0"
    for code, content in ((1, rows), (0, None)):
        printed(code, CRASH, content, suffix=".json", place=-1)
        with pytest.raises(ValueError, match=r"^the official summarizer failed: KeyError: 'bert'$"):
            official.summarize(Path("o"), "4.0.0")


def test_a_tool_runs_with_a_fixed_order_of_sets_under_a_ruleset_of_bert():
    words = ("-c", "import os, sys; print(os.environ['PYTHONHASHSEED']); sys.exit('why')")
    done = official._python(*words, ruleset="5.0.0")
    assert (done.returncode, done.stdout, done.stderr) == (1, "0\n", "why\n")
    with pytest.raises(ValueError, match=r"'5.1.0' has no BERT"):
        official._python(*words, ruleset="5.1.0")
