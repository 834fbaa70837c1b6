"""Accumulators in a TF1 checkpoint, byte by byte as the reference adds them. CPU, 15 s."""

import hashlib
from pathlib import Path

import pytest

from mlperf_bert.convert import tf1_tf2
from mlperf_bert.convert.tf1_tf2 import convert

# SHA-256 of what the reference's script writes from the generated checkpoint under TensorFlow
# 1.15.5, data file and index; its third file, the .meta graph, is not needed to read them.
REFERENCE_SHA256 = {
    "data-00000-of-00001": "c6e15abd76fec5ad7e6c3e3ab08e3a6124d99eed23abe6dff565fb57d1513d0f",
    "index": "2b989256e2d3a6578a24ca8834ac7928ab0e9c1832a0cb821219de3574e015ad",
}


def test_files_equal_the_reference(generated, tmp_path):
    added = tf1_tf2.add_accumulators(generated.checkpoint, str(tmp_path / "model.ckpt-28252"))
    assert added == 46 * 3 + 1
    for kind, expected in REFERENCE_SHA256.items():
        content = (tmp_path / f"model.ckpt-28252.{kind}").read_bytes()
        assert hashlib.sha256(content).hexdigest() == expected, kind


def test_refusals(generated, tmp_path):
    accumulating = str(tmp_path / "model.ckpt-1")
    tf1_tf2.add_accumulators(generated.checkpoint, accumulating)
    with pytest.raises(ValueError, match=r"already has accumulators, such as .*; use it as it is"):
        tf1_tf2.add_accumulators(accumulating, str(tmp_path / "model.ckpt-2"))
    with pytest.raises(ValueError, match=r"-1\.index exists; choose another path, or remove that"):
        tf1_tf2.add_accumulators(generated.checkpoint, accumulating)

    tf2 = str(tmp_path / "model.ckpt-3")
    convert(generated.checkpoint, tf2, config=generated.config)
    with pytest.raises(ValueError, match="is a TF2 checkpoint, and accumulators are for TF1"):
        tf1_tf2.add_accumulators(tf2, str(tmp_path / "model.ckpt-4"))

    data = Path(f"{tf2}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(ValueError, match="cannot be read"):
        tf1_tf2.add_accumulators(tf2, str(tmp_path / "model.ckpt-5"))
    assert not list(tmp_path.glob("*model.ckpt-[245]*"))
