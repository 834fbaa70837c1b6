"""LAMB and AdamW as the reference computes them, their learning rate over time, aggregation.

Gradient aggregation: several micro-batches make one update, as on a bigger machine.
"""

import collections
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence

import tensorflow as tf
import tf_keras
from official.modeling.optimization import lamb
from official.modeling.optimization.legacy_adamw import AdamWeightDecay

from mlperf_bert.optimization.config import OptimizerConfig

# Names of variables without weight decay and without LAMB's scaling by norms. `output_bias` is a
# bias; all embeddings decay. Source: the reference's optimizer set-up.
NOT_DECAYED = ("LayerNorm", "layer_norm", "bias")
# Source: the reference clips the global norm of the gradients to 1.0; the rules fix it.
CLIP_NORM = 1.0


class LAMB(lamb.LAMB):
    """LAMB that updates one variable after the other on each device.

    Otherwise the temporary results of all variables would be in memory at the same time. The state
    (slots `m` and `v`, the count of updates) and its names in checkpoints are tf-models'. With
    `compiled`, XLA compiles one program for all variables of a shape.
    """

    def __init__(self, *, compiled: bool, **kwargs):
        super().__init__(**kwargs)
        self._change: Callable[..., tf.Tensor] = lamb_change
        self.is_compiled = compiled
        if self.is_compiled:
            self._change = tf.function(_scaled_change, jit_compile=True, autograph=False)
        self._factor: tf.Tensor | None = None
        self._last_changes: dict[str, list] = {}

    def apply_scaled(self, gradients_and_variables, factor: tf.Tensor) -> None:
        """Applies reduced gradients times a float32 scalar; only with `compiled`.

        The program multiplies while it reads them, and writes no scaled gradient.
        """
        self._factor = factor
        self.apply_gradients(gradients_and_variables, experimental_aggregate_gradients=False)
        self._factor = None

    def _prepare(self, var_list):
        # Before each update: a change in another trace is not in this graph.
        self._last_changes = {}
        return super()._prepare(var_list)

    def _resource_apply_dense(self, grad, var, apply_state=None):
        key = var.device, var.dtype.base_dtype
        constants = (apply_state or {}).get(key) or self._fallback_apply_state(*key)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        if self.is_compiled:
            constants = constants | {"factor": 1.0 if self._factor is None else self._factor}
        # Runs after the variable before it, whose temporary results are then gone.
        with tf.control_dependencies(self._last_changes.get(var.device, [])):
            change = self._change(
                var, grad, m, v, constants, decays=self._do_use_weight_decay(var.name)
            )
        self._last_changes[var.device] = [change]
        return change


def lamb_change(
    weight: tf.Variable,
    gradient: tf.Tensor,
    m: tf.Variable,
    v: tf.Variable,
    constants: dict[str, tf.Tensor],
    *,
    decays: bool,
    norm: Callable[[tf.Tensor], tf.Tensor] = tf.norm,
) -> tf.Tensor:
    """Changes one weight and its moments in place; returns the new weight.

    Args:
      weight: any shape; `gradient`, `m` and `v` have the same.
      constants: scalars by tf-models' names. `lr_t` is the learning rate, `beta_1_power` is
        beta_1 to the power of the number of updates, this one included.
      decays: whether the weight decays and its step is scaled by its norm. Biases and LayerNorm
        have neither.
      norm: the Euclidean norm of a tensor.

    Source: You et al., arXiv 1904.00962, algorithm 2, without a bound on the norm of the weight.
    """
    # m = beta_1 m + (1 - beta_1) g; v = beta_2 v + (1 - beta_2) g^2.
    # In a graph tf.square(gradient) would differ from the product in the last bit.
    m_t = m.assign(constants["beta_1_t"] * m + constants["one_minus_beta_1_t"] * gradient)
    v_t = v.assign(
        constants["beta_2_t"] * v + constants["one_minus_beta_2_t"] * (gradient * gradient)
    )
    # m and v began at 0. Divided by 1 - beta^t, the sum of t gradients' weights, they are means.
    m_hat = m_t / (1.0 - constants["beta_1_power"])
    v_hat = v_t / (1.0 - constants["beta_2_power"])
    update = m_hat / (tf.sqrt(v_hat) + constants["epsilon"])
    # r = m_hat / (sqrt(v_hat) + epsilon) + decay * w; w -= rate * |w| / |r| * r.
    trust_ratio = 1.0
    if decays:
        update += constants["weight_decay_rate"] * weight
        weight_norm, update_norm = norm(weight), norm(update)
        # A weight of zeros could never move by a share of its own norm.
        both_positive = (weight_norm > 0) & (update_norm > 0)
        trust_ratio = tf.where(both_positive, weight_norm / update_norm, 1.0)
    return weight.assign(weight - trust_ratio * constants["lr_t"] * update)


def _scaled_change(weight, gradient, m, v, constants, *, decays: bool) -> tf.Tensor:
    """`lamb_change` with gradient times `factor`, a constant; returns a scalar that waits for it.

    If the program returned the new weight, XLA would copy it.
    """
    scaled = gradient * constants["factor"]
    change = lamb_change(weight, scaled, m, v, constants, decays=decays, norm=_norm_by_slices)
    with tf.control_dependencies([change]):
        return tf.identity(constants["lr_t"])


def _norm_by_slices(tensor: tf.Tensor) -> tf.Tensor:
    """The Euclidean norm, of sixteen slices at a time.

    TensorFlow's XLA adds the elements of a whole tensor on a CPU one after the other, but vectors
    of slices many at once. Other compilers would copy the slices.
    """
    num_slices = math.gcd(tensor.shape.num_elements(), 16)
    slices = tf.unstack(tf.reshape(tensor, [num_slices, -1]))
    return tf.sqrt(tf.reduce_sum(functools.reduce(operator.add, [each * each for each in slices])))


