"""The private names of tf-models: another version ends in one clear line."""

import types

import pytest
import tf_keras

from mlperf_bert.model import pretrainer, tf_models
from mlperf_bert.model.config import BertConfig
from tests.training.generated_task import CONFIG

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
