"""A trace as Chakra's nodes: bytes are the tables', dependencies hold."""

import io
import itertools
import re
from pathlib import Path

import pandas as pd
import pytest

from tracing import bpftrace, export, tables
from tracing.exports import chakra_format
from tracing.tests import chakra_reader, generated_trace
from tracing.tests.generated_trace import BEGIN_NS, moved_in, point

NUM_STEPS, EXAMPLES = 10, 64


def trained(folder: Path) -> Path:
    """The generated trace as that of a training: its block has steps, its data are records."""
    trace = generated_trace.write(folder)
    calls = pd.read_parquet(trace / "file_ops.parquet").astype({"file_class": object})
    calls.loc[calls["path"].isin(generated_trace.DATA), "file_class"] = "tfrecords"
    calls.to_parquet(trace / "file_ops.parquet")
    spans = pd.read_parquet(trace / "spans.parquet").set_index("name")
    stop_ms = (spans.loc["block", "end_monotonic_ns"] - BEGIN_NS) / 1e6
    counts = {"first_epoch_num": 0, "samples_count": NUM_STEPS * EXAMPLES}
    ledger = {"input_wait_seconds": 0.3, "compute_seconds": 0.9, "saving_seconds": 0.0}
    rows = [
        point(0, "global_batch_size", EXAMPLES, {}),
        point(0, "max_sequence_length", 32, {}),
        point(stop_ms, "block_stop", None, counts),
        point(stop_ms + 1, "tracked_stats", ledger, {"of": "block", **counts}),
    ]
    tables.write_table(trace, "mllog", rows, generated_trace.alignment())
    return trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    return trained(tmp_path_factory.mktemp("trained") / "trace")


def exported(trace: Path, output: Path, *flags: str) -> list:
    export.main([str(trace), "--to=chakra", f"--output={output}", *flags])
    return nodes_of(output)


def nodes_of(path: Path) -> list:
    metadata, nodes = chakra_reader.read(path)
    assert metadata.version == chakra_format.VERSION
    assert chakra_reader.attributes_of(metadata)["schema_commit"] == chakra_format.SCHEMA_COMMIT
    assert not list(chakra_reader.violations(nodes))
    return nodes


@pytest.fixture(scope="module")
def nodes(trace, tmp_path_factory) -> list:
    return exported(trace, tmp_path_factory.mktemp("chakra") / "trace.et")


def of_kind(nodes: list, kind: str) -> list:
    number = chakra_format.ENUMS["NodeType"].split().index(f"{kind}_NODE")
    return [node for node in nodes if node.type == number]


def of_level(nodes: list, level: str) -> list:
    return [node for node in nodes if node.storage.WhichOneof("detail") == level]


def test_the_bytes_are_those_of_the_tables(trace, nodes):
    moved = moved_in(tables.read_table(trace, "file_ops"))
    calls = {name: moved.loc[moved["kind"] == name, "size_bytes"].sum() for name in
             ("read", "write")}  # fmt: skip
    for kind, total in calls.items():
        word = kind.upper()
        found = [n for n in of_level(nodes, "fs") if word in op_of(n)]
        assert sum(map(chakra_reader.moved_bytes, found)) == total > 0
    blocks = tables.read_table(trace, "block_io")
    requests = of_level(nodes, "block")
    assert sum(map(chakra_reader.moved_bytes, requests)) == blocks["size_bytes"].sum() > 0
    assert [n.storage.block.lba for n in requests] == list(blocks["sector"])


def op_of(node) -> str:
    return chakra_format.ENUMS["FsOp.Op"].split()[node.storage.fs.op]


def test_calls_have_their_times_names_and_offsets(trace, nodes):
    calls = tables.read_table(trace, "file_ops").sort_values("monotonic_ns", kind="stable")
    reads = calls[(calls["operation"] == "pread64") & calls["error"].isna()]
    found = [node for node in of_level(nodes, "fs") if node.name == "pread64"]
    assert {op_of(node) for node in found} == {"FS_OP_PREAD"}
    assert [n.storage.fs.pathname for n in found] == list(reads["path"])
    assert [n.storage.fs.offset for n in found] == list(reads["offset_bytes"].fillna(0))
    begin = (reads["monotonic_ns"] - BEGIN_NS) // 1000
    assert [n.start_time_micros for n in found] == list(begin)
    end = (reads["monotonic_ns"] + reads["latency_ns"] - BEGIN_NS) // 1000
    assert [n.start_time_micros + n.duration_micros for n in found] == list(end)


def test_a_call_follows_its_threads_last_and_the_opening_of_its_file(nodes):
    calls = of_level(nodes, "fs")
    of_thread: dict[int, int] = {}
    opened: dict[str, int] = {}
    for node in calls:
        tid = chakra_reader.attributes_of(node)["tid"]
        expected = {of_thread.get(tid), opened.get(node.storage.fs.pathname)} - {None}
        if op_of(node) == "FS_OP_OPEN":
            expected = {of_thread.get(tid)} - {None}
            opened[node.storage.fs.pathname] = node.id
        elif op_of(node) == "FS_OP_CLOSE":
            opened.pop(node.storage.fs.pathname, None)
        assert set(node.ctrl_deps) >= expected
        of_thread[tid] = node.id


