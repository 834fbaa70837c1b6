"""bert_config.json as Google publishes it. CPU, a second."""

import dataclasses
import json
import re

import pytest

from mlperf_bert.model.config import BertConfig

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
