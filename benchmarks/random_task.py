"""Tasks of random words, for measurements that need no real text."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from mlperf_bert.data import example_encoder, tfrecord
from mlperf_bert.data.validity import ExampleShape


def published_lengths(count: int) -> np.ndarray:
    """A quarter of the examples full, the others about 165 tokens long, 247 on average.

    Source: Krell et al., arXiv 2107.02027; the histogram is synthesised.
    """
    random = np.random.default_rng(1)
    others = 5 + random.gamma(1.25, 140, 3 * count)
    others = others[others < 512][:count].astype(int)
    return np.where(random.random(count) < 0.235, 512, others)


def write(folder: Path, config: Mapping, shape: ExampleShape, lengths: Iterable[int]) -> list[str]:
    """Writes bert_config.json and train.tfrecord, an example of each length, 15% of it masked.

    Returns the flags of a run that name them.
    """
    (folder / "bert_config.json").write_text(json.dumps(dict(config)))
    random, framed = np.random.default_rng(2), []
    for length in lengths:
        example = {name: np.zeros(size, np.int64) for name, size in shape.lengths().items()}
        count = min(shape.max_predictions_per_seq, max(1, round(length * 0.15)))
        example["input_ids"][:length] = random.integers(0, config["vocab_size"], length)
        example["input_mask"][:length] = 1
        example["segment_ids"][length // 2 : length] = 1
        positions = random.choice(np.arange(1, length), count, replace=False)
        example["masked_lm_positions"][:count] = np.sort(positions)
        example["masked_lm_ids"][:count] = random.integers(0, config["vocab_size"], count)
        is_real = np.arange(shape.max_predictions_per_seq) < count
        example["masked_lm_weights"] = is_real.astype(np.float32)
        example["next_sentence_labels"][0] = random.integers(0, 2)
        framed.append(tfrecord.frame(example_encoder.encode(example)))
    (folder / "train.tfrecord").write_bytes(b"".join(framed))
    flags = {"bert_config_file": folder / "bert_config.json", **dataclasses.asdict(shape)}
    flags["input_file"] = folder / "train.tfrecord"
    return [f"--{name}={value}" for name, value in flags.items()]
