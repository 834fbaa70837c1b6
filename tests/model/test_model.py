"""The model: its configuration, what options build, its totals, what is computed again. Seconds."""

import dataclasses
import json
import logging
import math
import re
import types

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from mlperf_bert import messages
from mlperf_bert.input import pipeline
from mlperf_bert.model import encoder, fusion, pretrainer, tf_models
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.metrics import EPSILON, Evaluation, Totals, batch_totals
from tests.helpers import waiting
from tests.training import generated_task
from tests.training.generated_task import CONFIG

SIZES = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 2,
    "vocab_size": 21128,
}
OF_GOOGLE = {
    "directionality": "bidi",
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
}


def test_keys_of_google_s_own_files_that_have_no_effect_are_read(tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps(SIZES | OF_GOOGLE))
    assert dataclasses.asdict(BertConfig.from_json_file(str(path))) == SIZES


def test_the_drawing_of_weights_says_that_it_lasts(monkeypatch, capsys):
    draw, said = pretrainer._with_random_weights, []

    def draw_until_it_is_said(*given):
        model = draw(*given)
        waiting.until(lambda: said.append(capsys.readouterr().err) or "far\n" in "".join(said))
        return model

    monkeypatch.setattr(messages, "SECONDS_BETWEEN_LINES", 0.001)
    monkeypatch.setattr(pretrainer, "_with_random_weights", draw_until_it_is_said)
    pretrainer.build_pretrainer(BertConfig(**CONFIG), seed=1)
    assert re.match(r"drawing the weights of a model: \d+ s so far\n", "".join(said))


SIZE, RATE = "must be a positive integer below 2^31", "must be a number from 0 to 1"


@pytest.mark.parametrize(
    "changed, message",
    [
        *(({"vocab_size": x}, f"vocab_size {SIZE}") for x in (0, -1, 2**31, 1.5, True, "9", None)),
        *(
            ({name: x}, f"{name} {RATE}")
            for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
            for x in (-0.1, 1, 1.0, float("nan"), True, "0.1")
        ),
        ({"hidden_act": "swish"}, "hidden_act must be one of ('gelu', 'gelu_exact', 'relu', 't"),
        ({"num_attention_heads": 7}, "hidden_size=768 must be a multiple of num_attention_heads=7"),
    ],
)
def test_a_value_that_no_model_has_is_refused(tmp_path, changed, message):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps(SIZES | changed))
    with pytest.raises(ValueError, match=rf"^{path}: {re.escape(message)}"):
        BertConfig.from_json_file(str(path))


@pytest.mark.parametrize("key", ["pooler_size", "pooler", "embedding_size", "Directionality"])
def test_any_other_key_is_refused(tmp_path, key):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps(SIZES | OF_GOOGLE | {key: 1}))
    with pytest.raises(ValueError, match=rf"unknown keys \['{key}'\]; remove them or fix their sp"):
        BertConfig.from_json_file(str(path))


def test_each_dropout_has_the_rate_of_the_reference():
    """Attention's within a block, that of hidden layers at the embeddings and at both outputs."""
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.3}
    model = pretrainer.build_pretrainer(BertConfig(**CONFIG | rates), seed=1)
    layers = model.encoder_network.transformer_layers
    rates = [part.rate for part in layers[1].submodules if hasattr(part, "rate")]
    # The first is that of the inner layer, which drops nothing.
    assert sorted(rates) == [0.0, 0.1, 0.1, 0.3]
    assert model.encoder_network._embedding_dropout.rate == 0.1


BERT = BertConfig(**CONFIG | {"num_hidden_layers": 1, "hidden_dropout_prob": 0.1})


@pytest.mark.parametrize(
    "choices, is_fused, rounds",
    [
        ({}, False, False),
        ({"precision": "tf32"}, False, True),
        ({"precision": "bfloat16"}, True, False),
        ({"compile_passes": True}, True, False),
        ({"pack_sequences": True}, True, False),
        ({"recompute": "attention"}, True, False),
        ({"sums_of_vectors": True, "barriers": True}, False, False),  # for passes alone
    ],
)
def test_a_speed_option_alone_replaces_the_layers_and_tf32_alone_rounds(choices, is_fused, rounds):
    tf.config.experimental.enable_tensor_float_32_execution(not rounds)
    model = pretrainer.build_pretrainer(BERT, seed=1, **choices)
    assert tf.config.experimental.tensor_float_32_execution_enabled() == rounds
    assert isinstance(model.fused, encoder.Encoder) == is_fused
    generators = pretrainer.random_generators(model)
    assert len(generators) == (1 if is_fused else 6)  # else those of the layers
    drawn = pretrainer.dropout_seed(model, 3)
    assert (None if drawn is None else drawn.shape.as_list()) == ([6] if is_fused else None)
    names = [variable.name for variable in pretrainer.trained_variables(model)]
    assert len(names) == 30 and not [name for name in names if "pooler_transform" in name]


