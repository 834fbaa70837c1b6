"""The kernels for GPUs against their formulas in float64, by Pallas's interpreter on a CPU.

Shapes: R=rows, S=sequence, N=heads, D=size of a head, T=R * S tokens, H=hidden.
The interpreter shows formulas, layouts and bits of dropout; no GPU has run them.
"""

import functools
from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import pallas as pl

from benchmarks import kernels_alone
from mlperf_bert.checkpoints import names
from mlperf_bert.model import fusion, kernel_call, kernel_encoder, kernels, pretrainer
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.kernels import BLOCK, ROWS, STEPS, attention, norm, triton_ir
from tests.model import interpreted
from tests.training import generated_task

ROUNDING = 5e-3
"""A limit for norms of differences: bfloat16 has 8 bits."""
pytestmark = pytest.mark.usefixtures("_in_32_bits")
SEED = [5, -7]
HEADS, SIZE = 2, 16
TOKENS, WIDTH = 128, 64  # of the norm


@pytest.fixture
def _in_32_bits():
    """Numbers have 32 bits, as in the texts for GPUs; the runtime of jax has 64."""
    with jax.enable_x64(False):
        yield


@pytest.fixture
def _interpreted(monkeypatch):
    interpreted.interpret(monkeypatch)


def settings(rate: float, seq: int, seed=SEED):
    return jnp.asarray(kernel_encoder.settings(tf.constant(seed), rate, seq).numpy())


def bfloat16(random, *shape):
    return jnp.asarray(random.standard_normal(shape), jnp.bfloat16)


def float64(array) -> np.ndarray:
    return np.asarray(array, np.float64)


def distance(found, expected) -> float:
    return np.linalg.norm(float64(found) - expected) / np.linalg.norm(expected)


def kept(*shape: int, rate: float, seed=SEED) -> np.ndarray:
    """What dropout multiplies with, by the step without kernels."""
    if not rate:
        return np.ones(shape)
    return float64(fusion._drop_elements(tf.ones(shape), tf.constant(seed), tf.constant(rate)))


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("seed", [(5, -7), (0, 0), (-1, -1), (2**31 - 1, 0), (-(2**31), 123456)])
def test_dropout_drops_what_the_step_without_kernels_drops(rate, seed):
    told = jnp.asarray(kernel_encoder.settings(tf.constant(seed), rate, BLOCK).numpy())
    dropout = attention.Dropout(told)
    rows, columns = dropout.rows(pl.ds(0, 300)), dropout.columns(pl.ds(0, 70))
    ones = tf.ones([300, 70])
    expected = fusion._drop_elements(ones, tf.constant(seed), tf.constant(rate)).numpy()
    np.testing.assert_array_equal(dropout.keeps(rows, columns), expected > 0)
    np.testing.assert_array_equal(dropout.keeps(columns, rows).T, expected > 0)
    assert float(dropout.factor) == expected.max()
    assert (expected > 0).mean() == pytest.approx(1 - rate, abs=0.02)


def ids_of(*lengths: int, padding: int) -> list[int]:
    """Examples one after the other in a row, then padding."""
    return [n + 1 for n, length in enumerate(lengths) for _ in range(length)] + [0] * padding


IDS = {
    "full": [ids_of(256, padding=0)] * 2,
    "padded": [ids_of(70, padding=186), ids_of(256, padding=0)],
    "packed": [ids_of(100, 80, 60, padding=16), ids_of(1, 255, padding=0)],
    "one token, and none": [ids_of(1, padding=255), ids_of(padding=256)],
    "384 tokens, one row": [ids_of(300, 50, padding=34)],
    "64 tokens, three rows": [ids_of(3, 40, padding=21), ids_of(padding=64), ids_of(64, padding=0)],
}
CASES = [(name, rate, SEED, 1) for name in IDS for rate in (0.0, 0.1)]
# Seeds that are 0 and 2^32 - 1; and scores so large that few keys have all of the softmax.
CASES += [("384 tokens, one row", 0.5, [0, 0], 1), ("64 tokens, three rows", 0.5, [-1, -1], 1)]
CASES += [(name, 0.1, SEED, 16) for name in ("full", "packed")]


