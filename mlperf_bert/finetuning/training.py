"""The batches, the training step and the predictions.

Shapes: F=features, B=batch, S=sequence.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import tensorflow as tf
import tf_keras
from official.modeling.optimization.legacy_adamw import AdamWeightDecay

from mlperf_bert.finetuning import model as task_model
from mlperf_bert.finetuning.splits import Features
from mlperf_bert.model import pretrainer, tf_models
from mlperf_bert.optimization.optimizers import (
    NOT_DECAYED,
    GradientAggregationOptimizer,
    WarmupPolynomialDecay,
)
from mlperf_bert.programs.contract import OneProcess, Trains

_WEIGHT = "weights"
_WEIGHT_DECAY_RATE, _EPSILON = 0.01, 1e-8


def adamw(schedule: WarmupPolynomialDecay) -> AdamWeightDecay:
    """tf-models' AdamW, with bias correction; biases and LayerNorm do not decay.

    Without the correction, as BERT was first fine-tuned, small tasks fail with some seeds. Source:
    Mosbach et al., arXiv 2006.04884.
    """
    return AdamWeightDecay(
        learning_rate=schedule,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=_EPSILON,
        weight_decay_rate=_WEIGHT_DECAY_RATE,
        exclude_from_weight_decay=list(NOT_DECAYED),
        gradient_clip_norm=0.0,  # GradientAggregationOptimizer does it
    )


def order_of_epoch(num_features: int, *, seed: int, epoch: int) -> np.ndarray:
    """The order of the features in an epoch (from 0), a function of the seed."""
    # RandomState never changes its streams: a later numpy resumes an earlier one's run.
    return np.random.RandomState([seed, epoch]).permutation(num_features)


def training_batches(features: Features, *, size: int, seed: int, step: int) -> Iterator[Features]:
    """The batches of all epochs, from the one that follows `step` on; each epoch's last is short.

    It is filled up, as by `batch_of`.
    """
    num_features = len(features["input_ids"])
    first_epoch, number = divmod(step, -(-num_features // size))
    for epoch in itertools.count(first_epoch):
        order = order_of_epoch(num_features, seed=seed, epoch=epoch)
        for begin in range(number * size, num_features, size):
            yield batch_of(features, order[begin : begin + size], size)
        number = 0


def batch_of(features: Features, rows: np.ndarray, size: int) -> Features:
    """A batch of these rows; missing ones are copies of the first, with weight 0."""
    padded = np.concatenate([rows, np.repeat(rows[:1], size - len(rows))])
    batch = {name: values[padded] for name, values in features.items()}
    return batch | {_WEIGHT: (np.arange(size) < len(rows)).astype(np.float32)}


class Predicts(Trains, Protocol):
    """A trainer that also answers."""

    def predict(self, batch: Features) -> np.ndarray:
        """Float32 logits of a batch, [B, labels], or [B, S, 2], without dropout."""


def predictions(
    trainer: Predicts, features: Features, *, size: int, on_features: Callable[[int], None]
) -> np.ndarray:
    """The logits of all features, by batches of one size; each is told, by its length."""
    inputs = {name: features[name] for name in ("input_ids", "input_mask", "segment_ids")}
    found, every = [], np.arange(len(inputs["input_ids"]))
    for rows in np.split(every, every[size::size]):
        found.append(trainer.predict(batch_of(inputs, rows, size))[: len(rows)])
        on_features(len(rows))
    return np.concatenate(found)


class TaskTrainer(OneProcess, tf.Module):
    """Model, optimizer and step counter, on the CPU of one process."""

    def __init__(
        self, *, build_model: Callable[[], tf_keras.Model], schedule: WarmupPolynomialDecay
    ):
        """Builds the model in the scope of `one_replica`.

        Raises:
          ValueError: as `build_model`.
        """
        super().__init__(name="fine_tuning")
        with pretrainer.one_replica().scope():
            self.model = build_model()
            self.optimizer = GradientAggregationOptimizer(
                adamw(schedule), task_model.trained_variables(self.model)
            )
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")

    @property
    def state(self) -> dict[str, object]:
        """What a checkpoint holds."""
        return {
            "model": self.model,
            "optimizer": self.optimizer.optimizer,
            "step": self.step,
            "generators": tf_models.random_generators(self.model),
        }

    def train(self, iterator: Iterator[Features], num_steps: int) -> np.ndarray:
        """One update on each of the next batches; returns their losses before it, [steps, 1]."""
        losses = []
        for _ in range(num_steps):
            losses.append([float(self._compiled_update(next(iterator)))])
            self.step.assign_add(1)
        return np.array(losses, np.float32)

    def predict(self, batch: Features) -> np.ndarray:
        """As `Predicts`."""
        return self._compiled_logits(batch).numpy()

    @tf.function(autograph=False)
    def _compiled_update(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        return self.update(batch)

    @tf.function(autograph=False)
    def _compiled_logits(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        return self.logits(batch)

    def update(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Changes the weights, with the gradients clipped to a norm of 1.0; returns the loss."""
        return pretrainer.one_replica().run(self._update, args=(batch,))

    def _update(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        features = dict(features)
        example_weights = features.pop(_WEIGHT)
        with tf.GradientTape() as tape:
            logits = task_model.forward(self.model, features, training=True)
            loss = tf.reduce_sum(task_model.losses(logits, features) * example_weights)
            loss /= tf.reduce_sum(example_weights)
        gradients = tape.gradient(loss, self.optimizer.variables_to_train)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        self.optimizer.step(self.optimizer.clip(gradients))
        return loss

    def logits(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """What `predict` returns, as a tensor."""
        return pretrainer.one_replica().run(
            lambda: task_model.forward(self.model, batch, training=False)
        )
