"""What waiting for input costs a training step.

    python -m benchmarks.input_pipeline --input_file=part-00000.tfrecord

BERT-base, 512 tokens, by default batch 4. Trains each step twice: with a batch from the input
pipeline of a run (read, shuffled, decoded, checked, packed), and with a batch kept in memory; the
order alternates. Without --input_file the examples are random words with the lengths of the
published data.
"""

from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    tensorflow()  # before other modules import it

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.contestants import ours
from benchmarks.training_throughput import write_task
from mlperf_bert.options import whole_number, words_with_home


def seconds_of_steps(task: dict, num_steps: int) -> np.ndarray:
    """[turns, 2]: of a step with a batch that is read, and with one from memory."""
    trainer = ours.build_trainer(task)
    kept = ours.training_batches(task).take(num_steps + 1).cache()
    for _ in kept:  # now they are in memory
        pass
    sources = (
        trainer.batches(lambda _: ours.training_batches(task)),
        trainer.batches(lambda _: kept),
    )
    seconds = np.zeros([num_steps + 1, 2])
    for turn in range(num_steps + 1):
        for source in (0, 1) if turn % 2 else (1, 0):
            began = time.perf_counter()
            trainer.train(sources[source], tf.constant(1)).numpy()
            seconds[turn, source] = time.perf_counter() - began
    return seconds[1:]  # the first turn traces and fills buffers


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input_file", type=Path, help="TFRecords of 512 tokens")
    parser.add_argument("--batch_size", type=whole_number, default=4, help="examples per step")
    parser.add_argument("--steps", type=whole_number, default=20, help="timed steps of each kind")
    args = parser.parse_args(words_with_home())
    with tempfile.TemporaryDirectory() as name:
        write_task(Path(name), args.input_file)
        for packs in (False, True):
            task = ours.task_in(name, batch_size=args.batch_size, pack_sequences=packs)
            seconds = seconds_of_steps(task, args.steps)
            read, remembered = seconds.mean(axis=0)
            ratios = seconds[:, 0] / seconds[:, 1] - 1
            low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
            print(
                f"bfloat16{', packed' if packs else ''}: {read:.3f} s a step read, "
                f"{remembered:.3f} s from memory: {read / remembered - 1:+.1%}; median of the "
                f"steps {middle:+.1%}, half of them within {low:+.1%} and {high:+.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
