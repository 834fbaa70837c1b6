"""Dropout by a hash: the bits are the same on every machine."""

import numpy as np
import tensorflow as tf

from mlperf_bert.model import fusion
from mlperf_bert.model.pretrainer import tanh_gelu


def test_the_worked_example_in_the_documentation():
    seed = tf.constant([1, 2])
    assert [[f"{bits:08x}" for bits in row] for row in fusion._hash(2, 3, seed).numpy()] == [
        ["04053759", "86321b24", "2dd9618c"],
        ["3faf6b5f", "75223664", "573e545b"],
    ]
    for compiled in (False, True):
        passes = fusion.Passes(tanh_gelu, compiled=compiled)
        result = passes.dropout(tf.ones([2, 3]), seed, tf.constant(0.5))
        np.testing.assert_array_equal(result, [[0, 2, 0], [0, 0, 0]])
