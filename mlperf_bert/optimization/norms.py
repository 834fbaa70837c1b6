"""The norm of many tensors, in a program of a whole step."""

import collections
from collections.abc import Sequence

import tensorflow as tf


def norm_of_all(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The Euclidean norm of all tensors together, float32 scalar.

    Vectors of one length, the biases of all layers, are added up together: XLA for GPUs makes two
    kernels of every sum. Matrices are not: a TPU would have to copy them.
    """
    vectors: dict[int, list[tf.Tensor]] = collections.defaultdict(list)
    squares = []
    for tensor in tensors:
        if tensor.shape.rank == 1:
            vectors[tensor.shape[0]].append(tensor)
        else:
            squares.append(tf.reduce_sum(tensor * tensor))
    for same in vectors.values():
        stacked = tf.stack(same)
        squares.append(tf.reduce_sum(stacked * stacked))
    return tf.sqrt(tf.add_n(squares))
