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
import statistics
import tempfile
import time
from pathlib import Path

import tensorflow as tf

from benchmarks.contestants import ours
from benchmarks.training_throughput import write_task
from mlperf_bert.options import whole_number, words_with_home


def in_turns(measure, first, second, num_turns: int) -> list[tuple]:
    """What `measure` says of both in each turn; they take turns at being first."""
    turns = []
    for number in range(num_turns + 1):
        order = (first, second) if number % 2 else (second, first)
        found = {source: measure(source) for source in order}
        turns.append((found[first], found[second]))
    return turns[1:]  # the first one traces and fills buffers


def spread(pairs: list[tuple[float, float]], what: str) -> str:
    """How much greater the first of each pair is: median and quartiles."""
    ratios = sorted(one / other for one, other in pairs)
    return (
        f"median of the {what} {statistics.median(ratios) - 1:+.1%}, half of them within "
        f"{ratios[len(ratios) // 4] - 1:+.1%} and {ratios[-len(ratios) // 4] - 1:+.1%}"
    )


def report_steps(task: dict, num_steps: int) -> None:
    """Prints how long steps wait for input."""
    trainer = ours.build_trainer(task)
    kept = ours.training_batches(task).take(num_steps + 1).cache()
    for _ in kept:  # now they are in memory
        pass

    def seconds_of_step(source) -> float:
        began = time.perf_counter()
        trainer.train(source, tf.constant(1)).numpy()
        return time.perf_counter() - began

    sources = (
        trainer.batches(lambda _: ours.training_batches(task)),
        trainer.batches(lambda _: kept),
    )
    steps = in_turns(seconds_of_step, *sources, num_steps)
    read, remembered = (statistics.mean(column) for column in zip(*steps))
    print(
        f"bfloat16{', packed' if task['pack_sequences'] else ''}: {read:.3f} s a step read, "
        f"{remembered:.3f} s from memory: {read / remembered - 1:+.1%}; {spread(steps, 'steps')}",
        flush=True,
    )


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
            report_steps(task, args.steps)


if __name__ == "__main__":
    main()
