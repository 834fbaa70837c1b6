"""The learning rate over time."""

import tensorflow as tf
import tf_keras


class WarmupPolynomialDecay(tf_keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then polynomial decay to 0 at `num_train_steps`.

    The decay counts from step 0, not from the end of the warm-up; a warm-up that starts at a
    negative step begins above 0. Steps are micro-batches; update `u` (from 0) of an optimizer that
    aggregates `steps_per_update` micro-batches uses the rate of its last micro-batch.

    Source: the reference's optimizer set-up; recipes of 6,144 samples and more start at -700..-76.
    """

    def __init__(
        self,
        *,
        learning_rate: float,
        num_train_steps: int,
        num_warmup_steps: int,
        start_warmup_step: int = 0,
        poly_power: float = 1.0,
        steps_per_update: int = 1,
    ):
        super().__init__()
        if num_warmup_steps and start_warmup_step > 0:
            raise ValueError(
                f"start_warmup_step must be 0 or negative, got {start_warmup_step}: "
                "the rate would be negative in the steps before it"
            )
        self.learning_rate = learning_rate
        self.num_train_steps = num_train_steps
        self.num_warmup_steps = num_warmup_steps
        self.start_warmup_step = start_warmup_step
        self.poly_power = poly_power
        self.steps_per_update = steps_per_update

    def at_step(self, step: tf.Tensor) -> tf.Tensor:
        """The rate of micro-batch `step` (from 0), float32 scalar."""
        step = tf.cast(step, tf.float32)
        done = tf.minimum(step, self.num_train_steps) / self.num_train_steps
        rate = self.learning_rate * tf.pow(1.0 - done, self.poly_power)
        if not self.num_warmup_steps:
            return rate
        warmup_steps = step - self.start_warmup_step
        warmup_rate = self.learning_rate * (warmup_steps / self.num_warmup_steps)
        return tf.where(warmup_steps < self.num_warmup_steps, warmup_rate, rate)

    def __call__(self, update: tf.Tensor) -> tf.Tensor:
        """The rate of update `update` (from 0), float32 scalar."""
        return self.at_step((tf.cast(update, tf.int64) + 1) * self.steps_per_update - 1)
