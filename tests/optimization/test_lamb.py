"""LAMB against tf-models' LAMB, bit by bit; and compiled, where it clips by itself."""

import numpy as np
import pytest
import tensorflow as tf
from official.modeling.optimization import lamb

from mlperf_bert.optimization.config import OptimizerConfig
from mlperf_bert.optimization.optimizers import (
    NOT_DECAYED,
    GradientAggregationOptimizer,
    create_optimizer,
)

CONFIG = OptimizerConfig(weight_decay_rate=0.02, beta_1=0.8, beta_2=0.95, epsilon=1e-5)
NUM_UPDATES = 7
# What a name decides, and the norms that leave the step as it is.
CASES = {
    "kernel": ("dense/kernel", 0.05, 1.0),
    "bias": ("dense/bias", 0.05, 1.0),
    "layer norm": ("LayerNorm/gamma", 1.0, 1.0),
    "weight of zeros": ("dense/kernel", 0.0, 1.0),
    "weight and gradient of zeros": ("dense/kernel", 0.0, 0.0),
}


def draw(scale: float, number: int = 0) -> np.ndarray:
    return scale * np.random.default_rng(number).standard_normal([33, 17]).astype(np.float32)


def trained(optimizer, name: str, weight_scale: float, gradient_scale: float) -> list[np.ndarray]:
    """The weight after each update, made in a graph from clipped gradients as in a training."""
    weight = tf.Variable(draw(weight_scale), name=name)

    @tf.function
    def update(gradient):
        [clipped], _ = tf.clip_by_global_norm([gradient], 1.0)
        optimizer.apply_gradients([(clipped, weight)])

    found = []
    for number in range(1, NUM_UPDATES + 1):
        update(tf.constant(draw(gradient_scale, number)))
        found.append(weight.numpy())
    return found


def learning_rate(update: tf.Tensor) -> tf.Tensor:
    return 0.01 / (1.0 + tf.cast(update, tf.float32))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_bit_is_that_of_tf_models(case):
    theirs = lamb.LAMB(
        learning_rate=lambda: learning_rate(theirs.iterations),
        weight_decay_rate=CONFIG.weight_decay_rate,
        beta_1=CONFIG.beta_1,
        beta_2=CONFIG.beta_2,
        epsilon=CONFIG.epsilon,
        exclude_from_weight_decay=list(NOT_DECAYED),
    )
    ours = create_optimizer(CONFIG, lambda: learning_rate(ours.iterations))
    np.testing.assert_array_equal(trained(ours, *case), trained(theirs, *case))


def trained_by_xla(gradient_scale: float, *, clips_itself: bool) -> list[np.ndarray]:
    """Two weights, the optimizer's count and slots after three updates of a compiled LAMB."""
    inner = create_optimizer(CONFIG, lambda: learning_rate(inner.iterations), compiled=True)
    weights = [tf.Variable(draw(0.05), name=name) for name in ("kernel", "bias")]
    optimizer = GradientAggregationOptimizer(inner, weights)

    @tf.function(autograph=False)
    def update(gradients):
        if not clips_itself:
            gradients = optimizer.clip(gradients)
        optimizer.step(gradients, clips=clips_itself)

    for number in range(1, 4):
        update([tf.constant(draw(gradient_scale, number + each)) for each in (0, 9)])
    return [each.numpy() for each in (*weights, *inner.variables())]


@pytest.mark.parametrize("gradient_scale", [1.0, 1e-3, np.inf])
def test_a_compiled_update_that_clips_is_one_of_clipped_gradients(gradient_scale):
    """Bit by bit: where clipping changes something, where not, and where all becomes NaN."""
    itself = trained_by_xla(gradient_scale, clips_itself=True)
    outside = trained_by_xla(gradient_scale, clips_itself=False)
    for left, right in zip(itself, outside, strict=True):
        np.testing.assert_array_equal(left, right)
    assert np.isnan(itself[0]).all() == np.isinf(gradient_scale)
    assert (itself[0] != draw(0.05)).all()
