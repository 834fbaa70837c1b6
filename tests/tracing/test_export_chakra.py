"""A trace as Chakra's nodes: bytes are the tables', dependencies hold, and steps join it."""

import itertools
import re
from pathlib import Path

import pandas as pd
import pytest

from exchange import chakra
from tests.conftest import REPOSITORY
from tests.helpers.programs import refusal
from tests.tracing import generated_trace
from tests.tracing.generated_trace import BEGIN_NS, moved_in, point
from tracing import bpftrace, export, tables
from tracing.exports.chakra import MAPPING

WEIGHTS = ["bert/pooler/dense/bias", "bert/pooler/dense/kernel"]
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
    ledger = {"input_wait_seconds": 0.3, "compute_seconds": 0.9}
    rows = [
        point(0, "global_batch_size", EXAMPLES, {}),
        point(0, "max_sequence_length", 32, {}),
        *(point(0, "weights_initialization", None, {"tensor": name}) for name in WEIGHTS),
        point(stop_ms, "block_stop", None, counts),
        point(stop_ms + 1, "tracked_stats", ledger, {"of": "block"}),
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
    _, nodes = chakra.read(path)
    found = list(nodes)
    assert not list(chakra.violations(found))
    return found


@pytest.fixture(scope="module")
def nodes(trace, tmp_path_factory) -> list:
    return exported(trace, tmp_path_factory.mktemp("chakra") / "trace.et")


def of_kind(nodes: list, kind: str) -> list:
    return [node for node in nodes if node.type == chakra.value_of("NodeType", f"{kind}_NODE")]


def of_level(nodes: list, level: str) -> list:
    return [node for node in nodes if node.storage.WhichOneof("detail") == level]


def test_the_bytes_are_those_of_the_tables(trace, nodes):
    moved = moved_in(tables.read_table(trace, "file_ops"))
    calls = {name: moved.loc[moved["kind"] == name, "size_bytes"].sum() for name in
             ("read", "write")}  # fmt: skip
    for kind, total in calls.items():
        word = kind.upper()
        found = [n for n in of_level(nodes, "fs") if word in op_of(n)]
        assert sum(map(chakra.moved_bytes, found)) == total > 0
    blocks = tables.read_table(trace, "block_io")
    requests = of_level(nodes, "block")
    assert sum(map(chakra.moved_bytes, requests)) == blocks["size_bytes"].sum() > 0
    assert [n.storage.block.lba for n in requests] == list(blocks["sector"])


def op_of(node) -> str:
    return chakra.ENUMS["FsOp.Op"].split()[node.storage.fs.op]


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
        tid = chakra.attributes_of(node)["tid"]
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
    assert all(set(chakra.attributes_of(b).items()) >= {("phase", "training"), ("examples", 64)}
               for b in batches)  # fmt: skip
    assert chakra.attributes_of(batches[0])["input_wait_percent"] == 25
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
    bare = generated_trace.write(tmp_path / "bare")
    (bare / "block_io.parquet").unlink()
    exported(bare, tmp_path / "bare.et")
    assert capsys.readouterr().err.endswith(
        "; no block I/O, which only bpftrace records; no batches: the trace has no MLPerf log of a "
        "training\n"
    )


# With a step


@pytest.fixture(scope="module")
def step(tmp_path_factory) -> Path:
    return step_of(tmp_path_factory.mktemp("step"))


def step_of(folder: Path, **other) -> Path:
    """A product, its all-reduce over 8 ranks, and an update, as mlperf_bert.portable.trace."""
    about = {"ranks": 8, "examples_per_rank": 8, "max_sequence_length": 32}
    about |= {"weights_sha256": chakra.names_sha256(WEIGHTS)} | other
    (folder / "chakra").mkdir()
    with (folder / "chakra" / "step.0.et").open("wb") as file:
        writer = chakra.Writer(file, **about)
        made = writer.node("COMP", "product", attr={"num_ops": 7, "tensor_size": 5},
                           duration_micros=40_000)  # fmt: skip
        reduced = writer.node("COMM_COLL", "all_reduce", attr={"comm_type": 0, "comm_size": 4},
                              data_deps=[made], start_time_micros=40_000)  # fmt: skip
        writer.node("COMP", "update", attr={"num_ops": 1, "tensor_size": 5}, data_deps=[reduced],
                    start_time_micros=40_000, duration_micros=160_000)  # fmt: skip
    return folder


def test_every_rank_has_the_step_in_each_batch_and_the_first_the_storage(trace, step, tmp_path):
    output = tmp_path / "ranks"
    export.main([str(trace), "--to=chakra", f"--step={step}", "--ranks=8", f"--output={output}"])
    assert sorted(path.name for path in output.iterdir()) == [f"trace.{n}.et" for n in range(8)]
    first, last = nodes_of(output / "trace.0.et"), nodes_of(output / "trace.7.et")
    for nodes in (first, last):
        comp, reduced = of_kind(nodes, "COMP"), of_kind(nodes, "COMM_COLL")
        assert len(comp) == 2 * len(reduced) == 2 * NUM_STEPS
        batches = of_kind(nodes, "BATCH")
        products, updates = comp[::2], comp[1::2]
        assert [list(n.data_deps) for n in products] == [[b.id] for b in batches]
        # The next batch comes after the last step's update, which is no longer than it lasted.
        assert all(u.id in b.ctrl_deps for u, b in zip(updates, batches[1:]))
        assert all(u.start_time_micros + u.duration_micros <= b.start_time_micros
                   for u, b in zip(updates, batches[1:]))  # fmt: skip
    assert of_kind(first, "STORAGE") and not of_kind(last, "STORAGE")
    assert any(batch.data_deps for batch in of_kind(first, "BATCH"))


@pytest.mark.parametrize(
    "other, ranks, reason",
    [
        ({}, 5, "is of 8 ranks, not 5; python -m mlperf_bert.portable.trace STEP --to=chakra --ra"),
        ({"ranks": 5}, 5, "have 64 examples, which 5 ranks do not divide; give other --ranks"),
        ({"examples_per_rank": 9}, 8, "its examples_per_rank is 9, the trace's 8; export the step"),
        ({"max_sequence_length": 128}, 8, "its max_sequence_length is 128, the trace's 32; export"),
        ({"weights_sha256": "0"}, 8, "its weights_sha256 is 0, the trace's "),
    ],
)
def test_a_step_of_another_training_is_refused(trace, tmp_path, other, ranks, reason):
    words = [trace, "--to=chakra", f"--step={step_of(tmp_path, **other)}", f"--ranks={ranks}"]
    assert reason in refusal(export.main, *words, f"--output={tmp_path / 'none'}")
    assert not (tmp_path / "none").exists()


def test_a_step_needs_a_training_and_its_own_file(trace, step, tmp_path):
    bare = generated_trace.write(tmp_path / "bare")
    line = refusal(export.main, bare, "--to=chakra", f"--step={step}", "--ranks=8")
    assert "holds no training to take a step: no block_start" in line
    assert f"--step={bare}: has no step.0.et; python -m" in refusal(
        export.main, trace, "--to=chakra", f"--step={bare}", "--ranks=8"
    )
    (tmp_path / "step.0.et").write_bytes(b"no trace")
    line = refusal(export.main, trace, "--to=chakra", f"--step={tmp_path}", "--ranks=8")
    assert "step.0.et is not a Chakra trace" in line


@pytest.mark.parametrize("seconds", ["5", "2:1", "a:b", "-1:3", "nan:2"])
def test_other_flags_are_one_line(trace, seconds):
    line = refusal(export.main, trace, "--to=chakra", f"--seconds={seconds}")
    assert line == f"export: --seconds={seconds}: give two, BEGIN:END, the second later"
    assert "--ranks=8: give at least 1, and --step" in refusal(
        export.main, trace, "--to=chakra", "--ranks=8"
    )
    line = refusal(export.main, trace, "--to=dlio", "--seconds=0:1")
    assert line == "export: --seconds=0:1 is for --to=chakra alone; leave it out"


def test_too_many_nodes_are_refused(trace, step, monkeypatch):
    monkeypatch.setattr("tracing.exports.chakra._MOST_NODES", 29)
    line = refusal(export.main, trace, "--to=chakra", f"--step={step}", "--ranks=8")
    assert "would be 30 nodes for each rank; --seconds=BEGIN:END takes a part" in line
    assert not (trace / "chakra.unfinished").exists()


def test_the_page_has_the_mapping():
    page = (REPOSITORY / "docs/chakra.md").read_text()
    rows = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
            for line in page.splitlines() if line.startswith("|")]  # fmt: skip
    for ours, (kind, detail) in MAPPING.items():
        assert [ours, kind, detail] in rows, ours
    assert chakra.SCHEMA_COMMIT[:8] in page and chakra.VERSION in page


def test_the_page_has_the_published_speeds():
    """Those of 8 and of 64 H100 of round 3.0, and how much of the first is left of the second."""
    published = pd.read_parquet(REPOSITORY / "mlperf_bert/submission/published.parquet")
    runs = published[(published["round"] == "3.0") & (published["org"] == "NVIDIA")].set_index(
        "system"
    )
    names = ("dgxh100_ngc23.04_pytorch", "dgxh100_n8_ngc23.04_pytorch")
    few, many = (runs.loc[name, "samples_per_second_per_accelerator"] for name in names)
    page = (REPOSITORY / "docs/chakra.md").read_text()
    assert f"| 8 | 156.6 | 3.3 | 100% | {few:.0f} | 100% |" in page
    assert re.search(rf"\| 64 \|.*\| {many:.0f} \| {many / few:.0%} \|", page)
