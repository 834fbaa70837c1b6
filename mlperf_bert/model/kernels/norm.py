"""LayerNorm of a sum in two kernels, in Pallas's Triton dialect: y = LN(hidden + drop(x + bias)).

Dropout drops what fusion._drop_elements drops. The gradient computes the sum again from its inputs.
It takes two gradients of y, which has two uses: the next product and the next sum.

Shapes: T=tokens, a multiple of ROWS * STEPS, H=hidden, a power of 2. hidden and update (x above)
[T, H] bfloat16; bias, gamma, beta [H] float32; settings [5] int32: see kernel_encoder.settings.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from mlperf_bert.model.kernels import ROWS, STEPS
from mlperf_bert.model.kernels.attention import Dropout

_EPSILON = 1e-12  # as fusion._EPSILON, which needs TensorFlow
_FORWARD = triton.CompilerParams(num_warps=4, num_stages=1)
_BACKWARD = triton.CompilerParams(num_warps=8, num_stages=1)


def _sum(hidden_ref, update_ref, bias, settings_ref, start):
    """The sum hidden + drop(update + bias), float32 [ROWS, H], and which elements dropout keeps."""
    at, dropout = pl.ds(start, ROWS), Dropout(settings_ref)
    hidden, update = (triton.load(ref.at[at, :]) for ref in (hidden_ref, update_ref))
    # Rounded twice, as in the step without kernels.
    biased = (update + bias[None, :]).astype(jnp.float32)
    kept = dropout.keeps(dropout.rows(at), dropout.columns(pl.ds(0, update.shape[1])))
    dropped = jnp.where(kept, biased * dropout.factor, 0.0).astype(hidden.dtype)
    return hidden.astype(jnp.float32) + dropped.astype(jnp.float32), kept


def _forward(
    hidden_ref, update_ref, bias_ref, gamma_ref, beta_ref, settings_ref,
    y_ref, mean_ref, scale_ref,
):  # fmt: skip
    start = pl.program_id(0) * ROWS
    bias = triton.load(bias_ref).astype(hidden_ref.dtype)
    total, _ = _sum(hidden_ref, update_ref, bias, settings_ref, start)
    width = total.shape[1]
    mean = jnp.sum(total, axis=1) / width
    centred = total - mean[:, None]
    # The scale is one over the deviation.
    scale = lax.rsqrt(jnp.sum(centred * centred, axis=1) / width + _EPSILON)
    gamma, beta = (triton.load(ref)[None, :] for ref in (gamma_ref, beta_ref))
    y = centred * scale[:, None] * gamma + beta
    at = pl.ds(start, ROWS)
    triton.store(y_ref.at[at, :], y.astype(y_ref.dtype))
    triton.store(mean_ref.at[at], mean)
    triton.store(scale_ref.at[at], scale)


def _backward(
    hidden_ref, update_ref, bias_ref, gamma_ref, settings_ref, mean_ref, scale_ref,
    one_ref, other_ref, of_hidden_ref, of_update_ref, of_gamma_ref, of_beta_ref, of_bias_ref,
):  # fmt: skip
    """Takes STEPS blocks one after the other, so that sums over tokens stay in registers."""
    program = pl.program_id(0)
    bias, gamma = triton.load(bias_ref).astype(hidden_ref.dtype), triton.load(gamma_ref)
    factor, width = Dropout(settings_ref).factor, gamma.shape[0]

    def body(number, sums):
        start = (program * STEPS + number) * ROWS
        at = pl.ds(start, ROWS)
        total, kept = _sum(hidden_ref, update_ref, bias, settings_ref, start)
        mean, scale = (triton.load(ref.at[at])[:, None] for ref in (mean_ref, scale_ref))
        x = (total - mean) * scale
        up = sum(triton.load(ref.at[at, :]).astype(jnp.float32) for ref in (one_ref, other_ref))
        # dx = (w - mean(w) - x * mean(w * x)) / deviation, w = gamma * up.
        weighted = up * gamma[None, :]
        of_total = weighted - (jnp.sum(weighted, axis=1) / width)[:, None]
        of_total = scale * (of_total - x * (jnp.sum(weighted * x, axis=1) / width)[:, None])
        of_update = jnp.where(kept, of_total * factor, 0.0)
        triton.store(of_hidden_ref.at[at, :], of_total.astype(of_hidden_ref.dtype))
        triton.store(of_update_ref.at[at, :], of_update.astype(of_update_ref.dtype))
        return tuple(each + more for each, more in zip(sums, (up * x, up, of_update)))

    sums = lax.fori_loop(0, STEPS, body, (jnp.zeros((ROWS, width), jnp.float32),) * 3)
    for ref, each in zip((of_gamma_ref, of_beta_ref, of_bias_ref), sums):
        triton.store(ref.at[program, :], jnp.sum(each, axis=0))


def forward(hidden, update, bias, gamma, beta, settings):
    """The result y [T, H] bfloat16; each sum's mean and one over its deviation, [T] float32."""
    tokens = len(hidden)
    of_token = jax.ShapeDtypeStruct((tokens,), jnp.float32)
    results = [jax.ShapeDtypeStruct(hidden.shape, hidden.dtype), of_token, of_token]
    call = pl.pallas_call(
        _forward, results, grid=(tokens // ROWS,), name="norm_forward", compiler_params=_FORWARD
    )
    return call(hidden, update, bias, gamma, beta, settings)


def backward(hidden, update, bias, gamma, settings, mean, scale, one, other):
    """The gradients of hidden and update, and sums of each program of gamma's, beta's and bias's.

    `one` and `other` [T, H] bfloat16 are those of y; sums are [T / ROWS / STEPS, H] float32.
    """
    tokens, width = hidden.shape
    programs = tokens // ROWS // STEPS
    like_hidden = jax.ShapeDtypeStruct(hidden.shape, hidden.dtype)
    sums = jax.ShapeDtypeStruct((programs, width), jnp.float32)
    results = [like_hidden, like_hidden, sums, sums, sums]
    call = pl.pallas_call(
        _backward, results, grid=(programs,), name="norm_backward", compiler_params=_BACKWARD
    )
    return call(hidden, update, bias, gamma, settings, mean, scale, one, other)