def test_every_dropout_has_a_seed_of_its_own():
    seeds = encoder.Seeds(tf.constant([7, 9]))
    drawn = [seeds.draw(rate) for rate in (0.1, 0.0, 0.5, 0.1)]
    shown = [None if seed is None else seed.numpy().tolist() for seed in drawn]
    assert shown == [[8, 9], None, [9, 9], [10, 9]]
    assert encoder.Seeds(None).draw(0.5) is None
    whole = pretrainer.build_pretrainer(BERT, seed=1, compile_passes=True).fused
    blocks = []
    whole._run(lambda block, drawn: blocks.append(drawn), whole._layers.blocks[0], seeds)
    # Attention drops nothing in this model.
    [[attention, attended, output]] = blocks
    assert attention is None
    assert [attended.numpy().tolist(), output.numpy().tolist()] == [[11, 9], [12, 9]]


def test_each_dropout_of_a_fused_block_has_the_rate_of_its_kind():
    config = BertConfig(
        **CONFIG | {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.3}
    )
    whole = pretrainer.build_pretrainer(config, seed=1, compile_passes=True).fused
    passes, rates = whole._passes, []

    class Recording:
        def __getattr__(self, name):
            compute = getattr(passes, name)
            if name not in ("attention", "dropout"):
                return compute

            def recorded(*given):
                rates.append((name, round(float(given[-1]), 3)))
                return compute(*given)

            return recorded

    whole._passes = Recording()
    hidden, ids = tf.ones([1, 4, config.hidden_size]), tf.ones([1, 4], tf.int32)
    seeds = encoder.Seeds(tf.constant([7, 9]))
    whole._run(whole._block, whole._layers.blocks[0], seeds, hidden, hidden, ids, ids)
    whole._embed({"input_ids": ids, "segment_ids": ids}, seeds)
    assert rates == [("attention", 0.3), *[("dropout", 0.1)] * 3]


@pytest.mark.parametrize("choices", [{}, {"pack_sequences": True}])
def test_an_evaluation_drops_nothing(choices):
    model = pretrainer.build_pretrainer(BERT, seed=1, **choices)
    batch = pipeline.synthetic_batch(generated_task.SHAPE, batch_size=2)

    def logits(training):
        given = {"training": training}
        return [pretrainer.forward(model, batch, seed=tf.constant([n, n]), **given) for n in (1, 2)]

    evaluated, trained = map(logits, (False, True))
    for one, other in zip(*evaluated):
        np.testing.assert_array_equal(one, other)
    assert (trained[0][0] != trained[1][0]).numpy().any()


def test_what_a_model_is_built_with(monkeypatch):
    made = {}
    recorded = lambda activation, **how: made.update(how, activation=activation)  # noqa: E731
    monkeypatch.setattr(fusion, "Passes", recorded)
    config = dataclasses.replace(BERT, hidden_act="relu", initializer_range=0.5)
    how = {"sums_of_vectors": True, "barriers": True}
    given = {"compile_passes": True, "precision": "bfloat16", "recompute": "blocks"}
    model = pretrainer.build_pretrainer(config, seed=5, **how, **given)
    assert made == {"activation": pretrainer.ACTIVATIONS["relu"], "compiled": True, **how}
    assert (model.fused._dtype, model.fused._recompute) == (tf.bfloat16, "blocks")
    drawn = tf.random.Generator.from_seed(5).state
    np.testing.assert_array_equal(model.dropout_generator.state, drawn)
    assert 0.9 < abs(model.fused._layers.words.numpy()).max() <= 1.0
    assert model.classification_heads[0].dropout_rate == 0


OTHER_VERSION = (
    r"tf-models-official [0-9.]+ is built differently from 2\.20\.0 \(.*\); "
    r"install the versions of environment/requirements\.lock"
)


def test_another_encoder_is_refused(monkeypatch):
    model = pretrainer.build_pretrainer(BertConfig(**CONFIG), seed=1)
    assert len(tf_models.encoder_layers(model).blocks) == CONFIG["num_hidden_layers"]
    monkeypatch.delattr(model.encoder_network, "_embedding_norm_layer")
    with pytest.raises(ValueError, match=OTHER_VERSION):
        tf_models.encoder_layers(model)


