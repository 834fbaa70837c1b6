"""The forward pass of BERT over the weights of a tf-models model, in one of three precisions.

The arithmetic is that of tf-models' layers; what differs is the work around the matrix products:
element-wise passes are fused, dropout's bits come from a hash (fusion.py), and several examples may
share a row (mlperf_bert/input/packing.py). The end of this file serves --recompute.
Shapes: R=rows (= batch where rows are not shared), S=sequence, H=hidden, N=heads, D=head size,
P=predictions of a row, E=examples of a row, Q=query positions, V=vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from official.nlp.modeling import layers, models

from mlperf_bert.model import fusion, tf_models
from mlperf_bert.model.config import (
    RECOMPUTE_ATTENTION,
    RECOMPUTE_BLOCKS,
    BertConfig,
)


class Encoder:
    """Embeddings, blocks and heads as functions of the batch; holds references to the weights."""

    def __init__(
        self,
        model: models.BertPretrainerV2,
        config: BertConfig,
        *,
        passes: fusion.Passes,
        compute_dtype: tf.DType,
        recompute: str,
    ):
        """Takes the weights of `model`; matrix products run in `compute_dtype`.

        `passes` are those between the products; `recompute` is one of `config.RECOMPUTE_CHOICES`.
        """
        self._layers = tf_models.encoder_layers(model)
        self._masked_lm_head: layers.MaskedLM = model.masked_lm
        self._next_sentence_head = model.classification_heads[0]
        self._config = config
        self._passes = passes
        self._dtype = compute_dtype
        self._recompute = recompute

    def __call__(
        self, features: dict[str, tf.Tensor], *, dropout_seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs the model.

        Args:
          features: a batch of `pipeline` or of `packing`, which adds `position_ids` [R, S],
            `block_ids` [R, S] and `cls_positions` [R, E].
          dropout_seed: int32 [2], or None for no dropout.

        Returns: masked-LM logits [R, P, V] and next-sentence logits [R * E, 2], float32.
        """
        seeds = Seeds(dropout_seed)
        hidden = self._embed(features, seeds)
        query_ids, key_ids = _mask_ids(features)
        # Each dropout has a seed, drawn in the order of the layers: recomputation and compilation
        # do not change the bits.
        *blocks, last = self._layers.blocks
        queries, hidden = self._all_but_last(blocks, hidden, query_ids, key_ids, seeds)
        # The heads read few positions; the last block computes only these.
        predictions = features["masked_lm_positions"]
        # One gather for both heads: masked positions first, then the first token of each example.
        positions = tf.concat([predictions, _first_tokens(features)], axis=1)
        queries = tf.gather(queries, positions, batch_dims=1)
        # If rows are not packed, all queries have the same id, and the axis of ids is 1 wide.
        if query_ids.shape[1] != 1:
            query_ids = tf.gather(query_ids, positions, batch_dims=1)
        hidden = self._run(self._block, last, seeds, queries, hidden, query_ids, key_ids)
        token_logits = self._masked_lm(hidden[:, : predictions.shape[1]])
        return token_logits, self._next_sentence(hidden[:, predictions.shape[1] :])

    def _embed(self, features: dict[str, tf.Tensor], seeds: "Seeds") -> tf.Tensor:
        words = tf.gather(self._layers.words, features["input_ids"])
        if "position_ids" in features:
            positions = tf.gather(self._layers.positions, features["position_ids"])
        else:
            positions = _for_each_row(self._layers.positions[: words.shape[1]], words)
        # A product, not a gather: the gradient of a gather from two rows adds up S * R terms one
        # after the other.
        one_hot = tf.one_hot(features["segment_ids"], self._config.type_vocab_size)
        types = tf.einsum("rst,th->rsh", one_hot, self._layers.types)
        # The tables are float32, and so is their sum; only what comes out is rounded.
        embedded = self._normalise(words + positions, types, self._layers.embedding_norm)
        rate = self._config.hidden_dropout_prob
        return self._drop(tf.cast(embedded, self._dtype), rate, seeds.draw(rate))

    def _all_but_last(
        self, blocks: Sequence[tf_models.Block], hidden, query_ids, key_ids, seeds: "Seeds"
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The last block's inputs, [R, S, H] twice: for its queries, and for keys and values."""
        for block in blocks:
            hidden = self._run(self._block, block, seeds, hidden, hidden, query_ids, key_ids)
        return hidden, hidden

    def _run(self, compute: Callable, block: tf_models.Block, seeds: "Seeds", *inputs) -> Any:
        """Computes a block; if blocks are recomputed, only its inputs are kept."""
        config, weights = self._config, tf.nest.map_structure(tf.convert_to_tensor, block)
        # Drawn outside the recomputed part, which would draw the next seeds the second time.
        drawn = BlockSeeds(
            attention=seeds.draw(config.attention_probs_dropout_prob),
            attended=seeds.draw(config.hidden_dropout_prob),
            output=seeds.draw(config.hidden_dropout_prob),
        )
        if self._recompute == RECOMPUTE_BLOCKS:
            return recomputed(compute, weights, drawn, *inputs)
        return compute(weights, drawn, *inputs)

    def _block(
        self, block: tf_models.Block, seeds: "BlockSeeds", queries, hidden, query_ids, key_ids
    ) -> tf.Tensor:
        """Queries [R, Q, H] attend to [R, S, H] -> [R, Q, H]."""
        # a = LN(x + drop(W attention(x))); y = LN(a + drop(W2 act(W1 a))): each sum is normalised.
        rate = self._config.hidden_dropout_prob
        queries, for_query = twice(queries)
        for_key, for_value = twice(hidden)
        query = self._split_heads(for_query, block.query)
        key = self._split_heads(for_key, block.key)
        value = self._split_heads(for_value, block.value)
        inputs = (query, key, value, query_ids, key_ids, seeds.attention)
        if self._recompute == RECOMPUTE_ATTENTION:
            context = recomputed(self._attend, *inputs)
        else:
            context = self._attend(*inputs)
        projected = self._project(context, block.attention_output)
        attended = self._drop(projected, rate, seeds.attended)
        hidden = self._normalise(queries, attended, block.attention_norm)
        inner = self._project(hidden, block.intermediate, self._passes.activate)
        output = self._drop(self._project(inner, block.output), rate, seeds.output)
        return self._normalise(hidden, output, block.output_norm)

    def _attend(self, query, key, value, query_ids, key_ids, seed: tf.Tensor | None) -> tf.Tensor:
        """Query [R, N, Q, D], key and value [R, N, S, D] -> [R, Q, H]."""
        # drop(softmax(Q K' / sqrt(D))) V.
        # The query is scaled, [R, N, Q, D], not the scores, [R, N, Q, S]: fewer elements, and what
        # tf-models does, bit by bit.
        scaled = query * self._config.head_size**-0.5
        rate = tf.constant(self._config.attention_probs_dropout_prob, tf.float32)
        context = self._passes.attention(scaled, key, value, query_ids, key_ids, seed, rate)
        context = tf.transpose(context, [0, 2, 1, 3])
        return tf.reshape(context, [-1, query.shape[2], self._config.hidden_size])

    def _drop(self, inputs: tf.Tensor, rate: float, seed: tf.Tensor | None) -> tf.Tensor:
        """Drops elements at `rate` and scales up the others; without a seed it does nothing."""
        if seed is None:
            return inputs
        return self._passes.dropout(inputs, seed, tf.constant(rate, tf.float32))

    def _split_heads(self, hidden: tf.Tensor, dense) -> tf.Tensor:
        heads, size = self._config.num_attention_heads, self._config.head_size
        projected = self._project(hidden, dense)
        return tf.transpose(
            tf.reshape(projected, [-1, projected.shape[1], heads, size]), [0, 2, 1, 3]
        )

    def _project(self, inputs: tf.Tensor, dense, add_bias: Callable | None = None) -> tf.Tensor:
        """A dense layer over the last axis; attention's kernels have two axes: heads and head size.

        `add_bias` is the passes' `add_bias` or their `activate`.
        """
        size = inputs.shape[-1]
        kernel = self._matrix(dense, size)
        product = tf.matmul(tf.reshape(inputs, [-1, size]), kernel)
        shape = [-1, *inputs.shape[1:-1], kernel.shape[1]]
        return (add_bias or self._passes.add_bias)(product, tf.reshape(dense.bias, [-1]), shape)

    def _matrix(self, dense, size: int) -> tf.Tensor:
        """The kernel of a dense layer as a matrix [size, H], for inputs of this size."""
        return tf.cast(tf.reshape(dense.kernel, [size, -1]), self._dtype)

    def _normalise(self, hidden: tf.Tensor, update: tf.Tensor, norm) -> tf.Tensor:
        """LayerNorm of the sum, in the type of `hidden`."""
        gamma, beta = tf.convert_to_tensor(norm.gamma), tf.convert_to_tensor(norm.beta)
        return self._passes.add_and_normalise(hidden, update, gamma, beta)

    def _masked_lm(self, hidden: tf.Tensor) -> tf.Tensor:
        """[R, P, H] -> [R, P, V]."""
        head = self._masked_lm_head
        transformed = self._project(hidden, head.dense, self._passes.activate)
        # The same pass as in the blocks; nothing is added.
        zeros = tf.zeros_like(transformed)
        normalised = self._normalise(transformed, zeros, head.layer_norm)
        # The table of words is also the matrix of the output.
        table = tf.cast(self._layers.words, self._dtype)
        flat = tf.reshape(normalised, [-1, self._config.hidden_size])
        # The bias is added in float32, the type of the losses.
        logits = tf.cast(tf.matmul(flat, table, transpose_b=True), tf.float32) + head.bias
        return tf.reshape(logits, [-1, hidden.shape[1], self._config.vocab_size])

    def _next_sentence(self, hidden: tf.Tensor) -> tf.Tensor:
        """[R, E, H] -> [R * E, 2]."""
        head = self._next_sentence_head
        first = tf.reshape(hidden, [-1, self._config.hidden_size])
        pooled = tf.tanh(self._project(first, head.dense))
        return tf.cast(self._project(pooled, head.out_proj), tf.float32)


@tf.custom_gradient
def twice(hidden: tf.Tensor):
    """The same tensor for two uses, whose gradients are added in float32.

    A sum of more terms in bfloat16 would depend on their order, which recomputation changes.
    """

    def backward(one, other):
        total = tf.cast(one, tf.float32) + tf.cast(other, tf.float32)
        return tf.cast(total, hidden.dtype)

    return (tf.identity(hidden), tf.identity(hidden)), backward


def _for_each_row(table: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """[S, H] -> [R, S, H], as many rows as `rows` has.

    A broadcast would do, but its gradient is a sum over the first of three axes. XLA has the axis
    of a sum last in memory, on a GPU, and then stores all of a block's arrays like that.
    """
    flat = tf.tile(tf.reshape(table, [1, -1]), [tf.shape(rows)[0], 1])
    return tf.reshape(flat, [-1, *table.shape])


def _first_tokens(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """The position of the first token of each example of a row, [R, E]."""
    if "cls_positions" in features:
        return features["cls_positions"]
    return tf.zeros_like(features["masked_lm_positions"][:, :1])


def _mask_ids(features: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Ids [R, 1 or S] of queries and [R, S] of keys: a query attends to keys with the same id."""
    if "block_ids" in features:
        return features["block_ids"], features["block_ids"]
    mask = features["input_mask"]
    return tf.ones_like(mask[:, :1]), mask


class BlockSeeds(NamedTuple):
    """The seeds of a block's dropouts, int32 [2]; None where nothing is dropped."""

    attention: tf.Tensor | None
    attended: tf.Tensor | None
    output: tf.Tensor | None


class Seeds:
    """Seeds of dropout, each from the step's seed and the number of seeds drawn before."""

    def __init__(self, seed: tf.Tensor | None):
        """Takes int32 [2], or None for no dropout at all."""
        self._seed = seed
        self._num_drawn = 0

    def draw(self, rate: float) -> tf.Tensor | None:
        """The next seed, int32 [2]; None if nothing is dropped."""
        if self._seed is None or not rate:
            return None
        self._num_drawn += 1
        # Neighbouring seeds are as good as distant ones: fusion._hash mixes all bits.
        return self._seed + tf.constant([self._num_drawn, 0])


def recomputed(function: Callable, *inputs) -> Any:
    """`function(*inputs)`; only the inputs are kept for the backward pass, which computes it again.

    It returns one tensor or several. Inputs are nested tensors, or None; variables are given as
    tensors. The function may depend on nothing else: what bypassed `_after`, such as the bits of
    dropout made from the seed alone, would be kept.
    """
    # A custom gradient takes no None: these inputs are left out, and put back for the function.
    leaves = tf.nest.flatten(inputs)

    def of_tensors(tensors):
        remaining = iter(tensors)
        all_leaves = [None if leaf is None else next(remaining) for leaf in leaves]
        return function(*tf.nest.pack_sequence_as(inputs, all_leaves))

    @tf.custom_gradient
    def call(*tensors):
        def backward(*upstream):
            again = _after(upstream[0], tensors)
            floating = [tensor for tensor in again if tensor.dtype.is_floating]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(floating)
                outputs = of_tensors(again)
            gradients = iter(tape.gradient(tf.nest.flatten(outputs), floating, list(upstream)))
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
