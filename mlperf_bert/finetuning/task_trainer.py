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
from mlperf_bert.messages import Finding
from mlperf_bert.model import pretrainer, tf_models
from mlperf_bert.optimization.optimizers import (
    NOT_DECAYED,
    GradientAggregationOptimizer,
    WarmupPolynomialDecay,
)
from mlperf_bert.programs.contract import LocalState, TrainerContract

_WEIGHT = "weights"


def order_of_epoch(num_features: int, *, seed: int, epoch: int) -> np.ndarray:
    """The order of the features in an epoch (from 0), a function of the seed."""
    # RandomState never changes its streams: a run can be resumed with a later numpy.
    return np.random.RandomState([seed, epoch]).permutation(num_features)


def training_batches(
    features: Features, *, size: int, seed: int, first_epoch: int = 0
) -> Iterator[Features]:
    """The batches of all epochs from `first_epoch` on; `batch_of` fills up the last of each."""
    for epoch in itertools.count(first_epoch):
        order = order_of_epoch(len(features["input_ids"]), seed=seed, epoch=epoch)
        for begin in range(0, len(order), size):
            yield batch_of(features, order[begin : begin + size], size)


def batch_of(features: Features, rows: np.ndarray, size: int) -> Features:
    """A batch of these rows; missing ones are copies of the first, with weight 0."""
    padded = np.concatenate([rows, np.repeat(rows[:1], size - len(rows))])
    batch = {name: values[padded] for name, values in features.items()}
    return batch | {_WEIGHT: (np.arange(size) < len(rows)).astype(np.float32)}


class TaskTrainerContract(TrainerContract, Protocol):
    """A trainer that also answers."""

    def compile_for(self, to_train: Features, to_predict: Features) -> Finding | None:
        """Compiles both programs for batches like these; returns what they take of the device."""

    def predict(self, batch: Features) -> np.ndarray:
        """Float32 logits of a batch, [B, labels], or [B, S, 2], without dropout."""


def predictions(trainer: TaskTrainerContract, features: Features, *, size: int) -> np.ndarray:
    """The logits of all features, by batches of one size."""
    every = np.arange(len(features["input_ids"]))
    return np.concatenate(
        [
            trainer.predict(inputs_of(features, rows, size))[: len(rows)]
            for rows in np.split(every, every[size::size])
        ]
    )


def inputs_of(features: Features, rows: np.ndarray, size: int) -> Features:
    """A batch of these rows without their labels."""
    names = ("input_ids", "input_mask", "segment_ids")
    return batch_of({name: features[name] for name in names}, rows, size)


class TaskTrainer(LocalState, tf.Module):
    """Model, optimizer and step counter, on the CPU of one process."""

    def __init__(
        self, *, build_model: Callable[[], tf_keras.Model], schedule: WarmupPolynomialDecay
    ):
        """Builds the model in the scope of `one_replica`; raises as `build_model`."""
        super().__init__(name="fine_tuning")
        with pretrainer.one_replica().scope():
            self.model = build_model()
            # AdamW with bias correction. BERT was first fine-tuned without it, and small tasks
            # then fail with some seeds. Source: Mosbach et al., arXiv 2006.04884.
            adamw = AdamWeightDecay(
                learning_rate=schedule,
                beta_1=0.9,
                beta_2=0.999,
                epsilon=1e-8,
                weight_decay_rate=0.01,
                exclude_from_weight_decay=list(NOT_DECAYED),
                gradient_clip_norm=0.0,  # GradientAggregationOptimizer does it
            )
            self.optimizer = GradientAggregationOptimizer(
                adamw, task_model.trained_variables(self.model)
            )
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self._compiled_update = tf.function(self.update, autograph=False)
        self._compiled_logits = tf.function(self.logits, autograph=False)

    @property
    def state(self) -> dict[str, object]:
        """What a checkpoint holds."""
        return {
            "model": self.model,
            "optimizer": self.optimizer.optimizer,
            "step": self.step,
            "generators": tf_models.random_generators(self.model),
        }

    def compile_for(self, to_train: Features, to_predict: Features) -> None:
        """Compiles nothing: TensorFlow traces both when they are first called."""

    def train(self, iterator: Iterator[Features], num_steps: int) -> np.ndarray:
        """One update on each of the next batches; returns their losses before it, [steps, 1]."""
        losses = [[float(self._compiled_update(next(iterator)))] for _ in range(num_steps)]
        self.step.assign_add(num_steps)
        return np.array(losses, np.float32)

    def predict(self, batch: Features) -> np.ndarray:
        """Returns what `TaskTrainerContract.predict` promises."""
        return self._compiled_logits(batch).numpy()

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
        self.optimizer.step(self.optimizer.clip(list(map(tf.convert_to_tensor, gradients))))
        return loss

    def logits(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """What `predict` returns, as a tensor."""
        return pretrainer.one_replica().run(
            lambda: task_model.forward(self.model, batch, training=False)
        )
