"""The exports of a trace: the command, its messages, what the formats hold."""

import io
import os
import re
import subprocess
import sys

import pandas as pd
import pytest

from tests.helpers.programs import refusal
from tracing import calls, export, loaded, tables
from tracing.exports import chakra
from tracing.tests import by_hand, chakra_reader, perfetto_reader


@pytest.mark.parametrize("target", export.OUTPUTS)
def test_a_target_without_output_writes_into_the_traces_folder(copied, target, capsys):
    output = copied / export.OUTPUTS[target]
    if target == "perfetto":
        output.unlink()
    export.main([str(copied), f"--to={target}"])
    printed = capsys.readouterr()
    assert printed.out == f"{output}\n" and output.exists()
    assert re.match(r"export: .*\b[\d,]+ calls", printed.err)
    line = refusal(export.main, copied, f"--to={target}")
    assert line == f"export: {output} exists: remove it, or name another --output"
    assert not list(copied.glob("*.unfinished"))


def test_what_is_no_finished_trace_is_named_with_the_way_out(copied):
    trace = copied / "none"
    line = refusal(export.main, trace, "--to=chakra")
    assert line.startswith(f"export: {trace / 'summary.json'} is not of a finished trace (")
    assert line.endswith(f"or finish it by python -m tracing --convert {trace}")
    output = copied / "no folder" / "trace.et"
    line = refusal(export.main, copied, "--to=perfetto", f"--output={output}")
    assert line.endswith(f"there is no folder {output.parent}; make it first")
    path = copied / "summary.json"
    for damaged in ('{"format_version": 0}', "[1]", "{"):
        path.write_text(damaged)
        line = refusal(export.main, copied, "--to=chakra")
        assert f"{path} is not of a finished trace (" in line


