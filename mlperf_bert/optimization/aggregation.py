"""Gradient aggregation: several micro-batches make one update, as on a bigger machine."""

import collections
from collections.abc import Sequence

import tensorflow as tf
import tf_keras

from mlperf_bert.optimization.optimizers import LAMB

# Source: the reference clips the global norm of the gradients to 1.0; the rules fix it.
CLIP_NORM = 1.0


class GradientAggregationOptimizer(tf.Module):
    """Wraps an optimizer so that `steps_per_update` micro-batches make one update.

    State, all of it checkpointed: `accumulators`, one per variable, the sum so far of
    gradient / steps_per_update (absent when steps_per_update is 1); the wrapped `optimizer` with
    its slots and its count of updates.

    The gradient of each micro-batch is clipped to a global norm of 1.0 before it is accumulated;
    with `clip_after_allreduce` the accumulated gradient is clipped instead, once per update.

    Gradients must already be reduced over the replicas: every replica holds the same accumulators,
    and changes them without communication.

    Source: the reference's GradientAggregationOptimizer and clip_by_global_norm.
    """

    def __init__(
        self,
        optimizer: tf_keras.optimizers.legacy.Optimizer,
        variables: list[tf.Variable],
        *,
        steps_per_update: int = 1,
        clip_after_allreduce: bool = False,
        whole_step: bool = False,
    ):
        """Makes slots and accumulators, all zero; call it inside the strategy's scope.

        Args:
          optimizer: is wrapped.
          variables: what it changes.
          steps_per_update: micro-batches of an update.
          clip_after_allreduce: whether the accumulated gradient is clipped.
          whole_step: whether the step is one program of XLA.
        """
        super().__init__(name="gradient_aggregation")
        if steps_per_update < 1:
            raise ValueError(f"steps_per_update must be at least 1, got {steps_per_update}")
        self.optimizer = optimizer
        self.variables_to_train = variables
        self.steps_per_update = steps_per_update
        self.clip_after_allreduce = clip_after_allreduce
        self._whole_step = whole_step
        self.accumulators: list[tf.Variable] = []
        optimizer._create_all_weights(variables)
        if steps_per_update > 1:
            # One on each replica, which adds to it without asking the others; as all are equal, the
            # first one's is what a checkpoint has.
            self.accumulators = [
                tf.Variable(
                    tf.zeros_like(variable),
                    trainable=False,
                    name="grad_accum",
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )
                for variable in variables
            ]

    def clip(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Clips the gradient of a micro-batch, unless clipping is done once per update."""
        if self.clip_after_allreduce:
            return gradients
        return self._clipped(gradients)

    def _clipped(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        # g / max(1, |all g|), for the bound is 1.
        norm = _norm_of_all(gradients) if self._whole_step else None
        return tf.clip_by_global_norm(gradients, CLIP_NORM, use_norm=norm)[0]

    def step(self, gradients: list[tf.Tensor], *, clips: bool = False) -> None:
        """Takes the reduced gradients of one micro-batch, in the order of the variables.

        With `clips` they are clipped as by `clip`. Without aggregation this is the whole update;
        with it, call `update` after every `steps_per_update` calls. Call both in replica context.
        """
        if self.steps_per_update == 1:
            self._apply(gradients, clips=clips or self.clip_after_allreduce)
            return
        if clips:
            gradients = self.clip(gradients)
        # The mean: n micro-batches of b examples stand for one of n * b.
        for accumulator, gradient in zip(self.accumulators, gradients):
            accumulator.assign_add(gradient / self.steps_per_update)

    def update(self) -> None:
        """Applies the accumulated gradients and sets the accumulators to zero."""
        gradients = [accumulator.read_value() for accumulator in self.accumulators]
        self._apply(gradients, clips=self.clip_after_allreduce)
        for accumulator in self.accumulators:
            accumulator.assign(tf.zeros_like(accumulator))

    def _apply(self, gradients: list[tf.Tensor], *, clips: bool) -> None:
        if clips and isinstance(self.optimizer, LAMB) and self.optimizer.is_compiled:
            norm = tf.linalg.global_norm(gradients)
            [factor], _ = tf.clip_by_global_norm([tf.ones([])], CLIP_NORM, use_norm=norm)
            self.optimizer.apply_scaled(zip(gradients, self.variables_to_train), factor)
            return
        if clips:
            gradients = self._clipped(gradients)
        # They are reduced already; Keras would add them up over the replicas once more.
        self.optimizer.apply_gradients(
            zip(gradients, self.variables_to_train), experimental_aggregate_gradients=False
        )

    def reset(self) -> None:
        """Sets slots, accumulators and the count of updates to zero."""
        for variable in [*self.optimizer.variables(), *self.accumulators]:
            variable.assign(tf.zeros_like(variable))


def _norm_of_all(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The Euclidean norm of all tensors together, float32 scalar.

    Vectors of one length, the biases of all layers, are added up together: XLA for GPUs makes two
    kernels of every sum. Matrices are not: a TPU would have to copy them.
    """
    vectors: dict[int, list[tf.Tensor]] = collections.defaultdict(list)
    squares = []
    for tensor in tensors:
        if tensor.shape.rank == 1:
            vectors[tensor.shape[0]].append(tensor)
        else:
            squares.append(tf.reduce_sum(tensor * tensor))
    for same in vectors.values():
        stacked = tf.stack(same)
        squares.append(tf.reduce_sum(stacked * stacked))
    return tf.sqrt(tf.add_n(squares))
