"""What is computed again is the same, and depends on the gradient. CPU, seconds."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.model import encoder


def gradients(function, inputs, weights, seed):
    with tf.GradientTape() as tape:
        tape.watch([inputs, weights])
        result = function({"x": inputs, "w": weights}, None, seed)
    return result, tape.gradient(result, [inputs, weights])


def scaled_product(tensors, nothing, seed):
    """Has inputs of all kinds: nested, None, and integers without a gradient."""
    assert nothing is None
    shifted = tf.cast(tf.reduce_sum(seed), tensors["x"].dtype)
    return tf.tanh(tf.matmul(tensors["x"], tensors["w"])) * shifted


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("jit_compile", [None, False, True], ids=["eager", "graph", "xla"])
def test_values_and_gradients_are_the_same(dtype, jit_compile, caplog):
    random = np.random.RandomState(1)
    inputs = tf.cast(random.standard_normal([3, 4]), dtype)
    weights, seed = tf.cast(random.standard_normal([4, 5]), dtype), tf.constant([3, 2**30])
    num_calls = []

    def again(*given):
        num_calls.append(1)
        return encoder.recomputed(scaled_product, *given)

    run = gradients if jit_compile is None else tf.function(gradients, jit_compile=jit_compile)
    expected = run(scaled_product, inputs, weights, seed)
    with caplog.at_level(logging.WARNING, logger="tensorflow"):
        found = run(again, inputs, weights, seed)
    assert num_calls and "dtype" not in caplog.text  # of the integers
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected)):
        np.testing.assert_array_equal(one, other)


def test_the_function_is_called_once_more_for_the_gradient():
    calls = []

    def function(x):
        calls.append(1)
        return x * x

    with tf.GradientTape() as tape:
        x = tf.constant([1.0, 2.0])
        tape.watch(x)
        result = encoder.recomputed(function, x)
        assert len(calls) == 1
    np.testing.assert_array_equal(tape.gradient(result, x), [2.0, 4.0])
    assert len(calls) == 2


def test_what_waits_for_the_gradient_keeps_its_value():
    values = [
        tf.constant([0.0, -0.0, 1e-37, -3.5, np.inf]),
        tf.constant([-0.0, 1.5], tf.bfloat16),
        tf.constant([2**31 - 1, -(2**31), 2**24 + 1]),
    ]
    for given, after in zip(values, encoder._after(tf.constant([[7.0]]), values)):
        assert given.dtype == after.dtype
        np.testing.assert_array_equal(given, after)
    # Else a compiler would take the second computation for the first, and keep what that made.
    [lost] = encoder._after(tf.constant([np.nan, 1.0]), [tf.constant([1.0, 2.0])])
    assert np.isnan(lost).all()
