"""The element-wise passes between the matrix products, each compiled into one loop by XLA.

On a CPU matrix products are fastest outside XLA (oneDNN, AMX) and element-wise chains inside it.
The gradient of a pass computes the pass again from its inputs, so that nothing else is kept in
memory. Statistics and exponentials are float32, whatever the type of the inputs; results have the
type of the inputs.

Dropout stores no mask either: its bits are a hash of the step's seed and the element's position. A
worked example, ones [2, 3] at rate 0.5 with seed [1, 2], bits in hexadecimal:

    _hash          04053759 86321b24 2dd9618c    32 bits per element
                   3faf6b5f 75223664 573e545b
    upper 31 bits  02029bac 43190d92 16ecb0c6    an element is kept where they are at least
                   1fd7b5af 3a911b32 2b9f2a2d    0.5 * 2**31 = 40000000
    result         0 2 0                         and divided by 1 - 0.5
                   0 0 0

Shapes: R=rows, N=heads, Q=queries, S=sequence, D=size of a head.
"""

import functools
import math
import operator
from collections.abc import Callable

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

# Source: Devlin et al.'s code, which tf-models keeps: masked scores and LayerNorm's epsilon.
_MASKED_SCORE = -1e9
_EPSILON = 1e-12


class Passes:
    """The passes of one model, compiled or not."""

    def __init__(
        self,
        activation: Callable[[tf.Tensor], tf.Tensor],
        *,
        compiled: bool,
        sums_of_vectors: bool = False,
        barriers: bool = False,
    ):
        """Compiles nothing yet; `barriers` need XLA around all passes, as one program."""
        self._is_compiled = compiled
        self._barriers = barriers
        # In one program XLA would merge both directions' gelu, and keep its tanh in float32. It may
        # merge LayerNorm's: its sums are small, and cost much the second time.
        self._activation_in_float32 = _in_float32(activation)
        self._activation = self._fused(self._activation_in_float32, again=barriers)
        self.add_and_normalise = self._fused(_add_and_normalise)
        if sums_of_vectors:
            self.add_and_normalise = self._fused(_normalise_by_vectors, _gradient_by_vectors)
        # Compiled alone, the sum reads the rows once and writes no float32 copy of them.
        self._bias_gradient = self._compiled(_sum_of_rows)
        if sums_of_vectors:
            self._bias_gradient = self._compiled(_sum_of_rows_by_vectors)
        self._dropout_pass = self._compiled(_drop_elements)
        self._scores_gradient = self._compiled(_scores_gradient)

    def attention(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        query_ids: tf.Tensor,
        key_ids: tf.Tensor,
        seed: tf.Tensor | None,
        rate: tf.Tensor,
    ) -> tf.Tensor:
        """drop(softmax(query key')) value, for query [R, N, Q, D], key and value [R, N, S, D].

        A query attends to keys with the same id, int32: [R, Q] or [R, 1] of the queries, [R, S] of
        the keys. Dropout as in `dropout`; without a seed nothing is dropped. Returns [R, N, Q, D].
        """
        allowed = tf.equal(
            query_ids[:, tf.newaxis, :, tf.newaxis], key_ids[:, tf.newaxis, tf.newaxis]
        )
        # The mask is added, not selected: a query without any allowed key attends to all keys
        # alike, as in the reference, and no row divides 0 by 0.
        bias = tf.where(allowed, 0.0, _MASKED_SCORE)

        @tf.custom_gradient
        def attend(query, key, value):
            scores = tf.matmul(query, key, transpose_b=True)
            biased = tf.cast(scores, tf.float32) + bias
            # The softmax is left to TensorFlow: as an XLA program it took twice as long on a CPU,
            # and so did one loop with dropout (benchmarks/NOTES.md).
            probabilities = tf.cast(tf.nn.softmax(biased), scores.dtype)
            if self._barriers:
                # XLA for GPUs would compute the softmax, with its sums, a second time for the
                # gradient, which takes longer than reading it.
                probabilities = _behind_barrier(probabilities)
            dropped = probabilities
            if seed is not None:
                dropped = self._dropout_pass(probabilities, seed, rate)
            context = tf.matmul(dropped, value)

            def backward(up):
                of_dropped = tf.matmul(up, value, transpose_b=True)
                of_scores = self._scores_gradient(
                    of_dropped, probabilities, up, context, seed, rate
                )
                return (
                    tf.matmul(of_scores, key),
                    tf.matmul(of_scores, query, transpose_a=True),
                    tf.matmul(dropped, up, transpose_a=True),
                )

            return context, backward

        return attend(query, key, value)

    def add_bias(self, product: tf.Tensor, bias: tf.Tensor, shape: list[int]) -> tf.Tensor:
        """Adds bias [H], float32, to product [R * Q, H]; returns it in `shape`, [-1, Q, H].

        In bfloat16 too the gradient of the bias is a sum in float32.
        """
        # TensorFlow's own gradient adds up in bfloat16: on a CPU all rows, on a GPU the sums of
        # blocks of rows (benchmarks/NOTES.md). In float32 it is kept, bit by bit.
        if product.dtype == tf.float32:
            return tf.reshape(tf.nn.bias_add(product, bias), shape)

        @tf.custom_gradient
        def add(product, bias):
            def backward(up):
                if self._barriers:
                    # XLA for GPUs would write the gradient in float32 too, for the sum alone.
                    up = _behind_barrier(up)
                # Summed in the shape with known sizes: in [R * Q] none is known if rows are packed.
                return up, self._bias_gradient(tf.reshape(up, shape))

            return tf.nn.bias_add(product, tf.cast(bias, product.dtype)), backward

        return tf.reshape(add(product, bias), shape)

    def activate(self, product: tf.Tensor, bias: tf.Tensor, shape: list[int]) -> tf.Tensor:
        """The activation of what `add_bias` returns."""
        if not self._barriers or product.dtype == tf.float32:
            return self._activation(self.add_bias(product, bias, shape))

        # One pass that keeps only the product: XLA would also write the sum.
        @tf.custom_gradient
        def activate(product, bias):
            def biased(product):
                return tf.nn.bias_add(product, tf.cast(bias, product.dtype))

            def backward(up):
                with tf.GradientTape() as tape:
                    inputs = biased(_behind_barrier(product))
                    tape.watch(inputs)
                    outputs = self._activation_in_float32(inputs)
                of_product = _behind_barrier(tape.gradient(outputs, inputs, up))
                return of_product, self._bias_gradient(tf.reshape(of_product, shape))

            return self._activation_in_float32(biased(product)), backward

        return tf.reshape(activate(product, bias), shape)

    def dropout(self, inputs: tf.Tensor, seed: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        """Drops elements at `rate` (float32 scalar); `seed`: int32 [2], another for each call."""

        @tf.custom_gradient
        def drop(values):
            # y = x * m / (1 - rate), so that dy/dx is the same pass with the same bits.
            dropped = self._dropout_pass(values, seed, rate)
            return dropped, lambda up: self._dropout_pass(up, seed, rate)

        return drop(inputs)

    def _compiled(self, function: Callable) -> Callable:
        if not self._is_compiled:
            return function
        return tf.function(function, jit_compile=True, autograph=False)

    def _fused(
        self, function: Callable, gradient: Callable | None = None, *, again: bool = False
    ) -> Callable:
        """The pass with its gradient; with `again` XLA cannot merge the two directions."""
        forward = self._compiled(function)

        @self._compiled
        def backward(inputs, upstream):
            if gradient:
                return gradient(*inputs, upstream)
            # Computed again inside the compiled backward pass: a second time is cheaper than
            # writing what the forward pass saw to memory and reading it back.
            if again:
                inputs = tuple(map(_behind_barrier, inputs))
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = function(*inputs)
            return tape.gradient(outputs, inputs, upstream)

        @tf.custom_gradient
        def call(*inputs):
            return forward(*inputs), lambda upstream: backward(inputs, upstream)

        return call


def _behind_barrier(tensor: tf.Tensor) -> tf.Tensor:
    """The same values, across which XLA merges nothing.

    It neither computes them again where they are used, nor merges a second computation from them
    with the first. Only a program that XLA compiles knows the operation.
    """
    return xla.optimization_barrier(tensor)[0]


def _in_float32(function: Callable) -> Callable:
    return lambda x: tf.cast(function(tf.cast(x, tf.float32)), x.dtype)


def _sum_of_rows(rows) -> tf.Tensor:
    """Sums over all axes but the last, [..., H] -> [H], float32."""
    # reduce_sum takes a CPU twice as long over rows of 3,072; XLA makes a sum of this too.
    return tf.raw_ops.BiasAddGrad(out_backprop=tf.cast(rows, tf.float32))


def _sum_of_rows_by_vectors(rows) -> tf.Tensor:
    return _column_sums(tf.cast(rows, tf.float32))


def _add_and_normalise(hidden, update, gamma, beta) -> tf.Tensor:
    # The sum is not rounded to bfloat16 before its mean and variance are taken.
    total = tf.cast(hidden, tf.float32) + tf.cast(update, tf.float32)
    # y = gamma * (x - mean) / sqrt(variance + epsilon) + beta, with x = hidden + update.
    mean, variance = tf.nn.moments(total, [-1], keepdims=True)
    normalised = tf.nn.batch_normalization(total, mean, variance, beta, gamma, _EPSILON)
    return tf.cast(normalised, hidden.dtype)


def _normalise_by_vectors(hidden, update, gamma, beta) -> tf.Tensor:
    """`_add_and_normalise` with sums of vectors."""
    normalised, _ = _statistics(hidden, update)
    return tf.cast(normalised * gamma + beta, hidden.dtype)


def _gradient_by_vectors(hidden, update, gamma, beta, upstream) -> tuple[tf.Tensor, ...]:
    """The gradients of its four inputs; TensorFlow's own add up rows one after the other."""
    width = upstream.shape[-1]
    x, scale = _statistics(hidden, update)
    up = tf.cast(upstream, tf.float32)
    weighted = up * gamma
    # dx = (w - mean(w) - x * mean(w * x)) / deviation, w = gamma * up; each sum is of H elements.
    centred = weighted - _sums_of_vectors(weighted) / width
    of_total = scale * (centred - x * (_sums_of_vectors(weighted * x) / width))
    of_hidden, of_update = (tf.cast(of_total, each.dtype) for each in (hidden, update))
    return of_hidden, of_update, _column_sums(up * x), _column_sums(up)


def _statistics(hidden, update) -> tuple[tf.Tensor, tf.Tensor]:
    """The sum with mean 0 and variance 1, [..., H], and one over its deviation, [..., 1]."""
    total = tf.cast(hidden, tf.float32) + tf.cast(update, tf.float32)
    width = total.shape[-1]
    centred = total - _sums_of_vectors(total) / width
    scale = tf.math.rsqrt(_sums_of_vectors(centred * centred) / width + _EPSILON)
    return centred * scale, scale


def _scores_gradient(of_dropped, probabilities, upstream, context, seed, rate) -> tf.Tensor:
    """The gradient of attention's scores, from that of the dropped probabilities d, [R, N, Q, S].

    ds = p * (m * dd - sum(m * dd * p)), with m = dropout's mask over 1 - rate. The sum over the
    keys is one over the heads' elements: m * p = d, dd = up value', so it is sum(up * context).
    """
    sums = _row_sums(tf.cast(upstream, tf.float32) * tf.cast(context, tf.float32))
    of_probabilities = tf.cast(of_dropped, tf.float32)
    if seed is not None:
        of_probabilities = _drop_elements(of_probabilities, seed, rate)
    gradient = tf.cast(probabilities, tf.float32) * (of_probabilities - sums)
    return tf.cast(gradient, of_dropped.dtype)


def _row_sums(values: tf.Tensor) -> tf.Tensor:
    """Sums over the last axis, [..., S] -> [..., 1]."""
    return tf.reduce_sum(values, axis=-1, keepdims=True)


def _sums_of_vectors(values: tf.Tensor) -> tf.Tensor:
    """`_row_sums`, of 128 neighbours at a time.

    TensorFlow's XLA adds the elements of a row on a CPU one after the other, but vectors of them
    many at once. Other compilers would copy the parts.
    """
    width = values.shape[-1]
    parts = tf.split(values, width // 128, axis=-1) if width % 128 == 0 else [values]
    return _row_sums(functools.reduce(operator.add, parts))


def _column_sums(values: tf.Tensor) -> tf.Tensor:
    """Sums over all axes but the last, [..., H] -> [H], of eight slices at a time."""
    num_rows = math.prod(size or 1 for size in values.shape[:-1])  # unknown sizes count 1
    slices = tf.reshape(values, [math.gcd(num_rows, 8), -1, values.shape[-1]])
    return tf.reduce_sum(functools.reduce(operator.add, tf.unstack(slices)), axis=0)


def _drop_elements(values: tf.Tensor, seed: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
    """Zeroes elements where 31 bits of the hash are below the rate, scales up the others."""
    width = values.shape[-1]
    # 31 bits are never negative as int32, so that the comparison needs no unsigned type.
    bits = tf.bitwise.right_shift(_hash(tf.size(values) // width, width, seed), _uint32(1))
    threshold = tf.cast(rate * 2.0**31, tf.int32)
    kept = tf.reshape(tf.cast(bits, tf.int32) >= threshold, tf.shape(values))
    # Training divides by 1 - rate, so that evaluation needs no factor.
    scaled = tf.cast(values, tf.float32) / (1.0 - rate)
    return tf.cast(tf.where(kept, scaled, 0.0), values.dtype)


def _hash(num_rows: tf.Tensor, num_columns: int, seed: tf.Tensor) -> tf.Tensor:
    """uint32 [rows, columns], a function of the seed, int32 [2].

    Each row is hashed once, then each element of it: much cheaper than a random generator.
    Source of the mixing constants: Wellons, "Prospecting for hash functions" (triple32).
    """
    first, second = tf.unstack(tf.bitcast(seed, tf.uint32))
    # Both halves of the seed enter: one the rows, one the columns. With one of them alone two
    # calls of a step could drop the same elements.
    rows = tf.cast(tf.range(num_rows), tf.uint32) ^ _mix(
        _mix(first, 17, 0xED5AD4BB), 11, 0xAC4C1B51
    )
    rows = _mix(_mix(rows, 16, 0x7FEB352D), 15, 0x846CA68B)
    # The factor is 2^32 over the golden ratio: neighbouring columns get distant numbers.
    columns = tf.cast(tf.range(num_columns), tf.uint32) * _uint32(0x9E3779B9) + second
    bits = rows[:, tf.newaxis] ^ columns
    bits = _mix(_mix(bits, 17, 0xED5AD4BB), 11, 0x31848BAB)
    return bits ^ tf.bitwise.right_shift(bits, _uint32(14))


def _mix(bits: tf.Tensor, shift: int, factor: int) -> tf.Tensor:
    # Different bits stay different: both steps can be undone, as the factors are odd.
    return (bits ^ tf.bitwise.right_shift(bits, _uint32(shift))) * _uint32(factor)


def _uint32(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint32)
