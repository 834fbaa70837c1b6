"""What the benchmarks measure and pack for one card, and the tables of what they measured.

Long because all benchmarks that leave figures are tested here.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys

import psutil
import pytest

from benchmarks import accelerator, on_a_card, pack_run, reports, training_throughput
from benchmarks.processes import ROOT, finished
from tests.helpers import waiting

LATER = "import time; time.sleep(60)"


def printing(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(lines)]


def test_a_stage_gets_sigterm_after_its_line():
    ends = "import signal, sys; signal.signal(15, lambda *_: sys.exit(75))"
    command = printing(ends, "print('after 80 samples: 0.1', flush=True)", LATER)
    found = finished(command, 30, stop_at="after 80 sam", expected=75)
    assert found == {"said": ["after 80 samples: 0.1"]}


def test_a_stage_is_killed_at_its_limit_with_all_that_it_started():
    late = "import time; time.sleep(5); print(1)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{late}'])"
    found = finished(printing("print('begins', flush=True)", child), 0.5)
    assert found == {"said": ["begins"], "failed": "exit code -9, not 0"}


def test_the_figures_of_a_training_are_those_of_its_files(tmp_path):
    rows = [{"kind": "train", "samples_per_second": rate} for rate in (1.0, 30.0, 50.0, 40.0)]
    rows.insert(2, {"kind": "eval", "masked_lm_accuracy": 0.5})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = [{"key": "tracked_stats", "value": {"compute_seconds": n}} for n in (1, 2)]
    lines = [":::MLLOG " + json.dumps(line) for line in [*log, {"key": "run_stop"}]]
    (tmp_path / "bert.log").write_text("\n".join(lines))
    assert on_a_card.train(printing("print('ends')"), tmp_path, 30) == {
        "said": ["ends"],
        "evaluations": [rows[2]],
        "ledger": {"compute_seconds": 2},
        "of_each_call": [1.0, 30.0, 50.0, 40.0],
        "samples_per_second": 40.0,
    }


def test_a_training_that_ended_early_still_has_what_it_printed(tmp_path):
    found = on_a_card.train(printing("raise SystemExit('no device')"), tmp_path, 30)
    assert found == {"said": ["no device"], "failed": "exit code 1, not 0"}


def test_every_stage_that_is_named_has_a_line_of_its_own_also_without_time(tmp_path):
    figures, given = tmp_path / "figures.jsonl", []

    def stage(name, **found):
        return name, 30, lambda limit: given.append((name, limit)) or found

    stages = [stage("first", samples_per_second=7), stage("unnamed")]
    stages.append(stage("second", failed="out of memory"))
    usual = {"only": ["first", "second", "third"], "about": {"device": "H100"}}
    first = on_a_card.run_stages(stages, figures, seconds=100, **usual)
    late = on_a_card.run_stages([stage("third")], figures, seconds=0, **usual)
    assert [
        (row["stage"], row.get("failed"), row["device"]) for row in reports.stored(figures)
    ] == [
        ("first", None, "H100"),
        ("second", "out of memory", "H100"),
        ("third", "no time is left", "H100"),
    ]
    assert given == [("first", 30), ("second", 30)]
    assert [*first, *late] == ["first", "second", "third"]


def test_the_stages_are_in_the_order_of_their_worth(tmp_path):
    stages = list(on_a_card.stages(tmp_path, tmp_path, on_a_card.LARGE, []))
    assert [(name, most) for name, most, _ in stages] == [
        ("large_56", 150),
        ("large_56, alone", 100),
        ("large_56, resumed", 100),
        ("demo", 120),
        ("large_112_packed", 260),
        ("large_112_packed, alone", 100),
    ]
    # The first is stopped after 40 steps of 56, to be resumed.
    how = [stage.keywords for _, _, stage in stages]
    assert how == [{"stop_at": "after 2,240 sam", "expected": 75}, {}, {}, {}, {}, {}]


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """A folder with several pieces and without what is in them, and that."""
    monkeypatch.setattr(pack_run, "PIECE_BYTES", 100)
    contents = {"site/a/b.py": b"x = 1\n", "data/c": bytes(range(256)) * 40, "data/empty": b""}
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    pack_run.pack(tmp_path, ".".join(map(str, sys.version_info[:2])))
    shutil.rmtree(tmp_path / "site")
    shutil.rmtree(tmp_path / "data")
    return tmp_path, contents


def unpacked(folder) -> subprocess.CompletedProcess:
    command = [sys.executable, "-I", str(folder / "unpack.py")]
    return subprocess.run(command, capture_output=True, text=True, cwd="/")


def test_what_is_packed_is_unpacked_without_this_project(packed):
    folder, contents = packed
    assert len(list(folder.glob("piece_*"))) > 1
    assert unpacked(folder).returncode == 0
    assert {name: (folder / name).read_bytes() for name in contents} == contents


def test_a_piece_that_is_missing_or_other_and_another_python_are_refused(packed):
    folder, _ = packed
    piece = folder / "piece_1"
    content = piece.read_bytes()
    piece.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    refused = f"unpack.py: {piece} is missing, or not what was packed; copy it again\n"
    assert unpacked(folder).stderr == refused
    piece.unlink()
    assert unpacked(folder).stderr == refused
    script = folder / "unpack.py"
    script.write_text(script.read_text().replace(f"({sys.version_info[0]}, ", "(2, "))
    assert "packed for Python (2, " in unpacked(folder).stderr
    assert not (folder / "site").exists()


def test_what_is_wanted_is_installed_as_it_is_locked(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: called.append(command))
    pack_run.install(tmp_path / "site", {"pytest", "h5py", *pack_run.ALSO}, "3.12")
    lock = (tmp_path / "packed.lock").read_text()
    names = [line.partition("==")[0] for line in lock.splitlines() if "==" in line]
    assert names == ["h5py", "tensorflow-cpu", "tqdm"]
    assert lock.count("--hash=sha256:") > 10
    assert "--python-version=3.12" in called[0]
    assert called[0][-3:] == ["--require-hashes", "-r", str(tmp_path / "packed.lock")]


@pytest.mark.soak
def test_every_stage_runs_on_a_cpu_with_a_tiny_model(tmp_path):
    words = [f"--output={tmp_path / 'run'}", f"--data={tmp_path / 'data'}", "--minutes=30"]
    command = [sys.executable, "-m", "benchmarks.on_a_card", "--tiny", *words]
    subprocess.run(command, check=True, cwd=ROOT)
    lines = (tmp_path / "run" / "figures.jsonl").read_text().splitlines()
    rows = {row["stage"]: row for row in map(json.loads, lines)}
    assert list(rows) == [
        "tiny_2", "tiny_2, alone", "tiny_2, resumed", "demo",
        "tiny_4_packed", "tiny_4_packed, alone",
    ]  # fmt: skip
    assert all(row["samples_per_second"] > 0 for row in rows.values())
    assert any("SIGTERM after step" in line for line in rows["tiny_2"]["said"])
    assert [row["samples"] for row in rows["tiny_2, resumed"]["evaluations"]] == [40, 80]
    assert [rows[f"{name}, alone"]["not_of_the_run"] for name in ("tiny_2", "tiny_4_packed")] == [
        0,
        0,
    ]


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_one_that_fails_has_no_further_turns_and_the_same_command_goes_on(
    tmp_path, monkeypatch, capsys
):
    folder = tmp_path
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
    monkeypatch.setattr(training_throughput, "FOLDER", tmp_path)
    contestants = {name: (name, None, {}) for name in ("bad", "good", "hangs", "tells")}
    monkeypatch.setattr(training_throughput, "CONTESTANTS", contestants)
    flags = {"rounds": 2, "steps": 1, "warm_up_steps": 1, "turn_seconds": 60.0, "batch_size": 4}
    results = tmp_path / "results.jsonl"

    def turns(only: str, **changed) -> list[str]:
        args = argparse.Namespace(**flags | changed, only=only, reference=None)
        return training_throughput.run_rounds(args, tmp_path, results)

    def names() -> list[str]:
        return [json.loads(line)["name"] for line in results.read_text().splitlines()]

    assert turns("bad|good") == ["bad"] and names() == ["good"] * 2
    assert turns("hangs", turn_seconds=2) == ["hangs"]
    child = int((tmp_path / "child").read_text())
    waiting.until(lambda: has_ended(child), seconds=30)
    assert capsys.readouterr().err.splitlines() == [
        "round 1: bad: ended with exit code 1: no kernel for this",
        "round 1: hangs: stopped after 2 s; raise --turn_seconds",
    ]
    assert turns("good", rounds=3) == [] and names() == ["good"] * 3
    assert turns("tells", rounds=1, steps=3) == []
    first, *_, last = reports.stored(results)
    assert first["tokens"] == [] and last["tokens"] == [100, 200, 300]


def test_the_table_of_the_page_is_that_of_the_recorded_turns():
    turns = reports.stored(ROOT / "benchmarks" / "training_throughput.jsonl")
    lines = (ROOT / "docs" / "speed.md").read_text().splitlines()
    rates = training_throughput.rates_by_name(turns)
    assert {turn["name"] for turn in turns} == rates.keys()
    first = statistics.mean(rates["reference, TensorFlow 2.4"][0])
    for name, (samples, tokens) in rates.items():
        times = f"{statistics.mean(samples) / first:.2f}"
        row = reports.table([name, *training_throughput.spread(samples, 2), times], [])
        [line] = [line for line in lines if line.startswith(row.splitlines()[0])]
        end = reports.table(["%", *training_throughput.spread(tokens, 0)], []).splitlines()[0]
        assert len(samples) == 5 and line.endswith(end.removeprefix("| ")), line


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


def test_the_measured_table_is_that_of_the_raw_figures(tmp_path, capsys):
    raw = ROOT / "benchmarks" / "accelerator.jsonl"
    failed = {"device": "NVIDIA H100", "name": "ours large_999", "failed": "out of memory"}
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps(failed) + "\n")
    accelerator.show([raw, more], tmp_path / "new" / "table")
    *measured, last = capsys.readouterr().out.splitlines(keepends=True)
    assert "".join(measured) == raw.with_suffix(".md").read_text()
    page = (ROOT / "docs" / "portable_step.md").read_text()
    _, *shown = page.partition(measured[0])[2].partition("\n\n")[0].splitlines()
    assert shown and {f"{row}\n" for row in shown} < set(measured)
    assert last == "| NVIDIA H100 | ours large_999 | out of memory | | | | |\n"
    assert (tmp_path / "new/table.md").read_text().endswith(last)
    assert (tmp_path / "new/table.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("said", "row"),
    [
        ("XLA: RESOURCE_EXHAUSTED: 2 GB are not free", "out of memory"),
        ("torch: CUDA out of memory. Tried\nmore", "out of memory"),
        ("no module named memory_profiler", "exit code 1, not 0: no module named memory_profiler"),
    ],
)
def test_a_contestant_that_fails_says_why(said, row, tmp_path):
    found = accelerator.measured(printing(f"raise SystemExit({said!r})"), tmp_path / "none.json")
    assert found == {"said": said.splitlines(), "failed": row}
