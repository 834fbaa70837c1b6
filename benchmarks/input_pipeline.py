"""How much of a training step is waiting for input: the same batches read, and from memory.

    python -m benchmarks.input_pipeline --input_file=part-00000.tfrecord

BERT-base, 512 tokens, by default batch 4. A trainer takes every batch twice in a row: from the
input pipeline of a run (read, shuffled, decoded, packed), and from its batches kept in
memory; which comes first alternates. Without --input_file the examples are random words with the
lengths of the published data.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import tensorflow as tf

from benchmarks.contestants import ours
from benchmarks.training_throughput import write_task


def seconds_of_steps(task: dict, num_steps: int) -> list[tuple[float, float]]:
    """(read, from memory) of each batch."""
    trainer = ours.build_trainer(task)
    kept = ours.training_batches(task).take(num_steps + 1).cache()
    for _ in kept:  # now they are in memory
        pass
    read = trainer.batches(lambda _: ours.training_batches(task))
    remembered = trainer.batches(lambda _: kept)
    found = []
    for number in range(num_steps + 1):
        seconds = {}
        for source in (read, remembered) if number % 2 else (remembered, read):
            began = time.perf_counter()
            trainer.train(source, tf.constant(1)).numpy()
            seconds[source] = time.perf_counter() - began
        found.append((seconds[read], seconds[remembered]))
    return found[1:]  # the first step fills buffers


def main() -> None:
    """Measures and tells."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input_file", type=Path, help="TFRecords of 512 tokens")
    parser.add_argument("--batch_size", type=int, default=4, help="examples a step")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each kind")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_task(Path(name), args.input_file)
        task = {
            "bert_config_file": f"{name}/bert_config.json",
            "record_file": f"{name}/train.tfrecord",
            "batch_size": args.batch_size,
            "precision": "bfloat16",
            "jit_compile": "auto",
        }
        for packs in (False, True):
            found = seconds_of_steps(task | {"pack_sequences": packs}, args.steps)
            read, remembered = (statistics.mean(column) for column in zip(*found))
            ratios = sorted(one / other for one, other in found)
            print(
                f"bfloat16{', packed' if packs else ''}: {read:.3f} s a step read, "
                f"{remembered:.3f} s from memory: {read / remembered - 1:+.1%}; "
                f"median of the steps {statistics.median(ratios) - 1:+.1%}, "
                f"half of them within {ratios[len(ratios) // 4] - 1:+.1%} "
                f"and {ratios[-len(ratios) // 4] - 1:+.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
