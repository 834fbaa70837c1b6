"""The export computes the same logits in transformers. CPU, 20 s.

transformers loads the PyTorch layout with TensorFlow here, so no torch is needed; another test
holds the bytes to those that passed the same comparison in torch.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import transformers

from mlperf_bert.checkpoints import reading
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.convert.exporting import export
from mlperf_bert.model.pretrainer import build_pretrainer, forward, trained_variables
from tests.convert.conftest import write_vocabulary

# SHA-256 of model.safetensors from the generated checkpoint, with which transformers 5.23.0 on
# torch 2.13.0 computed our logits to 1e-5.
VERIFIED_SHA256 = "325fe2fb90e666c0e7a4d6b0983dc5e5300159447dc8420d02c8a35dd68e5c66"


def test_transformers_computes_our_logits(start, tmp_path):
    exported, config = tmp_path / "exported", start.config
    vocabulary = write_vocabulary(tmp_path / "vocab.txt", config.vocab_size)
    assert export(start.checkpoint, str(exported), config=config, vocab_file=vocabulary) == 46
    theirs, report = transformers.TFBertForPreTraining.from_pretrained(
        exported, output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))

    random, size = np.random.RandomState(8), (3, 24)
    features = {
        "input_ids": random.randint(0, config.vocab_size, size),
        "input_mask": (np.arange(size[1]) < [[24], [17], [9]]).astype(np.int64),
        "segment_ids": random.randint(0, 2, size),
        "masked_lm_positions": np.tile(np.arange(9), (3, 1)),
    }
    ours = build_pretrainer(config, seed=3)
    reading.load_initial_weights(trained_variables(ours), StoredCheckpoint(start.checkpoint))
    tensors = {name: tf.constant(value, tf.int32) for name, value in features.items()}
    masked_lm, next_sentence = forward(ours, tensors, training=False)
    found = theirs(
        input_ids=tensors["input_ids"],
        attention_mask=tensors["input_mask"],
        token_type_ids=tensors["segment_ids"],
    )
    np.testing.assert_allclose(
        found.prediction_logits[:, :9].numpy(), masked_lm.numpy(), rtol=0, atol=1e-5
    )
    np.testing.assert_allclose(
        found.seq_relationship_logits.numpy(), next_sentence.numpy(), rtol=0, atol=1e-5
    )
    assert np.abs(masked_lm.numpy()).max() > 0.1


def test_bytes_are_those_that_were_verified(generated, exported, vocabulary):
    content = (exported / "model.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == VERIFIED_SHA256
    assert (exported / "vocab.txt").read_text() == Path(vocabulary).read_text()
    config = json.loads((exported / "config.json").read_text())
    expected = json.loads(generated.config_file.read_text())
    assert {name: config[name] for name in expected} == expected | {"hidden_act": "gelu_new"}
    assert config["architectures"] == ["BertForPreTraining"] and config["layer_norm_eps"] == 1e-12
    assert json.loads((exported / "tokenizer_config.json").read_text()) == {
        "do_lower_case": True,
        "model_max_length": 48,
        "tokenizer_class": "BertTokenizer",
    }


def test_refusals_and_failures_leave_nothing(generated, vocabulary, tmp_path, monkeypatch):
    other = write_vocabulary(tmp_path / "other.txt", 41)

    def refusal(checkpoint=generated.checkpoint, output="out", vocab_file=vocabulary) -> str:
        before = sorted(tmp_path.iterdir())
        with pytest.raises((ValueError, OSError)) as error:
            export(
                checkpoint, str(tmp_path / output), config=generated.config, vocab_file=vocab_file
            )
        assert sorted(tmp_path.iterdir()) == before
        return str(error.value)

    assert "exists; choose another --output_dir" in refusal(output="other.txt")
    assert "no such checkpoint" in refusal(checkpoint=str(tmp_path / "none"))
    assert "no such file; --vocab_file takes" in refusal(vocab_file=str(tmp_path / "none"))
    assert "has 41 words, but the configuration says vocab_size=40" in refusal(vocab_file=other)

    def fill_disk(path, tensors):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mlperf_bert.convert.exporting.write_safetensors", fill_disk)
    assert "No space left on device" in refusal()
