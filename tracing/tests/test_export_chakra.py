"""Chakra's nodes: the bytes of MLCommons' schema, and what is told; test_whole has the nodes."""

import io
import re
from pathlib import Path

import pytest

from tracing import export
from tracing.exports import chakra_format
from tracing.tests import chakra_reader


def exported(trace: Path, output: Path, *flags: str) -> list:
    export.main([str(trace), "--to=chakra", f"--output={output}", *flags])
    metadata, nodes = chakra_reader.read(output)
    assert metadata.version == chakra_format.VERSION
    assert chakra_reader.attributes_of(metadata)["schema_commit"] == chakra_format.SCHEMA_COMMIT
    assert not list(chakra_reader.violations(nodes))
    return nodes


def test_a_part_of_the_time_and_what_a_trace_lacks_is_said(copied, tmp_path, capsys):
    part = exported(copied, tmp_path / "part.et", "--seconds=0.6:2.3")
    begins = [node.start_time_micros for node in part]
    # The first begins with the part, a call at its end is not in it.
    assert (min(begins), max(begins)) == (600_000, 2_200_000)
    assert re.search(r"2 batches, 12 calls; no block I/O", capsys.readouterr().err)
    for seconds in ("5", "2:1", "1:1", "nan:2"):
        with pytest.raises(SystemExit, match="2"):
            export.main([str(copied), "--to=chakra", f"--seconds={seconds}"])
        assert "argument --seconds: invalid" in capsys.readouterr().err
    (copied / "mllog.parquet").unlink()
    exported(copied, tmp_path / "bare.et")
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
