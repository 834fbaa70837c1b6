"""This project's training step on its own input pipeline; see training_throughput.py."""

from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    tensorflow()  # before other modules import it

import json
import sys

import tensorflow as tf

from mlperf_bert.input import pipeline
from mlperf_bert.input.pipeline import ExampleShape
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import build_pretrainer
from mlperf_bert.optimization.aggregation import GradientAggregationOptimizer
from mlperf_bert.optimization.config import OptimizerConfig
from mlperf_bert.optimization.optimizers import WarmupPolynomialDecay, create_optimizer
from mlperf_bert.training.config import DeviceConfig
from mlperf_bert.training.devices import choose_compilation, create_strategy
from mlperf_bert.training.steps import Trainer

SHAPE = ExampleShape(max_seq_length=512, max_predictions_per_seq=76)


def build_trainer(task: dict) -> Trainer:
    """Model, optimizer and compiled step, as a run of one process has them."""
    packs = task["pack_sequences"]
    devices = create_strategy(DeviceConfig())
    compiled = choose_compilation(task["jit_compile"], strategy=devices, packs_sequences=packs)
    with devices.scope():
        model = build_pretrainer(
            BertConfig.from_json_file(task["bert_config_file"]),
            seed=1,
            precision=task["precision"],
            compile_passes=compiled.passes,
            sums_of_vectors=compiled.each_pass,
            pack_sequences=packs,
        )
        rate = WarmupPolynomialDecay(learning_rate=1e-4, num_train_steps=10**6, num_warmup_steps=0)
        optimizer = GradientAggregationOptimizer(
            create_optimizer(OptimizerConfig(), rate, compiled=compiled.each_pass)
        )
    trainer = Trainer(
        model=model,
        optimizer=optimizer,
        strategy=devices,
        batch_size=task["batch_size"],
        compiled=compiled,
    )
    trainer.warm_up(
        pipeline.synthetic_batches(SHAPE, batch_size=task["batch_size"], pack_sequences=packs)
    )
    return trainer


def training_batches(task: dict) -> tf.data.Dataset:
    """The input pipeline of a run."""
    return pipeline.training_batches(
        [task["record_file"]],
        SHAPE.for_model(BertConfig.from_json_file(task["bert_config_file"])),
        batch_size=task["batch_size"],
        seed=1,
        pack_sequences=task["pack_sequences"],
    )


def main() -> None:
    """Trains, and prints STEP after every step."""
    task = json.loads(sys.argv[1])
    trainer = build_trainer(task)
    batches = trainer.batches(lambda _: training_batches(task))
    while True:
        trainer.train(batches, tf.constant(1)).numpy()
        print("STEP", flush=True)


if __name__ == "__main__":
    main()
