"""Gradients in bfloat16 against those in float32."""

import functools

import numpy as np
import pytest
import tensorflow as tf

# Of the norm of its own: roundings of values, which a sum over many rows averages.
_BIAS, _OTHER = 0.01, 0.02
# Of the norm of all: what would be zero without rounding, as the bias of a key, which softmax does
# not see.
_ZERO = 1e-6


# A value that is rounded once to bfloat16 is 0.0017 away, by the norm; 0.02 and more where partial
# sums are rounded too.
_ROUNDED_ONCE = 0.003


@functools.cache
def _error_of_products() -> float:
    """How far a product in bfloat16 by TensorFlow is from the exact one, relative to its norm."""
    random = np.random.default_rng(0)
    left, right = (tf.cast(random.normal(size=(512, 32)) + mean, tf.bfloat16) for mean in (0, 1))
    exact = tf.cast(left, tf.float64).numpy().T @ tf.cast(right, tf.float64).numpy()
    product = tf.cast(tf.einsum("ka,kb->ab", left, right), tf.float64).numpy()
    return float(np.linalg.norm(product - exact) / np.linalg.norm(exact))


def require_sums_in_float32() -> None:
    """Skips where TensorFlow's products in bfloat16 round partial sums.

    It sums in float32 on processors with avx512_bf16, where oneDNN computes. On others its batched
    products do not, and every gradient behind one of them is a few hundredths away.
    """
    if _error_of_products() > _ROUNDED_ONCE:
        pytest.skip(
            "TensorFlow rounds partial sums of products in bfloat16 on this processor: "
            f"{_error_of_products():.2%} away, at most {_ROUNDED_ONCE:.2%} are of one rounding"
        )


def assert_bfloat16_is_near(names, found, expected) -> None:
    """Each gradient alone, by the norm of its difference; all of them must be given."""
    norm = np.linalg.norm
    smallest = _ZERO * norm([norm(gradient) for gradient in expected])
    far = {}
    for name, one, other in zip(names, found, expected, strict=True):
        tolerance = _BIAS if "bias" in name else _OTHER
        if norm(one - other) > tolerance * norm(other) + smallest:
            far[name] = f"{norm(one - other) / norm(other):.2%}"
    assert not far, far
