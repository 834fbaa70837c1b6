"""A trainer on the generated task, with the options for speed; its batches, losses, gradients."""

import time

import numpy as np
import tensorflow as tf

from mlperf_bert.input import pipeline
from mlperf_bert.model.config import BertConfig
from mlperf_bert.programs.config import NO_COMPILATION, Compilation
from mlperf_bert.programs.tf_trainer import Trainer
from tests.training import generated_task
from tests.training.configurations import run_config, trainer_of

PASSES = run_config(jit_compile="auto").compilation
STEP = run_config(jit_compile="true").compilation
BATCH_SIZE = 8


def make_trainer(
    *,
    compilation: Compilation = NO_COMPILATION,
    dropout: float = 0.0,
    batch_size: int = BATCH_SIZE,
    config: dict | None = None,
    **flags,
) -> Trainer:
    """Of the generated task's model with the configuration's changes, as the flags say."""
    # Weights so large that attention matters: with usual ones every token sees much the same.
    changed = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    changed["initializer_range"] = 0.3
    usual = {"optimizer": "lamb", "learning_rate": 0.01, "num_warmup_steps": 0}
    usual |= {"num_train_steps": 120, "train_batch_size": batch_size}
    return trainer_of(
        run_config(**usual | flags),
        BertConfig(**generated_task.CONFIG | changed | (config or {})),
        seed=1,
        compilation=compilation,
    )


def batches_of(
    task, *, batch_size: int = BATCH_SIZE, pack_sequences: bool = False
) -> tf.data.Dataset:
    return pipeline.training_batches(
        [str(task / "train.tfrecord")],
        generated_task.LIMITS,
        batch_size=batch_size,
        seed=None,
        pack_sequences=pack_sequences,
    )


def slowed(batches: tf.data.Dataset, seconds: float, slept: list[float]) -> tf.data.Dataset:
    """A data set that sleeps after each of its elements; `slept` takes how long it really did."""

    def sleep(_):
        began = time.monotonic()
        time.sleep(seconds)
        slept.append(time.monotonic() - began)
        return 0

    slow = tf.data.Dataset.range(10**6).map(lambda n: tf.numpy_function(sleep, [n], tf.int64))
    return tf.data.Dataset.zip(batches, slow).map(lambda batch, _: batch)


def losses_and_gradients(trainer: Trainer, features, seed=None):
    num_predictions = tf.reduce_sum(features["masked_lm_weights"])
    losses, gradients = trainer._gradients_of(features, seed, num_predictions, BATCH_SIZE)
    return losses.numpy(), [gradient.numpy() for gradient in gradients]


def assert_same(found, expected, *, tolerance: float, **of_losses: float) -> None:
    """Of losses and gradients, with a tolerance relative to the norm of all gradients."""
    np.testing.assert_allclose(found[0], expected[0], **{"rtol": 0, "atol": tolerance} | of_losses)
    scale = np.sqrt(sum(np.sum(np.square(gradient)) for gradient in expected[1]))
    for one, other in zip(found[1], expected[1]):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)
