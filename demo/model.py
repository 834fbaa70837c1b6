"""Write the tiny model: a vocabulary, bert_config.json and an initial checkpoint, named as in TF1.

    python -m demo.model --seed=1 --input_file='build/demo/cleaned/part-*' --output_dir=build/demo

The real benchmark uses the published vocab.txt, learned here with tensorflow-text's trainer, and
starts from a published checkpoint that has learned for 28,252 steps. This one has learned nothing,
but it does not start blind: positions begin as sinusoids (Vaswani et al., arXiv 1706.03762) and
keys as copies of queries, so that a token attends to what stands close and to what looks alike
(mimetic initialisation, Trockman and Kolter, arXiv 2305.09828). From purely random weights the
model would need most of the demo's time to find out what a neighbour is.
"""

from mlperf_bert.options import expanded_arguments
from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    tensorflow()  # before other modules import it

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow_text.tools.wordpiece_vocab.bert_vocab_from_dataset import bert_vocab_from_dataset

from mlperf_bert.convert.saving import weights_by_tf1_name, write_name_based
from mlperf_bert.files.whole import decode, matching_files, read_regular_file, write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import build_pretrainer, trained_variables

CHECKPOINT_NAME = "model.ckpt-0"
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_POSITIONS = "bert/embeddings/position_embeddings"
_SINUSOID_AMPLITUDE = 0.2
_LONGEST_WAVE_TOKENS = 1000


def tiny_config(vocab_size: int, max_seq_length: int) -> BertConfig:
    """Returns the demo's architecture: two layers, 128 wide, without dropout."""
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        hidden_act="gelu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=max_seq_length,
        type_vocab_size=2,
        initializer_range=0.05,
    )


def initial_tensors(config: BertConfig, seed: int) -> dict[str, np.ndarray]:
    """Returns every weight by its TensorFlow 1 name, a function of the seed."""
    model = build_pretrainer(config, seed=seed)
    tensors = weights_by_tf1_name(trained_variables(model))
    tensors[_POSITIONS] = _sinusoids(config.max_position_embeddings, config.hidden_size)
    for name in tensors:
        if name.endswith("self/key/kernel"):
            tensors[name] = tensors[name.replace("self/key", "self/query")]
    return tensors


def _sinusoids(num_positions: int, hidden_size: int) -> np.ndarray:
    """Returns [S, H] float32: sines in the first half of H, cosines in the second."""
    waves = _LONGEST_WAVE_TOKENS ** (np.arange(hidden_size // 2) / (hidden_size // 2))
    angles = np.arange(num_positions)[:, np.newaxis] / waves
    sinusoids = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return (_SINUSOID_AMPLITUDE * sinusoids).astype(np.float32)


def learn_vocabulary(files: list[str], vocab_size: int) -> list[str]:
    """Returns about `vocab_size` lower-case pieces, the special tokens first."""
    if not files:
        raise ValueError("no text to learn a vocabulary from: --input_file matches nothing")
    texts = [decode(read_regular_file(file), file) for file in files]
    if not any(map(str.strip, texts)):
        raise ValueError(f"no text to learn a vocabulary from: {files[0]} has no word")
    return bert_vocab_from_dataset(
        tf.data.TextLineDataset(files).batch(1000).prefetch(2),
        vocab_size=vocab_size,
        reserved_tokens=SPECIAL_TOKENS,
        bert_tokenizer_params={"lower_case": True},
    )


@ends_in_one_line("demo.model")
def main() -> None:
    """Writes vocab.txt; writes bert_config.json and the checkpoint into the folder checkpoint."""
    parser = argparse.ArgumentParser(prog="python -m demo.model")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--input_file", required=True, help="glob of the text")
    parser.add_argument("--vocab_size", type=int, default=2000, help="about how many tokens")
    parser.add_argument("--max_seq_length", type=int, default=64)
    parser.add_argument("--output_dir", type=Path, required=True)
    arguments = parser.parse_args(expanded_arguments())
    tokens = learn_vocabulary(matching_files(arguments.input_file), arguments.vocab_size)
    config = tiny_config(len(tokens), arguments.max_seq_length)
    folder = arguments.output_dir / "checkpoint"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(arguments.output_dir / "vocab.txt", "".join(f"{token}\n" for token in tokens))
    config_file = folder / "bert_config.json"
    write_whole(config_file, json.dumps(dataclasses.asdict(config), indent=2) + "\n")
    tensors = initial_tensors(config, arguments.seed)
    write_name_based(str(folder / CHECKPOINT_NAME), tensors)
    num_weights = sum(tensor.size for tensor in tensors.values())
    print(f"{len(tokens)} tokens in {arguments.output_dir / 'vocab.txt'}")
    print(f"{config_file}\n{folder / CHECKPOINT_NAME}: {num_weights:,} weights")


if __name__ == "__main__":
    sys.exit(main())
