"""The stages of a training on one card, and what is packed for a machine without a network."""

import json
import shutil
import subprocess
import sys

import pytest

from benchmarks import on_a_card, pack_run

LATER = "import time; time.sleep(60)"


def printing(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(lines)]


def test_a_stage_gets_sigterm_after_its_line():
    ends = "import signal, sys; signal.signal(15, lambda *_: sys.exit(75))"
    command = printing(ends, "print('after 80 samples: 0.1', flush=True)", LATER)
    found = on_a_card.finished(command, 30, stop_at="after 80 sam", expected=75)
    assert found == {"said": ["after 80 samples: 0.1"]}


def test_a_stage_is_killed_at_its_limit_with_all_that_it_started():
    late = "import time; time.sleep(5); print(1)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{late}'])"
    found = on_a_card.finished(printing("print('begins', flush=True)", child), 0.5)
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


def test_every_stage_has_a_line_of_its_own_also_without_time(tmp_path):
    given = []

    def stage(name, limit):
        given.append((name, limit))
        return {"failed": "out of memory"} if name == "second" else {"samples_per_second": 7}

    stages = on_a_card.Stages(tmp_path / "figures.jsonl", 100, [], {"device": "H100"})
    for name in ("first", "second"):
        stages.run(name, 30, stage, name)
    late = on_a_card.Stages(tmp_path / "figures.jsonl", 0, [], {"device": "H100"})
    late.run("third", 30, stage, "third")
    rows = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text().splitlines()]
    assert [(row["stage"], row.get("failed"), row["device"]) for row in rows] == [
        ("first", None, "H100"),
        ("second", "out of memory", "H100"),
        ("third", "no time is left", "H100"),
    ]
    assert given == [("first", 30), ("second", 30)]
    assert (stages.failed, late.failed) == (["second"], ["third"])


def test_only_the_stages_that_are_named_run(tmp_path):
    stages = on_a_card.Stages(tmp_path / "figures.jsonl", 100, ["demo"], {})
    assert stages.run("large_56", 30, lambda limit: {"limit": limit}) == {}
    assert stages.run("demo", 30, lambda limit: {"limit": limit})["limit"] == 30


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
    command = [sys.executable, "-m", "benchmarks.accelerator", "run", "--tiny", *words]
    subprocess.run(command, check=True, cwd=on_a_card.ROOT)
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
