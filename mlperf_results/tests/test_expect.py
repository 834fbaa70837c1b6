"""How long a run takes, by published results."""

import re
from dataclasses import replace

import numpy as np
import pytest

from mlperf_results import expect
from mlperf_results.benchmarks import expect_table
from mlperf_results.expect import COUNT, Interval, Published, Question
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


def test_a_batch_or_nodes_that_nobody_published_are_told(capsys, refusal):
    words = ["--accelerator=H100", "--count=8"]
    first, *_ = answer(capsys, *words, "--batch=768", "--nodes=1")
    assert "nobody published" not in first
    first, *_ = answer(capsys, *words, "--batch=448", "--nodes=8")
    assert ", with batch 768: nobody published batch 448, with nodes 1, 2: nobody" in first
    for batch in (8192, 1_000_000, 8):  # 1,024 of each, ..., 1 of each
        assert refusal(expect, *words, f"--batch={batch}") == (
            f"expect: --batch={batch}: nobody published it, or one like it, on 8 H100 SXM; "
            "published is batch 768 on 8 of them"
        )


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


def test_results_count_once_under_the_submitters_one_name_with_power_that_was_measured(shipped):
    [found] = [e for e in shipped if e.name == "4.0/smc/1xSMC-H100-SXM-80GB"]
    example = replace(found, watts=None)
    again = replace(example, org="A-ac-power", same_logs_as=example.name, watts=6000.0)
    later = replace(again, org="A-dc-power", watts=5000.0)
    other = replace(example, org="SUPERMICRO", system="other")
    bad = [replace(example, division="open"), replace(example, minutes_scored=None, runs=11)]
    found = Published([example, again, later, other, *bad])
    assert [(e.org, e.watts) for e in found.entries] == [("smc", 6000.0), ("SUPERMICRO", None)]
    assert list(found.submitter) == ["supermicro"] * 2


def test_energy_is_the_minutes_times_the_measured_power_of_as_many_accelerators(known):
    of_eight, of_four = (known.expectation(Question("H100 SXM", n)) for n in (8, 4))
    [measured] = [e.watts for e in known.entries if e.family == "H100 SXM" and e.watts]
    hours = of_four.minutes.expected / 60
    assert of_four.kilowatt_hours.expected == pytest.approx(measured / 2 / 1000 * hours)
    assert of_eight.kilowatt_hours.least < of_eight.kilowatt_hours.expected
    assert known.expectation(Question("A100 SXM", 8)).kilowatt_hours is None


def test_an_interval_is_wider_far_from_all_counts(known):
    def width(count):
        rate = known.expectation(Question("H200", count)).samples_per_second
        return np.log(rate.most / rate.least)

    assert width(48) < width(512) < width(4096)
    assert width(8) < width(512)
    rows = np.flatnonzero(np.isin(known.place[:, COUNT], [3, 5]))  # 8 and 32
    far = [known.doublings(np.log2([count, 1, 1]), rows) for count in (8, 12, 48, 128, 1)]
    assert far == [1, 1, 1, 2, 3]


def test_an_interval_has_three_digits():
    assert str(Interval(1234.5, 0.01234, 99.96)) == "1,230 (0.0123 to 100)"
