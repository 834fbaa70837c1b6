"""The exports of a trace: the command, its messages, what DFTracer counts and fio moves."""

import json
import re
import shutil
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.fixtures import lacking
from tests.helpers import programs
from tests.helpers.programs import refusal
from tracing import export, tables
from tracing.exports import dftracer, fio
from tracing.exports.finished import Finished
from tracing.tests import generated_trace
from tracing.tests.generated_trace import moved_in

PROGRAMS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def file_ops(generated) -> pd.DataFrame:
    return tables.read_table(generated, "file_ops")


@pytest.mark.parametrize("target", ["dftracer", "fio", "perfetto"])
def test_a_target_without_output_writes_into_the_traces_folder(tmp_path, target, capsys):
    trace = generated_trace.write(tmp_path / "trace")
    export.main([str(trace), f"--to={target}"])
    output = trace / export.OUTPUTS[target]
    printed = capsys.readouterr()
    assert printed.out == f"{output}\n" and output.exists()
    assert re.match(r"export: [\d,]+ (calls|events)", printed.err)
    line = refusal(export.main, trace, f"--to={target}")
    assert line == f"export: {output} exists: remove it, or name another --output"
    assert not list(trace.glob("*.unfinished"))


def test_what_is_no_finished_trace_is_named_with_the_way_out(tmp_path):
    trace = tmp_path / "trace"
    line = refusal(export.main, trace, "--to=fio")
    assert line.startswith(f"export: {trace / 'summary.json'} is not of a finished trace (")
    assert line.endswith(f"or finish it by python -m tracing --convert {trace}")
    generated_trace.write(trace)
    path = trace / "summary.json"
    found = json.loads(path.read_text())
    for damaged in (found | {"format_version": 0}, found | {"begin_monotonic_ns": None}, [1]):
        path.write_text(json.dumps(damaged))
        assert f"{path} is not of a finished trace (" in refusal(export.main, trace, "--to=fio")


