"""Gradients in bfloat16 against those in float32."""

import numpy as np

# Of the norm of its own: roundings of values, which a sum over many rows averages.
_BIAS, _OTHER = 0.01, 0.02
# Of the norm of all: what would be zero without rounding, as the bias of a key, which softmax does
# not see.
_ZERO = 1e-6


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
