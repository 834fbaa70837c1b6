"""What input costs: waiting for it in a training step, and checking it in the input pipeline.

    python -m benchmarks.input_pipeline --input_file=part-00000.tfrecord

BERT-base, 512 tokens, by default batch 4. First measures the input pipeline of a run alone (read,
shuffled, decoded, checked, packed), in turns with the same one without the check of every value.
Then trains each step twice: with a batch from the input pipeline, and with a batch kept in memory;
the order alternates. Without --input_file the examples are random words with the lengths of the
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
from unittest import mock

import tensorflow as tf

from benchmarks.contestants import ours
from benchmarks.training_throughput import write_task
from mlperf_bert.files import paths
from mlperf_bert.input import packing, pipeline
from mlperf_bert.options import whole_number


@tf.function
def draw(iterator, num_batches: tf.Tensor) -> tf.Tensor:
    """Draws `num_batches` (int32 scalar) batches and does not use them."""
    total = tf.constant(0)
    for _ in tf.range(num_batches):
        total += next(iterator)["input_ids"][0, 0]
    return total


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


def report_checks(task: dict, args: argparse.Namespace) -> float:
    """Prints rates and their ratio; returns the seconds per batch that checking takes."""
    num_batches = args.examples // task["batch_size"]

    def seconds_per_batch(source) -> tuple[float, float]:
        """By the clock, and by the processor's time."""
        began, began_cpu = time.perf_counter(), time.process_time()
        draw(source, tf.constant(num_batches)).numpy()
        elapsed, elapsed_cpu = time.perf_counter() - began, time.process_time() - began_cpu
        return elapsed / num_batches, elapsed_cpu / num_batches

    checked = ours.training_batches(task)
    # The checks are replaced while the other pipeline is traced.
    with (
        mock.patch.object(pipeline, "_require_values"),
        mock.patch.object(packing, "require_packable"),
    ):
        unchecked = ours.training_batches(task)
    sources = iter(checked), iter(unchecked)
    turns = in_turns(seconds_per_batch, *sources, args.turns)
    for place, what in enumerate(("seconds", "processor seconds")):
        pairs = [(one[place], other[place]) for one, other in turns]
        # Other processes on the machine only add time: take the first quartile.
        one, other = (sorted(column)[len(column) // 4] for column in zip(*pairs))
        print(
            f"batches of {task['batch_size']}{', packed' if task['pack_sequences'] else ''}: "
            f"{one * 1e6:.0f} µs a batch in {what}, {other * 1e6:.0f} µs unchecked "
            f"(first quartiles): {one / other - 1:+.1%}; {spread(pairs, 'turns')}",
            flush=True,
        )
    return one - other  # processor seconds: other processes do not count


def report_steps(task: dict, num_steps: int, seconds_checking: float) -> None:
    """Prints how long steps wait for input, and the share of the check in a step."""
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
        f"{remembered:.3f} s from memory: {read / remembered - 1:+.1%}; {spread(steps, 'steps')}; "
        f"checking is {seconds_checking / read:.4%}",
        flush=True,
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input_file", type=Path, help="TFRecords of 512 tokens")
    parser.add_argument("--batch_size", type=whole_number, default=4, help="examples per step")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each kind; 0: none")
    parser.add_argument(
        "--turns", type=whole_number, default=30, help="timed turns with and without checks"
    )
    parser.add_argument(
        "--examples", type=whole_number, default=20480, help="examples drawn per turn"
    )
    args = parser.parse_args(paths.words_with_home())
    with tempfile.TemporaryDirectory() as name:
        write_task(Path(name), args.input_file)
        for packs in (False, True):
            task = ours.task_in(name, batch_size=args.batch_size, pack_sequences=packs)
            seconds_checking = report_checks(task, args)
            if args.steps:
                report_steps(task, args.steps, seconds_checking)


if __name__ == "__main__":
    main()
