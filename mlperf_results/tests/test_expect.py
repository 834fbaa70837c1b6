"""The published rows nearest to a machine."""

import re
from dataclasses import replace

import pytest

from mlperf_results import expect
from mlperf_results.published import Entry
from tests.fixtures import REPOSITORY


def test_of_the_rows_on_as_many_accelerators_those_of_the_batch_are_shown(capsys):
    assert expect.main(["--accelerator=a100", "--count=8", "--batch=448"]) == 0
    first, _, _, _, *rows, more = capsys.readouterr().out.splitlines()
    assert first.startswith("8 A100 SXM: 29 published results of the closed division")
    assert [row.split()[:4] for row in rows] == [["8", "448", "no", "FP8"]] * 12
    assert more == "  and 17 more"


def row(number, accelerators, batch, minutes, rate, model="NVIDIA L40S", **more):
    known = {"round": "4.0", "org": "o", "division": "closed", "runs": 10, "runs_converged": 10,
             "samples_mean": None, "samples_per_second_per_accelerator": None}  # fmt: skip
    return Entry(
        system=f"s{number}", accelerators=accelerators, global_batch_size=batch,
        minutes_scored=minutes, samples_per_second_median=rate, accelerator_model_name=model,
        **known | more,
    )  # fmt: skip


def test_the_rows_that_answer_a_question():
    """By accelerators, then by batch; what is not comparable answers none."""
    rows = [row(n, count, 8 * count, 9.0, None) for n, count in enumerate((4, 8, 16, 32, 16))]
    rows += [row(5, 12, 96, 9.0, None, division="open"), row(6, 0, 96, 9.0, None, model="")]
    rows += [row(7, 12, 96, 9.0, None, "NVIDIA L4")]
    for count, batch, numbers in (
        (16, None, [4, 2]), (12, None, [4, 2, 1]), (2, None, [0]), (99, None, [3]),
        (12, 64, [1]), (12, 1, [4, 2, 1]),
    ):  # fmt: skip
        found = expect.nearest("L40S", count, batch, rows)
        assert [entry.system for entry in found] == [f"s{number}" for number in numbers]


@pytest.mark.parametrize(
    ("model", "accelerators", "precision"),
    [("H100-SXM5", 511, "FP8"), ("H100-SXM5", 512, "no FP8"), ("H100-PCIe", 8, "FP8"),
     ("NVIDIA A30", 8, "no FP8"), ("V100", 8, "no FP8"), ("4090", 6, "no FP8"),
     ("A5000", 8, "no FP8"), ("TPU-v4", 8, "unknown")],
)  # fmt: skip
def test_the_precision_is_that_of_the_systems_flags(model, accelerators, precision):
    assert expect.precision_of(row(0, accelerators, 448, 9.0, None, model)) == precision


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
        (["--accelerator=H100", "--count=0"], "'0': give a whole number from 1"),
        (["--accelerator=H100", "--count=8", "--batch=many"], "'many': give a whole number"),
    ],
)
def test_a_question_that_is_not_whole_is_refused(words, message, capsys):
    with pytest.raises(SystemExit) as exit:
        expect.main(words)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_an_answer_of_rows_by_hand(shipped):
    """The nearest number of accelerators first, of these the latest; unknown numbers are said."""
    rows = [
        replace(
            shipped[-1], accelerator_model_name="A30", accelerators=count, minutes_scored=minutes,
            global_batch_size=batch, samples_per_second_median=None, system=f"{count}-{batch}",
        )
        for count, batch, minutes in (
            (64, 640, 9.99), (4, 1024, 1e2), (4, None, 99.96), (4, 8, 99.94)
        )
    ]  # fmt: skip
    found = expect.lines_of("A30", 16, 9, rows)
    title, nobody, batches, minutes, rate, *cells = found
    assert title.startswith("4, 64 A30: 4 published results of the closed division")
    assert nobody == "nobody published 16 A30: these are the nearest numbers of them"
    assert batches == "nobody published batch 9 on them: these have 8, 640, 1,024"
    assert minutes == "  minutes to 0.720: 99.9 in the median, 9.99 to 100"
    assert rate == "  samples/s: unknown"
    assert [line.split() for line in cells[1:]] == [
        [count, batch, "no", "FP8", minutes, "-", f"5.0/tinycorp/{system}"]
        for count, batch, minutes, system in (
            ("64", "640", "9.99", "64-640"), ("4", "1,024", "100", "4-1024"),
            ("4", "-", "100", "4-None"), ("4", "8", "99.9", "4-8"),
        )
    ]  # fmt: skip
    found = expect.lines_of("A30", 5, 640, rows[:2])
    assert not any("nobody published batch" in line for line in found)
    assert [line.split()[0] for line in found[-2:]] == ["4", "64"]
    assert found[0].startswith("4, 64 A30: 2 published results of")
    many = [row for row in rows[:1] for _ in range(expect._MOST_SHOWN)]
    assert len(expect.lines_of("A30", 64, None, many)) == len(many) + 4  # and no "0 more"
    found = expect.lines_of("A30", 64, 1024, [*many, rows[1]])  # the last has this batch
    assert found[1].startswith("  minutes") and found[-1] == "  and 1 more"


def test_the_rows_of_the_readme_are_those_of_the_command(shipped):
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\d+) ([A-Z]\S+(?: SXM)?) \| (\d+) \| (\S+ \(.*?\)) \|", readme, re.MULTILINE
    )
    assert len(rows) == 4
    for count, family, number, minutes in rows:
        known = expect.nearest(family, int(count), None, shipped)
        range_ = expect.lines_of(family, int(count), None, known)[1].partition(": ")[2]
        middle, ends = range_.split(" in the median, ")
        assert (number, minutes) == (str(len(known)), f"{middle} ({ends})")
