"""What becomes of the gradients of micro-batches and of two replicas, and of their rate."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from mlperf_bert.optimization.optimizers import (
    GradientAggregationOptimizer,
    WarmupPolynomialDecay,
)
from tests.helpers import starts


@pytest.mark.parametrize("clips_late, moved", [(False, [0.3, 0.4]), (True, [0.6, 0.8])])
def test_each_micro_batch_is_clipped_or_their_mean(clips_late, moved):
    """Of (0, 0) and (6, 8) with the norms 0 and 10; the norm of their mean is 5."""
    weight = tf.Variable([1.0, 2.0])
    descent = tf_keras.optimizers.legacy.SGD(1.0)
    made = GradientAggregationOptimizer(
        descent, [weight], steps_per_update=2, clip_after_allreduce=clips_late
    )
    for gradient in ([0.0, 0.0], [6.0, 8.0]):
        made.step([tf.constant(gradient)], clips=True)
    made.update()
    np.testing.assert_allclose([1.0, 2.0] - weight.numpy(), moved, rtol=1e-6)


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
