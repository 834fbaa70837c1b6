"""n micro-batches of b make the update of one batch of n*b, where the two are the same mathematics.

They are where every micro-batch has as many predictions as the next (the masked-LM loss is a mean
over a micro-batch's predictions) and where clipping waits for the update. And what becomes of the
gradients of two replicas. CPU, seconds.
"""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from mlperf_bert.input import pipeline
from mlperf_bert.optimization.optimizers import (
    GradientAggregationOptimizer,
    WarmupPolynomialDecay,
)
from mlperf_bert.programs.steps import Trainer
from tests.helpers import starts
from tests.training.generated_task import CONFIG, SHAPE
from tests.training.small_trainer import make_trainer

NUM_UPDATES = 3
CLIPS_LATE = {"clip_by_global_norm_after_gradient_allreduce": True}


def examples(count: int) -> dict[str, np.ndarray]:
    """Examples with the same number of predictions each."""
    random = np.random.RandomState(5)
    lengths = {name: value.shape[1] for name, value in _synthetic(1).items()}
    ids = {
        name: random.randint(5, CONFIG["vocab_size"], (count, lengths[name])).astype(np.int32)
        for name in ("input_ids", "masked_lm_ids")
    }
    positions = np.sort(1 + np.argsort(random.random_sample((count, 31)), axis=1)[:, :6])
    return {name: np.repeat(value, count, 0) for name, value in _synthetic(1).items()} | {
        **ids,
        "masked_lm_positions": positions.astype(np.int32),
        "next_sentence_labels": random.randint(0, 2, (count, 1)).astype(np.int32),
    }


def _synthetic(batch_size: int) -> dict[str, np.ndarray]:
    batch = pipeline.synthetic_batch(SHAPE, batch_size=batch_size)
    return {name: value.numpy() for name, value in batch.items()}


def train(made: Trainer, data: dict[str, np.ndarray], num_steps: int) -> list[np.ndarray]:
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(made.batch_size, drop_remainder=True)
    made.train(iter(dataset), tf.constant(num_steps))
    return [variable.numpy() for variable in made.variables_to_train]


# A constant rate on both sides: with the schedule, update u of 10 would have 1 - u/10 on one side
# and 1 - (4u+3)/40 on the other, for an update takes the rate of its last micro-batch.
@pytest.mark.gate
def test_four_micro_batches_equal_one_batch():
    data = examples(NUM_UPDATES * 32)
    one = make_trainer(batch_size=32, **CLIPS_LATE)
    four = make_trainer(steps_per_update=4, **CLIPS_LATE)
    one.optimizer.optimizer.learning_rate = four.optimizer.optimizer.learning_rate = 0.01
    before = [variable.numpy() for variable in one.variables_to_train]
    after_one = train(one, data, NUM_UPDATES)
    after_four = train(four, data, 4 * NUM_UPDATES)
    for variable, start, left, right in zip(one.variables_to_train, before, after_one, after_four):
        if "key/bias" in variable.name:  # no gradient but rounding
            continue
        change = np.linalg.norm(left - start)
        assert change > 0
        assert np.linalg.norm(left - right) < 1e-4 * change, variable.name


def test_the_mean_of_the_micro_batches_is_applied():
    """By plain descent: LAMB and AdamW hardly see a factor that all gradients have."""
    weight = tf.Variable([1.0, 2.0])
    descent = tf_keras.optimizers.legacy.SGD(1.0)
    made = GradientAggregationOptimizer(descent, [weight], steps_per_update=2)
    for gradient in ([0.25, 0.0], [0.25, 0.5]):
        made.step([tf.constant(gradient)])
        assert weight.numpy().tolist() == [1.0, 2.0]
    made.update()
    assert weight.numpy().tolist() == [0.75, 1.75]


# Replicas with the losses and gradients 0.5 and 2.0, of which the second is clipped to 1: what is
# reported, and what a weight is then under plain descent.
REDUCED = {"global": [2.5, -1.0], "replica_sum": [1.25, -1.5], "replica_mean": [1.25, -0.75]}


def test_replicas_are_added_up_or_averaged(tmp_path):
    plan, found = tmp_path / "plan.json", tmp_path / "found.json"
    plan.write_text(json.dumps({"reduced_by": list(REDUCED), "cases": []}))
    program = [sys.executable, "tests/training/distributed_losses.py", plan, found]
    starts.run([*program, "--devices=2"], check=True)
    assert json.loads(found.read_text()) == REDUCED


def test_an_update_takes_the_rate_of_its_last_micro_batch():
    schedule = WarmupPolynomialDecay(
        learning_rate=1.0, num_train_steps=20, num_warmup_steps=8, steps_per_update=4
    )
    rates = [float(schedule(update)) for update in range(5)]
    assert rates == pytest.approx([3 / 8, 7 / 8, 9 / 20, 5 / 20, 1 / 20])


@pytest.mark.parametrize("start", [0, -3])
def test_the_last_step_of_the_warm_up_is_below_the_peak(start):
    schedule = WarmupPolynomialDecay(
        learning_rate=1.0, num_train_steps=20, num_warmup_steps=8, start_warmup_step=start
    )
    end = 8 + start
    rates = [float(schedule.at_step(step)) for step in (end - 1, end, end + 1)]
    assert rates == pytest.approx([7 / 8, 1 - end / 20, 1 - (end + 1) / 20])
