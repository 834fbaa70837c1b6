"""A program that does to files what a training run does, in two seconds and without TensorFlow.

It reads TFRecords, logs for MLPerf, and writes a checkpoint under another name first. observed.py
traces it.

    SAMPLES=FILE python -m tracing.tests.example_training FOLDER
"""

import os
import sys
import threading
import time
from pathlib import Path

from mlperf_bert.data import tfrecord
from mlperf_bert.mlperf.log import MlperfLog
from tests.mlperf.example_log import HYPERPARAMETERS, SUBMISSION

REQUEST_BYTES = 65536
CHECKPOINT_BYTES = 300_000
NUM_FILES, NUM_RECORDS, RECORD_BYTES = 4, 300, 2500
NUM_EPOCHS = 2
NUM_SAMPLES = 5  # of its counters, while it idles


def make_data(folder: Path) -> None:
    """TFRecord files named as the reference names them, without a suffix."""
    framed = tfrecord.frame(bytes(RECORD_BYTES))
    for number in range(NUM_FILES):
        (folder / f"part-{number:05d}-of-{NUM_FILES:05d}").write_bytes(framed * NUM_RECORDS)


def read_all(path: Path) -> None:
    """As TensorFlow reads: pread64 of a fixed size to the end."""
    descriptor = os.open(path, os.O_RDONLY)
    offset = 0
    while chunk := os.pread(descriptor, REQUEST_BYTES, offset):
        offset += len(chunk)
    os.close(descriptor)


def save(folder: Path, step: int) -> None:
    """A checkpoint of two files, as TensorFlow names them."""
    for suffix, size in (("data-00000-of-00001", CHECKPOINT_BYTES), ("index", 700)):
        temporary = folder / f"being_written.{suffix}"
        temporary.write_bytes(bytes(size))
        temporary.rename(folder / f"model.ckpt-{step}.{suffix}")


def idle() -> None:
    """Until a trace by observed.py has looked so often."""
    samples = Path(os.environ["SAMPLES"])
    last = samples.stat().st_size + NUM_SAMPLES + 1  # one may be under way
    while samples.stat().st_size < last:
        time.sleep(0.05)


def main() -> None:
    """Trains, so to speak."""
    folder = Path(sys.argv[1])
    log = MlperfLog(folder / "bert.log")
    log.init_start(cache_cleared=False)
    log.events(SUBMISSION.events() | HYPERPARAMETERS)
    log.init_stop()
    paths = sorted(folder.glob("part-*"))
    samples = NUM_FILES * NUM_RECORDS * NUM_EPOCHS
    with log.run() as run:
        log.commit()
        run.block_start(0, num_samples=samples)
        for _ in range(NUM_EPOCHS):
            readers = [threading.Thread(target=read_all, args=(path,)) for path in paths]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
        idle()
        run.block_stop(samples)
        run.checkpoint_start(3)
        save(folder, 3)
        run.checkpoint_stop(3)
    log.commit()


if __name__ == "__main__":
    main()
