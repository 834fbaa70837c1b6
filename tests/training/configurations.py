"""Configurations as the command line makes them, without a command line."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from mlperf_bert import options
from mlperf_bert.data import example_encoder, tfrecord, validity
from mlperf_bert.data.validity import ExampleShape
from mlperf_bert.mlperf import rules
from mlperf_bert.model.config import BertConfig
from mlperf_bert.programs.config import Compilation
from mlperf_bert.programs.tf_trainer import Trainer
from mlperf_bert.training import build
from mlperf_bert.training.config import RunConfig
from tests.helpers import tiny_examples


def run_config(**flags) -> RunConfig:
    """What these flags describe; the others have their defaults, the environment is empty."""
    return RunConfig(**values(RunConfig, **flags), cluster=None)


def values(configuration: type, **flags) -> dict:
    """Field -> value, as these flags and the defaults of the others describe it."""
    defaults = {name: about.default for name, about in options.flags_of(configuration).items()}
    return options.values_of(configuration, defaults | flags, {})


def trainer_of(
    config: RunConfig,
    model: BertConfig,
    *,
    seed: int,
    compilation: Compilation | None = None,
) -> Trainer:
    """The trainer that a run builds; what XLA compiles may be another than the flags say."""
    compilation = compilation or config.compilation
    _, trainer = build.build_trainer(config, model, seed=seed, compilation=compilation)
    return trainer


TINY = BertConfig(**tiny_examples.TINY | {"num_hidden_layers": 2})


def large_model(config, **changed):
    """The run with the weights of BERT-large."""
    Path(config.bert_config_file).write_text(json.dumps(dict(rules.BERT_LARGE)))
    return dataclasses.replace(config, **changed)


def record(shape: ExampleShape, **changed) -> bytes:
    """A framed example of zeros."""
    values = {
        name: np.zeros(length, validity.FEATURE_DTYPES[name])
        for name, length in shape.lengths().items()
    }
    return tfrecord.frame(example_encoder.encode(values | changed))


def write_records(folder: Path, config: RunConfig) -> None:
    """A good example into each file of the run."""
    for name in ("part-0", "part-1", "eval"):
        (folder / name).write_bytes(record(config.shape))
