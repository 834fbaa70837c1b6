"""How long a run takes, by published results."""

import re

import pytest

from mlperf_results import expect
from mlperf_results.benchmarks import expect_table
from mlperf_results.expect import Question
from tests.fixtures import REPOSITORY


def answer(capsys, *words):
    assert expect.main(words) == 0
    return capsys.readouterr().out.splitlines()


def test_the_command_answers_in_five_lines(capsys, known):
    first, minutes, rate, energy, systems = answer(capsys, "--accelerator=A100", "--count=8")
    expected = known.expectation(Question("A100 SXM", 8))
    number = len(expected.results)
    assert first.startswith(f"8 A100 SXM: from {number} results of 13 submitters (closed division")
    assert f"minutes to 0.720: {expected.minutes}; off by " in minutes
    assert f"samples/s: {expected.samples_per_second}; off by " in rate
    assert energy == "  kWh of a run: unknown: nobody published the power of this family"
    assert systems.startswith("  rests on: 3.0/Dell/XE9680x8A100-SXM-80GB, 2.1/")  # the latest
    assert systems.endswith(f" and {number - 3} more")


def test_one_result_is_one_and_its_interval_is_that_of_the_others(capsys, known):
    first, *_ = answer(capsys, "--accelerator=L40S", "--count=8")
    number = len(known.expectation(Question("L40S", 8)).errors.families)
    assert first.startswith("8 L40S: from 1 result of 1 submitter (closed division") and number > 99
    assert f"the errors are those of {number} results, each expected from others" in first


def test_a_count_that_nobody_published_rests_on_the_nearest(capsys):
    first, *_, systems = answer(capsys, "--accelerator=H200", "--count=24", "--batch=768")
    assert first.startswith("24 H200, batch 768: from 17 results of 9 submitters on 8, 16, 32, 64")
    assert "nobody published 24" in first
    assert "rests on: 5.0/HPE/HPE-Cray-XD670-H200-SXM5-141GB_n4" in systems  # 32 of them


def test_a_price_is_that_of_the_minutes_of_one_run_and_of_ten(capsys):
    words = ["--accelerator=H100", "--count=8", "--price_per_hour=600"]
    _, minutes, *_, price = answer(capsys, *words)
    expected = float(minutes.split(": ")[1].split()[0])
    run, ten = price.split("a run ")[1].split(", the 10 of a result ")
    assert float(run.split()[0]) == pytest.approx(10 * expected, rel=0.01)
    assert float(ten.split()[0]) == pytest.approx(100 * expected, rel=0.01)
    assert "for the whole system" in price


@pytest.mark.parametrize(
    ("asked", "nearest"), [("H10O SXM", "H100 SXM"), ("mi300", "MI300X"), ("Gaudi3", "Gaudi")]
)
def test_a_family_that_nobody_published_is_answered_with_the_nearest_names(asked, nearest, refusal):
    line = refusal(expect, f"--accelerator={asked}", "--count=8")
    assert line.startswith(f"expect: --accelerator={asked}: nobody published a comparable")
    assert nearest in line.partition("nearest names are")[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--count=8"], "required: --accelerator"),
        (["--accelerator=H100"], "required: --count"),
        (["--accelerator=H100", "--count=0"], "'0': give a whole number from 1"),
        (["--accelerator=H100", "--count=8", "--batch=many"], "'many': give a whole number"),
        (["--accelerator=H100", "--count=8", "--nodes=9"], "--nodes=9: more than --count=8"),
        (["--accelerator=H100", "--count=8", "--price_per_hour=-1"], "'-1': give the price"),
        (["--accelerator=H100", "--count=8", "--price_per_hour=nan"], "'nan': give the price"),
    ],
)
def test_a_question_that_is_not_whole_is_refused(words, message, capsys):
    with pytest.raises(SystemExit) as exit:
        expect.main(words)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_the_tables_in_the_documents_are_those_of_the_benchmark(known):
    tables = {
        "mlperf_results/docs/expecting.md": expect_table.table(known),
        "benchmarks/NOTES.md": expect_table.table_of_errors(known),
    }
    for page, table in tables.items():
        assert table in (REPOSITORY / page).read_text(encoding="utf-8")


def test_the_minutes_of_the_command_in_the_readme_are_those_of_its_batch(capsys):
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    assert "--flagfile=configs/batch_448.flags" in readme
    expect.main(["--accelerator=H100", "--count=8", "--batch=448", "--nodes=1"])
    minutes = re.search(r"minutes to 0.720: (\S+ \(.*?\))", capsys.readouterr().out)[1]
    assert f"8 H100 SXM are expected to need {minutes}" in readme.replace(" minutes (", " (")
