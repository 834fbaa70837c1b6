"""Every equation of the model alone, against numpy in float64: a failure names the equation.

Shapes: R=rows, N=heads, Q=queries, S=sequence, D=size of a head, H=hidden, P=predictions,
V=vocabulary.
"""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.model import fusion, metrics, pretrainer, tf_models
from mlperf_bert.model.pretrainer import ACTIVATIONS, tanh_gelu
from tests.training.configurations import TINY

CONFIG = dataclasses.replace(
    TINY,
    vocab_size=50,
    hidden_size=12,
    num_attention_heads=3,
    intermediate_size=20,
    initializer_range=0.5,
)
HEAD_SIZE = 4
WAYS = ["plain", "each", "one"]  # nothing is compiled; each pass; all of them as one program


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def float32(*values):
    return [tf.constant(value, tf.float32) for value in values]


def gradients_of(function, inputs, upstream):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = function(*inputs)
    return outputs, tape.gradient(outputs, inputs, tf.cast(upstream, tf.float32))


def passes_of(way, activation=tanh_gelu):
    return fusion.Passes(
        activation, compiled=way != "plain", sums_of_vectors=way == "vectors", barriers=way == "one"
    )


def compute(way):
    """`gradients_of`; what is to be part of one program is compiled as one."""
    if way == "one":
        return tf.function(gradients_of, jit_compile=True, autograph=False)
    return gradients_of


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def softmax(values):
    shifted = np.exp(values - values.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def norm(total, gamma, beta):
    centred = total - total.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12) * gamma + beta


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def numerical_slope(function, x):
    return (function(x + 1e-6) - function(x - 1e-6)) / 2e-6


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("length, rate", [(5, 0.0), (256, 0.5)])
def test_attention_over_the_allowed_keys_and_its_gradients(way, length, rate):
    """p = softmax(q k') where the ids agree, d = m p, c = d v, with m = 0 or 1 / (1 - rate).

    dv = d' u; ds = p * (m * u v' - sum(m * u v' * p)); dq = ds k; dk = ds' q. A query without any
    allowed key attends to all alike.
    """
    passes = passes_of(way)
    query, key, value = (draw(2, 3, size, HEAD_SIZE, seed=size) for size in (4, length, length + 1))
    value, upstream = value[:, :, :length], draw(2, 3, 4, HEAD_SIZE, seed=1)
    query_ids = np.array([[1, 1, 2, 2], [1, 2, 9, 1]], np.int32)
    key_ids = np.resize(np.array([1, 2, 3, 1, 2], np.int32), (2, length))
    allowed = query_ids[:, None, :, None] == key_ids[:, None, None]
    seed, rates = tf.constant([3, 4]) if rate else None, tf.constant(rate, tf.float32)
    found, slopes = compute(way)(
        lambda *given: passes.attention(
            *given, *map(tf.constant, (query_ids, key_ids)), seed, rates
        ),
        float32(query, key, value),
        upstream,
    )
    scores = query @ key.transpose(0, 1, 3, 2)
    p = softmax(np.where(allowed, scores, np.where(allowed.any(-1, keepdims=True), -np.inf, 0.0)))
    m = passes.dropout(tf.ones(p.shape), seed, rates).numpy().astype(float) if rate else 1.0
    close(found, (m * p) @ value)
    of_p = m * (upstream @ value.transpose(0, 1, 3, 2))
    of_s = p * (of_p - (of_p * p).sum(axis=-1, keepdims=True))
    close(slopes[0], of_s @ key)
    close(slopes[1], of_s.transpose(0, 1, 3, 2) @ query)
    close(slopes[2], (m * p).transpose(0, 1, 3, 2) @ upstream)


