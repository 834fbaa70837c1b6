"""One process of a distributed training of twenty steps; test_distributed.py starts several.

    python -m tests.training.distributed_losses PLAN.json OUTPUT.json --devices=2

Trains every case of the plan by the project's parts, on so many logical CPU devices or, with
TF_CONFIG, as one of several workers, and writes the losses and the evaluation.
"""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tf_keras

from mlperf_bert.checkpoints import reading
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.input import pipeline
from mlperf_bert.input.pipeline import ExampleLimits, ExampleShape
from mlperf_bert.model import metrics, pretrainer
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.optimization.optimizers import CLIP_NORM, GradientAggregationOptimizer
from mlperf_bert.programs.steps import Evaluator, Trainer
from mlperf_bert.training import config, tensorflow_processes, workers
from tests.training.configurations import run_config, trainer_of


def limits_of(task: dict) -> ExampleLimits:
    """What the task's examples may hold."""
    config = BertConfig.from_json_file(task["bert_config_file"])
    return ExampleShape(**task["shape"]).for_model(config)


def make_strategy(num_devices: int) -> tf.distribute.Strategy:
    """Workers if TF_CONFIG says so, else logical CPU devices."""
    if several := workers.read_cluster():
        return tensorflow_processes.create_strategy(config.DeviceConfig(), several)
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(num_devices)]
    tf.config.set_logical_device_configuration(cpu, devices)
    if num_devices == 1:
        return tf.distribute.OneDeviceStrategy("CPU:0")
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(num_devices)])


def make_trainer(task: dict, case: dict, devices: tf.distribute.Strategy) -> Trainer:
    """A trainer as the case's flags describe it, at the task's initial checkpoint."""
    config = run_config(
        runtime=case.get("runtime", "tensorflow"),
        **case["flags"],
        normalization=case["normalization"],
        jit_compile="auto" if case["compiled"] else "false",
        recompute=case.get("recompute", "none"),
    )
    model = BertConfig.from_json_file(task["bert_config_file"])
    trainer = trainer_of(config, model, strategy=devices, seed=0)
    stored = StoredCheckpoint(task["init_checkpoint"])
    reading.load_initial_weights(trainer.variables_to_train, stored)
    return trainer


def batches_of(
    task: dict, trainer: Trainer, *, batch_size: int | None = None, pack_sequences: bool = False
):
    """The task's examples in file order; the trainer of jax knows no size of a batch."""
    return trainer.batches(
        lambda context: pipeline.training_batches(
            [task["input_file"]],
            limits_of(task),
            batch_size=context.get_per_replica_batch_size(batch_size or trainer.batch_size),
            seed=None,
            num_workers=context.num_input_pipelines,
            worker=context.input_pipeline_id,
            pack_sequences=pack_sequences,
        )
    )


def train(task: dict, trainer: Trainer) -> list[float]:
    """The loss before each of the twenty steps."""
    return trainer.train(batches_of(task, trainer), tf.constant(20)).numpy()[:, 0].tolist()


def imitate_replicas(task: dict, case: dict, trainer: Trainer) -> list[float]:
    """The reference's replicas one after the other on one device, written down from its formulas.

    Replica r takes what process r reads, every n-th example, or, as a device of one process, the
    r-th part of a batch; it divides its losses by its own counts and clips its own gradient.
    Gradients are then summed (GPUs) or averaged (TPUs).
    """
    replicas, optimizer = case["imitated_replicas"], trainer.optimizer
    own = case["flags"]["train_batch_size"] // replicas
    in_parts = case.get("of_one_process", False)
    shares = [
        slice(r * own, (r + 1) * own) if in_parts else slice(r, None, replicas)
        for r in range(replicas)
    ]
    variables = trainer.variables_to_train
    clips_late = optimizer.clip_after_allreduce
    scale = 1.0 if case["normalization"] == "replica_sum" else 1.0 / replicas

    def gradient_of(features):
        with tf.GradientTape() as tape:
            tokens, sentences = pretrainer.forward(trainer.model, features, training=True)
            weights = features["masked_lm_weights"]
            token_losses = metrics.masked_lm_losses(tokens, features["masked_lm_ids"])
            masked = tf.reduce_sum(token_losses * weights) / (tf.reduce_sum(weights) + 1e-5)
            next_sentence = metrics.next_sentence_losses(
                sentences, features["next_sentence_labels"]
            )
            loss = masked + tf.reduce_mean(next_sentence)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]
        return loss, gradients if clips_late else tf.clip_by_global_norm(gradients, CLIP_NORM)[0]

    @tf.function
    def step(features):
        pieces = [
            gradient_of({name: value[share] for name, value in features.items()})
            for share in shares
        ]
        summed = [scale * tf.add_n(parts) for parts in zip(*(found for _, found in pieces))]
        optimizer.step(summed)
        return tf.add_n([loss for loss, _ in pieces]) / replicas

    update, found = tf.function(optimizer.update), []
    batches = batches_of(task, trainer)
    for number in range(1, 21):
        found.append(float(step(next(batches))))
        if optimizer.steps_per_update > 1 and number % optimizer.steps_per_update == 0:
            update()
    return found


