"""Metrics of a run on a disk that is full. CPU, seconds."""

import contextlib
import io

import pytest

from mlperf_bert.training.reporting import MetricsWriter


def test_a_full_disk_is_no_lack_of_memory(small_disk):
    disk = small_disk(64)
    writer = MetricsWriter(disk)
    writer._file.close()
    writer._file = io.StringIO()  # metrics.jsonl has room
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(1024)):
            pass
    with pytest.raises(OSError, match=r"TensorBoard's file cannot be .*; make room and repeat"):
        for step in range(1000):
            writer.write("train", step=step, samples=step, loss=1.0)
    (disk / "filler").unlink()
    writer.close()