@pytest.mark.parametrize("way", [*WAYS, "vectors"])  # each pass, with sums of vectors
@pytest.mark.parametrize("shape", [(3, 4, 12), (3, 8, 256)])
def test_the_norm_of_a_sum_and_its_gradients(way, shape):
    """x = (h + u - mean) / std, y = x * gamma + beta, dh = du."""
    passes = passes_of(way)
    hidden, update = draw(*shape), draw(*shape, seed=1)
    gamma, beta = draw(shape[-1]), draw(shape[-1], seed=1)
    upstream = draw(*shape, seed=2)
    found, slopes = compute(way)(
        lambda *given: passes.add_and_normalise(*given),
        float32(hidden, update, gamma, beta),
        upstream,
    )
    total = hidden + update
    close(found, norm(total, gamma, beta))
    x, std = norm(total, 1, 0), np.sqrt(total.var(axis=-1, keepdims=True) + 1e-12)
    up = upstream * gamma
    of_sum = (
        up - up.mean(axis=-1, keepdims=True) - x * (up * x).mean(axis=-1, keepdims=True)
    ) / std
    for slope, expected in zip(
        slopes, [of_sum, of_sum, (upstream * x).sum(axis=(0, 1)), upstream.sum(axis=(0, 1))]
    ):
        close(slope, expected)


