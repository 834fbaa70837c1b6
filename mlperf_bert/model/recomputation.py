"""What the backward pass computes again, so that the forward pass need not keep it.

tf.recompute_grad does the same, but logs a warning for every integer input (ids and seeds).
Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174.
"""

from collections.abc import Callable

import tensorflow as tf


def recomputed(function: Callable[..., tf.Tensor], *inputs) -> tf.Tensor:
    """`function(*inputs)`, of which only the inputs are kept for the backward pass.

    Inputs are nested tensors, or None; variables are given as tensors. The function may depend on
    nothing else: what bypassed `_after`, such as the bits of dropout made from the seed alone,
    would be kept.
    """
    leaves = tf.nest.flatten(inputs)

    def of_tensors(tensors) -> tf.Tensor:
        remaining = iter(tensors)
        given = [None if leaf is None else next(remaining) for leaf in leaves]
        return function(*tf.nest.pack_sequence_as(inputs, given))

    @tf.custom_gradient
    def call(*tensors):
        def backward(upstream):
            again = _after(upstream, tensors)
            floating = [tensor for tensor in again if tensor.dtype.is_floating]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(floating)
                outputs = of_tensors(again)
            gradients = iter(tape.gradient(outputs, floating, upstream))
            return [next(gradients) if tensor.dtype.is_floating else None for tensor in again]

        return of_tensors(tensors), backward

    return call(*(leaf for leaf in leaves if leaf is not None))


def _after(upstream: tf.Tensor, tensors) -> list[tf.Tensor]:
    """The same values, once the gradient `upstream` is there.

    A zero made of the gradient is added. So the second computation cannot begin early, and neither
    TensorFlow nor XLA, which ignores control dependencies, takes it for the first one.
    """
    first = tf.reshape(upstream, [-1])[0]
    zero = tf.where(tf.equal(first, first), 0.0, float("nan"))
    return [tensor + tf.cast(zero, tensor.dtype) for tensor in tensors]
