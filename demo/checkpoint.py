r"""Write the tiny model's bert_config.json and its initial checkpoint, named as TensorFlow 1 does.

    python -m demo.checkpoint --seed=1 --vocab_file=build/demo/vocab.txt \
        --output_dir=build/demo/checkpoint

The real benchmark starts from a published checkpoint that has learned for 28,252 steps. This one
has learned nothing, but it does not start blind: positions begin as sinusoids (Vaswani et al.,
arXiv 1706.03762) and keys as copies of queries, so that a token attends to what stands close and
to what looks alike (mimetic initialisation, Trockman and Kolter, arXiv 2305.09828). From purely
random weights the model would need most of the demo's time to find out what a neighbour is.
"""

from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    tensorflow()  # before other modules import it

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

from mlperf_bert.convert.saving import weights_by_tf1_name, write_name_based
from mlperf_bert.data.vocabulary import read_vocabulary
from mlperf_bert.files import paths
from mlperf_bert.files.whole import write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import build_pretrainer, trained_variables

CHECKPOINT_NAME = "model.ckpt-0"
_POSITIONS = "bert/embeddings/position_embeddings"
_SINUSOID_AMPLITUDE = 0.2
_LONGEST_WAVE_TOKENS = 1000


def tiny_config(vocab_size: int, max_seq_length: int) -> BertConfig:
    """Return the demo's architecture: two layers, 128 wide, without dropout."""
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
    """Return every weight by its TensorFlow 1 name, a function of the seed."""
    model = build_pretrainer(config, seed=seed)
    tensors = weights_by_tf1_name(trained_variables(model))
    tensors[_POSITIONS] = _sinusoids(config.max_position_embeddings, config.hidden_size)
    for name in tensors:
        if name.endswith("self/key/kernel"):
            tensors[name] = tensors[name.replace("self/key", "self/query")]
    return tensors


def _sinusoids(num_positions: int, hidden_size: int) -> np.ndarray:
    """Return [S, H] float32: sines in the first half of H, cosines in the second."""
    waves = _LONGEST_WAVE_TOKENS ** (np.arange(hidden_size // 2) / (hidden_size // 2))
    angles = np.arange(num_positions)[:, np.newaxis] / waves
    sinusoids = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return (_SINUSOID_AMPLITUDE * sinusoids).astype(np.float32)


@ends_in_one_line("demo.checkpoint")
def main() -> None:
    """Write both files into the output directory."""
    parser = argparse.ArgumentParser(prog="python -m demo.checkpoint")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--vocab_file", type=Path, required=True)
    parser.add_argument("--max_seq_length", type=int, default=64)
    parser.add_argument("--output_dir", type=Path, required=True)
    given = parser.parse_args(paths.words_with_home())
    vocab_size = len(read_vocabulary(str(given.vocab_file)))
    config = tiny_config(vocab_size, given.max_seq_length)
    given.output_dir.mkdir(parents=True, exist_ok=True)
    config_file = given.output_dir / "bert_config.json"
    write_whole(config_file, json.dumps(dataclasses.asdict(config), indent=2) + "\n")
    tensors = initial_tensors(config, given.seed)
    write_name_based(str(given.output_dir / CHECKPOINT_NAME), tensors)
    num_weights = sum(tensor.size for tensor in tensors.values())
    print(f"{config_file}\n{given.output_dir / CHECKPOINT_NAME}: {num_weights:,} weights")


if __name__ == "__main__":
    sys.exit(main())
