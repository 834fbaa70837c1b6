"""Examples of 16 tokens, the configuration of a model for them, and its training."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from mlperf_bert.data import example_encoder, tfrecord
from tests.helpers import starts

TINY = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 8,
    "initializer_range": 0.02,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "type_vocab_size": 2,
    "vocab_size": 64,
}


def example(rng) -> dict:
    sequence, predictions = 16, 4
    positions = np.sort(rng.choice(np.arange(1, sequence), predictions, replace=False))
    return {
        "input_ids": rng.integers(0, 64, sequence),
        "input_mask": np.ones(sequence, np.int64),
        "segment_ids": np.zeros(sequence, np.int64),
        "masked_lm_positions": positions,
        "masked_lm_ids": rng.integers(0, 64, predictions),
        "masked_lm_weights": np.ones(predictions, np.float32),
        "next_sentence_labels": rng.integers(0, 2, 1),
    }


def write_inputs(folder: Path) -> Path:
    """The configuration and two files of examples."""
    rng = np.random.default_rng(1)
    (folder / "bert_config.json").write_text(json.dumps(TINY))
    for name in ("train", "eval"):
        framed = [tfrecord.frame(example_encoder.encode(example(rng))) for _ in range(50)]
        (folder / name).write_bytes(b"".join(framed))
    return folder


def training_flags(work, **changed) -> list[str]:
    given = {
        "bert_config_file": work / "bert_config.json",
        "input_file": work / "train",
        "eval_input_file": work / "eval",
        "output_dir": work / "out" / "run",
        "max_seq_length": 16,
        "max_predictions_per_seq": 4,
        "optimizer": "lamb",
        "num_train_steps": 4,
        "num_warmup_steps": 0,
        "train_batch_size": 4,
        "eval_interval_samples": 8,
        "log_every_steps": 1,
    } | changed
    return ["--do_train", *(f"--{name}={value}" for name, value in given.items())]


def run(flags: list[str]) -> subprocess.CompletedProcess:
    return starts.run([sys.executable, "run_pretraining.py", *flags])


def train(work, **changed) -> subprocess.CompletedProcess:
    return run(training_flags(work, **changed))


def spoil(work, name, change):
    """Changes the bytes of a file, which are none where it is not there."""
    path = work / name
    path.write_bytes(change(path.read_bytes() if path.exists() else b""))
