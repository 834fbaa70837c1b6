"""Sweeps of a small program: limits of memory, what is killed, what fails, what is kept."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.fixtures import lacking
from tests.helpers import programs, waiting
from tracing import limits, sweep, sweep_figures, tables
from tracing.sweep import Point
from tracing.tests import whole, whole_sweep
from tracing.tests.conftest import environment, require
from tracing.tests.whole_sweep import called

QUICK = ["--backend=proc"]
TRAINS = """
for word; do case $word in --output_dir=*) run=${word#*=};; esac; done
mkdir "$run"; touch "$run/is_running"; sleep 3
"""


def rows_of(output: Path) -> pd.DataFrame:
    return pd.read_parquet(output / "runs.parquet").set_index("name")


# --- whole sweeps -------------------------------------------------------------------------------


def test_a_group_limits_what_joins_it():
    if reason := limits.missing():
        if os.geteuid() == 0:
            lacking(f"memory cannot be limited: {reason}")
        pytest.skip(reason)
    with limits.memory_group("mlperf-bert-test") as group:
        group.limit(64 << 20)
        holds = [sys.executable, "-c", "b'x' * (200 << 20)"]
        done = subprocess.run(group.joined(holds), capture_output=True)
        assert done.returncode == -signal.SIGKILL
        assert group.num_kills == 1
        swap = group.folder / group.version.swap_limit
        if swap.exists():
            counted = 64 << 20 if group.version.swap_counts_memory else 0
            assert int(swap.read_text()) == counted
    assert not group.folder.exists()


@pytest.mark.all
def test_finished_points_are_kept_and_half_ones_done_again(tmp_path):
    output = tmp_path / "out"
    example = programs.stand_in(tmp_path / "run_pretraining.py", TRAINS)
    command = [sys.executable, "-m", "tracing.sweep", f"--output={output}", "--batch=10,20"]
    command += ["--compute=real,sleep", "--step_seconds=1,1", *QUICK, "--", str(example)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    second = output / "points" / "batch-20_real.unfinished"
    waiting.until((second / "run" / "is_running").exists, process)
    process.send_signal(signal.SIGTERM)
    _, lines = process.communicate(timeout=300)
    assert process.returncode == 130, lines
    assert "interrupted; the same command goes on with what is left" in lines
    kept = output / "points" / "batch-10_real" / "point.json"
    before = kept.stat().st_mtime_ns
    assert second.exists()
    again = programs.run(*command, env=environment(), check=True)
    assert re.search(r"batch-10_real: .*, kept from before", again.stderr)
    assert kept.stat().st_mtime_ns == before and not second.exists()
    assert list(rows_of(output)["status"]) == ["done"] * 4


# --- what cannot be done here -------------------------------------------------------------------


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Sweeps without running anything: a point's end is that of its batch, else done."""
    ends = {20: (sweep.KILLED, "out of memory", 137), 30: (sweep.FAILED, "exit code 1", 1)}

    def traced(self, point, folder, step_s):
        return ends.get(point.batch, (sweep.DONE, None, 0))

    monkeypatch.setattr(sweep.Sweep, "_traced", traced)

    def call(*options: str) -> dict[str, bool]:
        """The points, and whether they were kept."""
        _, lines = called(f"--output={tmp_path / 'out'}", *options, "--", "true")
        told = re.findall(r"point \d+ of \d+: (\S+): (.*)", lines)
        return {name: end.endswith("kept from before") for name, end in told}

    return call


def test_what_is_done_or_killed_is_kept_and_what_failed_or_slept_otherwise_is_not(quick, tmp_path):
    grid = ("--batch=10,20,30", "--compute=real,sleep", "--step_seconds=1,1,1")
    first = quick(*grid)
    assert len(first) == 6 and not any(first.values())
    kept = {name: "30" not in name for name in first}
    half = tmp_path / "out" / "points" / "batch-10_real.unfinished"
    half.mkdir()
    assert quick(*grid) == kept and not half.exists()
    changed = quick("--batch=10,20,30", "--compute=real,sleep", "--step_seconds=1,2,1")
    assert changed == kept | {"batch-20_sleep": False}
    rows = rows_of(tmp_path / "out")
    assert rows["status"].to_list() == ["done", "killed", "failed"] * 2
    assert rows.loc["batch-20_sleep", "emulated_step_seconds"] == 2
    place = tmp_path / "out" / "points" / "batch-10_real" / "point.json"
    for damage in ("", "[1]", '{"status": "done"}'):
        place.write_text(damage)
        assert not quick(*grid)["batch-10_real"], damage
        assert json.loads(place.read_text()).keys() == tables.RUNS.keys()


def test_what_cannot_be_limited_or_is_not_known_is_left_out_and_said(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "missing", lambda: "Permission denied; it needs root")
    assert quick("--memory=1g,4g", "--cache=cold,warm") == {"real": False}
    page = (tmp_path / "out" / "sweep.html").read_text()
    note = "memory: cannot be limited here: Permission denied; it needs root; every point has all"
    assert note in page and "data: unknown, so there is no ratio of memory to them" in page
    assert rows_of(tmp_path / "out")[["memory_bytes", "cache"]].isna().all(axis=None)


def test_a_whole_sweep_is_as_expected(tmp_path):
    """`whole` says what it is, and how what is expected is written again."""
    summary = json.loads((whole.EXPECTED / "strace" / "summary.json").read_text())
    found = dict(whole_sweep.parts(tmp_path, summary))
    for name, text in found.items():
        expected = (whole.EXPECTED / "sweep" / name).read_text()
        assert whole.stable(text, tmp_path).splitlines() == expected.splitlines(), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory=4x", "--", "true"], "'4x': give sizes such as 512m,4g,none"),
        (["--memory=1g,0.4", "--", "true"], "'1g,0.4': give sizes such as 512m,4g,none"),
        (["--memory=99999999999t", "--", "true"], "give sizes such as 512m,4g,none"),
        (["--step_seconds=nan", "--", "true"], "'nan': give seconds"),
        (["--timeout_s=nan", "--", "true"], "argument --timeout_s: 'nan': give seconds"),
        (["--batch=0", "--", "true"], "'0': give whole numbers from 1"),
        (["--compute=fast", "--", "true"], "'fast': give real, sleep or both"),
        (["--batch=1,2,3", "--step_seconds=1,1", "--", "true"], "--step_seconds: give one, or"),
        (["--", "no-such-command"], "no-such-command: no such command"),
        (["--data=/nowhere/*", "--", "true"], "--data=/nowhere/*: no file matches"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, options, message):
    code, told = called(f"--output={tmp_path / 'out'}", *options)
    assert message in (str(code) if code != 2 else told.splitlines()[-1])
    assert not (tmp_path / "out").exists()


def test_a_sweep_of_another_command_or_one_at_work_is_left_alone(quick, tmp_path):
    assert quick("--batch=10") == {"batch-10_real": False}
    output = f"--output={tmp_path / 'out'}"
    (tmp_path / "data").write_bytes(b"x")
    for other in (
        [f"--output={tmp_path}", "--", "true"],
        [output, "--", "false"],
        [output, "--backend=proc", "--", "true"],
        [output, f"--data={tmp_path}/data", "--", "true"],
    ):
        code, _ = called(*other)
        assert "holds no sweep of this command, its data and --backend; name a new" in str(code)
        assert {path.name for path in tmp_path.iterdir()} == {"data", "out"}, other
    with sweep.FileLock(tmp_path / "out" / ".lock"):
        code, _ = called(output, "--", "true")
    assert str(code).endswith("another sweep works in it; wait, or stop it")
    assert quick("--batch=10") == {"batch-10_real": True}


# --- parts --------------------------------------------------------------------------------------


def parsed(*arguments: str) -> argparse.Namespace:
    return sweep._parser().parse_args(["--output=out", *arguments])


def test_computed_points_come_first_and_most_memory_first():
    given = parsed("--memory=1g,none,512M", "--compute=sleep,real", "--cache=warm", "--", "true")
    found = sweep.points(given)
    assert [point.name for point in found] == [
        f"memory-{memory}_{compute}_warm"
        for compute in ("real", "sleep")
        for memory in ("none", "1g", "512M")
    ]
    assert [point.memory_bytes for point in found[:3]] == [None, 1 << 30, 1 << 29]


def test_the_launcher_of_containers_is_given_its_own_variables(tmp_path):
    programs.stand_in(tmp_path / "start_training.sh", "exit 1")
    given = sweep.Sweep(parsed("--", f"{tmp_path}/start_training.sh", "--a=1"))
    point = Point(memory="2g", batch=8, workers=3, compute="sleep")
    found, environment = given.command_of(point, tmp_path / "run", 0.5)
    assert found[1:] == [
        "--a=1", "--train_batch_size=8", "--num_parallel_files=3", "--emulate_step_seconds=0.5",
        "--eval_input_file=",
    ]  # fmt: skip
    assert environment == {"OUTPUT_DIR": str(tmp_path / "run"), "MEMORY": str(2 << 30)}


def test_the_data_are_those_that_the_command_reads(tmp_path, monkeypatch):
    for name in ("a/part-1", "a/part-0", "b/part-2", "b/folder/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    a, b = f"{tmp_path}/a/*", f"{tmp_path}/b/*"
    of_a, of_b = [f"{tmp_path}/a/part-{n}" for n in (0, 1)], [f"{tmp_path}/b/part-2"]
    monkeypatch.setenv("DATA_DIR", f"{tmp_path}/b")
    # The last one counts, as for the command; the launcher's variable without any.
    assert sweep.data_files(None, ["x", f"--input_file={b}", "--input_file", a]) == of_a
    assert sweep.data_files(None, ["x", f"--input_file={a}", f"--input_file={b}"]) == of_b
    assert sweep.data_files(None, [f"./{sweep.LAUNCHER}"]) == of_b
    assert sweep.data_files(f"{b}, {a}", [f"--input_file={b}"]) == [*of_a, *of_b]
    assert sweep.data_files(None, ["train"]) == []


@pytest.mark.parametrize(
    "lines",
    [[], [{"kind": "eval", "step": 1}], [{"kind": "train", "step": 1, "loss": 2.0}],
     [{"kind": "train", "step": 0} | dict.fromkeys(sweep_figures._LEDGER, 0.0)]],
)  # fmt: skip
def test_utilization_is_unknown_without_the_ledger_of_a_run(tmp_path, lines):
    """As another training writes its metrics, or one that was killed before its first step."""
    summary = {
        "access": {
            "page_cache": dict.fromkeys(("call_bytes", "storage_bytes", "storage_from"))
            | {"hit_ratio": None},
            "passes": None,
            "samples": {"num_trained": 1000},
        },
        "phases": [{"name": "block", "seconds": 10.0, "saving_seconds": None}],
        "seconds": 12.0,
        "usage": {"peak_resident_bytes": 1},
    }
    for name, text in (
        ("trace/summary.json", json.dumps(summary)),
        ("run/metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines)),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    row = sweep_figures.row(tmp_path, status="done", memory_bytes=None, data_bytes=None)
    assert (row["samples_per_second"], row["utilization"], row["step_seconds"]) == (100, None, None)


# --- the real training --------------------------------------------------------------------------


@pytest.mark.all
def test_a_real_training_computed_and_slept(repository, tmp_path):
    from tests.helpers.tiny_examples import training_flags, write_inputs

    require("strace")
    (write_inputs(tmp_path) / "train").write_bytes((tmp_path / "train").read_bytes() * 10)
    left_out = ("--output_dir=", "--eval_i", "--log_every_steps=")
    flags = training_flags(tmp_path, num_train_steps=100)
    command = [
        *[sys.executable, "-m", "tracing.sweep", f"--output={tmp_path / 'out'}"],
        *["--compute=real,sleep", "--batch=8", "--workers=2", "--cache=cold", "--backend=strace"],
        *["--", sys.executable, repository / "run_pretraining.py"],
        *[flag for flag in flags if not flag.startswith(left_out)],
    ]
    done = programs.run(*command, env=environment())
    assert done.returncode == 0, done.stderr
    computed, slept = pd.read_parquet(tmp_path / "out" / "runs.parquet").to_dict("records")
    assert [computed["status"], slept["status"]] == ["done", "done"]
    assert slept["emulated_step_seconds"] == computed["step_seconds"]
    assert computed["num_samples"] == slept["num_samples"] == 800
    assert 0 < slept["utilization"] <= 1
