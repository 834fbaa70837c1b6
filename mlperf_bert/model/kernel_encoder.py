"""The encoder whose blocks, except for the last, run by the kernels of kernels/.

They stand in TensorFlow's graph as calls, which XLA for NVIDIA's GPUs compiles.
Shapes: as in kernels/attention.py and kernels/norm.py.
"""

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from mlperf_bert.model import kernel_call, tf_models
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.encoder import BlockSeeds, Encoder, Seeds, twice
from mlperf_bert.model.kernels import BLOCK, INNER, ROWS, STEPS

_Pair = tuple[tf.Tensor, tf.Tensor]


class KernelEncoder(Encoder):
    """`Encoder` in bfloat16; rows have a multiple of BLOCK tokens, at most 2^31 / 3 / H in all.

    Attention to and from padding is 0: nobody reads what `Encoder` computes there.
    """

    def __init__(self, model, config: BertConfig, **rest):
        super().__init__(model, config, **rest)
        self.without_kernels = Encoder(model, config, **rest)
        """What any device computes."""

    def _all_but_last(self, blocks, hidden, query_ids, key_ids, seeds: Seeds) -> _Pair:
        shape = hidden.shape
        most = (2**31 - 1) // (3 * shape[1] * shape[2])
        if shape[0] > most:
            raise ValueError(
                f"--kernels=triton: the step has {shape[0]:,} rows of {shape[1]} tokens a device, "
                f"and the kernels have addresses for {most:,}; lower --train_batch_size and raise "
                "--steps_per_update, or give --kernels=xla"
            )
        ids = tf.ensure_shape(key_ids, shape[:2])
        # Computed once: all blocks need the same ranges.
        masks = (ids, _ranges(ids))
        pair = twice(tf.reshape(hidden, [-1, shape[2]]))
        for block in blocks:
            pair = self._run(self._by_kernels, block, seeds, *pair, *masks)
        one, other = pair
        return tf.reshape(one, shape), tf.reshape(other, shape)

    def _by_kernels(
        self, block: tf_models.Block, seeds: BlockSeeds, hidden, residual, ids, ranges
    ) -> _Pair:
        """A block: hidden [T, H], given twice (for products, for sums) -> the same twice."""
        size, seq = hidden.shape[1], ids.shape[1]
        dense = (block.query, block.key, block.value)
        # One product for all three, and its gradient: they read and write `hidden` once.
        kernel = tf.concat([self._matrix(each, size) for each in dense], axis=1)
        bias = tf.stack([tf.convert_to_tensor(each.bias) for each in dense])
        qkv = tf.reshape(tf.matmul(hidden, kernel), [-1, *bias.shape])
        rate = self._config.attention_probs_dropout_prob
        numbers = settings(seeds.attention, rate, seq)
        context = _attention(qkv, bias, ids, ranges, numbers)
        context = tf.reshape(context, hidden.shape)
        hidden, residual = self._add(
            residual, context, block.attention_output, block.attention_norm, seeds.attended, seq
        )
        inner = self._project(hidden, block.intermediate, self._passes.activate)
        return self._add(residual, inner, block.output, block.output_norm, seeds.output, seq)

    def _add(self, residual, inputs, dense, norm, seed, seq: int) -> _Pair:
        """LN(residual + drop(dense(inputs)))."""
        update = tf.matmul(inputs, self._matrix(dense, inputs.shape[1]))
        vectors = (dense.bias, norm.gamma, norm.beta)
        bias, gamma, beta = (tf.convert_to_tensor(each) for each in vectors)
        numbers = settings(seed, self._config.hidden_dropout_prob, seq)
        return _add_and_normalise(residual, update, bias, gamma, beta, numbers)