@pytest.mark.parametrize("way", [*WAYS, "vectors"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("shape", [(-1, 512, 20), (-1, 20)])
def test_a_bias_and_its_gradient_of_many_rows(way, dtype, shape):
    """y = x + b, rounded once; db = the sum of u over all rows, in float32 whatever x has."""
    passes = passes_of(way)
    x, bias = draw(4096, 20), draw(20)
    # All of one sign: a sum in bfloat16 would stand still at 256 times what is added.
    upstream = tf.cast(draw(4096, 20, seed=1) + 0.5, dtype)

    def added(x, bias):
        return tf.cast(passes.add_bias(tf.cast(x, dtype), bias, list(shape)), tf.float32)

    found, slopes = compute(way)(added, float32(x, bias), tf.reshape(upstream, shape))
    assert found.shape == ((8, 512, 20) if len(shape) == 3 else (4096, 20))
    exact = tf.cast(tf.cast(x, dtype) + tf.cast(bias, dtype), tf.float32)
    np.testing.assert_array_equal(tf.reshape(found, [-1, 20]), exact)
    close(slopes[1], tf.cast(upstream, tf.float64).numpy().sum(axis=0))
    if dtype == tf.float32 and way != "one":  # TensorFlow's own sum, as ever
        kept = tf.raw_ops.BiasAddGrad(out_backprop=upstream)
        np.testing.assert_array_equal(slopes[1], kept)


FORMULAS = {
    "gelu": gelu,
    "gelu_exact": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "linear": lambda x: x,
}


@pytest.mark.parametrize("way", [*WAYS, "vectors"])
@pytest.mark.parametrize(
    "name, dtype", [*((name, tf.float32) for name in ACTIVATIONS), ("gelu", tf.bfloat16)]
)
def test_activations_and_their_slopes(name, dtype, way):
    x, upstream = draw(7, 9), draw(7, 9, seed=1)
    passes = passes_of(way, ACTIVATIONS[name])
    bias = draw(9, seed=2)

    def activated(product, bias):
        result = passes.activate(tf.cast(product, dtype), bias, [-1, 9])
        return tf.cast(result, tf.float32)

    found, [slope, of_bias] = compute(way)(activated, float32(x, bias), upstream)
    expected = upstream * numerical_slope(FORMULAS[name], x + bias)
    pairs = [(found, FORMULAS[name](x + bias)), (slope, expected), (of_bias, expected.sum(0))]
    for one, other in pairs:
        if dtype == tf.float32:
            close(one, other)
        else:
            assert np.linalg.norm(one - other) < 0.01 * np.linalg.norm(other)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keeps_its_share_scales_it_and_has_the_same_bits_backwards(rate, compiled):
    """y = x / (1 - rate) where the bit is kept, else 0; dx = u / (1 - rate) at the same places."""
    passes = fusion.Passes(tanh_gelu, compiled=compiled)
    # So far from 0 that no element is 0 by itself.
    x, upstream = draw(3, 200, 512) + 9, draw(3, 200, 512, seed=1) + 9

    def dropped(seed):
        return lambda v: passes.dropout(v, tf.constant(seed), tf.constant(rate, tf.float32))

    found, [slope] = gradients_of(dropped([3, 4]), float32(x), upstream)
    kept = found.numpy() != 0
    close(found, x / (1 - rate) * kept)
    close(slope, upstream / (1 - rate) * kept)
    # Of independent bits: of all, of each of 512 columns and of each of 600 rows.
    for axes, num_deviations in ((None, 4), ((0, 1), 5), (2, 5)):
        share = kept.mean(axis=axes)
        bound = num_deviations * math.sqrt(rate * (1 - rate) * share.size / x.size)
        assert np.abs(share - (1 - rate)).max() < bound
    # Both halves of the seed count, and make bits of their own; so do neighbours.
    others = [dropped(seed)(*float32(x)).numpy() != 0 for seed in ([4, 4], [3, 5])]
    flat, both = kept.reshape(-1, 512), (1 - rate) ** 2
    pairs = [*((kept, other) for other in others), (flat[1:], flat[:-1])]
    for one, other in [*pairs, (flat[:, 1:], flat[:, :-1])]:
        bound = 4 * math.sqrt(both * (1 - both) / one.size)
        assert abs((one & other).mean() - both) < bound


def test_the_worked_example_of_dropout_in_the_documentation():
    """The bits are the same on every machine."""
    seed = tf.constant([1, 2])
    assert [[f"{bits:08x}" for bits in row] for row in fusion._hash(2, 3, seed).numpy()] == [
        ["04053759", "86321b24", "2dd9618c"],
        ["3faf6b5f", "75223664", "573e545b"],
    ]
    for compiled in (False, True):
        passes = fusion.Passes(tanh_gelu, compiled=compiled)
        result = passes.dropout(tf.ones([2, 3]), seed, tf.constant(0.5))
        np.testing.assert_array_equal(result, [[0, 2, 0], [0, 0, 0]])


@pytest.fixture(scope="module")
def encoder():
    """Computes with the weights of tf-models, without a compiler."""
    model = pretrainer.build_pretrainer(CONFIG, seed=3, recompute="attention")
    for (
        variable
    ) in model.trainable_variables:  # biases and gammas too, or a lost one would not show
        variable.assign(draw(*variable.shape, seed=5).astype(np.float32) / 2)
    return model.fused


def numbers(weights):
    return tf.nest.map_structure(lambda weight: weight.numpy().astype(float), weights)


def project(inputs, dense):
    return inputs @ dense.kernel.reshape(inputs.shape[-1], -1) + dense.bias.reshape(-1)


def test_a_dense_layer_is_a_product_and_a_bias(encoder):
    dense, inputs = encoder._layers.blocks[0].intermediate, draw(2, 5, 12)
    close(encoder._project(*float32(inputs), dense), project(inputs, numbers(dense)))


def test_embeddings_are_words_positions_and_types_normalised(encoder):
    rng = np.random.default_rng(0)
    ids, types = rng.integers(0, 50, (2, 6)), rng.integers(0, 2, (2, 6))
    features = {"input_ids": tf.constant(ids), "segment_ids": tf.constant(types)}
    layers = encoder._layers
    words, positions, kinds = map(numbers, (layers.words, layers.positions, layers.types))
    total = words[ids] + positions[:6] + kinds[types]
    expected = norm(total, *map(numbers, (layers.embedding_norm.gamma, layers.embedding_norm.beta)))
    seeds = type("None drawn", (), {"draw": lambda self, rate: None})()
    close(encoder._embed(features, seeds), expected)
    packed = features | {"position_ids": tf.constant([[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 0, 1]])}
    total = words[ids] + positions[packed["position_ids"].numpy()] + kinds[types]
    expected = norm(total, *map(numbers, (layers.embedding_norm.gamma, layers.embedding_norm.beta)))
    close(encoder._embed(packed, seeds), expected)


def test_attention_is_the_mean_of_values_weighted_by_scaled_products(encoder):
    """softmax(Q K' / sqrt(D)) V, the heads next to each other."""
    query, key, value = (draw(2, 3, length, HEAD_SIZE, seed=length) for length in (4, 6, 6))
    value = value[::-1]
    ids = np.ones((2, 1), np.int32), np.array([[1] * 6, [1, 1, 1, 1, 0, 0]], np.int32)
    found = encoder._attend(*float32(query, key, value), *map(tf.constant, ids), None)
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(HEAD_SIZE)
    weights = softmax(np.where(ids[1][:, None, None] == 1, scores, -np.inf))
    close(found, (weights @ value).transpose(0, 2, 1, 3).reshape(2, 4, 12))


def test_a_block_is_attention_and_two_layers_each_added_and_normalised(encoder):
    block = encoder._layers.blocks[1]
    w, hidden = numbers(block), draw(2, 6, 12)
    mask = np.array([[1] * 6, [1, 1, 1, 1, 0, 0]], np.int32)
    ids = tf.ones([2, 1], tf.int32), tf.constant(mask)
    weights = tf.nest.map_structure(tf.convert_to_tensor, block)
    nothing = type("Seeds", (), {"attention": None, "attended": None, "output": None})()
    found = encoder._block(weights, nothing, *float32(hidden, hidden), *ids)

    def heads(values):
        return values.reshape(2, 6, 3, HEAD_SIZE).transpose(0, 2, 1, 3)

    query, key, value = (heads(project(hidden, dense)) for dense in (w.query, w.key, w.value))
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(HEAD_SIZE)
    shares = softmax(np.where(mask[:, None, None] == 1, scores, -np.inf))
    context = (shares @ value).transpose(0, 2, 1, 3).reshape(2, 6, 12)
    attended = norm(hidden + project(context, w.attention_output), *w.attention_norm)
    inner = gelu(project(attended, w.intermediate))
    expected = norm(attended + project(inner, w.output), *w.output_norm)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_heads_share_the_table_of_words_and_pool_the_first_token(encoder):
    head, hidden = encoder._masked_lm_head, draw(2, 4, 12)
    layer = gelu(project(hidden, numbers(tf_models.Dense(head.dense.kernel, head.dense.bias))))
    normalised = norm(layer, numbers(head.layer_norm.gamma), numbers(head.layer_norm.beta))
    logits = normalised @ numbers(encoder._layers.words).T + numbers(head.bias)
    np.testing.assert_allclose(encoder._masked_lm(*float32(hidden)), logits, rtol=1e-4, atol=1e-5)
    head = encoder._next_sentence_head
    pooled = np.tanh(
        project(
            hidden.reshape(-1, 12), numbers(tf_models.Dense(head.dense.kernel, head.dense.bias))
        )
    )
    close(
        encoder._next_sentence(*float32(hidden)),
        project(pooled, numbers(tf_models.Dense(head.out_proj.kernel, head.out_proj.bias))),
    )


def test_losses_are_cross_entropies_in_nats():
    logits, labels = draw(2, 3, 7), np.array([[0, 6, 3], [1, 1, 2]])
    expected = -np.log(np.take_along_axis(softmax(logits), labels[..., None], axis=-1))[..., 0]
    close(metrics.masked_lm_losses(*float32(logits), tf.constant(labels)), expected)
    two = draw(4, 2)
    expected = -np.log(softmax(two)[np.arange(4), [0, 1, 1, 0]])
    close(metrics.next_sentence_losses(*float32(two), tf.constant([[0], [1], [1], [0]])), expected)
