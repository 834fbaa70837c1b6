"""The tables of docs/portable_step.md are what recorded rows render: compiled, and measured."""

import contextlib
import json
import re
import sys

import pytest

from benchmarks import accelerator, compiled
from mlperf_bert.portable import compile_step
from pages import charts

ROWS = json.loads(compiled.ROWS.read_text())


def test_the_table_of_the_page_is_that_of_the_rows():
    assert compiled.table(ROWS) in compiled.PAGE.read_text(), (
        "python -m benchmarks.compiled writes it again"
    )


def test_the_figures_of_what_fits_are_those_of_compilers():
    """The table of docs/training.md, "Does it fit?"."""
    text = (compiled.ROOT / "docs" / "training.md").read_text()
    table = text.partition("GiB a GPU by its compiler |")[2].partition("\n\n")[0]
    shown = set(re.findall(r"([\d.]+) of ([\d.]+)", table))
    of_gpus = [row for row in ROWS if row["kind"] == "training"]
    said = {
        tuple(f"{row[name] / compiled.GIB:.1f}" for name in ("peak_bytes", "usable_bytes"))
        for row in of_gpus
    }
    assert len(shown) == 6 and shown <= said


def test_the_measured_table_is_that_of_the_raw_figures(tmp_path, capsys):
    raw = accelerator.ROOT / "benchmarks" / "accelerator.jsonl"
    failed = {"device": "NVIDIA H100", "name": "ours large_999", "failed": "out of memory"}
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps(failed) + "\n")
    accelerator.show([raw, more], tmp_path / "new" / "table")
    *measured, last = capsys.readouterr().out.splitlines(keepends=True)
    assert "".join(measured) in compiled.PAGE.read_text()
    assert last == "| NVIDIA H100 | ours large_999 | out of memory | | | | |\n"
    assert (tmp_path / "new/table.md").read_text().endswith(last)
    assert (tmp_path / "new/table.png").stat().st_size > 0


def test_the_measured_picture_has_each_device_once_and_the_fastest_on_top(tmp_path, monkeypatch):
    panels = []
    plain = charts.png

    @contextlib.contextmanager
    def seen(*size, **grid):
        with plain(*size, **grid) as axes:
            yield axes
            panels.extend(axes[:, 0])

    monkeypatch.setattr(charts, "png", seen)
    rows = [
        {"device": "B", "name": "a product of matrices"},
        {"device": "B", "name": "ours large_8, at first", "samples_per_second": 2.0},
        {"device": "A", "name": "ours tiny_16_packed, rows first", "samples_per_second": 7.0},
        {"device": "A", "name": "ours large_8", "failed": "out of memory"},
        {"device": "B", "name": "PyTorch large_8, torch.compile", "samples_per_second": 1.0},
    ]
    accelerator.draw(rows, tmp_path / "bars.png")
    shown = [(p.get_title(loc="left"), [t.get_text() for t in p.get_yticklabels()]) for p in panels]
    assert shown == [
        ("B", ["PyTorch, 8 examples, torch.compile", "ours, 8 examples, before both changes"]),
        ("A", ["ours, 16 examples, packed, after the first change"]),
    ]
    assert not panels[0].yaxis_inverted()  # the last is on top
    accelerator.draw(rows[:1], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_the_page_says_of_which_day_each_row_is():
    page = " ".join(compiled.PAGE.read_text().split())
    days = {(row["device"], row["num_examples"]): row["date"] for row in ROWS}
    older = {step for step, day in days.items() if day != "2026-11-27"}
    assert older == {("v100", 8), ("l4", 8), ("l4", 14), ("a100-40", 28), ("h100", 32)}
    assert {days[step] for step in older} == {"2026-11-26"}
    named = "a V100, an L4, an A100 of 40 GB and 32 examples on an H100"
    assert f"The rows of {named} are of the program of 2026-11-26" in page


@pytest.mark.parametrize(
    ("said", "row"),
    [
        ("XLA: RESOURCE_EXHAUSTED: 2 GB are not free", "out of memory"),
        ("torch: CUDA out of memory. Tried\nmore", "out of memory"),
        ("no module named memory_profiler", "no module named memory_profiler"),
    ],
)
def test_a_contestant_that_fails_says_why(said, row, tmp_path):
    command = [sys.executable, "-c", f"raise SystemExit({said!r})"]
    found = accelerator.measured("ours", command, tmp_path / "none.json")
    assert found == {"name": "ours", "failed": row}


def test_a_folder_of_programs_that_is_there_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["accelerator", "compare", "export", f"--output={tmp_path}"])
    assert accelerator.main() == 1
    assert capsys.readouterr().err == f"accelerator: {tmp_path}: File exists\n"


def test_every_row_is_asked_for_once_and_every_device_is_known():
    asked = [(step, device) for step in compiled.STEPS for device in step.devices.split(",")]
    for step, device in asked:
        assert sum(compiled.is_of(row, step, device) for row in ROWS) == 1, (step, device)
        compile_step.parse_devices(device)
    assert len(ROWS) == len(asked)


def test_a_row_without_figures_says_so():
    [row] = [row for row in ROWS if row["device"] == "h100" and row["num_devices"] == 8]
    assert compiled.cells(row)[:4] == ["56", "h100 x 8", "fits", "49.8 of 76.9"]
    refused = {key: row[key] for key in row if "bound" not in key and key != "num_kernels"}
    refused |= {"result": "does not fit", "peak_bytes": None, "recompute": "blocks"}
    shown = ["56, `--recompute=blocks`", "h100 x 8", "does not fit", "more of 76.9", *[""] * 4]
    assert compiled.cells(refused) == shown


def test_the_table_of_a_page_is_replaced_and_the_rest_stays():
    page = f"before\n\n{compiled.table(ROWS)}\nafter | not | a table\n"
    assert compiled.replace_table(page, "new\n") == "before\n\nnew\n\nafter | not | a table\n"


@pytest.mark.parametrize("program", ["no/such/python", "/"])
def test_compilers_that_are_not_there_are_one_line(program, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["compiled", f"--compilers={program}"])
    assert compiled.main() == 1
    assert capsys.readouterr().err == f"compiled: --compilers={program}: no such program\n"