@pytest.mark.parametrize("target", export.OUTPUTS)
def test_a_damaged_table_is_named_by_every_target(tmp_path, target):
    trace = generated_trace.write(tmp_path / "trace")
    table = trace / "file_ops.parquet"
    whole = table.read_bytes()
    holes = whole[:4] + b"\xff" * (len(whole) - 12) + whole[-8:]
    for damaged in (whole[: len(whole) // 2], b"", b"no table\n" * 20, holes):
        table.write_bytes(damaged)
        line = refusal(export.main, trace, f"--to={target}")
        assert line.startswith(f"export: {table} is not of a finished trace (")
    pd.DataFrame({"monotonic_ns": [1], "path": ["x"]}).to_parquet(table)
    assert "(no column " in refusal(export.main, trace, f"--to={target}").replace("('", "(")
    assert not list(trace.glob("trace.*"))


def test_other_wrong_inputs_are_one_line(generated, tmp_path):
    output = tmp_path / "none" / "there"
    line = refusal(export.main, generated, "--to=perfetto", f"--output={output}")
    assert line.endswith(f"there is no folder {output.parent}; make it first")
    line = refusal(export.main, generated, "--to=dlio", "--per=trace")
    assert line == "export: --per is not for --to=dlio; leave it out"
    trace = generated_trace.write(tmp_path / "trace", backend="proc")
    assert refusal(export.main, trace, "--to=dftracer").endswith(
        "holds no single calls: trace with strace or bpftrace, this one was made with proc"
    )


@pytest.mark.parametrize("target", ["dftracer", "perfetto", "fio"])
def test_a_full_disk_leaves_nothing(generated, small_disk, target):
    disk = small_disk(4)
    (disk / "full").write_bytes(bytes(4096))
    line = refusal(export.main, generated, f"--to={target}", f"--output={disk / 'export'}")
    assert "No space left on device" in line
    assert list(disk.iterdir()) == [disk / "full"]


def test_an_offset_that_is_not_known_is_guessed_behind_the_call_before(tmp_path, capsys):
    trace = generated_trace.write(tmp_path / "trace")
    calls = pd.DataFrame(
        [
            ("a", "read", 100.0, 10), ("a", "read", None, 10), ("b", "read", 5.0, 1),
            ("a", "write", None, 3), ("a", "read", None, 4), ("a", "sync", None, 0),
        ],
        columns=["path", "kind", "offset_bytes", "size_bytes"],
    )  # fmt: skip
    assert fio._known_offsets(calls)[:5].tolist() == [100, 110, 5, 0, 120]
    export.main([str(trace), "--to=fio"])
    assert re.search(r"calls, \d+ of them at guessed offsets in", capsys.readouterr().err)


# DFTracer


@pytest.fixture(scope="module")
def pfw(generated, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("dftracer") / "trace.pfw.gz"
    dftracer.write(Finished(generated), output)
    return output


def told_by(program: str, *words) -> str:
    """What one of DFTracer's own programs prints."""
    if not (PROGRAMS / program).exists():
        lacking(f"{program} is not installed: pip install dftracer-utils")
    return programs.run(PROGRAMS / program, *words, check=True).stdout


def test_dftracer_finds_every_line_valid_and_counts_all_events(pfw, file_ops):
    assert "1 passed, 0 failed" in told_by("dftracer_validate", "-d", pfw.parent)
    num_spans = len(generated_trace._spans())
    counted = told_by("dftracer_event_count", "-d", pfw.parent, f"--index-dir={pfw.parent}")
    assert int(counted) == len(file_ops) + num_spans
    [stats] = json.loads(told_by("dftracer_stats", "-d", pfw.parent, "--json"))
    by_category = {entry["name"]: entry["count"] for entry in stats["results"]}
    assert by_category == {"posix": len(file_ops), "mlperf": num_spans}
    first, last = stats["time_range"]["min_timestamp_us"], stats["time_range"]["max_timestamp_us"]
    begin_us = (generated_trace.BEGIN_NS + generated_trace.REALTIME_AHEAD_NS) // 1000
    assert begin_us == first and last <= begin_us + generated_trace.SECONDS * 10**6
    told = told_by("dftracer_replay", "--dry-run", "--filter-category=POSIX", pfw)
    assert [int(re.search(rf"{word}: (\d+)", told)[1]) for word in ("Executed", "Failed")] == [
        len(file_ops), 0
    ]  # fmt: skip


def test_dftracers_counts_and_bytes_of_every_file_are_the_tables(pfw, file_ops):
    keys = ["file_path", "name"]
    told = told_by("dftracer_view", f"--files={pfw}", '--query=cat == "POSIX"',
                   f"--group-by={','.join(keys)}", "--agg=count,sum:size")  # fmt: skip
    counted = {
        (row["file_path"], row["name"]): (row["count"], row["sum_size"])
        for row in map(json.loads, told.splitlines())
    }
    # Of mapped pages DFTracer counts no bytes.
    moved = file_ops["size_bytes"].where(file_ops["kind"].isin(["read", "write"]), 0)
    names = file_ops["operation"].replace(dftracer._NAMES)
    groups = moved.groupby([file_ops["path"], names])
    expected = {key: (len(sizes), int(sizes.sum())) for key, sizes in groups}
    assert counted == expected
    assert {name for _, name in counted} > {"open", "pread64", "sendfile", "rename", "mkdir"}
    assert generated_trace.SPACED_NAME in {path for path, _ in counted}


# fio


@pytest.fixture(scope="module", params=fio.GROUPS)
def replay(request, generated, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("fio") / "replay"
    fio.write(Finished(generated), output, per=request.param)
    return output


def lines_of(log: Path) -> list[list[str]]:
    version, *lines = log.read_text(encoding="utf-8").splitlines()
    assert version == "fio version 3 iolog"
    return [line.split(" ") for line in lines]


def test_the_logs_hold_every_byte_in_order_of_time(replay, file_ops):
    totals = {"read": 0, "write": 0}
    for log in (replay / "logs").iterdir():
        lines = lines_of(log)
        stamps = [int(line[0]) for line in lines]
        assert stamps == sorted(stamps) and stamps[0] == 1  # 0 would be taken for no stamp
        is_open = set()
        added = {line[1] for line in lines if line[2] == "add"}
        for _, name, action, *numbers in lines:
            assert len(numbers) == (2 if action in ("read", "write", "sync") else 0)
            if action == "open":
                is_open.add(name)
            elif action == "close":
                is_open.remove(name)
            elif action != "add":
                assert name in is_open
                totals[action] = totals.get(action, 0) + int(numbers[1])
        assert not is_open and added == {line[1] for line in lines}
    expected = moved_in(file_ops).groupby("kind")["size_bytes"].sum()
    assert totals == {**expected.to_dict(), "sync": 0}
    first = moved_in(file_ops)["monotonic_ns"].min()
    stamps = [
        int(line[0]) for log in (replay / "logs").iterdir()
        for line in lines_of(log) if line[2] == "open"
    ]  # fmt: skip
    assert min(stamps) == (first - generated_trace.BEGIN_NS) // 1000 + 1


def test_files_to_read_are_sparse_and_long_enough(replay):
    listed = pd.read_csv(replay / "files.csv").set_index("name")
    assert listed["path"].is_unique
    assert {generated_trace.LONG_NAME, generated_trace.SPACED_NAME} <= set(listed["path"])
    for log in (replay / "logs").iterdir():
        for _, name, action, *numbers in lines_of(log):
            assert re.fullmatch(r"files/[\w.-]{1,120}", name, re.ASCII)
            if action == "read":
                assert (replay / name).stat().st_size >= sum(map(int, numbers))
    for name, size in listed["size_bytes"].items():
        assert not size or (replay / name).stat().st_size == size
    assert sum(path.stat().st_blocks for path in (replay / "files").iterdir()) == 0


@pytest.mark.parametrize("per", fio.GROUPS)
def test_a_replay_moves_the_bytes_of_the_trace_in_its_time(tmp_path, generated, file_ops, per):
    """By Debian's fio, and what it reports of its jobs."""
    if not shutil.which("fio"):
        lacking("fio is not installed: apt-get install fio")
    fio.write(Finished(generated), tmp_path / "replay", per=per)
    began = time.monotonic()
    words = ["fio", "replay.fio", "--output-format=json"]
    done = programs.run(*words, cwd=tmp_path / "replay", check=True)
    seconds = time.monotonic() - began
    jobs = json.loads(done.stdout)["jobs"]
    assert all(job["error"] == 0 for job in jobs)
    moved = moved_in(file_ops)
    for kind, sizes in moved.groupby("kind")["size_bytes"]:
        for name, expected in (("total_ios", len(sizes)), ("io_bytes", sizes.sum())):
            assert sum(job[kind][name] for job in jobs) == expected
    lasts = (moved["monotonic_ns"].max() - generated_trace.BEGIN_NS) / 1e9
    assert 0.95 * lasts < max(job["job_runtime"] for job in jobs) / 1000 < seconds
    assert (tmp_path / "replay" / "files").is_dir()


def test_too_many_threads_for_fio_and_none_are_refused(tmp_path, monkeypatch, generated):
    monkeypatch.setattr(fio, "_MOST_LOGS", 2)
    message = "make 3 logs, one for each thread, and fio replays 1 to 2; --per=process or --per"
    with pytest.raises(ValueError, match=message):
        fio.write(Finished(generated), tmp_path / "replay", per="thread")
    trace = generated_trace.write(tmp_path / "trace")
    rows = tables.read_table(trace, "file_ops")
    rows[rows["kind"] == "open"].to_parquet(trace / "file_ops.parquet")
    with pytest.raises(ValueError, match="make 0 logs"):
        fio.write(Finished(trace), tmp_path / "replay")
