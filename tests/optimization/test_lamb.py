"""LAMB's equations against tf-models' LAMB, bit by bit, and against the paper in float64.

Also BERT's first AdamW, the learning rate, the clipping, what a reset leaves of any optimizer, and
its keys in the log.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from official.modeling.optimization import lamb

from mlperf_bert.optimization.config import OptimizerConfig
from mlperf_bert.optimization.optimizers import (
    NOT_DECAYED,
    GradientAggregationOptimizer,
    WarmupPolynomialDecay,
    create_optimizer,
    lamb_change,
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


@pytest.mark.parametrize("decays", [True, False])
def test_the_equations_of_the_paper(decays):
    """Algorithm 2 of arXiv 1904.00962, written with numpy in float64."""
    weight, m, v = (tf.Variable(tf.constant(draw(scale))) for scale in (0.05, 0.0, 0.0))
    expected, mean, square = draw(0.05).astype(float), 0.0, 0.0
    for number in range(1, NUM_UPDATES + 1):
        gradient = draw(1.0, number)
        constants = {
            "beta_1_t": 0.8,
            "one_minus_beta_1_t": 0.2,
            "beta_1_power": 0.8**number,
            "beta_2_t": 0.95,
            "one_minus_beta_2_t": 0.05,
            "beta_2_power": 0.95**number,
            "epsilon": 1e-5,
            "weight_decay_rate": 0.02,
            "lr_t": 0.01,
        }
        lamb_change(weight, tf.constant(gradient), m, v, constants, decays=decays)
        mean = 0.8 * mean + 0.2 * gradient
        square = 0.95 * square + 0.05 * gradient.astype(float) ** 2
        step = mean / (1 - 0.8**number) / (np.sqrt(square / (1 - 0.95**number)) + 1e-5)
        if decays:
            step += 0.02 * expected
            step *= np.linalg.norm(expected) / np.linalg.norm(step)
        expected -= 0.01 * step
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["dense/kernel", "LayerNorm/gamma"])
def test_the_equations_of_adamw(name):
    """BERT's own optimizer, without bias correction, in float64; a gamma does not decay."""
    config = dataclasses.replace(CONFIG, name="adamw")
    optimizer = create_optimizer(config, lambda: learning_rate(optimizer.iterations))
    found = trained(optimizer, name, 1.0, 1.0)
    expected, mean, square = draw(1.0).astype(float), 0.0, 0.0
    for number in range(1, NUM_UPDATES + 1):
        gradient = draw(1.0, number).astype(float)
        gradient /= np.linalg.norm(gradient)
        mean = 0.8 * mean + 0.2 * gradient
        square = 0.95 * square + 0.05 * gradient**2
        step = mean / (np.sqrt(square) + 1e-5)
        step += 0.02 * expected if name == "dense/kernel" else 0.0
        expected -= 0.01 / number * step
        np.testing.assert_allclose(found[number - 1], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"^optimizer must be lamb or adamw, got 'sgd'$"):
        create_optimizer(dataclasses.replace(CONFIG, name="sgd"), lambda: 0.0)


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({"num_warmup_steps": 0}, [2.0, 1.5, 1.0, 0.5, 0.0, 0.0]),
        ({"num_warmup_steps": 0, "poly_power": 2.0}, [2.0, 1.125, 0.5, 0.125, 0.0, 0.0]),
        ({"num_warmup_steps": 4}, [0.0, 0.5, 1.0, 1.5, 0.0, 0.0]),
        ({"num_warmup_steps": 8, "start_warmup_step": -6}, [1.5, 1.75, 1.0, 0.5, 0.0, 0.0]),
    ],
)
def test_the_rate_of_each_step(options, rates):
    """Of the decay alone, of a warm-up as long as the training, and of one that began before it."""
    schedule = WarmupPolynomialDecay(learning_rate=2.0, num_train_steps=4, **options)
    assert [float(schedule.at_step(step)) for step in range(6)] == pytest.approx(rates)


