"""What benchmarks/training_throughput.py measures: contestants do the same work. CPU, seconds."""

import argparse
import json
import sys

import psutil
import pytest

from benchmarks import training_throughput
from tests.helpers import starts, waiting


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--reference_python=python3.7"], "--reference and --reference_python go together"),
        (["--only=("], "is not a regular expression"),
        (["--input_file=/none"], "--input_file=/none: no such file"),
        (
            ["--warm_up_steps=0"],
            "argument --warm_up_steps: '0': give a whole number from 1 to 999,999,999",
        ),
    ],
)
def test_bad_flags_are_told_before_anything_is_measured(tmp_path, flags, message):
    words = [sys.executable, "benchmarks/training_throughput.py", f"--output={tmp_path}/none"]
    done = starts.run([*words, *flags])
    assert done.returncode != 0 and message in done.stderr.splitlines()[-1]
    assert not any(tmp_path.iterdir())


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_one_that_fails_has_no_further_turns_and_the_same_command_goes_on(
    tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "benchmarks" / "contestants"
    folder.mkdir(parents=True)
    (folder / "good.py").write_text("while True: print('STEP', flush=True)")
    (folder / "tells.py").write_text("for n in range(9): print('STEP', 100 * n, flush=True)")
    (folder / "bad.py").write_text("print('STEP'); raise SystemExit('no kernel for this')")
    # A child that holds no file of its parent's, so that nothing else would end it.
    (folder / "hangs.py").write_text(
        "import subprocess, time; quiet = dict.fromkeys(('stdout', 'stderr'), subprocess.DEVNULL)\n"
        "child = subprocess.Popen(['sleep', '60'], **quiet)\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)"
    )
    monkeypatch.setattr(training_throughput, "ROOT", tmp_path)
    contestants = {name: (name, None, {}) for name in ("bad", "good", "hangs", "tells")}
    monkeypatch.setattr(training_throughput, "CONTESTANTS", contestants)
    flags = {"rounds": 2, "steps": 1, "warm_up_steps": 1, "turn_seconds": 60.0, "batch_size": 4}
    results = tmp_path / "results.jsonl"

    def turns(only: str, **changed) -> set[str]:
        args = argparse.Namespace(**flags | changed, only=only, reference=None)
        return training_throughput.run_rounds(args, tmp_path, results)

    def names() -> list[str]:
        return [json.loads(line)["name"] for line in results.read_text().splitlines()]

    assert turns("bad|good") == {"bad"} and names() == ["good"] * 2
    assert turns("hangs", turn_seconds=2) == {"hangs"}
    child = int((tmp_path / "child").read_text())
    waiting.until(lambda: has_ended(child), seconds=30)
    assert capsys.readouterr().err.splitlines() == [
        "round 1: bad: ended with exit code 1: no kernel for this",
        "round 1: hangs: stopped after 2 s; raise --turn_seconds",
    ]
    assert turns("good", rounds=3) == set() and names() == ["good"] * 3
    assert turns("tells", rounds=1, steps=3) == set()
    first, *_, last = training_throughput.turns_in(results)
    assert first["tokens"] == [] and last["tokens"] == [100, 200, 300]


def test_the_table_of_the_page_is_that_of_the_recorded_turns():
    root = training_throughput.ROOT
    turns = training_throughput.turns_in(root / "benchmarks" / "training_throughput.jsonl")
    lines = (root / "docs" / "speed.md").read_text().splitlines()
    rates = training_throughput.rates_by_name(turns)
    assert {turn["name"] for turn in turns} == rates.keys()
    for name, each in rates.items():
        row = f"| {name} {each.in_samples(rates['reference, TensorFlow 2.4'])}"
        [line] = [line for line in lines if line.startswith(row)]
        assert len(each.samples) == 5 and line.endswith(f"% {each.in_tokens()}"), line


def test_the_table_has_tokens_where_they_are_known(tmp_path, monkeypatch):
    monkeypatch.setattr(training_throughput, "peak_flop_per_second", lambda dtype: 1e12)
    monkeypatch.setattr(
        training_throughput,
        "CONTESTANTS",
        {name: (name, None, {"precision": "float32"}) for name in ("knows", "does not", "older")},
    )
    turn = {"batch_size": 4, "seconds": [1.0, 3.0]}
    turns = [
        {"name": "knows", "tokens": [1000, 2000], **turn},
        {"name": "knows", "tokens": [500, 500], **turn},
        {"name": "does not", "tokens": [], **turn},
        {"name": "older", "batch_size": 2, "seconds": [1.0, 3.0]},
    ]
    results = tmp_path / "out.jsonl"
    results.write_text("".join(json.dumps(each) + "\n" for each in turns))
    training_throughput.report(results, tmp_path / "out", 1e9)
    rows = (tmp_path / "out.md").read_text().splitlines()
    assert "times knows" in rows[0]
    # The slowest first, as the picture has it from below.
    expected = [
        ("older | 1.00 | 1.00 to 1.00 | 0.50 ", "| | |"),
        ("knows | 2.00 | 2.00 to 2.00 | 1.00 ", "| 500 | 250 to 750 |"),
        ("does not | 2.00 | 2.00 to 2.00 | 1.00 ", "| | |"),
    ]
    for row, (begin, cells) in zip(rows[2:], expected):
        assert row.startswith(f"| {begin}|") and row.endswith(f"% {cells}"), row
