"""Verdicts and reports agree with the official tools, on real logs of five vendors.

Long because what the official tools say of one submission, which takes seconds, serves its tests.
"""

import dataclasses
import json
import math
import re
import shutil

import pandas
import pytest
from matplotlib.figure import Figure

import pages
from demo.campaign import REFERENCE_POINTS
from mlperf_bert.mlperf.energy import Energy
from mlperf_bert.submission import official, report, report_charts, verdict
from mlperf_bert.submission.compliance import Verdict
from mlperf_results import published
from tests.mlperf.example_log import write_submission

TEN = [[0.5] * 16 + [0.73]] * 10


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """What is said of ten runs of one system, the compliance checker apart; not to be changed."""
    folder = write_submission(tmp_path_factory.mktemp("judged") / "example", TEN)
    with pytest.MonkeyPatch.context() as patched:  # a second for each of ten logs
        patched.setattr(verdict, "check_log", lambda *which: Verdict(*which, True, ()))
        [found] = report.judge_systems(folder, "5.0.0")
    return found


@pytest.mark.all
@pytest.mark.parametrize(
    ("org", "system", "minutes", "rcp_passed", "scaling", "problem"),
    [
        ("Google", "tpu-v4-128-TF", 4.05868125, True, 1.0, None),
        ("Google", "tpu-v4-6912-TF", 0.2760354, False, 1.0, None),
        ("NVIDIA", "dgxa100_ngc21.05_pytorch", 21.69258, True, 1.0, None),
        ("Graphcore", "ipu-pod16-POPART-closed", 34.48877, True, 1.01855620, None),
        ("Habana", "SYS-420GH-TNGR", 164.36769, True, 1.0, "no seed in result_0.txt"),
        ("Supermicro", "as-2124gq-nart+", None, False, 1.0, "10 runs did not converge"),
    ],
)
def test_real_logs(shared, org, system, minutes, rcp_passed, scaling, problem):
    found = verdict.judge(shared / "real_logs" / org / "results" / system, "1.0.0")
    if minutes is None:
        assert found.olympic_minutes is None
    else:
        assert found.olympic_minutes == pytest.approx(minutes, abs=5e-6)
    assert found.rcp.passed == rcp_passed
    assert found.rcp.scaling == pytest.approx(scaling, abs=1e-8)
    assert [verdict.passed for verdict in found.compliance] == [minutes is not None] * 10
    assert bool(found.problems) == (problem is not None)
    if problem:
        assert problem in found.problems[0]
    assert found.seeds.passed == (org != "Habana")
    assert found.description["framework"]


@pytest.mark.parametrize(
    ("org", "system", "passed", "line"),
    [
        (
            "Graphcore",
            "ipu-pod16-POPART-closed",
            True,
            "time to train: 34.4888 minutes, olympic mean of 10 runs; 35.1287 scaled by 1.0186, "
            "because it converged faster than the reference",
        ),
        pytest.param(
            "Habana",
            "SYS-420GH-TNGR",
            False,
            "\n    Seed checker failed",
            marks=pytest.mark.all,
        ),
    ],
)
@pytest.mark.gate
def test_verdicts_of_all_official_tools(shared, tmp_path, org, system, passed, line):
    copy = tmp_path / org  # the tools write into the submission
    shutil.copytree(shared / "real_logs" / org, copy)
    found = verdict.judge_submission(copy, system, "1.0.0")
    assert line in "\n".join(found.lines())
    assert found.passed == passed
    assert found.official_minutes == pytest.approx(found.scaled_minutes, abs=1e-9)
    # The table of published results has four digits.
    table = pandas.read_parquet(published.TABLE)
    [row] = table[(table["round"] == "1.0") & (table.org == org) & (table.system == system)].iloc
    assert row.minutes_olympic_mean == pytest.approx(found.olympic_minutes, abs=5.1e-5)


