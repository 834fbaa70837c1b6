"""What a run reports: the keys of its optimizer; metrics on a disk that is full. CPU, seconds."""

import contextlib
import errno
import io
import os

import pytest

from mlperf_bert.messages import as_lines
from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.optimization.config import OptimizerConfig
from mlperf_bert.training.reporting import MetricsWriter, Outcome


def test_an_optimizer_without_keys_of_its_own_is_not_logged_as_another():
    with pytest.raises(ValueError, match="'no_such': no keys of the log are known"):
        OptimizerConfig(name="no_such").hyperparameters(poly_power=1.0)


def test_evaluations_are_on_the_disk_before_what_follows_them(tmp_path, monkeypatch):
    synced: list[str] = []
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.read_text()))
    with contextlib.closing(MetricsWriter(tmp_path)) as writer:
        writer.write("eval", step=2, samples=8, loss=0.5)
        writer.flush()
    [text] = synced
    assert '"kind": "eval", "step": 2' in text


class FullDisk(io.FileIO):
    """A file that a full disk takes no more of."""

    def write(self, _):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_names_the_file_of_the_metrics_and_that_of_the_log(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer._file.close()
    writer._file = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)
    with pytest.raises(OSError) as failed:
        writer.write("train", step=1, samples=1, loss=1.0)
    assert as_lines(failed.value).startswith(f"{tmp_path}/metrics.jsonl: No space left on device; ")
    file = tmp_path / "bert.log"
    with MlperfLog(file) as written:
        written.commit()
        opened = written._lines
        written._lines = io.TextIOWrapper(FullDisk(file, "a"), write_through=True)
        with pytest.raises(OSError) as failed:
            written.copy_line("line")
        written._lines = opened
    assert as_lines(failed.value).startswith(f"{file}: No space left on device; make room and ")


@pytest.mark.parametrize(
    ("status", "accuracy", "words"),
    [
        ("success", 0.73, "the run reached its target, masked-LM accuracy 0.72"),
        (
            "aborted",
            0.11,
            "without its target, masked-LM accuracy 0.72 (0.1100 at its end); MLPerf",
        ),
        ("aborted", None, "masked-LM accuracy 0.72 (not evaluated); MLPerf calls that aborted"),
    ],
)
def test_the_end_of_a_run_is_told_in_words_beside_the_result_line(status, accuracy, words):
    outcome = Outcome(status=status, accuracy=accuracy, samples=80)
    assert words in outcome.in_words(0.72)
    assert f",{status}," in outcome.line(seed=1, start_time=0.0)


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
