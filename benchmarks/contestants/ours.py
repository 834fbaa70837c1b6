"""This project's training step on its own input pipeline; see training_throughput.py."""

from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    tensorflow()  # before other modules import it

import json
import sys

import tensorflow as tf

from mlperf_bert import options
from mlperf_bert.input import pipeline
from mlperf_bert.input.pipeline import ExampleShape
from mlperf_bert.model.config import BertConfig
from mlperf_bert.programs.config import STEP_FIGURES
from mlperf_bert.programs.tf_trainer import Trainer
from mlperf_bert.training import build
from mlperf_bert.training.config import RunConfig

SHAPE = ExampleShape(max_seq_length=512, max_predictions_per_seq=76)


def build_trainer(task: dict) -> Trainer:
    """The trainer of a task, compiled."""
    flags = {name: task[name] for name in ("precision", "jit_compile", "pack_sequences")}
    flags |= {"optimizer": "lamb", "learning_rate": 1e-4, "train_batch_size": task["batch_size"]}
    flags |= {"num_train_steps": 2**20, "num_warmup_steps": 0}
    defaults = {name: about.default for name, about in options.flags_of(RunConfig).items()}
    config = RunConfig(**options.values_of(RunConfig, defaults | flags, {}), cluster=None)
    model = BertConfig.from_json_file(task["bert_config_file"])
    _, trainer = build.build_trainer(config, model, seed=1, compilation=config.compilation)
    size, packs = task["batch_size"], task["pack_sequences"]
    trainer.warm_up(pipeline.synthetic_batches(SHAPE, batch_size=size, pack_sequences=packs))
    return trainer


def training_batches(task: dict) -> tf.data.Dataset:
    """The input pipeline of a run."""
    return pipeline.training_batches(
        [task["record_file"]],
        SHAPE.for_model(BertConfig.from_json_file(task["bert_config_file"])),
        batch_size=task["batch_size"],
        seed=1 + task.get("turn", 0),
        pack_sequences=task["pack_sequences"],
    )


def main() -> None:
    """Trains, and prints STEP after every step."""
    task = json.loads(sys.argv[1])
    trainer = build_trainer(task)
    batches = trainer.batches(lambda _: training_batches(task))
    while True:
        figures = dict(zip(STEP_FIGURES, trainer.train(batches, tf.constant(1)).numpy()[0]))
        print("STEP", int(figures["num_real_tokens"]), flush=True)


if __name__ == "__main__":
    main()
