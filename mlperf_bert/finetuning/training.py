"""The training step, the order of the examples, and predictions.

Shapes: F=features, B=batch, S=sequence.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tf_keras
from official.modeling.optimization.legacy_adamw import AdamWeightDecay

from mlperf_bert.finetuning import model as task_model
from mlperf_bert.finetuning.splits import Features
from mlperf_bert.model import tf_models
from mlperf_bert.optimization.optimizers import (
    NOT_DECAYED,
    GradientAggregationOptimizer,
    WarmupPolynomialDecay,
)
from mlperf_bert.training.config import DeviceConfig

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
        gradient_clip_norm=0.0,  # done after the all-reduce
    )


def order_of_epoch(num_features: int, *, seed: int, epoch: int) -> np.ndarray:
    """The order of the features in an epoch (from 0), a function of the seed."""
    # RandomState never changes its streams: a later numpy resumes an earlier one's run.
    return np.random.RandomState([seed, epoch]).permutation(num_features)


class TaskTrainer(tf.Module):
    """Model, optimizer and step counter, on one device or several.

    The mean of the losses is taken over the global batch, and the sum of the gradients is clipped
    to a norm of 1.0: without dropout, the number of replicas does not change the result.
    """

    def __init__(
        self,
        *,
        build_model: Callable[[], tf_keras.Model],
        schedule: WarmupPolynomialDecay,
        strategy: tf.distribute.Strategy,
        batch_size: int,
        eval_batch_size: int,
    ):
        """Builds the model in the strategy's scope; the replicas divide both batch sizes.

        Raises:
          ValueError: as `build_model`.
        """
        super().__init__(name="fine_tuning")
        self.batch_size, self._eval_batch_size = batch_size, eval_batch_size
        self._strategy = strategy
        with strategy.scope():
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

    def train_step(self, features: Features, rows: np.ndarray) -> float:
        """One update on these rows of the features, at most a batch; returns the loss before it."""
        loss = self._train_step(self._batch(features, rows, self.batch_size))
        self.step.assign_add(1)
        return float(loss)

    def predict(
        self, features: Features, *, on_features: Callable[[int], None] = lambda _: None
    ) -> np.ndarray:
        """Float32 logits [F, labels], or [F, S, 2], without dropout.

        `on_features` is called after each batch with its number of features.
        """
        inputs = {name: features[name] for name in ("input_ids", "input_mask", "segment_ids")}
        found, num_features = [], len(inputs["input_ids"])
        for first in range(0, num_features, self._eval_batch_size):
            rows = np.arange(first, min(first + self._eval_batch_size, num_features))
            batch = self._batch(inputs, rows, self._eval_batch_size)
            found.append(self._predict_step(batch).numpy()[: len(rows)])
            on_features(len(rows))
        return np.concatenate(found)

    def _batch(self, features: Features, rows: np.ndarray, size: int):
        """A batch for each replica; missing rows are copies of the first one, with weight 0."""
        padded = np.concatenate([rows, np.repeat(rows[:1], size - len(rows))])
        batch = {name: values[padded] for name, values in features.items()}
        batch[_WEIGHT] = (np.arange(size) < len(rows)).astype(np.float32)
        share = size // self._strategy.num_replicas_in_sync

        def own(context: tf.distribute.ReplicaContext) -> dict[str, tf.Tensor]:
            first = context.replica_id_in_sync_group * share
            return {name: tf.constant(v[first : first + share]) for name, v in batch.items()}

        return self._strategy.experimental_distribute_values_from_function(own)

    @tf.function(autograph=False)
    def _train_step(self, batch) -> tf.Tensor:
        losses = self._strategy.run(self._replica_step, args=(batch,))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def _replica_step(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """The replica's share of the loss, and the update."""
        features = dict(features)
        example_weights = features.pop(_WEIGHT)
        all_reduce = tf.distribute.get_replica_context().all_reduce
        num_examples = all_reduce("SUM", tf.reduce_sum(example_weights))
        with tf.GradientTape() as tape:
            logits = task_model.forward(self.model, features, training=True)
            loss = tf.reduce_sum(task_model.losses(logits, features) * example_weights)
            loss /= num_examples
        gradients = tape.gradient(loss, self.optimizer.variables_to_train)
        gradients = all_reduce("SUM", [tf.convert_to_tensor(g) for g in gradients])
        self.optimizer.step(self.optimizer.clip(gradients))
        return loss

    @tf.function(autograph=False)
    def _predict_step(self, batch) -> tf.Tensor:
        def forward(features):
            return task_model.forward(self.model, features, training=False)

        return self._strategy.gather(self._strategy.run(forward, args=(batch,)), axis=0)


def create_strategy(config: DeviceConfig) -> tf.distribute.Strategy:
    """Picks TensorFlow's strategy of one process: several GPUs of its host, or one device.

    Raises:
      ValueError: as `require_devices`.
    """
    require_devices(config)
    if config.num_gpus > 1:
        return tf.distribute.MirroredStrategy([f"GPU:{n}" for n in range(config.num_gpus)])
    return tf.distribute.OneDeviceStrategy("GPU:0" if config.num_gpus else "CPU:0")


def require_devices(config: DeviceConfig) -> None:
    """Checks that this host has the devices of TensorFlow.

    Raises:
      ValueError: more GPUs are requested than there are, or a TPU, which TensorFlow has not.
    """
    if config.use_tpu:
        raise ValueError("--use_tpu: this command runs on CPUs and GPUs only; leave it out")
    gpus = tf.config.list_physical_devices("GPU")
    if config.num_gpus > len(gpus):
        raise ValueError(
            f"--num_gpus={config.num_gpus}, but TensorFlow sees {len(gpus)} GPUs; lower it, or "
            "check the driver, the container's GPUs, and that ACCELERATOR=gpu-tensorflow made it"
        )