@pytest.mark.gate
def test_real_submission_becomes_a_page(shared, tmp_path, capsys):
    org = shared / "real_logs" / "NVIDIA"
    output = tmp_path / "report.html"
    assert report.main([str(org), "--ruleset", "1.0.0", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    rcp = "Convergence (RCP): passed (2,775,192 samples; RCP Interpolation, RCP test PASSED, "
    assert f"  {rcp}counted by train_samples (its option --bert_train_samples))\n" in printed
    page = output.read_text(encoding="utf-8")
    assert "These logs count epochs, not samples." in page
    assert "NVIDIA A100-SXM4-80GB (400W)" in page
    assert "cuda_version 11.3.0.016" in page


def test_command_writes_page_and_numbers(judged, tmp_path, monkeypatch, capsys):
    asked: list = []  # it takes seconds
    named = dataclasses.replace(judged, name="<b>box")
    systems = [named]
    monkeypatch.setattr(report, "judge_systems", lambda *a, **k: asked.append((a, k)) or systems)
    output, org_dir = tmp_path / "new" / "box.html", tmp_path / "example"
    points = f"--custom_rcps={REFERENCE_POINTS}"
    assert report.main([str(org_dir), "--ruleset=5.0.0", points, f"--output={output}"]) == 0
    assert asked == [((org_dir, "5.0.0"), {"custom_rcps": REFERENCE_POINTS})]
    printed = capsys.readouterr().out
    title, headings, first, *_ = printed.splitlines()
    assert title == "<b>box, under ruleset 5.0.0"
    assert headings.split() == (
        "run status minutes samples accuracy samples/s init min seed compliance".split()
    )
    assert first.split()[0] == "result_0" and first.split()[8] == "yes"
    assert "Convergence (RCP): passed" in printed and "batch 448" in printed
    page = output.read_text(encoding="utf-8")
    assert "&lt;b&gt;box" in page and "<b>box" not in page
    assert re.findall(r' (?:src|href)="([^"#][^"]*)"', page) == ["data:,"]  # nothing is loaded
    assert page.count("<svg") == page.count("</svg>") == page.count("<figure") == 3
    assert "<script" not in page and "url(http" not in page
    [numbers] = json.loads((output.parent / "box.json").read_text())
    assert [run["samples_to_converge"] for run in numbers["runs"]] == [17 * 150_080] * 10
    assert numbers["rcp"]["mean_samples"] == pytest.approx(2_414_421.3, abs=0.1)
    assert numbers["rcp"]["min_mean_samples"] == pytest.approx(2_274_732.0, abs=0.1)
    assert numbers["problems"] == []
    assert numbers["seeds"]["passed"] is True
    assert numbers["runs"][0]["samples_per_second"] > 0
    assert {path.name for path in output.parent.iterdir()} == {"box.html", "box.json"}
    assert "<td>lowest numerical precision in linear</td><td>bfloat16</td>" in page
    assert "<td>tensor parallelism</td><td>1</td>" in page
    assert "MLPerf Training BERT: example" in page
    assert f"Ruleset 5.0.0; reference convergence points: {REFERENCE_POINTS.name}" in page
    systems.append(judged)
    assert report.main([str(org_dir), "--ruleset=5.0.0", f"--output={output}"]) == 0
    assert "reference convergence points: the official ones" in output.read_text(encoding="utf-8")
    assert len(json.loads((output.parent / "box.json").read_text())) == 2
    systems.pop()
    capsys.readouterr()
    shutil.rmtree(tmp_path)
    assert report.main([str(org_dir), "--ruleset=5.0.0"]) == 0
    assert capsys.readouterr().out == printed and not tmp_path.exists()


def test_facts_are_named_in_words_and_empty_ones_left_out():
    facts = {"cuda_version": 12, "memory": {"GPU": "80 GB", "host": 7}, "notes": "", "tpu": None}
    expected = [("cuda version", "12"), ("memory", "GPU 80 GB, host 7"), ("zero", "0")]
    assert report._facts(facts | {"zero": 0}) == expected


def test_pictures_lack_what_is_not_known(judged, drawn):
    runs = judged.runs[:3]
    unknown = [
        dataclasses.replace(
            run, evaluations=tuple(dataclasses.replace(e, samples=None) for e in run.evaluations)
        )
        for run in runs
    ]
    assert report_charts.accuracy_over_samples(unknown, judged.rcp) is None
    for change in ({"batch_size": None}, {"batch_size": 448.0, "mean_samples": None}):
        point = dataclasses.replace(judged.rcp, **change)
        axes = drawn(report_charts.accuracy_over_samples, [unknown[0], *runs[1:]], point)
        assert axes.get_legend_handles_labels()[1] == ["3 runs: success", "target 0.720"]
        ends = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "o"]
        assert [end for end in ends if end] == [[[17 * 150_080, 0.73]]] * 2
        assert not axes.patches and axes.get_xlabel() == "samples"
    failed = [dataclasses.replace(run, status="aborted") for run in runs]
    assert report_charts.minutes_by_run(failed, None) is None
    axes = drawn(report_charts.minutes_by_run, [*runs, *failed], None)
    assert axes.get_legend_handles_labels()[1] == [] and len(axes.texts) == 3
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["0", "1", "2"] * 2


@pytest.fixture
def drawn(monkeypatch):
    """Returns what a picture has drawn."""
    pictures = []
    monkeypatch.setattr(pages, "svg", lambda draw, size_inches: pictures.append(draw))

    def axes_of(draw, *given):
        draw(*given)
        axes = Figure().subplots()
        pictures[-1](axes)
        return axes

    return axes_of


def test_the_seconds_of_a_run_are_drawn_one_after_the_other(judged, drawn):
    seconds = [{"compute": 60.0, "host": 15.0}, {"compute": 3.0, "input_wait": 1.0}]
    runs = [dataclasses.replace(run, seconds=each) for run, each in zip(judged.runs, seconds)]
    bars = drawn(report_charts.ledgers, runs).patches
    places = [(round(bar.get_y() + 0.36), bar.get_x(), bar.get_width()) for bar in bars]
    assert places == [(0, 0, 80), (0, 80, 20), (1, 0, 75), (1, 75, 25)]


def test_a_picture_or_a_column_of_what_no_log_says_is_not_there(judged):
    assert "Where every second of every run went" in report.page([judged], title="t", subtitle="s")
    unknown = [dataclasses.replace(run, seconds=None) for run in judged.runs]
    assert report_charts.ledgers(unknown) is None
    assert "kWh" not in report.as_text(judged)
    energy = Energy(joules=3.96e6, about="of the GPUs")
    measured = (dataclasses.replace(judged.runs[0], energy=energy), *judged.runs[1:])
    _, columns, first, second, *_ = report.as_text(
        dataclasses.replace(judged, runs=measured)
    ).splitlines()
    ends = [line.split()[-1] for line in (columns, first, second)]
    assert ends == ["kWh", "1.1", "-"]


def test_numbers_that_are_none_are_null_and_in_no_axis(judged, drawn):
    nan = [dataclasses.replace(each, accuracy=math.nan) for each in judged.runs[0].evaluations]
    diverged = (dataclasses.replace(judged.runs[0], evaluations=tuple(nan)), *judged.runs[1:])
    rcp = dataclasses.replace(judged.rcp, scaling=1.5)
    system = dataclasses.replace(judged, runs=diverged, olympic_minutes=3.0, rcp=rcp)
    [told] = json.loads(report.as_json([system]), parse_constant=pytest.fail)
    assert told["runs"][0]["evaluations"][0]["accuracy"] is None and told["scaled_minutes"] == 4.5
    axes = drawn(report_charts.accuracy_over_samples, diverged, judged.rcp)
    assert 0.4 < axes.get_ylim()[0] < 0.5 < 0.73 < axes.get_ylim()[1] < 0.8


@pytest.mark.all
def test_runs_that_diverged_are_shown(tmp_path):
    org_dir = write_submission(tmp_path / "example", TEN)
    for log in (org_dir / "results" / "box" / "bert").iterdir():
        text = log.read_text().replace('"value": 0.73', '"value": NaN')
        log.write_text(text.replace('"value": 0.5', '"value": NaN').replace("success", "aborted"))
    output = tmp_path / "report.html"
    assert report.main([str(org_dir), f"--output={output}"]) == 0
    page = output.read_text(encoding="utf-8")
    assert "no score" in page and "10 runs did not converge, the rules forgive 1" in page
    assert page.count("No run reached the target.") == 1
    assert page.count("all logs: Failed checks for eval_accuracy") == 1
    assert "10 runs: no success" in page
    [numbers] = json.loads(output.with_suffix(".json").read_text())
    assert numbers["runs"][0]["evaluations"][0]["accuracy"] is None
    assert "consider adding" not in numbers["rcp"]["reason"]


def test_the_band_is_that_of_the_runs_own_batch(judged, drawn):
    """The checker judges a batch that is smaller than all points by the smallest of them."""
    point = dataclasses.replace(
        judged.rcp, mean_samples=2414421.0, min_mean_samples=2274732.0, batch_size=448.0
    )
    for batch, bands, told in (
        (448, 1, "RCP: from least credible mean to mean"),
        (64, 0, "no RCP at this batch (judged by that of 448)"),
    ):
        runs = [dataclasses.replace(run, global_batch_size=batch) for run in judged.runs]
        axes = drawn(report_charts.accuracy_over_samples, runs, point)
        assert told in axes.get_legend_handles_labels()[1]
        ends = [(band.get_x(), band.get_x() + band.get_width()) for band in axes.patches]
        assert ends == [(2274732.0, 2414421.0)] * bands


@pytest.mark.parametrize(("failed", "hollow"), [((), [2, 5]), ((4,), [2])])
def test_the_runs_that_the_olympic_mean_leaves_out_are_hollow(judged, drawn, failed, hollow):
    """A failed run is the slowest, so only the fastest goes."""
    runs = [
        dataclasses.replace(
            run, minutes=minutes, status="aborted" if number in failed else "success"
        )
        for number, (run, minutes) in enumerate(zip(judged.runs, [7, 6, 3, 8, 5, 9, 4]))
    ]
    axes = drawn(report_charts.minutes_by_run, runs, 6.5)
    dots = {x: dot for dot in axes.lines if dot.get_marker() == "o" for x in dot.get_xdata()}
    assert sorted(dots) == [number for number in range(7) if number not in failed]
    assert [x for x, dot in dots.items() if dot.get_markerfacecolor() == "white"] == hollow
    assert [text.get_position()[0] for text in axes.texts] == [*failed]  # an x each


def test_result_that_converged_too_fast_fails(tmp_path):
    folder = write_submission(tmp_path, [[0.73]] * 10) / "results" / "box" / "bert"
    found = official.check_rcp(folder, "5.0.0")
    assert not found.passed
    assert found.submission_mean_samples == 150_080


def test_the_cards_say_what_logs_and_tools_say(judged):
    runs = [
        dataclasses.replace(run, minutes=float(number), seeds=(number // 2, 7))
        for number, run in enumerate(judged.runs, start=1)
    ]
    system = dataclasses.replace(
        judged,
        runs=tuple(runs),
        compliance=tuple(dataclasses.replace(each, passed=False) for each in judged.compliance),
        olympic_minutes=5.5,
        rcp=dataclasses.replace(judged.rcp, passed=False, reason="too fast", scaling=1.25),
        seeds=official.ToolVerdict("seed checker", False),
    )
    assert [(card.label, card.value, card.note, card.good) for card in report._cards(system)] == [
        ("Time to train", "6.875 min", "olympic mean of 10 runs, scaled by 1.2500", True),
        ("Convergence (RCP)", "failed", "2,551,360 samples; too fast", False),
        ("Compliance", "0 of 10 logs", "accepted under 5.0.0", False),
        ("Seeds", "failed", "6 different ones", False),
        # That of the sixth of them by speed, which took five minutes.
        ("Throughput", "8,505 /s", "of samples, evaluation included; batch 448", None),
    ]
    runs = [dataclasses.replace(run, minutes=9.5) for run in runs]
    slow = dataclasses.replace(runs[5], minutes=30.0, samples_to_converge=None)
    failed = dataclasses.replace(runs[6], minutes=99.0, status="aborted")  # is no figure
    system = dataclasses.replace(system, runs=(*runs[:5], slow, failed, *runs[7:]))
    note = report._cards(system)[0].note
    assert note == "olympic mean of 10 runs, scaled by 1.2500; far off: result_5.txt, 30 min"
    _, _, *rows = report.as_text(system).splitlines()
    assert [row.split()[3] for row in rows[4:6]] == ["2,551,360", "-"]


def test_a_row_says_what_its_own_log_says(judged):
    runs = [
        dataclasses.replace(run, minutes=n + 1.0, init_minutes=n / 4, seeds=(n, 99))
        for n, run in enumerate(judged.runs[:2])
    ]
    checked = [dataclasses.replace(judged.compliance[n], passed=not n) for n in range(2)]
    changes = {"runs": tuple(runs), "compliance": tuple(checked)}
    _, row = report._rows(dataclasses.replace(judged, **changes))
    assert [text for text, _ in row] == (
        ["result_1", "success", "2.0000", "2,551,360", "0.7300", "21,261.3", "0.25", "1", "no", "-"]
    )
    assert [good for _, good in row if good is not None] == [True, False]


def test_a_result_without_verdict_or_score_says_why(judged):
    copies = "result_1.txt and 9 more: the same run as result_0.txt"
    rcp = dataclasses.replace(judged.rcp, passed=None, reason=f"it would count copies, {copies}")
    # Equally long: where the machine is busy, one of runs that lasted milliseconds may be far off.
    runs = tuple(dataclasses.replace(run, minutes=1.0) for run in judged.runs)
    changes = {"rcp": rcp, "olympic_minutes": None, "problems": (copies, "1 log"), "runs": runs}
    printed = report.as_text(dataclasses.replace(judged, **changes))
    assert "\n  Time to train: no score (olympic mean of 10 runs)\n" in printed
    assert f"\n  Convergence (RCP): no verdict (2,551,360 samples; {rcp.reason})\n" in printed
    samples = "samples to converge, as it counts: 2,551,360, credible from 2,274,732 on"
    assert f"\n  RCP checker: no verdict, {rcp.reason}; {samples}\n" in printed
    assert printed.endswith(f"\n  problem: {copies}\n  problem: 1 log")


def test_all_systems_are_judged_alike_in_the_order_of_their_names(tmp_path, monkeypatch):
    asked: list = []
    for name in "bca":
        (tmp_path / "results" / name / "bert").mkdir(parents=True)
    monkeypatch.setattr(report, "judge", lambda folder, *a, **k: asked.append((folder.name, a, k)))
    report.judge_systems(tmp_path, "4.0.0", custom_rcps=REFERENCE_POINTS)
    assert asked == [(n, ("4.0.0",), {"custom_rcps": REFERENCE_POINTS}) for n in "abc"]


def test_what_the_official_tools_refuse_is_told_once_with_the_logs(judged):
    def told(*refused: str, num_runs: int = 3) -> list[str]:
        compliance = [
            Verdict(run.path, "5.0.0", not message, tuple(filter(None, [message])))
            for run, message in zip(judged.runs[:num_runs], [*refused, "", ""])
        ]
        changes = {"runs": judged.runs[:num_runs], "compliance": tuple(compliance)}
        return report._problems(dataclasses.replace(judged, **changes))

    # The same line of a log has another number in another log.
    found = told("x in line 7", "y", "x in line 9")
    assert found == ["result_0.txt, result_2.txt: x", "result_1.txt: y"]
    assert told("x", "x", "x") == ["all logs: x"]
    assert told("x", num_runs=1) == ["result_0.txt: x"]
    seeds = official.ToolVerdict("seed checker", False, ("Result seed 5 twice",))
    for problem, expected in (("no seed in a", []), ("1 log", ["Result seed 5 twice"])):
        system = dataclasses.replace(judged, seeds=seeds, problems=(problem,))
        assert report._problems(system) == [problem, *expected]


def test_mistakes_are_named_in_one_line(tmp_path, refusal):
    line = refusal(report, tmp_path)
    assert "no results/SYSTEM/bert; give the submitter's folder" in line
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "box.json").touch()
    (tmp_path / "results" / "box" / "bert").mkdir(parents=True)
    assert "no bert/result_*.txt" in refusal(report, tmp_path)
    points = f"--custom_rcps={tmp_path / 'none.json'}"
    assert "none.json: No such file or directory" in refusal(report, tmp_path, points)
    for name, message in (
        ("all.json", "all.json: give the name of a page, as report.html"),
        ("result_0.txt", "result_0.txt: give the name of a page, as report.html"),
        ("run.html", "run.json: is the name of a record; choose another --output"),
        ("campaign.html", "campaign.json: is the name of a record; choose another --output"),
        ("systems/box.html", "systems/box.json: is an input too; choose another --output"),
    ):
        assert message in refusal(report, tmp_path, f"--output={tmp_path / name}")
    words = (f"--custom_rcps={tmp_path / 'own.json'}", f"--output={tmp_path / 'own.html'}")
    assert "own.json: is an input too; choose another" in refusal(report, tmp_path, *words)
