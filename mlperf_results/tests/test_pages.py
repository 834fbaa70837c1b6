"""The pages and the notes say what the commands say, and what the published runs say."""

import re
import runpy
import shlex
import sys
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from mlperf_bert.submission import runs
from mlperf_results import compare, curve, expect, published, sides
from mlperf_results.benchmarks import comparing
from tests.fixtures import REPOSITORY
from tests.mlperf.example_log import write_curve

NOTES = (REPOSITORY / "benchmarks" / "NOTES.md").read_text(encoding="utf-8")
PACKAGE = REPOSITORY / "mlperf_results"


def text_of(page):
    return " ".join((PACKAGE / page).read_text(encoding="utf-8").split())


def blocks_of(page):
    text = (PACKAGE / "docs" / page).read_text(encoding="utf-8")
    return [block.splitlines() for block in text.split("\n\n") if block.startswith("    ")]


@pytest.mark.parametrize(("page", "command"), [("comparing.md", compare), ("expecting.md", expect)])
def test_the_example_is_what_the_command_prints(page, command, capsys):
    (typed,), shown, *_ = blocks_of(page)
    words = shlex.split(typed)
    assert words[:3] == ["python", "-m", command.__name__]
    assert command.main(words[3:]) == 0
    assert shown == [f"    {line}" for line in capsys.readouterr().out.splitlines()]


def test_the_example_of_a_curve_is_what_the_command_prints(tmp_path, capsys):
    _, shown = blocks_of("curve.md")
    points = [line.split()[:2] for line in shown[2:-1]]
    logged = [(int(n.replace(",", "")), float(accuracy)) for n, accuracy in points]
    assert curve.main([str(write_curve(tmp_path / "bert.log", logged))]) == 3
    assert shown == [f"    {line}" for line in capsys.readouterr().out.splitlines()]


def test_a_published_result_is_a_side_by_its_name(call):
    code, printed, _ = call("4.0/Supermicro/AS-8125GS-TNHR-1", "4.1/Supermicro/AS-8125GS-TNHR-1")
    assert code == 0 and "B: 4.1/Supermicro/AS-8125GS-TNHR-1: 10 runs" in printed
    twin = "3.0/Dell/XE8640x4H100-SXM-80GB", "3.1/Dell/XE8640x4H100-SXM-80GB"
    assert "are the same runs, time for time" in call(*twin)[2]
    entries = published.load()
    failed = next(entry.name for entry in entries if not entry.run_minutes)
    assert "no run of this published result has converged" in call(failed, twin[0])[2]
    processors = next(entry for entry in entries if entry.accelerators == 0)
    assert sides.side_of_entry(processors).made_on["accelerators"] == ("0",)
    partly = replace(entries[-1], runs=entries[-1].runs_converged + 2)
    assert sides.side_of_entry(partly).left_out == ("a run: did not converge",) * 2


def test_single_runs_mislead_as_much_as_the_page_says(shipped):
    whole = [entry.run_minutes for entry in shipped if len(entry.run_minutes) == 10]
    spans = [(max(minutes) - min(minutes)) / np.mean(minutes) for minutes in whole]
    page = text_of("docs/comparing.md")
    assert f"differ by {np.median(spans):.1%} of their mean" in page
    [shown] = [entry for entry in shipped if entry.name == "3.1/Dell/XE9680x8H100-SXM-80GB"]
    samples = np.array(shown.run_samples, float)
    scatter = np.log(samples).std(ddof=1)
    assert f"because the samples to converge scatter by {scatter:.0%}. A's samples/s" in page
    rates = samples / shown.run_minutes
    scatter = np.log(rates).std(ddof=1)
    assert f"scatter by only {scatter:.1%}, so they show that B is 3.9% faster" in page


def test_the_tables_are_what_the_benchmark_prints(shipped):
    tables = comparing.tables(shipped)
    assert all(f"\n\n{table}\n\n" in NOTES for table in tables)
    assert f"{len(comparing.Runs.of(shipped).minutes)} published results" in NOTES
    power = [re.findall(r"([\d.]+)%", row) for row in tables[1].splitlines()[2:4]]
    ten, five = ([round(float(share)) for share in shares] for shares in power)
    assert (
        f"a real difference of 10% in minutes in {ten[2]} of 100 cases, and one of 3% in samples/s "
        f"in {ten[3]}. Five and five show it in {five[2]} and {five[3]} ("
    ) in text_of("docs/comparing.md")


def test_figures_in_sentences_are_those_of_the_code_and_of_the_table(shipped):
    h100 = [e for e in published.comparable(shipped) if e.family.startswith("H100")]
    known = [entry for entry in h100 if entry.samples_per_second_median]
    assert sum(expect.precision_of(entry) == "no FP8" for entry in known) == 4
    assert (round(1 / (1 - compare.LEVEL**3)), runs._FAR_OFF_SHARE, runs._FAR_OFF) == (7, 0.2, 5)
    aside = 2**curve._HALF_A_DOUBLING
    size_kb = round(published.TABLE.stat().st_size, -4) / 1000
    for page, words in (
        ("README.md", f"the table of all {len(shipped)} results"),
        ("docs/standing.md", f"with the {len(shipped)} published results"),
        ("docs/standing.md", f"results as a table of {size_kb:.0f} kB"),
        ("docs/expecting.md", f"All but four of the {len(known)} published H100 systems"),
        ("docs/curve.md", f"| {curve.EXIT_FAR_BELOW} | the last two evaluations, or the only one, "
         f"are below the least published accuracy by more than {curve.FAR_BELOW} |"),
        ("docs/curve.md", f"below all published runs by less than {curve.FAR_BELOW}, look"),
        ("docs/curve.md", f"batch is between {1 / aside:.2f} and {aside:.2f} times yours"),
        ("docs/comparing.md", "p to one in seven comparisons of equal systems"),
        ("docs/comparing.md", "more than a fifth, and more than five standard deviations"),
        ("docs/comparing.md", f"| {compare.EXIT_SLOWER} | the measured figure of B is at least"),
        ("docs/comparing.md", f"| {compare.EXIT_CANNOT_TELL} | the interval is too wide to tell"),
    ):  # fmt: skip
        assert words in text_of(page)


def test_an_installation_has_the_table_and_what_the_package_imports(monkeypatch):
    given = {}
    monkeypatch.setattr("setuptools.setup", given.update)
    runpy.run_path(str(PACKAGE / "setup.py"))
    ours, harness = (
        tomllib.loads((folder / "pyproject.toml").read_text()) for folder in (PACKAGE, REPOSITORY)
    )
    listed = [*harness["project"]["dependencies"], *given["install_requires"]]
    names = {re.match(r"[\w-]+", each)[0].replace("-", "_") for each in listed}
    code = "".join(path.read_text() for path in PACKAGE.glob("[!_]*.py") if path.stem != "setup")
    imported = set(re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE))
    assert imported - sys.stdlib_module_names - {"mlperf_results"} <= names
    assert ours["tool"]["setuptools"]["package-data"]["mlperf_results"] == [published.TABLE.name]
    assert ours["project"]["requires-python"] == harness["project"]["requires-python"]
