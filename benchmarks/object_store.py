"""Reading records from a bucket whose every request takes a while, and from the local disk.

    python -m benchmarks.object_store --delay_ms=50

Draws training batches (512 tokens, shuffled, checked) from the local disk, from a bucket that
answers at once and from one that waits `--delay_ms` before each answer, in turns. The bucket is the
one of the tests: on loopback, in this process, so its own work is measured with it. Prints examples
a second of each, and the requests that a thousand steps take.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks import random_task
from mlperf_bert.data.validity import ExampleLimits
from mlperf_bert.files import paths
from mlperf_bert.options import whole_number
from mlperf_bert.tensorflow_import import tensorflow
from tests.stores.rig import Store

LIMITS = ExampleLimits(
    max_seq_length=512, max_predictions_per_seq=76, vocab_size=30522, type_vocab_size=2
)
BATCH_SIZE = 48
BUCKET = "benchmark"


def examples_per_second(files: list[str], num_batches: int) -> float:
    """Draws batches after a few that fill the buffers; in a process that reaches the store."""
    tensorflow()  # in the child alone
    from mlperf_bert.input import pipeline

    batches = iter(pipeline.training_batches(files, LIMITS, batch_size=BATCH_SIZE, seed=1))
    for _ in range(30):
        next(batches)
    began = time.perf_counter()
    for _ in range(num_batches):
        next(batches)
    return num_batches * BATCH_SIZE / (time.perf_counter() - began)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delay_ms", type=float, default=50)
    parser.add_argument("--files", type=whole_number, default=16)
    parser.add_argument("--examples_per_file", type=whole_number, default=2048)
    parser.add_argument("--batches", type=whole_number, default=1000)
    parser.add_argument("--turns", type=whole_number, default=3)
    given = parser.parse_args(paths.words_with_home())
    with tempfile.TemporaryDirectory() as name, Store() as store:
        folder = Path(name)
        lengths = random_task.published_lengths(given.examples_per_file)
        random_task.write(folder, {"vocab_size": LIMITS.vocab_size}, LIMITS, lengths)
        content = (folder / "train.tfrecord").read_bytes()
        store.make_bucket(BUCKET)
        local, remote = [], []
        for number in range(given.files):
            path = folder / f"part-{number:05}"
            path.write_bytes(content)
            store.put(BUCKET, path.name, content)
            local.append(str(path))
            remote.append(f"gs://{BUCKET}/{path.name}")
        sources = {"local disk": (local, 0.0), "bucket, no delay": (remote, 0.0)}
        sources[f"bucket, {given.delay_ms:g} ms a request"] = (remote, given.delay_ms / 1000)
        found: dict[str, list[float]] = {source: [] for source in sources}
        for _ in range(given.turns):
            for source, (files, store.delay_s) in sources.items():
                store.requests.clear()
                found[source].append(store.call(examples_per_second, files, given.batches))
        steps = given.batches + 30
        print(f"{given.files} files of {len(content) / 1e6:.1f} MB, batch {BATCH_SIZE}")
        for source, rates in found.items():
            ratio = statistics.median(rates) / statistics.median(found["local disk"])
            print(f"{source:30}{statistics.median(rates):8.0f} examples/s, {ratio:.2f} of the disk")
        print(f"requests: {len(store.requests) * 1000 / steps:.0f} a thousand steps")


if __name__ == "__main__":
    main()
