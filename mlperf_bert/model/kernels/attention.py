"""Attention in two kernels, in Pallas's Triton dialect: drop(softmax(q k')) v, and its gradients.

Scores and probabilities are never written to memory: the gradient computes them again, from the
logarithm of the softmax's sums. Nothing is added up by atomic operations, so the same inputs give
the same bits. Dropout drops what fusion._drop_elements drops.

Shapes: R=rows, S=sequence, a multiple of BLOCK, N=heads, D=size of a head, T=R * S tokens.
  qkv [T, 3, N, D] bfloat16: queries, keys, values, as one product gives them, without their biases;
  bias [3, N, D] float32; ids [T] int32: a query attends to keys of its row with the same id, and 0
  is padding, whose results and gradients are 0; ranges [T / BLOCK, 2] int32: of each block the
  parts of INNER tokens of its row that it needs, first and last + 1; settings [5] int32: see
  kernel_encoder.settings.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from mlperf_bert.model.kernels import BLOCK, INNER

# Four warps: a multiprocessor then has several programs, which do not wait for one another.
_FORWARD = _BACKWARD = triton.CompilerParams(num_warps=4, num_stages=2)
_QUERY, _KEY, _VALUE = range(3)
_LOWEST = -1e30  # finite: minus infinity minus itself is not a number


class Dropout:
    """Which elements stay, as fusion._drop_elements has it, by settings that a kernel reads."""

    def __init__(self, settings_ref):
        first, second, kept_from, factor = (settings_ref[n] for n in range(4))
        # _drop_elements compares 31 bits, x >> 1; x with twice the threshold is the same.
        self._kept_from = kept_from.astype(jnp.uint32) * jnp.uint32(2)
        self._of_rows = _mix(_mix(first.astype(jnp.uint32), 17, 0xED5AD4BB), 11, 0xAC4C1B51)
        self._of_columns = second.astype(jnp.uint32)
        self.factor = lax.bitcast_convert_type(factor, jnp.float32)
        """What elements that stay are multiplied with, 1 / (1 - rate)."""

    def rows(self, which: Any):
        """Hashes of these rows."""
        return _mix(_mix(_numbers(which) ^ self._of_rows, 16, 0x7FEB352D), 15, 0x846CA68B)

    def columns(self, which: Any):
        """Hashes of these columns."""
        return _numbers(which) * jnp.uint32(0x9E3779B9) + self._of_columns

    def keeps(self, one, other):
        """Whether elements stay, bool [M, K], by the hashes of rows [M] and of columns [K]."""
        bits = one[:, None] ^ other[None, :]
        bits = _mix(_mix(bits, 17, 0xED5AD4BB), 11, 0x31848BAB)
        return (bits ^ lax.shift_right_logical(bits, jnp.uint32(14))) >= self._kept_from

    def of_scores(self, probabilities, of_dropped, delta, kept):
        """The gradient of scores, bfloat16, from that of the dropped probabilities."""
        # ds = p * (m * dd - sum(up * context)), with m = dropout's mask over 1 - rate.
        of_probabilities = jnp.where(kept, of_dropped * self.factor, 0.0)
        return (probabilities * (of_probabilities - delta)).astype(jnp.bfloat16)


def _numbers(which: Any):
    return (which.start + jnp.arange(which.size, dtype=jnp.int32)).astype(jnp.uint32)


def _mix(bits, shift: int, factor: int):
    shifted = lax.shift_right_logical(bits, jnp.uint32(shift))
    return (bits ^ shifted) * jnp.uint32(factor)


class _Head:
    """One head of one row. Each program handles one block of its queries or keys."""

    def __init__(self, qkv_ref, bias_ref, ids_ref, settings_ref):
        self.number, self.head = pl.program_id(0), pl.program_id(1)
        num_blocks = settings_ref[4]
        row = lax.div(self.number, num_blocks)
        self.start = (self.number - row * num_blocks) * BLOCK
        # Written as products with BLOCK, so that the compiler knows where rows may begin.
        self._first_token = row * num_blocks * BLOCK
        self._first_score = (row * qkv_ref.shape[2] + self.head) * num_blocks * BLOCK
        self._qkv, self._bias, self._ids = qkv_ref, bias_ref, ids_ref
        self.scale = qkv_ref.shape[3] ** -0.5

    def tokens(self, start, size: int):
        """The slice of arrays [T, ...] that holds tokens of the row."""
        return pl.ds(self._first_token + start, size)

    def scores(self, start, size: int):
        """The slice of arrays [R * N * S] that holds these tokens' rows of scores."""
        return pl.ds(self._first_score + start, size)

    def load(self, which: int, start, size: int):
        """Keys, or queries or values with their bias, [size, D] bfloat16."""
        at = jnp.int32(which)  # the interpreter takes no number of Python's
        product = triton.load(self._qkv.at[self.tokens(start, size), at, self.head, :])
        if which == _KEY:  # the softmax cancels a key's bias, which adds the same to all scores
            return product
        bias = triton.load(self._bias.at[at, self.head, :]).astype(product.dtype)
        return product + bias[None, :]  # rounded, as in the step without kernels

    def ids(self, start, size: int, *, padding: int = 0):
        """Ids of tokens, with another id for padding, so that it equals none."""
        ids = triton.load(self._ids.at[self.tokens(start, size)])
        return jnp.where(ids == 0, padding, ids)

    def powers(self, products, one_ids, other_ids):
        """Scores [M, K] of products, as powers of 2; no power where ids differ."""
        scores = products * (self.scale * math.log2(math.e))
        return jnp.where(one_ids[:, None] == other_ids[None, :], scores, -jnp.inf)


