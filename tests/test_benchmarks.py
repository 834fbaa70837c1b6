"""What the benchmarks measure and pack for one card, and the tables of what they measured.

Long because all benchmarks that leave figures are tested here.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

from benchmarks import (
    accelerator,
    kernels_alone,
    on_a_card,
    pack_run,
    processes,
    reports,
    training_throughput,
)
from benchmarks.processes import ROOT, finished
from tests.helpers import waiting

LATER = "import time; time.sleep(600)"


def printing(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(lines)]


def test_a_stage_gets_sigterm_after_its_line():
    ends = "import signal, sys; signal.signal(15, lambda *_: sys.exit(75))"
    command = printing(ends, "print('after 80 samples: 0.1', flush=True)", LATER)
    found = finished(command, 300, stop_at="after 80 sam", expected=75)
    assert found == {"said": ["after 80 samples: 0.1"]}
    ended = finished(printing("pass"), 300, expected=75)
    assert ended == {"said": [], "failed": "exit code 0, not 75"}


@pytest.fixture
def begins_with(monkeypatch):
    """The limit of a process counts from when it has written this file, however long it takes."""

    def begins_with(begun) -> None:
        class Limit(threading.Timer):
            def start(self):
                waiting.until(lambda: begun.exists() and begun.read_text())
                super().start()

        monkeypatch.setattr(processes.threading, "Timer", Limit)

    return begins_with


def test_a_stage_is_killed_at_its_limit_with_all_that_it_started(begins_with, tmp_path):
    begun = tmp_path / "begun"
    begins_with(begun)
    late = f"import pathlib, time; pathlib.Path({str(begun)!r}).write_text('1'); time.sleep(600)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {late!r}])"
    found = finished(printing("print('begins', flush=True)", child), 0.5)
    assert found == {"said": ["begins"], "failed": "exit code -9, not 0"}


def test_the_figures_of_a_training_are_those_of_its_files(tmp_path):
    rows = [{"kind": "train", "samples_per_second": rate} for rate in (1.0, 30.0, 50.0, 40.0)]
    rows.insert(2, {"kind": "eval", "masked_lm_accuracy": 0.5})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = [{"key": "tracked_stats", "value": {"compute_seconds": n}} for n in (1, 2)]
    lines = [":::MLLOG " + json.dumps(line) for line in [*log, {"key": "run_stop"}]]
    (tmp_path / "bert.log").write_text("\n".join(lines))
    assert on_a_card.train(printing("print('ends')"), tmp_path, 300) == {
        "said": ["ends"],
        "evaluations": [rows[2]],
        "ledger": {"compute_seconds": 2},
        "of_each_call": [1.0, 30.0, 50.0, 40.0],
        "samples_per_second": 40.0,
    }


def test_a_training_that_ended_early_still_has_what_it_printed(tmp_path):
    found = on_a_card.train(printing("raise SystemExit('no device')"), tmp_path, 300)
    assert found == {"said": ["no device"], "failed": "exit code 1, not 0"}


def test_every_stage_that_is_named_and_fits_has_a_line_of_its_own(tmp_path, capsys):
    figures, given = tmp_path / "new" / "figures.jsonl", []

    def stage(name, most=30, **found):
        def run(limit):
            given.append((name, limit))
            # Each line is there before the next stage begins.
            assert len(reports.stored(figures)) == len(given) - 1
            return found

        return name, most, run

    stages = [stage("step one", samples_per_second=7), stage("unnamed"), stage("demo", 900)]
    stages += [stage("step two", 1e9), stage("second", 120, failed="out of memory")]
    ends = time.monotonic() + 100
    found = on_a_card.run_stages(
        stages, figures=figures, ends=ends, only=["step", "demo", "second"],
        about={"device": "H100"},
    )  # fmt: skip
    assert [
        (row["stage"], row.get("failed"), row["device"]) for row in reports.stored(figures)
    ] == [
        ("step one", None, "H100"),
        ("second", "out of memory", "H100"),
    ]
    (one, limit), (other, rest) = given
    assert (one, limit, other) == ("step one", 30, "second")
    assert ends - time.monotonic() < rest <= 100
    assert [*found] == ["step one", "second"]
    named = "no time is left for: demo (450 s or more); step two (500000000 s or more)\n"
    assert capsys.readouterr().out.endswith(named)


def test_the_stages_are_in_the_order_of_their_worth(tmp_path):
    stages = list(on_a_card.stages(tmp_path, tmp_path, on_a_card.LARGE, [], "triton", "python3"))
    assert [(name, most) for name, most, _ in stages] == [
        ("kernels", 90),
        ("product", 60),
        ("step large_56_kernels", 100),
        ("step large_112_packed_kernels", 100),
        ("step large_56", 100),
        ("step large_112_packed", 100),
        ("step large_56_kernels, again", 100),
        ("PyTorch large_56, torch.compile", 200),
        ("training large_56_kernels", 150),
        ("training large_56_kernels, resumed", 100),
        ("demo", 120),
        ("training large_112_packed_kernels", 400),
    ]
    # The first training is stopped after 40 steps of 56, to be resumed.
    how = [stage.keywords for name, _, stage in stages if name.startswith("training")]
    assert how == [{"stop_at": "after 2,240 sam", "expected": 75}, {}, {}]


def test_what_is_lacking_is_made_within_the_limit_and_before_it_the_folder(
    tmp_path, monkeypatch, capsys
):
    ran = []
    monkeypatch.setattr(on_a_card, "in_a_process", lambda function: {"platform": "cpu"})
    monkeypatch.setattr(
        on_a_card,
        "finished",
        lambda command, limit: ran.append((command, limit)) or {"failed": "9"},
    )
    words = ["on_a_card", "--seconds=100", f"--data={tmp_path}/data", f"--work={tmp_path}/work"]
    monkeypatch.setattr(sys, "argv", [*words, f"--output={tmp_path}/out", "--tiny"])
    assert on_a_card.main() == 1
    [(command, limit)] = ran
    assert command[2:4] == ["benchmarks.on_a_card", "--prepare"] and 90 < limit <= 100
    said = capsys.readouterr()
    assert "lacks, demo, tiny, tiny_2, tiny_4_packed\n" in said.out
    assert said.err == f"on_a_card: failed: preparation; {tmp_path}/out/figures.jsonl says why\n"
    [row] = reports.stored(tmp_path / "out/figures.jsonl")
    assert (row["stage"], row["failed"]) == ("preparation", "9")
    assert on_a_card.main() == 1 and len(ran) == 1  # the folder of work is there


def test_losses_of_steps_are_compared():
    steps = {"step a_kernels": [1.0, 2.0], "step a": [1.0, 2.25], "step a_kernels, again": [1, 2]}
    rows = {name: {"losses": losses} for name, losses in steps.items()} | {"demo": {}}
    assert list(on_a_card.compared(rows)) == [
        "losses of step a_kernels and of step a_kernels, again: at most 0 apart",
        "losses of step a_kernels and of step a: at most 0.25 apart",
    ]


def test_each_mask_of_exported_steps_is_tried_and_said_at_once(tmp_path, monkeypatch, capsys):
    for name, arrays in {"one": ["input_mask"], "packed": ["block_ids", "input_mask"]}.items():
        (tmp_path / name).mkdir()
        ids = {f"training/{n}/{each}": np.full([2, 4], n) for n in (0, 1) for each in arrays}
        ids[f"training/0/{arrays[0]}"] += 7
        np.savez(tmp_path / name / "batches.npz", **ids)
    monkeypatch.setattr(kernels_alone, "norm", lambda of, tokens: {"tokens": tokens})

    def attention(of, ids):
        assert len(capsys.readouterr().out.splitlines()) == 1  # that of the one before
        return {"ids": [*ids.shape, int(ids.max())]}

    monkeypatch.setattr(kernels_alone, "attention", attention)
    words = [
        "kernels_alone",
        f"--output={tmp_path}/a.json",
        f"{tmp_path}/one",
        f"{tmp_path}/packed",
    ]
    monkeypatch.setattr(sys, "argv", words)
    assert kernels_alone.main() == 0
    assert json.loads((tmp_path / "a.json").read_text()) == {
        "norm": {"tokens": 28672},
        "full": {"ids": [56, 512, 1]},
        "one": {"ids": [2, 4, 7]},
        "packed": {"ids": [2, 4, 7]},
    }


def test_what_is_packed_comes_out_by_the_commands_of_the_page(tmp_path, monkeypatch):
    """Ends at a piece that is another one."""
    monkeypatch.setattr(pack_run, "PIECE_BYTES", 100)
    contents = {"python3/a/b.py": b"x = 1\n", "python3/c": bytes(range(256)) * 40}
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    pack_run.pack(tmp_path, "python3")
    shutil.rmtree(tmp_path / "python3")
    assert len(list(tmp_path.glob("piece_*"))) > 1
    page = (ROOT / "benchmarks/NOTES.md").read_text()
    [command] = [line.strip() for line in page.splitlines() if "sha256sum -c" in line]
    command = command.replace("build/card", ".").replace("python3 -m", f"{sys.executable} -m")
    assert subprocess.run(["bash", "-c", command], cwd=tmp_path).returncode == 0
    assert {name: (tmp_path / name).read_bytes() for name in contents} == contents
    piece = tmp_path / "piece_01"
    piece.write_bytes(bytes([piece.read_bytes()[0] ^ 1]) + piece.read_bytes()[1:])
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode and "piece_01: FAILED" in done.stdout


def test_a_first_call_has_all_that_it_needs_in_one_file(tmp_path, monkeypatch, capsys):
    """The project without its tests, and the data, where on_a_card.py looks for it."""
    program = tmp_path / "data/large_56/step.stablehlo"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"ML")
    pack_run.pack_first(tmp_path)
    unpacked = tmp_path / "there"
    first = tmp_path / "first.tar.xz"
    unpack = [sys.executable, "-W", "ignore", "-m", "tarfile", "-e", first, unpacked]
    subprocess.run(unpack, check=True)
    assert (unpacked / "build/card/data/large_56/step.stablehlo").read_bytes() == b"ML"
    assert not (unpacked / "tests").exists() and (unpacked / "run_pretraining.py").exists()
    # Isolated: neither this checkout nor packages, but for the ends of standard output.
    code = "import sys; sys.path[:0] = ['.']; sys.argv = ['x', '--help']; import runpy; "
    code += "runpy.run_module('benchmarks.on_a_card', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=unpacked, capture_output=True, text=True
    )
    assert done.returncode == 0 and "--only" in done.stdout, done.stderr
    assert "bytes" in capsys.readouterr().out
    monkeypatch.setattr(pack_run, "FIRST_BYTES", 100)
    with pytest.raises(ValueError, match=r"first.tar.xz: at most 100 bytes can be copied at once"):
        pack_run.pack_first(tmp_path)


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


@pytest.mark.all
def test_every_stage_runs_on_a_cpu_with_a_tiny_model(tmp_path):
    words = [f"--{name}={tmp_path / name}" for name in ("output", "data", "work")]
    command = [sys.executable, "-m", "benchmarks.on_a_card", "--tiny", "--seconds=1800", *words]
    subprocess.run(command, check=True, cwd=ROOT)
    rows = {row["stage"]: row for row in reports.stored(tmp_path / "output" / "figures.jsonl")}
    assert list(rows) == [
        "preparation", "product", "step tiny_2", "step tiny_4_packed", "step tiny_2, again",
        "training tiny_2", "training tiny_2, resumed", "demo", "training tiny_4_packed",
    ]  # fmt: skip
    del rows["preparation"]
    assert rows.pop("product")["model_tflop_per_second"] > 0
    assert all(row["samples_per_second"] > 0 for row in rows.values())
    assert any("SIGTERM after step" in line for line in rows["training tiny_2"]["said"])
    resumed = rows["training tiny_2, resumed"]
    assert [row["samples"] for row in resumed["evaluations"]] == [40, 80]
    assert rows["step tiny_2"]["losses"] == rows["step tiny_2, again"]["losses"]


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_one_that_fails_has_no_further_turns_and_the_same_command_goes_on(
    tmp_path, monkeypatch, capsys, begins_with
):
    folder = tmp_path
    (folder / "good.py").write_text("while True: print('STEP', flush=True)")
    (folder / "tells.py").write_text("for n in range(9): print('STEP', 100 * n, flush=True)")
    (folder / "bad.py").write_text("print('STEP'); raise SystemExit('no kernel for this')")
    # A child that holds no file of its parent's, so that nothing else would end it.
    (folder / "hangs.py").write_text(
        "import subprocess, time; quiet = dict.fromkeys(('stdout', 'stderr'), subprocess.DEVNULL)\n"
        "child = subprocess.Popen(['sleep', '600'], **quiet)\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    monkeypatch.setattr(training_throughput, "FOLDER", tmp_path)
    contestants = {name: (name, None, {}) for name in ("bad", "good", "hangs", "tells")}
    monkeypatch.setattr(training_throughput, "CONTESTANTS", contestants)
    flags = {"rounds": 2, "steps": 1, "warm_up_steps": 1, "turn_seconds": 600.0, "batch_size": 4}
    results = tmp_path / "results.jsonl"

    def turns(only: str, **changed) -> list[str]:
        args = argparse.Namespace(**flags | changed, only=only, reference=None)
        return training_throughput.run_rounds(args, tmp_path, results)

    def names() -> list[str]:
        return [json.loads(line)["name"] for line in results.read_text().splitlines()]

    assert turns("bad|good") == ["bad"] and names() == ["good"] * 2
    begins_with(tmp_path / "child")
    assert turns("hangs", turn_seconds=1) == ["hangs"]
    child = int((tmp_path / "child").read_text())
    waiting.until(lambda: has_ended(child))
    assert capsys.readouterr().err.splitlines() == [
        "round 1: bad: ended with exit code 1: no kernel for this",
        "round 1: hangs: stopped after 1 s; raise --turn_seconds",
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


def cells_of(lines: list[str]) -> list[list[str]]:
    """The cells of the rows on a device."""
    return [line[2:-3].split(" | ") for line in lines if line.startswith("| NVIDIA ")]


def test_the_measured_table_is_that_of_the_raw_figures(tmp_path, capsys):
    raw = ROOT / "benchmarks" / "accelerator.jsonl"
    more, device = tmp_path / "more.jsonl", {"device": "NVIDIA H100"}
    failed = {"failed": "out of memory"}
    for stage in ("training large_9", "step large_999"):  # one that the table does not have
        reports.store(more, device | failed | {"stage": stage})
    accelerator.show([raw, more], tmp_path / "new" / "table")
    *measured, last = capsys.readouterr().out.splitlines(keepends=True)
    assert "".join(measured) == raw.with_suffix(".md").read_text()
    page = (ROOT / "docs" / "portable_step.md").read_text()
    # The page has fewer columns, and other words for a program.
    known = {(device, rate, memory) for device, _, rate, *_, memory in cells_of(measured)}
    rows = cells_of(page.splitlines(keepends=True))
    shown = {(device, rate, memory) for device, *_, rate, memory in rows}
    assert len(shown) == 4 and shown < known
    assert last == "| NVIDIA H100 | ours large_999 | out of memory | | | | |\n"
    assert (tmp_path / "new/table.md").read_text().endswith(last)
    assert (tmp_path / "new/table.png").stat().st_size > 0
    assert accelerator.name_in_picture("ours large_56_packed") == "ours, 56 examples, packed"


@pytest.mark.parametrize(
    ("said", "row"),
    [
        ("XLA: RESOURCE_EXHAUSTED: 2 GB are not free", "out of memory"),
        ("torch: CUDA out of memory. Tried\nmore", "out of memory"),
        ("no module named memory_profiler", "exit code 1, not 0: no module named memory_profiler"),
    ],
)
def test_a_contestant_that_fails_says_why(said, row, tmp_path):
    found = accelerator.measured(
        printing(f"raise SystemExit({said!r})"), tmp_path / "none.json", 30
    )
    assert found == {"said": said.splitlines(), "failed": row}
