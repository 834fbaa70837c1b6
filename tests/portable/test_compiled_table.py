"""The tables of steps in benchmarks/NOTES.md and in the pages are what recorded rows render."""

import json
import re
import sys

import pytest

from benchmarks import accelerator, compiled
from mlperf_bert.portable import compile_step

ROWS = json.loads(compiled.ROWS.read_text())
PORTABLE_STEP = compiled.ROOT / "docs" / "portable_step.md"


def rows_below(head: str) -> list[str]:
    """The rows of the table of docs/portable_step.md with this head."""
    table = PORTABLE_STEP.read_text().partition(f"| {head} |\n")[2].partition("\n\n")[0]
    return table.splitlines()[1:]


def test_the_table_of_the_notes_is_that_of_the_rows():
    assert compiled.table(ROWS) in compiled.PAGE.read_text(), (
        "python -m benchmarks.compiled writes it again"
    )


def test_the_short_table_of_the_page_has_figures_of_the_long_one():
    shown = rows_below("examples a device | device | peak of usable GiB | samples/s at most")
    all_of_them = [compiled.cells(row) for row in ROWS if row["result"] == "fits"]
    said = {f"| {row[0]} | {row[1]} | {row[3]} | {row[-1]} |" for row in all_of_them}
    assert shown and set(shown) <= said


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
    shown = {f"{row}\n" for row in rows_below(measured[0].strip("| \n"))}
    assert shown and shown < set(measured)
    assert last == "| NVIDIA H100 | ours large_999 | out of memory | | | | |\n"
    assert (tmp_path / "new/table.md").read_text().endswith(last)
    assert (tmp_path / "new/table.png").stat().st_size > 0


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


def test_a_row_names_the_commit_of_its_program(tmp_path, monkeypatch):
    """What compile_step.py says of it, without what the table has no use for, and when."""
    step = compiled.Step(num_examples=8, devices="h100")
    made = {"made_with": {"commit": "5bd5990-dirty"}}
    (tmp_path / "signature.json").write_text(json.dumps(made))
    said = {"rows": [{"result": "fits", "file": "step.stablehlo"}], "versions": {"jax": "0.10.2"}}

    def compile_step_runs(command, *, codes, output):
        assert command[2] == str(tmp_path)
        output.write_text(json.dumps(said))

    monkeypatch.setattr(compiled, "exported", lambda *_: tmp_path)
    monkeypatch.setattr(compiled, "_run", compile_step_runs)
    row = compiled.compiled(step, "h100", tmp_path, "python")
    assert row["result"] == "fits" and row["commit"] == "5bd5990-dirty" and "file" not in row
    assert row["versions"] == {"jax": "0.10.2"} and not (tmp_path / "row.json").exists()


def test_every_row_is_asked_for_once_and_every_device_is_known():
    asked = [(step, device) for step in compiled.STEPS for device in step.devices.split(",")]
    for step, device in asked:
        assert sum(compiled.is_of(row, step, device) for row in ROWS) == 1, (step, device)
        compile_step.parse_devices(device)
    assert len(ROWS) == len(asked)


def test_a_row_without_figures_says_so():
    [row, _] = [row for row in ROWS if row["device"] == "h100" and row["num_devices"] == 8]
    assert compiled.cells(row)[:4] == ["56", "h100 x 8", "fits", "49.9 of 76.9"]
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