def exp2(powers):
    """2 to the power of each; one instruction on a GPU, which gives 0 for very low powers."""
    [result] = triton.elementwise_inline_asm(
        "ex2.approx.ftz.f32 $0, $1;",
        args=[powers],
        constraints="=r,r",
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(powers.shape, powers.dtype)],
    )
    return result


def _forward(qkv_ref, bias_ref, ids_ref, ranges_ref, settings_ref, context_ref, lse_ref):
    head = _Head(qkv_ref, bias_ref, ids_ref, settings_ref)
    dropout, start = Dropout(settings_ref), head.start
    query, ids = head.load(_QUERY, start, BLOCK), head.ids(start, BLOCK, padding=-1)
    rows = dropout.rows(head.scores(start, BLOCK))

    def of_keys(number, carried):
        context, largest, total = carried
        keys = number * INNER
        key, value = head.load(_KEY, keys, INNER), head.load(_VALUE, keys, INNER)
        powers = head.powers(triton.dot(query, key.T), ids, head.ids(keys, INNER))
        # The softmax of the keys so far is corrected whenever a score is larger.
        larger = jnp.maximum(largest, jnp.max(powers, axis=1))
        correction = exp2(largest - larger)
        probabilities = exp2(powers - larger[:, None])
        total = total * correction + jnp.sum(probabilities, axis=1)
        kept = dropout.keeps(rows, dropout.columns(pl.ds(keys, INNER)))
        dropped = jnp.where(kept, probabilities, 0.0).astype(value.dtype)
        context = context * correction[:, None] + triton.dot(dropped, value)
        return context, larger, total

    zeros = jnp.zeros((BLOCK,), jnp.float32)
    nothing = (jnp.zeros(query.shape, jnp.float32), zeros + _LOWEST, zeros)
    context, largest, total = lax.fori_loop(
        ranges_ref[head.number, 0], ranges_ref[head.number, 1], of_keys, nothing
    )
    # Padding has no keys: its total is 0, and the logarithm must be finite.
    is_padding = total == 0
    context = context * jnp.where(is_padding, 0.0, dropout.factor / total)[:, None]
    lse = jnp.where(is_padding, 0.0, largest + jnp.log2(total))
    at = (head.tokens(start, BLOCK), head.head, slice(None))
    triton.store(context_ref.at[at], context.astype(context_ref.dtype))
    triton.store(lse_ref.at[head.scores(start, BLOCK)], lse)


def _backward(
    qkv_ref, bias_ref, up_ref, lse_ref, delta_ref, ids_ref, ranges_ref, settings_ref,
    of_qkv_ref, of_bias_ref,
):  # fmt: skip
    """One block: as keys with all queries that need it, then as queries with all their keys."""
    head = _Head(qkv_ref, bias_ref, ids_ref, settings_ref)
    dropout, start = Dropout(settings_ref), head.start

    def of_queries(start, size: int):
        """Queries, the gradient of their context, the logarithm of their sums, and `delta`."""
        up = triton.load(up_ref.at[head.tokens(start, size), head.head, :])
        at = head.scores(start, size)
        lse, delta = (triton.load(ref.at[at]) for ref in (lse_ref, delta_ref))
        return head.load(_QUERY, start, size), up, lse, delta

    def store(which: int, gradient):
        at = jnp.int32(which)
        to = of_qkv_ref.at[head.tokens(start, BLOCK), at, head.head, :]
        triton.store(to, gradient.astype(of_qkv_ref.dtype))
        of_bias = of_bias_ref.at[head.number, at, head.head, :]
        triton.store(of_bias, jnp.sum(gradient, axis=0))

    limits = ranges_ref[head.number, 0], ranges_ref[head.number, 1]
    of_key, of_value = _of_keys_and_values(head, dropout, of_queries, *limits)
    # Stored before the next loop, which needs their registers.
    store(_KEY, of_key)
    store(_VALUE, of_value)
    store(_QUERY, _of_queries(head, dropout, of_queries, *limits))


