"""Chakra has the numbers of MLCommons; what is written is read again, and faults are named."""

import gzip
import io
from pathlib import Path

import pytest

from tracing.exports import chakra_format as chakra

# Of schema/protobuf/et_def.proto at chakra.SCHEMA_COMMIT: what the exports write.
NUMBERS = {
    "GlobalMetadata": {"version": 1, "attr": 2},
    "Node": {
        "id": 1, "name": 2, "type": 3, "ctrl_deps": 4, "data_deps": 5, "start_time_micros": 6,
        "duration_micros": 7, "attr": 10, "storage": 11,
    },
    "AttributeProto": {
        "name": 1, "doc_string": 2, "double_val": 3, "double_list": 4, "float_val": 5,
        "int32_val": 7, "int64_val": 9, "uint32_val": 11, "uint64_val": 13, "bool_val": 27,
        "bool_list": 28, "string_val": 29, "string_list": 30, "bytes_val": 31, "bytes_list": 32,
    },
    "StorageInfo": {"level": 1, "fs": 10, "page": 11, "block": 12},
    "FsOp": {"op": 1, "pathname": 2, "fd": 3, "offset": 4, "size_bytes": 5, "flags": 6},
    "PageOp": {"op": 1, "inode": 2, "page_index": 3, "nr_pages": 4},
    "BlockOp": {
        "op": 1, "queue_event": 2, "device": 3, "lba": 4, "nr_sectors": 5, "req_op_flags": 6
    },
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_messages_have_mlcommons_numbers(name):
    fields = chakra.message(name).DESCRIPTOR.fields_by_name
    assert NUMBERS[name].items() <= {n: field.number for n, field in fields.items()}.items()


@pytest.mark.parametrize(
    "enum, name, number",
    [
        ("NodeType", "COMP_NODE", 4), ("NodeType", "COMM_COLL_NODE", 7),
        ("NodeType", "STORAGE_NODE", 8), ("NodeType", "BATCH_NODE", 9),
        ("NodeType", "CHECKPOINT_NODE", 10),
        ("StorageLevel", "STORAGE_LEVEL_BLOCK", 3), ("FsOp.Op", "FS_OP_PREAD", 5),
        ("FsOp.Op", "FS_OP_FDATASYNC", 8), ("PageOp.Op", "PAGE_OP_READAHEAD_ASYNC", 6),
        ("BlockOp.Op", "BLOCK_OP_FLUSH", 3), ("BlockOp.QueueEvent", "BLOCK_EVENT_DISPATCH", 4),
    ],
)  # fmt: skip
def test_names_have_mlcommons_numbers(enum, name, number):
    assert chakra.value_of(enum, name) == number


def written(*, about: dict | None = None) -> bytes:
    file = io.BytesIO()
    writer = chakra.Writer(file, **about or {})
    detail = {"op": "FS_OP_READ", "pathname": "/data/é", "size_bytes": 2**40}
    storage = {"level": "STORAGE_LEVEL_FS", "fs": detail}
    read = writer.node("STORAGE", "read", start_time_micros=1, duration_micros=2, storage=storage)
    attr = {"num_ops": 2**50, "share": 0.5, "is_cpu_op": False, "kind": "x" * 300}
    writer.node("COMP", "sum", start_time_micros=3, data_deps=[read], attr=attr)
    return file.getvalue()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_what_is_written_is_read_again(tmp_path, pack):
    (tmp_path / "trace.et").write_bytes(pack(written(about={"ranks": 8})))
    metadata, nodes = chakra.read(tmp_path / "trace.et")
    about = chakra.attributes_of(metadata)
    assert about == {"schema_commit": chakra.SCHEMA_COMMIT, "ranks": 8}
    read, added = nodes
    assert metadata.version == chakra.VERSION and chakra.moved_bytes(read) == 2**40
    assert read.storage.fs.pathname == "/data/é" and list(added.data_deps) == [read.id]
    assert chakra.attributes_of(added) == {
        "num_ops": 2**50, "share": 0.5, "is_cpu_op": False, "kind": "x" * 300
    }  # fmt: skip
    assert not list(chakra.violations([read, added]))


def read_all(path: Path) -> list:
    _, nodes = chakra.read(path)
    return list(nodes)


@pytest.mark.parametrize("length", [*range(1, 60, 7), 100, 150])
def test_a_cut_or_foreign_file_is_named(tmp_path, length):
    path = tmp_path / "trace.et"
    endless = b"\xff" * (length % 9) + b"\x7f"  # the length of a message that is not there
    cut = (written()[:length], gzip.compress(written())[:length])
    for content in (*cut, b"\xff" * length, endless, gzip.compress(endless), b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"^{path} is not a Chakra trace"):
            read_all(path)


def node(number: int, begin: int, lasting: int = 0, *, data: tuple = (), ctrl: tuple = ()):
    return chakra.Node(
        id=number, name="n", start_time_micros=begin, duration_micros=lasting, data_deps=data,
        ctrl_deps=ctrl,
    )  # fmt: skip


@pytest.mark.parametrize(
    "nodes, reason",
    [
        ([node(1, 0), node(1, 0)], "node 1 (n): its number occurs twice"),
        ([node(1, 5), node(2, 4)], "node 2 (n): begins at 4 us, before the node above it"),
        ([node(1, 0, data=[2]), node(2, 0)], "node 1 (n): depends on node 2, which does not stand"),
        ([node(1, 0), node(2, 0, ctrl=[3])], "node 2 (n): depends on node 3, which does not stand"),
        ([node(1, 0, ctrl=[1])], "node 1 (n): depends on node 1, which does not stand"),
        ([node(1, 0, 9), node(2, 8, data=[1])], "begins at 8 us, its data from node 1 at 9 us"),
    ],
)
def test_every_violation_is_named(nodes, reason):
    [found] = chakra.violations(nodes)
    assert reason in found


def test_what_depends_on_the_order_alone_may_overlap():
    assert not list(chakra.violations([node(1, 0, 9), node(2, 8, ctrl=[1])]))
