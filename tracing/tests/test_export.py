"""The exports of a trace: the command, its messages, what DFTracer counts and fio moves."""

import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fixtures import lacking
from tests.helpers import programs
from tests.helpers.programs import refusal
from tracing import calls, compare, export, tables
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


@pytest.mark.parametrize("target", export.OUTPUTS)
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: None, "is not a finished trace: there is no such folder"),
        (lambda folder: folder.mkdir(), "is not a finished trace: it has no summary.json"),
        (
            lambda folder: (folder / "raw").mkdir(parents=True),
            "tracing --convert .* finishes it",
        ),
    ],
)
def test_what_is_no_finished_trace_is_refused(tmp_path, target, make, reason):
    make(tmp_path / "trace")
    assert re.search(f"{reason}$", refusal(export.main, tmp_path / "trace", f"--to={target}"))


@pytest.mark.parametrize("target", export.OUTPUTS)
def test_an_output_in_no_folder_and_a_flag_of_another_target_are_refused(
    generated, tmp_path, target
):
    output = tmp_path / "none" / "there"
    line = refusal(export.main, generated, f"--to={target}", f"--output={output}")
    assert line.endswith(f"there is no folder {output.parent}; make it first")
    if target != "fio":
        line = refusal(export.main, generated, f"--to={target}", "--per=trace")
        assert line == "export: --per=trace is for --to=fio alone; leave it out"


@pytest.mark.parametrize("target", ["dftracer", "fio"])
def test_a_trace_without_single_calls_is_refused(tmp_path, target):
    trace = generated_trace.write(tmp_path / "trace", backend="proc")
    line = refusal(export.main, trace, f"--to={target}")
    assert line.endswith(
        "holds no single calls: trace with strace or bpftrace, this one was made with proc"
    )