class ReferenceAdamW(AdamWeightDecay):
    """AdamW without bias correction, as BERT was first trained.

    update = m / (sqrt(v) + epsilon) + weight_decay_rate * weight. Source: Devlin et al.'s
    optimizer, kept by the reference.
    """

    def __init__(self, *, beta_1: float, beta_2: float, **kwargs):
        super().__init__(beta_1=beta_1, beta_2=beta_2, **kwargs)
        self._betas = beta_1, beta_2

    def _resource_apply_dense(self, grad, var, apply_state=None):
        rate, _ = self._get_lr(var.device, var.dtype.base_dtype, apply_state)
        beta_1, beta_2 = self._betas
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        # 1 - beta is computed in double precision: in float32 its error would be 1e-5.
        m.assign(beta_1 * m + (1.0 - beta_1) * grad)
        v.assign(beta_2 * v + (1.0 - beta_2) * tf.square(grad))
        update = m / (tf.sqrt(v) + self.epsilon)
        if self._do_use_weight_decay(var.name):
            update += self.weight_decay_rate * var
        return var.assign_sub(rate * update, use_locking=self._use_locking)


def create_optimizer(
    config: OptimizerConfig,
    schedule: tf_keras.optimizers.schedules.LearningRateSchedule,
    *,
    compiled: bool = False,
) -> tf_keras.optimizers.legacy.Optimizer:
    """Builds the optimizer; `GradientAggregationOptimizer` does the clipping.

    Call it inside the scope of `one_replica`. With `compiled` XLA compiles LAMB.
    """
    constants = {
        "learning_rate": schedule,
        "beta_1": config.beta_1,
        "beta_2": config.beta_2,
        "epsilon": config.epsilon,
        "weight_decay_rate": config.weight_decay_rate,
        "exclude_from_weight_decay": list(NOT_DECAYED),
    }
    if config.name == "lamb":
        return LAMB(**constants, compiled=compiled)
    if config.name == "adamw":
        return ReferenceAdamW(**constants, gradient_clip_norm=0.0)
    raise ValueError(f"optimizer must be lamb or adamw, got {config.name!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmupPolynomialDecay(tf_keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then polynomial decay to 0 at `num_train_steps`.

    The decay counts from step 0, not from the end of the warm-up; a warm-up that starts at a
    negative step begins above 0. Steps are micro-batches; update `u` (from 0) of an optimizer that
    aggregates `steps_per_update` micro-batches uses the rate of its last micro-batch.

    Source: the reference's optimizer set-up; recipes of 6,144 samples and more start at -700..-76.
    """

    learning_rate: float
    num_train_steps: int
    num_warmup_steps: int
    start_warmup_step: int = 0
    poly_power: float = 1.0
    steps_per_update: int = 1

    def at_step(self, step: tf.Tensor) -> tf.Tensor:
        """The rate of micro-batch `step` (from 0), float32 scalar."""
        step = tf.cast(step, tf.float32)
        done = tf.minimum(step, self.num_train_steps) / self.num_train_steps
        rate = self.learning_rate * tf.pow(1.0 - done, self.poly_power)
        if not self.num_warmup_steps:
            return rate
        warmup_steps = step - self.start_warmup_step
        warmup_rate = self.learning_rate * (warmup_steps / self.num_warmup_steps)
        # Where the warm-up ends the rate falls at once: the decay has counted from step 0.
        return tf.where(warmup_steps < self.num_warmup_steps, warmup_rate, rate)

    def __call__(self, update: tf.Tensor) -> tf.Tensor:
        """The rate of update `update` (from 0), float32 scalar."""
        return self.at_step((tf.cast(update, tf.int64) + 1) * self.steps_per_update - 1)


class GradientAggregationOptimizer(tf.Module):
    """Wraps an optimizer so that `steps_per_update` micro-batches make one update.

    State, all of it checkpointed: `accumulators`, one per variable, the sum so far of
    gradient / steps_per_update (absent when steps_per_update is 1); the wrapped `optimizer` with
    its slots and its count of updates.

    The gradient of each micro-batch is clipped to a global norm of 1.0 before it is accumulated;
    with `clip_after_allreduce` the accumulated gradient is clipped instead, once per update.

    Gradients must already be reduced over the devices: each holds the same accumulators, and
    changes them without communication.

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
        """Makes slots and accumulators, all zero; call it inside the scope of the variables.

        Args:
          optimizer: is wrapped.
          variables: what it changes.
          steps_per_update: micro-batches of an update.
          clip_after_allreduce: whether the accumulated gradient is clipped.
          whole_step: whether the step is one program of XLA.
        """
        super().__init__(name="gradient_aggregation")
        self.optimizer = optimizer
        self.variables_to_train = variables
        self.steps_per_update = steps_per_update
        self.clip_after_allreduce = clip_after_allreduce
        self._whole_step = whole_step
        self.accumulators: list[tf.Variable] = []
        optimizer._create_all_weights(variables)
        if steps_per_update > 1:
            self.accumulators = [
                tf.Variable(tf.zeros_like(variable), trainable=False, name="grad_accum")
                for variable in variables
            ]

    def clip(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Clips the gradient of a micro-batch, unless clipping is done once per update."""
        if self.clip_after_allreduce:
            return gradients
        return self._clipped(gradients)

    def _clipped(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        # g / max(1, |all g|), because the bound is 1.
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
        # Gradients are reduced already; Keras would add them up over the replicas again.
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