@pytest.mark.gate
@pytest.mark.parametrize("name, rate, seed, factor", CASES)
@pytest.mark.usefixtures("_interpreted")
def test_attention_and_its_gradients_are_the_formula(name, rate, seed, factor):
    ids, limit = np.array(IDS[name]), ROUNDING if factor == 1 else 2 * ROUNDING
    num_rows, seq = ids.shape
    tokens, random = num_rows * seq, np.random.RandomState(0)
    qkv, up = bfloat16(random, tokens, 3, HEADS, SIZE), bfloat16(random, tokens, HEADS, SIZE)
    bias = jnp.asarray(0.3 * random.standard_normal((3, HEADS, SIZE)), jnp.float32)
    qkv, bias = qkv.at[:, 0].multiply(factor), bias.at[0].multiply(factor)
    ranges = jnp.asarray(kernel_encoder._ranges(tf.constant(ids, tf.int32)).numpy())
    masks = (jnp.asarray(ids.reshape(-1), jnp.int32), ranges, settings(rate, seq, seed))
    found = computed(qkv, bias, up, masks, num_rows)
    again = computed(qkv, bias, up, masks, num_rows)
    assert all((one == other).all() for one, other in zip(found, again))
    context, of_qkv, of_bias = map(float64, found)

    def heads(array):  # [T, ..., D] -> [..., R, N, S, D]
        split = float64(array).reshape(num_rows, seq, -1, HEADS, SIZE)
        return split.transpose(2, 0, 3, 1, 4)

    query, _, value = heads(qkv + bias.astype(jnp.bfloat16))
    [key] = heads(float64(qkv[:, 1]) + float64(bias[1]))  # the kernels leave its bias out
    [up] = heads(up)
    mask = kept(num_rows, HEADS, seq, seq, rate=rate, seed=seed)
    allowed = (ids[:, None, :, None] == ids[:, None, None, :]) & (ids > 0)[:, None, :, None]
    scores = np.where(allowed, query @ key.swapaxes(2, 3) / SIZE**0.5, -np.inf)
    largest = np.maximum(scores.max(-1, keepdims=True), -1e300)
    powers = np.where(allowed, np.exp(scores - largest), 0)
    p = powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300)
    of_p = mask * (up @ value.swapaxes(2, 3))
    of_scores = p * (of_p - (p * of_p).sum(-1, keepdims=True)) / SIZE**0.5
    expected = [of_scores @ key, of_scores.swapaxes(2, 3) @ query, (mask * p).swapaxes(2, 3) @ up]
    assert distance(heads(context)[0], mask * p @ value) < limit
    for which, (one, other) in enumerate(zip(heads(of_qkv), expected)):
        # A query with one key alone has the gradient 0, to which rounding is relative.
        scale = np.linalg.norm(other) + 0.5 * np.linalg.norm(expected[2])
        assert np.linalg.norm(one - other) < limit * scale, which
        # That of the keys' bias is 0: what is there is rounding.
        of_bias_error = of_bias.sum(0)[which] - other.sum((0, 2))
        assert np.linalg.norm(of_bias_error) < 2 * limit * scale, which
    padding = ids.reshape(-1) == 0
    assert not context[padding].any() and not of_qkv[padding].any()


@pytest.mark.gate
@pytest.mark.usefixtures("_interpreted")
def test_the_kernels_alone_on_a_card_are_compared_with_the_formula():
    """The interpreter stands in place of a card; a kernel that is wrong has large errors."""

    def of(name, grid, results):
        def run(*given):
            found = interpreter(name)(*given)
            assert [(each.shape, each.dtype) for each in found] == [*results]
            return found

        return run

    # Shapes of the other tests, for which the interpreter has compiled its loops.
    ids = np.array(IDS["64 tokens, three rows"])
    found = kernels_alone.attention(of, ids, HEADS, SIZE)
    errors = np.array([*found["errors of context, query, key, value"].values()])
    assert errors.shape == (2, 4) and (errors < ROUNDING).all() and (errors > 1e-4).all()
    assert found["same bits"] and found["share of tiles"] == 2 / 3  # none of padding alone
    assert found["forward_ms"] > 0 and found["backward_ms"] > 0
    found = kernels_alone.norm(of, TOKENS, WIDTH)
    assert max(found["errors of y, hidden, update"]) < ROUNDING and found["same bits"]

    def wrong(name, grid, results):
        kernel = of(name, grid, results)
        return lambda *given: [1.05 * kernel(*given)[0], *kernel(*given)[1:]]

    found = kernels_alone.attention(wrong, ids, HEADS, SIZE)
    assert np.min([*found["errors of context, query, key, value"].values()]) > 0.01