@pytest.mark.parametrize("whole_step", [False, True])
@pytest.mark.parametrize("scale", [0.01, 1.0])
def test_gradients_of_all_shapes_are_clipped_by_one_norm(whole_step, scale):
    gradients = [scale * draw(1.0, number) for number in range(5)]
    gradients = [*gradients[:2], gradients[2][0], gradients[3][0], gradients[4][:, 0]]
    norm = np.sqrt(sum((each.astype(float) ** 2).sum() for each in gradients))
    optimizer = GradientAggregationOptimizer(
        create_optimizer(CONFIG, lambda: 0.1), [], whole_step=whole_step
    )
    assert (norm > 1) == (scale == 1.0)
    for clipped, gradient in zip(optimizer.clip([*map(tf.constant, gradients)]), gradients):
        np.testing.assert_allclose(clipped, gradient / max(1.0, norm), rtol=1e-6)


def trained_by_xla(*scales: float, clips_itself: bool) -> list[list[np.ndarray]]:
    """Two weights, the optimizer's count and slots, after each update of a compiled LAMB."""
    inner = create_optimizer(CONFIG, lambda: learning_rate(inner.iterations), compiled=True)
    weights = [tf.Variable(draw(0.05), name=name) for name in ("kernel", "bias")]
    optimizer = GradientAggregationOptimizer(inner, weights)

    @tf.function(autograph=False)
    def update(gradients):
        if not clips_itself:
            gradients = optimizer.clip(gradients)
        optimizer.step(gradients, clips=clips_itself)

    found = []
    for number, scale in enumerate(scales, start=1):
        update([tf.constant(draw(scale, number + each)) for each in (0, 9)])
        found.append([each.numpy() for each in (*weights, *inner.variables())])
    return found


def test_a_compiled_update_that_clips_is_one_of_clipped_gradients():
    """Bit by bit: where clipping changes nothing, where something, and where all becomes NaN."""
    scales = (1e-3, 1e-3, 1.0, 1.0, np.inf)
    itself, outside = (trained_by_xla(*scales, clips_itself=clips) for clips in (True, False))
    for scale, every, others in zip(scales, itself, outside, strict=True):
        for left, right in zip(every, others, strict=True):
            np.testing.assert_array_equal(left, right)
        assert np.isnan(every[0]).all() == np.isinf(scale)
        assert (every[0] != draw(0.05)).all()


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_after_a_reset_nothing_is_left_of_the_updates_before(name):
    inner = create_optimizer(OptimizerConfig(name=name), lambda: learning_rate(inner.iterations))
    weight = tf.Variable(draw(0.05), name="kernel")
    optimizer = GradientAggregationOptimizer(inner, [weight], steps_per_update=2)
    state = [*inner.variables(), *optimizer.accumulators]
    for number in range(3):
        optimizer.step([tf.constant(draw(1.0, number))])
        if number == 1:
            optimizer.update()
    assert len(state) == 4 and all(np.any(each.numpy()) for each in state)
    optimizer.reset()
    assert not any(np.any(each.numpy()) for each in state)


def test_what_the_log_says_of_an_optimizer():
    values = {"weight_decay_rate": 0.02, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-5}
    lamb_keys, adamw_keys = (
        OptimizerConfig(name=name, **values).hyperparameters(poly_power=0.5)
        for name in ("lamb", "adamw")
    )
    assert lamb_keys == {
        "opt_epsilon": 1e-5,
        "opt_lamb_epsilon": 1e-5,
        "opt_lamb_beta_1": 0.8,
        "opt_lamb_beta_2": 0.95,
        "opt_lamb_weight_decay_rate": 0.02,
        "opt_lamb_learning_rate_decay_poly_power": 0.5,
    }
    assert adamw_keys == {
        "opt_epsilon": 1e-5,
        "opt_adamw_epsilon": 1e-5,
        "opt_adamw_beta_1": 0.8,
        "opt_adamw_beta_2": 0.95,
        "opt_adamw_weight_decay": 0.02,
    }
