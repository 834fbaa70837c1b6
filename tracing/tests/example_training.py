"""A program that does to files what a training run does, in a second and without TensorFlow.

It reads TFRecords, logs for MLPerf, writes a checkpoint under another name first, ends in order on
SIGINT and SIGTERM.

    python -m tracing.tests.example_training FOLDER [--epochs=2] [--wait_s=0] [--log=NAME]
"""

import argparse
import os
import signal
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


def make_data(folder: Path) -> list[Path]:
    """TFRecord files named as the reference names them, without a suffix."""
    framed = tfrecord.frame(bytes(RECORD_BYTES))
    paths = [folder / f"part-{number:05d}-of-{NUM_FILES:05d}" for number in range(NUM_FILES)]
    for path in paths:
        path.write_bytes(framed * NUM_RECORDS)
    return paths


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


def main() -> None:
    """Trains, so to speak."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--wait_s", type=float, default=0.0)
    parser.add_argument("--log", default="bert.log")
    given = parser.parse_args()
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stopped.set())
    folder = given.folder
    log = MlperfLog(folder / given.log)
    log.init_start(cache_cleared=False)
    log.events(SUBMISSION.events() | HYPERPARAMETERS)
    log.init_stop()
    paths = sorted(folder.glob("part-*"))
    samples = NUM_FILES * NUM_RECORDS * given.epochs
    with log.run() as run:
        log.commit()
        run.block_start(0, num_samples=samples)
        for _ in range(given.epochs):
            readers = [threading.Thread(target=read_all, args=(path,)) for path in paths]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
        (folder / "is_running").touch()
        deadline = time.monotonic() + given.wait_s
        while time.monotonic() < deadline and not stopped.wait(0.02):
            pass
        run.block_stop(samples)
        run.checkpoint_start(3)
        save(folder, 3)
        run.checkpoint_stop(3)
    log.commit()
    if stopped.is_set():
        sys.exit(75)


if __name__ == "__main__":
    main()