@functools.cache
def interpreter(name: str):
    """A kernel, compiled once for each shape."""
    return jax.jit(lambda *given: tuple(interpreted.KERNELS[name](*given)))


def computed(qkv, bias, up, masks, num_rows):
    """Context, gradients of qkv and of its bias."""
    context, lse = interpreter("attention_forward")(qkv, bias, *masks)
    product = (up.astype(jnp.float32) * context.astype(jnp.float32)).sum(2)
    delta = product.reshape(num_rows, -1, HEADS).transpose(0, 2, 1).reshape(-1)
    given = (qkv, bias, up, lse, delta)
    return context, *interpreter("attention_backward")(*given, *masks)


@pytest.mark.gate
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
@pytest.mark.usefixtures("_interpreted")
def test_the_norm_of_a_sum_and_its_gradients_are_the_formula(rate):
    tokens, width, random = TOKENS, WIDTH, np.random.RandomState(0)
    hidden, update, one, other = (bfloat16(random, tokens, width) for _ in range(4))
    bias, gamma, beta = (jnp.asarray(random.standard_normal(width), jnp.float32) for _ in range(3))
    told = settings(rate, BLOCK)
    inputs = (hidden, update, bias, gamma)
    y, *statistics = interpreter("norm_forward")(*inputs, beta, told)
    given = (*inputs, told, *statistics, one, other)
    of_hidden, of_update, *sums = interpreter("norm_backward")(*given)

    mask = kept(tokens, width, rate=rate)
    dropped = (mask * float64(update + bias.astype(jnp.bfloat16))).astype(jnp.bfloat16)
    total = float64(hidden) + float64(dropped)
    deviation = total.std(1, keepdims=True)
    x = (total - total.mean(1, keepdims=True)) / deviation
    up = float64(one) + float64(other)
    w = up * float64(gamma)
    of_total = (w - w.mean(1, keepdims=True) - x * (w * x).mean(1, keepdims=True)) / deviation
    assert distance(y, x * float64(gamma) + float64(beta)) < ROUNDING
    assert distance(of_hidden, of_total) < ROUNDING
    assert distance(of_update, mask * of_total) < ROUNDING
    assert [len(each) for each in sums] == [tokens // norm.ROWS // norm.STEPS] * 3
    for found, expected in zip(sums, (up * x, up, mask * of_total)):
        assert distance(float64(found).sum(0), expected.sum(0)) < ROUNDING


def test_ranges_have_all_parts_with_an_id_of_the_block():
    ids = np.array([ids_of(300, 200, padding=12), ids_of(padding=512), ids_of(512, padding=0)])
    found = kernel_encoder._ranges(tf.constant(ids, tf.int32)).numpy().reshape(3, 8, 2)
    # Blocks and parts are of 64 tokens: 300 is in the fifth, 500 in the eighth.
    assert found[0].tolist() == [[0, 5]] * 4 + [[0, 8]] + [[4, 8]] * 3
    assert all(first >= last for first, last in found[1])
    assert found[2].tolist() == [[0, 8]] * 8


def test_rows_beyond_the_kernels_addresses_are_refused_in_one_line():
    """1,365 rows of 512 tokens have all of 3 * 1,024 numbers below 2^31, and 1,366 do not."""
    config = BertConfig(**CONFIG)
    encoder = kernel_encoder.KernelEncoder.__new__(kernel_encoder.KernelEncoder)
    encoder._config = config
    for rows, refused in ((1365, False), (1366, True)):
        hidden = tf.TensorSpec([rows, 512, 1024], tf.bfloat16)
        ids = tf.TensorSpec([rows, 512], tf.int32)

        @tf.function(autograph=False)
        def traced(hidden, ids):
            return encoder._all_but_last([], hidden, ids, ids, None)

        if not refused:
            traced.get_concrete_function(hidden, ids)
            continue
        said = r"^--kernels=triton: the step has 1,366 rows of 512 tokens a device, .* for 1,365; "
        with pytest.raises(ValueError, match=said + ".*--kernels=xla$"):
            traced.get_concrete_function(hidden, ids)


def test_gradients_take_and_give_arrays_in_the_order_of_the_kernels(monkeypatch):
    """A stand-in for the kernels has results that are all different."""
    rows, heads, size = 2, 3, 2
    tokens, random, told = rows * BLOCK, np.random.RandomState(0), []

    def call(name, grid, operands, results):
        made = [tf.cast(random.standard_normal(shape), dtype) for shape, dtype in results]
        told.append((name, grid, operands, made))
        return made

    def drawn(*shape, dtype=tf.float32):
        return tf.cast(random.standard_normal(shape), dtype)

    monkeypatch.setattr(kernel_encoder, "_call", call)
    qkv, bias = drawn(tokens, 3, heads, size, dtype=tf.bfloat16), drawn(3, heads, size)
    ids, ranges, numbers = tf.ones([rows, BLOCK], tf.int32), tf.zeros([2, 2]), tf.zeros([5])
    with tf.GradientTape() as tape:
        tape.watch([qkv, bias])
        context = kernel_encoder._attention(qkv, bias, ids, ranges, numbers)
    up = drawn(tokens, heads, size, dtype=tf.bfloat16)
    gradients = tape.gradient(context, [qkv, bias], up)
    (_, grid, _, [context, lse]), (name, *_, given, [of_qkv, of_bias]) = told
    assert grid == (rows, heads) and name == "attention_backward"
    # [R * N * S]: the kernels find a row's head there.
    products = float64(up) * float64(context)
    delta = products.sum(2).reshape(rows, BLOCK, heads).transpose(0, 2, 1).reshape(-1)
    np.testing.assert_allclose(given[4], delta, rtol=1e-5, atol=1e-5)
    rest = [qkv, bias, up, lse, None, tf.reshape(ids, [-1]), ranges, numbers]
    expected = [*gradients, *(each for n, each in enumerate(rest) if n != 4)]
    found = [of_qkv, tf.reduce_sum(of_bias, 0), *(x for n, x in enumerate(given) if n != 4)]
    told.clear()
    hidden, update = (drawn(tokens, 8, dtype=tf.bfloat16) for _ in range(2))
    inputs = [hidden, update, *(drawn(8) for _ in range(3))]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        results = kernel_encoder._add_and_normalise(*inputs, numbers)
    ups = [drawn(tokens, 8, dtype=tf.bfloat16) for _ in range(2)]
    gradients = tape.gradient(results, inputs, ups)
    (_, grid, _, [y, mean, scale]), (_, fewer, given, made) = told
    assert grid == (tokens // ROWS,) and fewer == (tokens // ROWS // STEPS,)
    of_gamma, of_beta, of_bias = (tf.reduce_sum(each, 0) for each in made[2:])
    expected += [*results, *gradients, *inputs[:4], numbers, mean, scale, *ups]
    found += [y, y, *made[:2], of_bias, of_gamma, of_beta, *given]
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)


def test_the_ir_is_that_of_the_source_for_any_number_of_tokens():
    for num_blocks in (1009, 503):
        texts = dict(triton_ir.texts(num_blocks))
        assert sorted(texts) == sorted(interpreted.KERNELS)
        for name, text in texts.items():
            stored = resources.files(kernels).joinpath(f"{name}.mlir").read_text()
            assert text == stored, f"{name}: python -m mlperf_bert.model.kernels.triton_ir"
            # Two programs of norm_backward on a multiprocessor, four of attention_forward.
            limited = name in ("attention_forward", "norm_backward")
            assert ("ttg.maxnreg = 128 : i32" in text) == limited
            assert "atomic" not in text


def test_a_call_has_the_ir_and_how_it_is_launched():
    config = kernel_call.config("norm_backward", (56, 1, 1))
    text = resources.files(kernels).joinpath("norm_backward.mlir").read_text()
    unquoted = config.replace("\\22", '"').replace("\\0A", "\n").replace("\\5C", "\\")
    assert text in unquoted and '"' not in config.partition('ir = "')[2].partition('"')[0]
    assert config.endswith(
        "debug = false, num_stages = 1 : i32, num_warps = 8 : i32, "
        "grid_x = 56 : i32, grid_y = 1 : i32, grid_z = 1 : i32}"
    )


# --- the encoder ----------------------------------------------------------------------------------

CONFIG = generated_task.CONFIG | {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
CONFIG |= {"num_hidden_layers": 2}
WITH_KERNELS = {"precision": "bfloat16", "kernels": True}


def losses_and_gradients(batch: dict, *, compiled: bool = True, **options):
    model = pretrainer.build_pretrainer(
        BertConfig(**CONFIG), seed=1, compile_passes=compiled, pack_sequences=True, **options
    )
    variables = pretrainer.trained_variables(model)

    @tf.function(jit_compile=compiled, autograph=False)
    def step(features):
        with tf.GradientTape() as tape:
            tokens, sentences = pretrainer.forward(
                model, features, training=True, seed=tf.constant(SEED)
            )
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(features["masked_lm_ids"], tokens)
            ) + tf.reduce_mean(tf.square(sentences))
        return loss, [tf.convert_to_tensor(each) for each in tape.gradient(loss, variables)]

    loss, gradients = step(batch)
    ours = [names.our_name(each.name) for each in variables]  # without the number of the model
    return float(loss), dict(zip(ours, (each.numpy() for each in gradients)))


def packed_batch() -> dict:
    random, rows, seq = np.random.RandomState(0), 3, 32
    ids = np.array([ids_of(12, 14, padding=6), ids_of(32, padding=0), ids_of(20, padding=12)])
    given = {
        "input_ids": random.randint(40, size=(rows, seq)) * (ids > 0),
        "input_mask": (ids > 0).astype(int),
        "segment_ids": random.randint(2, size=(rows, seq)) * (ids > 0),
        "masked_lm_positions": random.randint(20, size=(rows, 6)),
        "masked_lm_ids": random.randint(40, size=(rows, 6)),
        "block_ids": ids,
        "position_ids": np.tile(np.arange(seq), (rows, 1)),
        "cls_positions": np.array([[0, 12], [0, 0], [0, 0]]),
    }
    return {name: tf.constant(value, tf.int32) for name, value in given.items()}


@pytest.mark.gate
def test_a_step_is_as_near_to_float32_as_without_kernels(monkeypatch):
    """Packed, and with each block computed again; tests/training has the other steps' losses."""
    called, batch = interpreted.install(monkeypatch), packed_batch()
    exact, of_exact = losses_and_gradients(batch, compiled=False)
    usual, of_usual = losses_and_gradients(batch, precision="bfloat16")
    assert not called
    found, of_found = losses_and_gradients(batch, recompute="blocks", **WITH_KERNELS)
    # One of two blocks: the last computes what the heads read alone.
    assert sorted(set(called)) == sorted(interpreted.KERNELS)
    assert called.count("attention_backward") == 1 and called.count("norm_backward") == 2
    assert found == pytest.approx(exact, rel=max(1e-5, 2 * abs(usual / exact - 1)))
    errors = []
    for name, expected in of_exact.items():
        if np.linalg.norm(expected) > 1e-5 and "key/bias" not in name:  # 0 up to rounding
            errors.append([distance(each[name], expected) for each in (of_found, of_usual)])
            assert errors[-1][0] < 0.03, name
    ours, theirs = np.median(errors, axis=0)
    assert len(errors) >= 40 and ours < 1.1 * theirs < 0.02


@pytest.mark.all
def test_what_is_computed_again_is_the_same(monkeypatch):
    interpreted.install(monkeypatch)
    batch = packed_batch()
    kept, of_kept = losses_and_gradients(batch, **WITH_KERNELS)
    found, of_found = losses_and_gradients(batch, recompute="blocks", **WITH_KERNELS)
    assert kept == found
    # XLA does not round between the operations of one loop, which are others then.
    for name, gradient in of_kept.items():
        assert np.linalg.norm(gradient - of_found[name]) <= 1e-5 * np.linalg.norm(gradient), name