def test_other_generators_are_refused(monkeypatch):
    dropout = tf_keras.layers.Dropout(0.1)
    monkeypatch.setattr(dropout, "_random_generator", None)
    for parts in ([], [dropout]):
        with pytest.raises(ValueError, match=OTHER_VERSION):
            tf_models.random_generators(types.SimpleNamespace(submodules=parts))


def test_totals_are_divided_once_and_a_batch_may_have_no_predictions():
    full = Totals(
        masked_lm_correct=3.0, masked_lm_loss=8.0, num_predictions=4.0,
        next_sentence_correct=1.0, next_sentence_loss=1.0, num_examples=2.0,
    )  # fmt: skip
    short = Totals(0.0, 0.0, 0.0, next_sentence_correct=1.0, next_sentence_loss=0.5, num_examples=1)
    found = Evaluation.from_totals([[*full], [*short]])
    expected = {
        "masked_lm_accuracy": 3 / 4,
        "masked_lm_loss": 8 / 4,
        "next_sentence_accuracy": 2 / 3,
        "next_sentence_loss": 1.5 / 3,
        "loss": (8 / (4 + EPSILON) + 1 / 2 + 0.5) / 2,  # each batch counts alike
        "num_examples": 3,
    }
    assert dataclasses.asdict(found) == pytest.approx(expected, rel=1e-12)
    assert Evaluation.from_totals([[*short]]).masked_lm_accuracy == 0


def test_a_row_that_fills_up_a_batch_counts_nowhere():
    def totals(*weights):
        ones, logits = tf.ones([len(weights), 1]), tf.ones([len(weights), 2])
        # All are hits: the first of equal logits counts.
        zeros = tf.zeros([len(weights), 1], tf.int32)
        labels = dict.fromkeys(("masked_lm_ids", "next_sentence_labels"), zeros)
        labels["masked_lm_weights"] = ones
        return batch_totals(logits[:, None], logits, labels, tf.constant(weights)).numpy().tolist()

    assert totals(1.0, 1.0, 0.0) == pytest.approx(totals(1.0, 1.0))
    assert totals(1.0)[4] == pytest.approx(math.log(2))


def gradients(function, inputs, weights, seed):
    with tf.GradientTape() as tape:
        tape.watch([inputs, weights])
        result = function({"x": inputs, "w": weights}, None, seed)
    return result, tape.gradient(result, [inputs, weights])


def scaled_product(tensors, nothing, seed):
    """Has inputs of all kinds: nested, None, and integers without a gradient."""
    assert nothing is None
    shifted = tf.cast(tf.reduce_sum(seed), tensors["x"].dtype)
    return tf.tanh(tf.matmul(tensors["x"], tensors["w"])) * shifted


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("jit_compile", [None, False, True], ids=["eager", "graph", "xla"])
def test_values_and_gradients_are_the_same(dtype, jit_compile, caplog):
    random = np.random.RandomState(1)
    inputs = tf.cast(random.standard_normal([3, 4]), dtype)
    weights, seed = tf.cast(random.standard_normal([4, 5]), dtype), tf.constant([3, 2**30])
    num_calls = []

    def counted(*given):
        num_calls.append(1)
        return scaled_product(*given)

    def again(*given):
        return encoder.recomputed(counted, *given)

    run = gradients if jit_compile is None else tf.function(gradients, jit_compile=jit_compile)
    expected = run(scaled_product, inputs, weights, seed)
    with caplog.at_level(logging.WARNING, logger="tensorflow"):
        found = run(again, inputs, weights, seed)
    assert len(num_calls) == 2  # once more for the gradient
    assert "dtype" not in caplog.text  # of the integers
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected)):
        np.testing.assert_array_equal(one, other)


def test_what_waits_for_the_gradient_keeps_its_value():
    values = [
        tf.constant([0.0, -0.0, 1e-37, -3.5, np.inf]),
        tf.constant([-0.0, 1.5], tf.bfloat16),
        tf.constant([2**31 - 1, -(2**31), 2**24 + 1]),
    ]
    for given, after in zip(values, encoder._after(tf.constant([[7.0]]), values)):
        assert given.dtype == after.dtype
        np.testing.assert_array_equal(given, after)
    # Else a compiler would take the second computation for the first, and keep what that made.
    [lost] = encoder._after(tf.constant([np.nan, 1.0]), [tf.constant([1.0, 2.0])])
    assert np.isnan(lost).all()