def test_each_record_read_is_the_data_of_one_later_batch(trace, nodes):
    batches = of_kind(nodes, "BATCH")
    assert len(batches) == NUM_STEPS
    attributes = [chakra_reader.attributes_of(batch) for batch in batches]
    assert {(a["phase"], a["examples"], a["input_wait_percent"]) for a in attributes} == {
        ("training", 64, 25)
    }
    calls = tables.read_table(trace, "file_ops")
    is_record = (calls["file_class"] == "tfrecords") & (calls["kind"] == "read")
    records = calls[is_record & calls["error"].isna()]
    last_ns = BEGIN_NS + 1000 * batches[-1].start_time_micros
    taken = [dep for batch in batches for dep in batch.data_deps]
    assert len(taken) == len(set(taken)) == (records["monotonic_ns"] < last_ns).sum() > 0
    for before, after in itertools.pairwise(batches):
        assert before.id in after.ctrl_deps
    span = pd.read_parquet(trace / "spans.parquet").set_index("name").loc["block"]
    lasting_us = (span["end_monotonic_ns"] - span["monotonic_ns"]) / 1000
    assert sum(b.duration_micros for b in batches) == pytest.approx(lasting_us, abs=NUM_STEPS)


def test_a_checkpoint_follows_the_training_and_its_writes_follow_it(tmp_path):
    trace = trained(tmp_path / "trace")
    calls = pd.read_parquet(trace / "file_ops.parquet").astype({"file_class": object})
    calls.loc[calls["path"] == "/out/temporary", "file_class"] = "checkpoints"
    calls.to_parquet(trace / "file_ops.parquet")
    nodes = exported(trace, tmp_path / "trace.et")
    [checkpoint] = of_kind(nodes, "CHECKPOINT")
    assert list(checkpoint.ctrl_deps) == [of_kind(nodes, "BATCH")[-1].id]
    saved = [n for n in of_level(nodes, "fs") if n.storage.fs.pathname == "/out/temporary"]
    assert len(saved) == 9 and all(checkpoint.id in node.ctrl_deps for node in saved)


def test_what_happens_below_a_call_points_to_it(tmp_path):
    trace = generated_trace.write(tmp_path / "trace")
    calls = pd.read_parquet(trace / "file_ops.parquet")
    first = calls[calls["path"] == generated_trace.LONG_NAME].iloc[0]
    page = {**first, "operation": bpftrace.ADD_TO_PAGE_CACHE, "kind": "fault"}
    page |= {"monotonic_ns": first["monotonic_ns"] + 300, "offset_bytes": 3 * bpftrace.PAGE_BYTES}
    pd.concat([calls, pd.DataFrame([page])]).to_parquet(trace / "file_ops.parquet")
    blocks = pd.read_parquet(trace / "block_io.parquet").iloc[:1]
    blocks["monotonic_ns"] = first["monotonic_ns"] + 500
    blocks.to_parquet(trace / "block_io.parquet")
    nodes = exported(trace, tmp_path / "trace.et")
    begin = (first["monotonic_ns"] - BEGIN_NS) // 1000
    [call] = [n for n in of_level(nodes, "fs") if n.start_time_micros == begin]
    [added], [request] = of_level(nodes, "page"), of_level(nodes, "block")
    assert list(added.ctrl_deps) == list(request.ctrl_deps) == [call.id]
    assert (added.storage.page.page_index, added.storage.page.nr_pages) == (3, 1)


def test_a_part_of_the_time_and_what_a_trace_lacks_is_said(trace, tmp_path, capsys):
    part = exported(trace, tmp_path / "part.et", "--seconds=0.1:0.5")
    assert part and all(1e5 <= node.start_time_micros < 5e5 for node in part)
    assert re.search(r"5 batches, [\d,]+ calls$", capsys.readouterr().err.strip())
    for seconds in ("5", "2:1", "nan:2"):
        with pytest.raises(SystemExit, match="2"):
            export.main([str(trace), "--to=chakra", f"--seconds={seconds}"])
        assert "argument --seconds: invalid" in capsys.readouterr().err
    bare = generated_trace.write(tmp_path / "bare")
    (bare / "block_io.parquet").unlink()
    exported(bare, tmp_path / "bare.et")
    assert capsys.readouterr().err.endswith(
        "; no block I/O, which only bpftrace records; no batches: the trace has no MLPerf log of a "
        "training\n"
    )


NODE = (
    "4c080112047265616418082201012a01023008380952050a0161480152060a0162d80101520c0a01631900000000"
    "0000e03f52070a0164ea0101655a100801520c080512022f64180320052807"
)
"""By the numbers of schema/protobuf/et_def.proto at SCHEMA_COMMIT, after its length."""


def test_a_node_has_the_bytes_of_mlcommons_schema():
    file = io.BytesIO()
    writer = chakra_format.Writer(file)
    num_bytes = file.tell()
    detail = {"op": "FS_OP_PREAD", "pathname": "/d", "fd": 3, "offset": 5, "size_bytes": 7}
    writer.node(
        "STORAGE", "read", ctrl_deps=[1], data_deps=[2], start_time_micros=8, duration_micros=9,
        attr={"a": 1, "b": True, "c": 0.5, "d": "e"},
        storage={"level": "STORAGE_LEVEL_FS", "fs": detail},
    )  # fmt: skip
    assert file.getvalue()[num_bytes:].hex() == NODE
    kinds = chakra_format.ENUMS["NodeType"].split()
    assert (kinds.index("BATCH_NODE"), kinds.index("CHECKPOINT_NODE")) == (9, 10)
    below = [chakra_format.CLASSES[kind].DESCRIPTOR for kind in ("PageOp", "BlockOp")]
    numbers = [[field.number for field in kind.fields] for kind in below]
    assert numbers == [[1, 3, 4], [1, 2, 3, 4, 5]]
