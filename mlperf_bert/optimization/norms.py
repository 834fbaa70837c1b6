"""Norms of many tensors in a program of a whole step, where each sum alone would be two kernels."""

import collections
from collections.abc import Sequence

import tensorflow as tf


def sums_of_squares(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The sum of the squares of each tensor, float32 scalars in their order.

    First every row is added up, in the kernel that computes the tensor; then the sums of the rows
    of all tensors with as many rows together. XLA would make one sum of the two for each tensor,
    and on a GPU two kernels of it.
    """
    groups: dict[int, list[int]] = collections.defaultdict(list)
    rows = []
    for index, tensor in enumerate(tensors):
        squares = tensor * tensor
        rows.append(
            tf.reshape(tf.reduce_sum(squares, -1) if squares.shape.rank > 1 else squares, [-1])
        )
        groups[rows[-1].shape[0]].append(index)
    found: dict[int, tf.Tensor] = {}
    for indices in groups.values():
        sums = tf.reduce_sum(tf.stack([rows[index] for index in indices]), axis=1)
        found |= dict(zip(indices, tf.unstack(sums)))
    return [found[index] for index in range(len(tensors))]