def settings(seed: tf.Tensor | None, rate: float, seq: int) -> tf.Tensor:
    """A kernel's settings, int32 [5]: seeds, threshold and factor of dropout, blocks of a row.

    They are operands and not constants, so that one kernel serves all rates and lengths. Without a
    seed nothing is dropped.
    """
    if seed is None:
        seed, rate = tf.zeros([2], tf.int32), 0.0
    return tf.concat([seed, [*kernel_call.dropout(rate), seq // BLOCK]], 0)


def _ranges(ids: tf.Tensor) -> tf.Tensor:
    """The parts of a row that each block needs, first and last + 1: [R * S / BLOCK, 2].

    A block needs all from the first to the last part with one of its ids [R, S]; 0 is padding.
    Queries and keys have the same ids, so that a block of either needs the same parts.
    """
    seq = ids.shape[1]
    same = tf.equal(ids[:, :, None], ids[:, None, :]) & (ids > 0)[:, None, :]
    blocks = [-1, seq // BLOCK, BLOCK, seq // INNER, INNER]
    is_needed = tf.reduce_any(tf.reshape(same, blocks), [2, 4])
    number = tf.range(seq // INNER)
    first = tf.reduce_min(tf.where(is_needed, number, seq // INNER), 2)
    last = tf.reduce_max(tf.where(is_needed, number + 1, 0), 2)
    return tf.reshape(tf.stack([first, last], 2), [-1, 2])


def _attention(qkv, bias, ids, ranges, settings) -> tf.Tensor:
    """The context [T, N, D]: drop(softmax(q k')) v, with qkv and bias of q, k and v."""
    tokens, _, heads, size = qkv.shape
    rows, seq = ids.shape
    ids = tf.reshape(ids, [-1])
    grid = (tokens // BLOCK, heads)

    @tf.custom_gradient
    def attend(qkv, bias):
        results = [((tokens, heads, size), qkv.dtype), ((tokens * heads,), tf.float32)]
        operands = (qkv, bias, ids, ranges, settings)
        context, lse = _call("attention_forward", grid, operands, results)

        def backward(up):
            product = tf.cast(up, tf.float32) * tf.cast(context, tf.float32)
            sums = tf.reshape(tf.reduce_sum(product, 2), [rows, seq, heads])
            delta = tf.reshape(tf.transpose(sums, [0, 2, 1]), [-1])
            of_blocks = (tokens // BLOCK, 3, heads, size)
            results = [(qkv.shape, qkv.dtype), (of_blocks, tf.float32)]
            operands = (qkv, bias, up, lse, delta, ids, ranges, settings)
            of_qkv, of_bias = _call("attention_backward", grid, operands, results)
            return of_qkv, tf.reduce_sum(of_bias, 0)

        return context, backward

    return attend(qkv, bias)


def _add_and_normalise(hidden, update, bias, gamma, beta, settings) -> tuple[tf.Tensor, tf.Tensor]:
    """LN(hidden + drop(update + bias)), [T, H], twice: for the next product and the next sum."""
    tokens, width = shape = hidden.shape
    of_token = ((tokens,), tf.float32)

    @tf.custom_gradient
    def normalise(hidden, update, bias, gamma, beta):
        operands = (hidden, update, bias, gamma, beta, settings)
        results = [(shape, hidden.dtype), of_token, of_token]
        y, mean, scale = _call("norm_forward", (tokens // ROWS,), operands, results)

        def backward(one, other):
            programs = tokens // ROWS // STEPS
            results = [(shape, hidden.dtype)] * 2 + [((programs, width), tf.float32)] * 3
            operands = (hidden, update, bias, gamma, settings, mean, scale, one, other)
            of_hidden, of_update, *sums = _call("norm_backward", (programs,), operands, results)
            of_gamma, of_beta, of_bias = (tf.reduce_sum(each, 0) for each in sums)
            return of_hidden, of_update, of_bias, of_gamma, of_beta

        return (y, tf.identity(y)), backward

    return normalise(hidden, update, bias, gamma, beta)


def _call(name: str, grid: tuple[int, ...], operands, results) -> list[tf.Tensor]:
    """Calls a kernel; `results` are pairs of shape and type."""
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in results]
    config = kernel_call.config(name, (*grid, 1, 1)[:3])
    return xla.custom_call_v2(kernel_call.TARGET, operands, specs, backend_config=config)
