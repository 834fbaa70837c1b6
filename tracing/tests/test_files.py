"""Classes of files by name and by content, and record lengths."""

import pytest

from mlperf_bert.data import tfrecord
from tracing import files


@pytest.mark.parametrize(
    ("path", "file_class"),
    [
        ("/data/part-00000-of-00500.tfrecord", files.TFRECORDS),
        ("/out/model.ckpt-250.data-00000-of-00001", files.CHECKPOINTS),
        ("/out/model.ckpt-250_temp/part-00000-of-00001.index", files.CHECKPOINTS),
        ("/out/checkpoint", files.CHECKPOINTS),
        ("/out/checkpoint.tmp0123abcd", files.CHECKPOINTS),
        ("/src/checkpoint_add_gradacc.py", files.LIBRARIES),
        ("/out/bert.log", files.LOGS),
        ("/out/metrics.jsonl", files.LOGS),
        ("/out/.bert.log.partial", files.LOGS),
        ("/out/.run.json.partial", files.LOGS),
        ("/out/eval_results.jsonl", files.LOGS),
        ("/out/overrun.json", files.OTHER),
        ("/out/events.out.tfevents.1795.host.1.0.v2", files.LOGS),
        ("/v/lib/python3.11/site-packages/x/data.bin", files.LIBRARIES),
        ("/usr/lib/libc.so.6", files.LIBRARIES),
        ("/usr/share/zoneinfo/UTC", files.LIBRARIES),
        ("/proc/self/status", files.PSEUDO),
        ("/dev/null", files.PSEUDO),
        ("/dev/shm", files.PSEUDO),
        ("/dev/shm/part-00000.tfrecord", files.TFRECORDS),
        ("/dev/shm/x", files.OTHER),
        ("pipe:[1234]", files.PIPES),
        ("socket:[1234]", files.PIPES),
        ("unknown:", files.PIPES),
        ("unknown:inode 5", files.OTHER),
        ("/home/me/vocab.txt", files.OTHER),
    ],
)
def test_class_by_name(path, file_class):
    assert files.classify(path) == file_class


def test_tfrecords_without_a_telling_name_are_known_by_content(tmp_path):
    path = tmp_path / "part-00000-of-00500"
    path.write_bytes(b"".join(tfrecord.frame(bytes(n)) for n in (5, 0, 300)))
    assert files.classify(str(path)) == files.TFRECORDS
    # A container calls it otherwise, in a folder of the system at that.
    assert files.classify("/opt/data/part-1", seen_as=str(path)) == files.TFRECORDS
    assert files.record_lengths(path, 10) == [5, 0, 300]
    assert files.record_lengths(path, 2) == [5, 0]
    path.write_bytes(path.read_bytes()[:-5] + b"\xff" * 30)  # a damaged one, of 2**64 - 1 bytes
    assert files.record_lengths(path, 10) == [5, 0, 300]
    other = tmp_path / "part-1"
    other.write_bytes(b"twelve bytes or more")
    assert files.classify(str(other)) == files.OTHER