@pytest.mark.parametrize("target", export.OUTPUTS)
def test_a_damaged_table_is_named_by_every_target(copied, tmp_path, target):
    words = [copied, f"--to={target}", f"--output={tmp_path / 'export'}"]
    table = copied / "file_ops.parquet"
    whole = table.read_bytes()
    holes = whole[:4] + b"\xff" * (len(whole) - 12) + whole[-8:]
    for damaged in (whole[: len(whole) // 2], b"", b"no table\n" * 20, holes):
        table.write_bytes(damaged)
        line = refusal(export.main, *words)
        assert line.startswith(f"export: {table} is not of a finished trace (")
    pd.DataFrame({"monotonic_ns": [1], "path": ["x"]}).to_parquet(table)
    assert f"{table} is not of a finished trace (" in refusal(export.main, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]


def test_a_reader_that_ends_is_no_error(whole_trace, tmp_path):
    words = [sys.executable, "-m", "tracing.export", whole_trace, "--to=chakra"]
    words += [f"--output={tmp_path / 'trace.et'}"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.returncode == 141 and "Error" not in done.stderr


@pytest.mark.parametrize("target", export.OUTPUTS)
def test_a_full_disk_leaves_nothing(whole_trace, small_disk, target):
    disk = small_disk(4)
    (disk / "full").write_bytes(bytes(4096))
    line = refusal(export.main, whole_trace, f"--to={target}", f"--output={disk / 'export'}")
    assert "No space left on device" in line
    assert list(disk.iterdir()) == [disk / "full"]


def test_what_a_trace_lacks_is_said(copied, tmp_path, capsys):
    (copied / "mllog.parquet").unlink()
    export.main([str(copied), "--to=chakra", f"--output={tmp_path / 'bare.et'}"])
    assert capsys.readouterr().err.endswith(
        "; no block I/O, which only bpftrace records; no batches: the trace has no MLPerf log of a "
        "training\n"
    )


def test_requests_that_overlap_move_nothing_or_began_before_the_trace(copied, tmp_path):
    begin_ns = loaded.Trace(copied).begin_ns
    rows = [
        {"monotonic_ns": begin_ns + 1000 * at, "latency_ns": 1000 * lasts, "operation": letters,
         "pid": 1, "command": "x", "device": device, "sector": 8 + n, "size_bytes": 1024 * n}
        for n, (at, lasts, letters, device) in enumerate(
            # They are in the order of their ends.
            [(-2, 5, "WS", "8:0"), (1, 7, "D", "8:0"), (3, 5, "FF", "8:0"), (2, 8, "RA", "8:1"),
             (-9, 4, "R", "8:1")]
        )
    ]  # fmt: skip
    alignment = by_hand.recording(pairs=by_hand.pairs(10)).alignment()
    tables.write_table(copied, "block_io", rows, alignment)
    for target in export.OUTPUTS:
        export.main([str(copied), f"--to={target}", f"--output={tmp_path / target}"])
    _, nodes = chakra_reader.read(tmp_path / "chakra")
    found = [
        (node.start_time_micros, node.duration_micros, node.storage.block.lba,
         node.storage.block.nr_sectors, node.storage.block.op)
        for node in nodes if node.storage.HasField("block")
    ]  # fmt: skip
    read, write, flush = 1, 2, 3
    assert found == [
        (0, 0, 12, 8, read), (0, 3, 8, 0, write), (2, 8, 11, 6, read), (3, 5, 10, 4, flush)
    ]  # fmt: skip
    slices = [
        line.split(" block sector")[0] + line[line.index(" to ") :]
        for line in perfetto_reader.lines(tmp_path / "perfetto")
        if " / 8:" in line and not line.startswith("track")
    ]
    told = [(-9, "8:1: R", -5), (-2, "8:0: WS", 3), (1, "8:0 #1: D", 8), (2, "8:1: RA", 10),
            (3, "8:0: FF", 8)]  # fmt: skip
    assert slices == [
        f"{begin_ns + 1000 * at} block devices / {name} to {begin_ns + 1000 * end}"
        for at, name, end in told
    ]


def test_what_a_node_follows(copied, tmp_path):
    calls = [
        (0, 10, 7, "read", "tfrecords"), (2, 1, 8, "read", "tfrecords"),
        (4, 1, 15, "write", "tfrecords"),
        (25, 1, 9, "write", "other"), (30, 1, 10, "write", "checkpoints"),
        (31, 1, 11, "write", "checkpoints"), (40, 1, 12, "add_to_page_cache", "other"),
        (41, 1, 13, "open", "other"), (43, 1, 14, "open", "other"),
    ]  # fmt: skip
    names = ("monotonic_ns", "latency_ns", "tid", "kind", "file_class")
    call = {"pid": 7, "path": "/d/x", "size_bytes": 5, "offset_bytes": 0}
    request = {"latency_ns": 1, "pid": 7, "operation": "R", "sector": 8, "size_bytes": 512}
    phases = [("eval", 10, 20), ("checkpoint", 20, 30)]
    rows = {
        "file_ops": [dict(zip(names, each)) | call | {"operation": each[3]} for each in calls],
        "block_io": [{"monotonic_ns": at, "device": "8:0", **request} for at in (2, 3, 10)],
        "spans": [dict(zip(("name", "monotonic_ns", "end_monotonic_ns"), each)) for each in phases],
    }
    alignment = by_hand.recording(pairs=by_hand.pairs(10)).alignment()
    for table in rows:
        tables.write_table(copied, table, rows[table], alignment)
    chakra.write(loaded.Trace(copied), tmp_path / "x.et")
    _, nodes = chakra_reader.read(tmp_path / "x.et")
    # A request follows the call that began last of those around it; an evaluation the reads before
    # it; and files of a checkpoint its phase.
    assert [(node.name, *node.data_deps, *node.ctrl_deps) for node in nodes] == [
        ("read",), ("read",), ("block_io", 2), ("block_io", 2), ("write",), ("block_io", 1),
        ("evaluation", 1, 2), ("checkpoint", 7), ("write",), ("write", 8), ("write",),
        ("add_to_page_cache",), ("open",), ("open",),
    ]  # fmt: skip


NODE = (
    "4c080112047265616418082201012a01023008380952050a0161480152060a0162d80101520c0a01631900000000"
    "0000e03f52070a0164ea0101655a100801520c080512022f64180320052807"
)
"""By the numbers of schema/protobuf/et_def.proto at SCHEMA_COMMIT, after its length."""


def test_a_node_has_the_bytes_of_mlcommons_schema():
    file = io.BytesIO()
    writer = chakra.Writer(file)
    num_bytes = file.tell()
    detail = {"op": "FS_OP_PREAD", "pathname": "/d", "fd": 3, "offset": 5, "size_bytes": 7}
    writer.node(
        "STORAGE", "read", ctrl_deps=[1], data_deps=[2], start_time_micros=8, duration_micros=9,
        attr={"a": 1, "b": True, "c": 0.5, "d": "e"},
        storage={"level": "STORAGE_LEVEL_FS", "fs": detail},
    )  # fmt: skip
    assert file.getvalue()[num_bytes:].hex() == NODE
    kinds = chakra.CLASSES["Node"].DESCRIPTOR.fields_by_name["type"].enum_type.values_by_name
    assert (kinds["BATCH_NODE"].number, kinds["CHECKPOINT_NODE"].number) == (9, 10)
    ops = {"creat": "FS_OP_OPEN", "fsync": "FS_OP_FSYNC", "fdatasync": "FS_OP_FDATASYNC"}
    for kind in ("open", "close", "read", "write"):
        for call in calls.KINDS[kind].split():
            ops[call] = f"FS_OP_{'P' * call.startswith('p')}{kind.upper()}"
    assert ops == chakra._OP_OF
    below = [chakra.CLASSES[kind].DESCRIPTOR for kind in ("PageOp", "BlockOp")]
    numbers = [[field.number for field in kind.fields] for kind in below]
    assert numbers == [[1, 3, 4], [1, 2, 3, 4, 5]]
