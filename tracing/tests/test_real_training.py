"""A tiny training by run_pretraining.py under strace: do the bytes add up?"""

import sys

import pytest

from tests.helpers.tiny_examples import training_flags, write_inputs
from tracing.exports.finished import Finished
from tracing.tests.conftest import require, trace

pytestmark = pytest.mark.all

NUM_EVAL_RECORDS, NUM_TRAIN_RECORDS = 3000, 500


@pytest.fixture(scope="module")
def traced_training(repository, tmp_path_factory):
    require("strace")
    folder = write_inputs(tmp_path_factory.mktemp("training"))
    fifty = (folder / "train").read_bytes()
    for name in ("part-0", "part-1"):
        (folder / name).write_bytes(fifty * (NUM_TRAIN_RECORDS // 50))
    (folder / "eval").write_bytes(fifty * (NUM_EVAL_RECORDS // 50))
    flags = training_flags(
        folder, input_file=folder / "part-*", output_dir=folder / "run", num_train_steps=200,
        train_batch_size=8, eval_batch_size=300, eval_interval_samples=800,
        save_checkpoints_steps=100,
    )  # fmt: skip
    words = [sys.executable, repository / "run_pretraining.py", *flags]
    found = trace(folder / "trace", *words, options=["--backend=strace"])
    assert found.done.returncode == 0, found.done.stderr
    return folder, found


def test_checkpoint_bytes_are_those_on_disk_exactly(traced_training):
    folder, found = traced_training
    written = {entry["step"]: entry["written_bytes"] for entry in found.summary["checkpoints"]}
    on_disk = {}
    for path in (folder / "run").glob("model.ckpt-*"):
        step = int(path.name.partition("-")[2].partition(".")[0])
        on_disk[step] = on_disk.get(step, 0) + path.stat().st_size
    assert written == on_disk
    assert set(written) == {100, 200}
    assert all(entry["span_seconds"] > 0 for entry in found.summary["checkpoints"])


def test_every_evaluation_reads_its_file_once_and_all_sums_up_to_the_kernels_counter(
    traced_training,
):
    folder, found = traced_training
    trace = Finished(found.folder)
    calls = trace.table("file_ops")
    reads = calls[calls["kind"] == "read"]
    of_eval = reads[(reads["path"] == str(folder / "eval")) & trace.is_within(reads, "eval")]
    size = (folder / "eval").stat().st_size
    # The log tells whole milliseconds, cut.
    assert of_eval["size_bytes"].sum() == pytest.approx(2 * size, rel=0.01)
    parts = [f for f in found.summary["files"] if f["path"].startswith(str(folder / "part-"))]
    epochs = 200 * 8 / (2 * NUM_TRAIN_RECORDS)
    read_bytes, size = (sum(part[name] for part in parts) for name in ("read_bytes", "size_bytes"))
    # The shuffle buffer holds 1,000 examples, an epoch here; and batches are made ahead.
    assert len(parts) == 2 and epochs <= read_bytes / size <= epochs + 1 + 0.5
    counted = found.summary["usage"]["read_call_bytes"]
    assert counted <= reads["size_bytes"].sum() * 1.001  # the last sample is before the last reads
    assert reads["size_bytes"].sum() == pytest.approx(counted, rel=0.02)
