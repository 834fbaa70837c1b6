"""What build_pretrainer makes of its choices. CPU, seconds."""

import pytest
import tensorflow as tf

from mlperf_bert.model import encoder, pretrainer
from mlperf_bert.model.config import BertConfig
from tests.training.generated_task import CONFIG

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


@pytest.mark.parametrize("name", ["recompute", "precision"])
def test_an_unknown_choice_is_refused(name):
    with pytest.raises(ValueError, match=rf"{name} must be one of .* got 'all'"):
        pretrainer.build_pretrainer(BERT, seed=1, **{name: "all"})


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
