"""Recorded cases by TensorFlow: their trainer, its batches, its evaluation, replicas in turn."""

import tensorflow as tf

from mlperf_bert.checkpoints import reading
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.input import pipeline
from mlperf_bert.input.pipeline import ExampleLimits, ExampleShape
from mlperf_bert.model import metrics, pretrainer
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.optimization.optimizers import CLIP_NORM
from mlperf_bert.programs.tf_trainer import Evaluator, Trainer
from tests.training.configurations import run_config, trainer_of


def limits_of(task: dict) -> ExampleLimits:
    """What the task's examples may hold."""
    config = BertConfig.from_json_file(task["bert_config_file"])
    return ExampleShape(**task["shape"]).for_model(config)


def make_trainer(task: dict, flags: dict) -> Trainer:
    """A trainer as the flags describe it, at the task's initial checkpoint."""
    model = BertConfig.from_json_file(task["bert_config_file"])
    usual = {"runtime": "tensorflow", "jit_compile": "false"}
    trainer = trainer_of(run_config(**usual | flags), model, seed=0)
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


def imitate_replicas(task: dict, case: dict, trainer: Trainer) -> list[float]:
    """The reference's replicas one after the other on one device, written down from its formulas.

    Replica r takes the r-th part of a batch; it divides its losses by its own counts and clips its
    own gradient. Gradients are then summed (GPUs) or averaged (TPUs).
    """
    replicas, optimizer = case["imitated_replicas"], trainer.optimizer
    own = case["flags"]["train_batch_size"] // replicas
    shares = [slice(r * own, (r + 1) * own) for r in range(replicas)]
    variables = trainer.variables_to_train
    scale = 1.0 if case["flags"]["normalization"] == "replica_sum" else 1.0 / replicas

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
        return loss, tf.clip_by_global_norm(gradients, CLIP_NORM)[0]

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


def evaluation(task: dict, trainer: Trainer, evaluator: Evaluator | None) -> Evaluation:
    """Of the task's examples, by the weights as they are; `evaluator` is another than the usual."""
    batches = pipeline.evaluation_batches(
        [task["eval_input_file"]],
        limits_of(task),
        batch_size=task["eval_batch_size"],
    )
    evaluator = evaluator or Evaluator(model=trainer.model)
    return evaluator.evaluate(batches)