def drop_on_replicas(task: dict, precision: str, devices: tf.distribute.Strategy) -> list[float]:
    """A figure that dropout changes, of every replica on the same examples, in two steps."""
    config = BertConfig.from_json_file(task["bert_config_file"])
    config = dataclasses.replace(config, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    with devices.scope():
        model = pretrainer.build_pretrainer(config, seed=0, precision=precision)
    batches = pipeline.training_batches(
        [task["input_file"]], limits_of(task), batch_size=4, seed=None
    )
    features = next(iter(batches))

    def of_replica():
        seed = pretrainer.dropout_seed(model)
        logits, _ = pretrainer.forward(model, features, training=True, seed=seed)
        replicas = tf.distribute.get_replica_context()
        return replicas.all_gather(tf.reshape(tf.math.reduce_variance(logits), [1]), axis=0)

    step = tf.function(lambda: devices.run(of_replica))
    found = [devices.experimental_local_results(step())[0].numpy() for _ in range(2)]
    return [float(figure) for figures in found for figure in figures]


def reduced(normalization: str, devices: tf.distribute.Strategy) -> list[float]:
    """The loss of one step that is reported, a weight after it, and what all say of 7.5.

    The replicas have the losses and gradients 0.5 and 2.0; the weight is 0 before the step, which
    is one of plain descent at rate 1.
    """
    model = tf.Module()
    model.fused = False
    with devices.scope():
        model.weight = tf.Variable(0.0)
        descent = tf_keras.optimizers.legacy.SGD(1.0)
        optimizer = GradientAggregationOptimizer(descent, [model.weight])
    trainer = Trainer(
        model=model,
        optimizer=optimizer,
        strategy=devices,
        batch_size=devices.num_replicas_in_sync,
        normalization=normalization,
    )

    def of_replica(features, seed, num_predictions, num_examples):
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        own = tf.gather([0.5, 2.0], index)
        return tf.repeat(own, 3), [own]

    trainer._compute = of_replica
    mask = tf.ones([1, 1], tf.int32)
    figures = trainer._step({"masked_lm_weights": tf.ones([1, 1]), "input_mask": mask})
    gathered = trainer.gathered([7.5]).ravel().tolist()
    return [float(figures[0]), float(model.weight.numpy()), *gathered]


def evaluation(task: dict, trainer: Trainer, evaluator: Evaluator | None = None) -> Evaluation:
    """Of the task's examples, by the weights as they are; `evaluator` is another than the usual."""
    batches = pipeline.evaluation_batches(
        [task["eval_input_file"]],
        limits_of(task),
        batch_size=task["eval_batch_size"],
    )
    evaluator = evaluator or Evaluator(model=trainer.model, strategy=trainer.strategy)
    return evaluator.evaluate(batches)


def main() -> None:
    """Runs the cases one after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--devices", type=int, default=1)
    given = parser.parse_args()
    task = json.loads(given.plan.read_text())
    devices, found = make_strategy(given.devices), {}
    for normalization in task.get("reduced_by", []):
        found[normalization] = reduced(normalization, devices)
    for precision in task.get("dropout_in", []):
        found[precision] = drop_on_replicas(task, precision, devices)
    for case in task["cases"]:
        trainer = make_trainer(task, case, devices)
        imitated = "imitated_replicas" in case
        losses = imitate_replicas(task, case, trainer) if imitated else train(task, trainer)
        after = evaluation(task, trainer)
        figures = [after.num_examples, after.masked_lm_accuracy, after.loss]
        found[case["name"]] = {"losses": losses, "evaluation": figures}
    given.output.write_text(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
