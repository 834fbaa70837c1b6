"""What it costs to measure how long a step waits for its input.

    python -m benchmarks.ledger

A small model shows the cost in microseconds a step, BERT-base (512 tokens, batch 4) its share of a
step. The same step is trained with and without the measurement, in turns, on a batch in memory.
"""

from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    tensorflow()  # before other modules import it

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import tensorflow as tf

from benchmarks.contestants import ours
from benchmarks.input_pipeline import in_turns, spread
from benchmarks.training_throughput import BERT_BASE
from mlperf_bert.files import paths
from mlperf_bert.input import pipeline
from mlperf_bert.options import whole_number
from mlperf_bert.training import steps
from mlperf_bert.training.steps import Trainer

SMALL = dict(BERT_BASE) | {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 512,
}


def report(name: str, config: Mapping, *, batch_size: int, num_steps: int, num_turns: int) -> None:
    """Prints seconds a step, with and without."""
    with tempfile.TemporaryDirectory() as folder:
        task = ours.task_in(folder, batch_size=batch_size, pack_sequences=False)
        Path(task["bert_config_file"]).write_text(json.dumps(dict(config)))
        measured = ours.build_trainer(task)
        # While the other step is traced, the times are constants, and nothing waits for them.
        constant = mock.patch.object(steps, "_time_after", lambda _: tf.constant(0.0, tf.float64))
        with constant:
            plain = ours.build_trainer(task)
    batch = pipeline.synthetic_batch(ours.SHAPE, batch_size=batch_size)
    batches = tf.data.Dataset.from_tensors(batch).repeat()
    iterators = {trainer: trainer.batches(lambda _: batches) for trainer in (measured, plain)}

    def seconds_per_step(trainer: Trainer) -> float:
        began = time.perf_counter()
        trainer.train(iterators[trainer], tf.constant(num_steps)).numpy()
        return (time.perf_counter() - began) / num_steps

    turns = in_turns(seconds_per_step, measured, plain, num_turns)
    one, other = (statistics.median(column) for column in zip(*turns))
    cost = statistics.median(a - b for a, b in turns)
    print(
        f"{name}: {one:.6f} s a step measured, {other:.6f} s not (medians); "
        f"{1e6 * cost:+.0f} µs; {spread(turns, 'turns')}",
        flush=True,
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=whole_number, default=30, help="turns of each model")
    turns = parser.parse_args(paths.words_with_home()).turns
    report("small model", SMALL, batch_size=1, num_steps=20, num_turns=turns)
    report("BERT-base", BERT_BASE, batch_size=4, num_steps=1, num_turns=turns)


if __name__ == "__main__":
    main()
