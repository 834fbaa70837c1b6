"""What to expect of hardware: medians of other submitters, with errors found by leaving one out."""

from dataclasses import replace

import pytest

from mlperf_bert.submission import expect, published
from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def shipped():
    return published.load()


@pytest.fixture(name="entries")
def four_results(shipped):
    """Four results of three submitters on 8 H100, one of them on 4; every figure is a round one."""
    [example] = [e for e in shipped if e.name == "4.0/smc/1xSMC-H100-SXM-80GB"]

    def result(org, minutes, *, accelerators=8, **others):
        return replace(
            example,
            org=org,
            accelerators=accelerators,
            minutes_scored=minutes,
            samples_per_second_median=1000 / minutes,
            run_minutes=(minutes,) * 10,
            **others,
        )

    return [
        result("A", 10.0),
        result("A", 12.0, system="again"),
        result("B", 20.0),
        result("C", 40.0, accelerators=4),
    ]


def test_an_expectation_is_the_median_of_the_results_on_these_accelerators(entries):
    found = expect.expectation(entries, "NVIDIA H100 80GB HBM3", 8)
    assert (found.accelerator, found.num_submitters, len(found.results)) == ("H100 SXM", 2, 3)
    assert found.range_of(expect.minutes_of) == expect.Range(12.0, 10.0, 20.0, 3)
    assert found.range_of(expect.samples_per_second_of).median == pytest.approx(1000 / 12)
    assert found.range_of(expect.kilowatt_hours_of) is None


def test_the_error_leaves_all_results_of_one_submitter_out(entries):
    """Of A 20 is expected, twice and 1 2/3 times the truth; of B 11, 0.55 of it; of C nothing."""
    found = expect.errors(entries, expect.minutes_of)
    assert found.num_results == 3
    assert found.median == pytest.approx(20 / 12 - 1)
    assert 20 / 12 - 1 < found.percentile_90 <= 1


def test_submitters_are_the_same_under_another_spelling(entries):
    renamed = [
        replace(entry, org={"A": "smc", "B": "SUPERMICRO"}.get(entry.org, "C")) for entry in entries
    ]
    assert expect.expectation(renamed, "H100", 8).num_submitters == 1
    assert not expect.expectations(renamed)


def test_logs_that_were_published_again_count_once_and_lend_their_power(entries):
    first = entries[0]
    again = replace(first, org="A-ac-power", same_logs_as=first.name, watts=6000.0)
    later = replace(again, org="A-dc-power", watts=5000.0)
    found = expect.expectation([*entries, again, later], "H100", 8)
    assert len(found.results) == 3
    assert found.range_of(expect.kilowatt_hours_of) == expect.Range(1.0, 1.0, 1.0, 1)
    [*_, energy] = expect.lines(found, entries)
    assert energy == "  kWh: 1.00; measured in 1 of them"


def test_open_results_and_those_that_did_not_converge_are_left_out(entries):
    bad = [replace(entries[2], division="open"), replace(entries[2], minutes_scored=None, runs=11)]
    assert len(expect.expectation([*entries, *bad], "H100", 8).results) == 3


def test_the_errors_of_the_published_results(shipped):
    """As found by hand: rates 4% and 36%, minutes 5.5% and 37%, with spellings as submitters."""
    by_hand = {expect.samples_per_second_of: (0.04, 0.36), expect.minutes_of: (0.055, 0.37)}
    for figure, (median, ninth_decile) in by_hand.items():
        found = expect.errors(shipped, figure)
        assert found.num_results == 200
        assert found.median == pytest.approx(median, abs=0.005)
        assert ninth_decile - 0.07 < found.percentile_90 <= ninth_decile


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--accelerator=T4", "--count=8"], "--accelerator=T4: nobody published a comparable"),
        (["--accelerator=H100", "--count=7"], "--count=7: nobody published a comparable result"),
    ],
)
def test_hardware_that_nobody_published_is_one_line_with_what_there_is(words, message, capsys):
    assert expect.main(words) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line and "give one of" in line


@pytest.mark.parametrize(
    "words", [["--count=8"], ["--accelerator=H100"], ["--accelerator=H100", "--count=0"]]
)
def test_a_question_that_is_not_whole_is_refused(words, capsys):
    with pytest.raises(SystemExit) as exit:
        expect.main(words)
    assert exit.value.code == 2
    assert "give" in capsys.readouterr().err


def test_the_command_answers_in_four_lines(capsys):
    assert expect.main(["--accelerator=A100", "--count=8"]) == 0
    first, minutes, rate, energy = capsys.readouterr().out.splitlines()
    assert first.startswith("8 A100 SXM: 36 results of 13 submitters")
    assert "minutes to 0.720: 19.9 (15.8 to 46.5); off by" in minutes
    assert "samples/s: 2,340" in rate
    assert energy == "  kWh: not measured by any of them"


def test_the_tables_in_the_documents_are_those_of_the_command(shipped):
    text = expect.table(shipped)
    assert text in (REPOSITORY / "docs/training.md").read_text(encoding="utf-8")
    rows = set(text.splitlines())
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()
    head = [n for n, line in enumerate(readme) if line.startswith("| accelerators |")]
    assert len(head) == 1
    assert set(readme[head[0] : head[0] + 5]) <= rows
