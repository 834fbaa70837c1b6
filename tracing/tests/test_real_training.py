"""A tiny training by run_pretraining.py under strace: do the bytes add up?"""

import sys

import pytest

from tests.helpers.tiny_examples import training_flags, write_inputs
from tracing import tables
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


def test_every_evaluation_reads_its_file_once(traced_training):
    folder, found = traced_training
    operations = tables.read_table(found.folder, "file_ops")
    reads = operations[
        (operations["kind"] == "read") & (operations["path"] == str(folder / "eval"))
    ]
    spans = tables.read_table(found.folder, "spans")
    evaluations = spans[spans["name"] == "eval"]
    assert len(evaluations) == 2
    size = (folder / "eval").stat().st_size
    inside = 0
    for span in evaluations.itertuples():
        # The log tells whole milliseconds, cut.
        end = span.end_monotonic_ns + 10**6
        inside += reads[reads["monotonic_ns"].between(span.monotonic_ns, end)]["size_bytes"].sum()
    assert inside == pytest.approx(2 * size, rel=0.01)


def test_training_reads_its_files_for_every_epoch_and_a_little_ahead(traced_training):
    folder, found = traced_training
    parts = [f for f in found.summary["files"] if f["path"].startswith(str(folder / "part-"))]
    assert len(parts) == 2
    epochs = 200 * 8 / (2 * NUM_TRAIN_RECORDS)
    read_bytes = sum(part["read_bytes"] for part in parts)
    size = sum(part["size_bytes"] for part in parts)
    # The shuffle buffer holds 1,000 examples, an epoch here; and batches are made ahead.
    assert epochs <= read_bytes / size <= epochs + 1 + 0.5


def test_the_calls_sum_up_to_the_kernels_own_counter(traced_training):
    """A counter of the kernel that knows nothing of the tracer."""
    _, found = traced_training
    operations = tables.read_table(found.folder, "file_ops")
    read = operations[operations["kind"] == "read"]["size_bytes"].sum()
    counted = found.summary["usage"]["read_call_bytes"]
    assert counted <= read * 1.001  # the last sample stands before the last reads
    assert read == pytest.approx(counted, rel=0.02)