def _of_keys_and_values(head: _Head, dropout: Dropout, of_queries, first, last):
    """Scores are [keys, queries] here, because they are left operands of the last two products."""
    key, value = head.load(_KEY, head.start, BLOCK), head.load(_VALUE, head.start, BLOCK)
    ids = head.ids(head.start, BLOCK, padding=-1)
    columns = dropout.columns(pl.ds(head.start, BLOCK))

    def add(number, carried):
        of_key, of_value = carried
        queries = number * INNER
        query, up, lse, delta = of_queries(queries, INNER)
        powers = head.powers(triton.dot(key, query.T), ids, head.ids(queries, INNER))
        probabilities = exp2(powers - lse[None, :])
        of_dropped = triton.dot(value, up.T)
        kept = dropout.keeps(columns, dropout.rows(head.scores(queries, INNER)))
        dropped = jnp.where(kept, probabilities, 0.0).astype(up.dtype)
        # Values before keys: in the other order ptxas has one product wait for the other.
        of_value = of_value + triton.dot(dropped, up)
        of_scores = dropout.of_scores(probabilities, of_dropped, delta[None, :], kept)
        return of_key + triton.dot(of_scores, query), of_value

    of_key, of_value = lax.fori_loop(first, last, add, (jnp.zeros(key.shape, jnp.float32),) * 2)
    return of_key * head.scale, of_value * dropout.factor


def _of_queries(head: _Head, dropout: Dropout, of_queries, first, last):
    query, up, lse, delta = of_queries(head.start, BLOCK)
    ids = head.ids(head.start, BLOCK, padding=-1)
    rows = dropout.rows(head.scores(head.start, BLOCK))

    def add(number, total):
        keys = number * INNER
        key, value = head.load(_KEY, keys, INNER), head.load(_VALUE, keys, INNER)
        powers = head.powers(triton.dot(query, key.T), ids, head.ids(keys, INNER))
        probabilities = exp2(powers - lse[:, None])
        of_dropped = triton.dot(up, value.T)
        kept = dropout.keeps(rows, dropout.columns(pl.ds(keys, INNER)))
        of_scores = dropout.of_scores(probabilities, of_dropped, delta[:, None], kept)
        return total + triton.dot(of_scores, key)

    return lax.fori_loop(first, last, add, jnp.zeros(query.shape, jnp.float32)) * head.scale


def forward(qkv, bias, ids, ranges, settings):
    """The context [T, N, D] bfloat16, and log2 of the softmax's sums [R * N * S] float32."""
    tokens, _, heads, size = qkv.shape
    results = [
        jax.ShapeDtypeStruct((tokens, heads, size), qkv.dtype),
        jax.ShapeDtypeStruct((tokens * heads,), jnp.float32),
    ]
    grid = (tokens // BLOCK, heads)
    call = pl.pallas_call(
        _forward, results, grid=grid, name="attention_forward", compiler_params=_FORWARD
    )
    return call(qkv, bias, ids, ranges, settings)


def backward(qkv, bias, up, lse, delta, ids, ranges, settings):
    """The gradient of qkv, and that of its bias, of each block alone, [T / BLOCK, 3, N, D] float32.

    `up` [T, N, D] is the gradient of the context, `delta` [R * N * S] the sums of up * context.
    """
    tokens, _, heads, size = qkv.shape
    results = [
        jax.ShapeDtypeStruct(qkv.shape, qkv.dtype),
        jax.ShapeDtypeStruct((tokens // BLOCK, 3, heads, size), jnp.float32),
    ]
    grid = (tokens // BLOCK, heads)
    call = pl.pallas_call(
        _backward, results, grid=grid, name="attention_backward", compiler_params=_BACKWARD
    )
    return call(qkv, bias, up, lse, delta, ids, ranges, settings)