def _damages(path: Path) -> Iterator[bytes]:
    """What may become of a table's file: cut, empty, text, holes in it."""
    whole = path.read_bytes()
    yield from (whole[: len(whole) // 2], b"", b"no table\n" * 20)
    yield whole[:4] + b"\xff" * (len(whole) - 12) + whole[-8:]
    yield whole[:4] + b"\xff" * (len(whole) // 3) + whole[4 + len(whole) // 3 :]


@pytest.mark.parametrize("target", export.OUTPUTS)
def test_damaged_traces_are_one_line(tmp_path, target):
    trace = generated_trace.write(tmp_path / "trace")
    table = trace / "file_ops.parquet"
    for damaged in list(_damages(table)):
        table.write_bytes(damaged)
        line = refusal(export.main, trace, f"--to={target}")
        assert line.startswith(f"export: {trace}: its table file_ops.parquet cannot be read (")
        assert line.endswith("); copy the trace here again, or record it again")
    found = json.loads((trace / "summary.json").read_text()) | {"begin_monotonic_ns": None}
    (trace / "summary.json").write_text(json.dumps(found))
    line = refusal(export.main, trace, f"--to={target}")
    assert line.endswith("is not a finished trace: when it began is not recorded")


@pytest.mark.parametrize("table", tables.COLUMNS)
def test_every_command_names_the_table_that_is_damaged(tmp_path, table):
    trace = generated_trace.write(tmp_path / "trace")
    other = generated_trace.write(tmp_path / "other")
    path = trace / f"{table}.parquet"
    if not path.exists():
        pq.write_table(tables.schema(table).empty_table(), path)
    path.write_bytes(next(_damages(path)))
    outputs = {target: f"--output={tmp_path / target}" for target in export.OUTPUTS}
    commands = [(export.main, trace, f"--to={to}", output) for to, output in outputs.items()]
    commands += [(compare.main, other, trace)]
    lines = [line for command in commands if (line := _refused(*command))]
    # DLIO refuses this trace in any case.
    named = [f"{trace}: its table {table}.parquet cannot be read (" in line for line in lines]
    assert all(named[n] or "holds no reads of TFRecords" in line for n, line in enumerate(lines))
    assert any(named) or table not in _READ


_READ = ("file_ops", "process_events", "block_io", "processes", "threads", "mllog", "spans")


def _refused(main, *words) -> str | None:
    """The line that a command ends with; None: it does not read the table."""
    try:
        main([str(word) for word in words])
    except SystemExit as ended:
        assert ended.code and len(str(ended.code).splitlines()) == 1
        return str(ended.code)
    return None


def test_values_of_another_kind_are_one_line(tmp_path):
    trace = generated_trace.write(tmp_path / "trace")
    path = trace / "file_ops.parquet"
    found = pq.read_table(path)
    nulls = pa.nulls(len(found), pa.int64())
    for column in ("monotonic_ns", "latency_ns", "pid"):
        number = found.schema.get_field_index(column)
        pq.write_table(found.set_column(number, column, nulls), path)
        for target in export.OUTPUTS:
            _refused(export.main, trace, f"--to={target}", f"--output={tmp_path / column / target}")


@pytest.mark.parametrize("target", export.OUTPUTS)
@pytest.mark.parametrize("strange", [{"monotonic_ns": ["a"]}, {"monotonic_ns": [1], "path": [2]}])
def test_foreign_tables_are_one_line(tmp_path, target, strange):
    trace = generated_trace.write(tmp_path / "trace")
    for table in ("file_ops", "mllog", "files", "spans", "threads"):
        pd.DataFrame(strange).to_parquet(trace / f"{table}.parquet")
    line = refusal(export.main, trace, f"--to={target}")
    assert line.endswith("not written it: copy the trace here again, or record it again")


def test_a_table_that_lacks_a_column_and_one_that_is_gone_are_refused(tmp_path):
    trace = generated_trace.write(tmp_path / "trace")
    found = pd.read_parquet(trace / "file_ops.parquet")
    for column in ("latency_ns", "opening"):  # one that the target needs, and one that it does not
        found.drop(columns=column).to_parquet(trace / "file_ops.parquet")
        line = refusal(export.main, trace, "--to=dftracer")
        assert f"file_ops.parquet: no column {column} of numbers; this tracing has not" in line
    (trace / "file_ops.parquet").unlink()
    for target in ("dftracer", "perfetto"):
        line = refusal(export.main, trace, f"--to={target}")
        assert "is damaged: file_ops.parquet is missing" in line
    assert not list(trace.glob("trace.*"))


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
    guessed = calls["offset_bytes"].isna() & (calls["kind"] != "sync")
    assert fio._following_offsets(calls, guessed).to_dict() == {0: 100, 1: 110, 3: 0, 4: 120}
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


def test_dftracers_replay_understands_every_call(pfw, file_ops):
    told = told_by("dftracer_replay", "--dry-run", "--filter-category=POSIX", pfw)
    assert int(re.search(r"Executed: (\d+)", told)[1]) == len(file_ops)
    assert int(re.search(r"Failed: (\d+)", told)[1]) == 0


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


def test_a_log_begins_when_its_calls_did(replay, file_ops):
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


def test_too_many_threads_for_fio_are_refused(tmp_path, monkeypatch, generated):
    monkeypatch.setattr(fio, "_MOST_LOGS", 2)
    message = "3 logs, one for each thread, and fio replays 2 at most; --per=process or --per=trace"
    with pytest.raises(ValueError, match=message):
        fio.write(Finished(generated), tmp_path / "replay", per="thread")


def test_a_trace_without_transfers_has_nothing_to_replay(tmp_path):
    trace = generated_trace.write(tmp_path / "trace")
    row = {"kind": "open", "operation": "openat", "path": "/x", "file_class": "other"}
    row |= {"monotonic_ns": generated_trace.BEGIN_NS, "size_bytes": 0}
    tables.write_table(trace, "file_ops", [row], generated_trace.alignment())
    with pytest.raises(ValueError, match="holds no call that read or wrote a file"):
        fio.write(Finished(trace), tmp_path / "replay", per="thread")


def test_the_generated_trace_holds_every_kind_of_call(file_ops):
    assert set(file_ops["operation"]) == {*calls.KIND_OF, "page_fault"}
