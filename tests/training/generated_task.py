"""A tiny pre-training task made from a seed: configuration, initial checkpoint, examples.

numpy's RandomState never changes its streams, so the files are the same everywhere.
"""

import json
from pathlib import Path

import numpy as np

from mlperf_bert.checkpoints import names
from mlperf_bert.convert import saving
from mlperf_bert.data import example_encoder, tfrecord
from mlperf_bert.input.pipeline import ExampleShape
from mlperf_bert.model.config import BertConfig

CONFIG = {
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "max_position_embeddings": 48,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": 40,
}
SHAPE = ExampleShape(max_seq_length=32, max_predictions_per_seq=6)
LIMITS = SHAPE.for_model(BertConfig(**CONFIG))
# For whole runs: with one layer a program starts in two thirds of the time.
SMALL = {"dropout": 0.1, "num_hidden_layers": 1}


def write_task(
    folder: Path,
    *,
    num_examples: int = 200,
    num_eval_examples: int = 45,
    num_hidden_layers: int = CONFIG["num_hidden_layers"],
    dropout: float = 0.0,
) -> None:
    """Writes bert_config.json, init/model.ckpt-0, train.tfrecord and eval.tfrecord.

    The reference's figures are of two layers.
    """
    random = np.random.RandomState(20200101)
    (folder / "init").mkdir(parents=True)
    config = CONFIG | {
        "num_hidden_layers": num_hidden_layers,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    (folder / "bert_config.json").write_text(json.dumps(config))
    write_initial_checkpoint(folder / "init" / "model.ckpt-0", config, random)
    for name, count in (("train", num_examples), ("eval", num_eval_examples)):
        framed = [tfrecord.frame(example_encoder.encode(_example(random))) for _ in range(count)]
        (folder / f"{name}.tfrecord").write_bytes(b"".join(framed))


def files_of(folder: Path) -> dict:
    """The task's files and their shape, as recorded_cases.py takes them."""
    return {
        "bert_config_file": str(folder / "bert_config.json"),
        "init_checkpoint": str(folder / "init" / "model.ckpt-0"),
        "input_file": str(folder / "train.tfrecord"),
        "eval_input_file": str(folder / "eval.tfrecord"),
        "shape": vars(SHAPE),
    }


def write_initial_checkpoint(prefix: Path, config: dict, random: np.random.RandomState) -> None:
    """Writes weights in TF1's layout for a bert_config.json of any size."""
    values, model = {}, BertConfig(**config)
    for weight in names.weights(model.num_hidden_layers):
        shape = weight.tf1_shape(weight.our_shape(model))
        noise = 0.02 * random.standard_normal(shape)
        values[weight.tf1_name] = (noise + weight.tf1_name.endswith("gamma")).astype(np.float32)
    saving.write_name_based(str(prefix), values)


def _example(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """A sentence pair with a simple rule to learn: a token's neighbour is the token plus one."""
    sequence, predictions = SHAPE.max_seq_length, SHAPE.max_predictions_per_seq
    length = random.randint(12, sequence + 1)
    num_predictions = random.randint(1, predictions + 1)
    ids = (random.randint(5, 60) + np.arange(length)) % 35 + 5
    positions = np.sort(random.permutation(np.arange(1, length))[:num_predictions])
    labels = ids[positions].copy()
    ids[positions] = 4

    def padded(values, size):
        return np.concatenate([values, np.zeros(size - len(values), np.int64)]).astype(np.int64)

    return {
        "input_ids": padded(ids, sequence),
        "input_mask": padded(np.ones(length), sequence),
        "segment_ids": padded((np.arange(length) > length // 2).astype(np.int64), sequence),
        "masked_lm_positions": padded(positions, predictions),
        "masked_lm_ids": padded(labels, predictions),
        "masked_lm_weights": padded(np.ones(num_predictions), predictions).astype(np.float32),
        "next_sentence_labels": random.randint(0, 2, 1).astype(np.int64),
    }
