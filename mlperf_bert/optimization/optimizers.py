"""LAMB and AdamW as the reference computes them, and their learning rate over time."""

import functools
import math
import operator
from collections.abc import Callable

import tensorflow as tf
import tf_keras
from official.modeling.optimization import lamb
from official.modeling.optimization.legacy_adamw import AdamWeightDecay

from mlperf_bert.optimization.config import OptimizerConfig

# Names of variables without weight decay and without LAMB's scaling by norms. `output_bias` is a
# bias; all embeddings decay. Source: the reference's optimizer set-up.
NOT_DECAYED = ("LayerNorm", "layer_norm", "bias")


class LAMB(lamb.LAMB):
    """LAMB that updates one variable after the other on each device.

    Otherwise the temporary results of all variables would be in memory at the same time. The state
    (slots `m` and `v`, the count of updates) and its names in checkpoints are tf-models'. With
    `compiled`, XLA compiles one program for all variables of a shape; not on several replicas, as
    it would use the slots of the first replica for all of them.
    """

    def __init__(self, *, compiled: bool, **kwargs):
        super().__init__(**kwargs)
        self._change: Callable[..., tf.Tensor] = lamb_change
        self.is_compiled = compiled and tf.distribute.get_strategy().num_replicas_in_sync == 1
        if self.is_compiled:
            self._change = tf.function(_scaled_change, jit_compile=True, autograph=False)
        self._factor: tf.Tensor | None = None
        self._last_changes: dict[str, list] = {}

    def apply_scaled(self, gradients_and_variables, factor: tf.Tensor) -> None:
        """Applies reduced gradients times a float32 scalar; only of one that is compiled.

        The program multiplies while it reads them, and no scaled gradient is written.
        """
        self._factor = factor
        self.apply_gradients(gradients_and_variables, experimental_aggregate_gradients=False)
        self._factor = None

    def _prepare(self, var_list):
        # Before each update: what was changed in another trace is not in this graph.
        self._last_changes = {}
        return super()._prepare(var_list)

    def _resource_apply_dense(self, grad, var, apply_state=None):
        place = var.device, var.dtype.base_dtype
        constants = (apply_state or {}).get(place) or self._fallback_apply_state(*place)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        if self.is_compiled:
            constants = constants | {"factor": 1.0 if self._factor is None else self._factor}
        # After the variable before it, whose temporary results are gone by then.
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
    # Not tf.square(gradient): in a graph its results differ from the product's in the last bit.
    m_t = m.assign(constants["beta_1_t"] * m + constants["one_minus_beta_1_t"] * gradient)
    v_t = v.assign(
        constants["beta_2_t"] * v + constants["one_minus_beta_2_t"] * (gradient * gradient)
    )
    # Both began at 0. Divided by the sum of the weights of t gradients, 1 - beta^t, they are means.
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
    """`lamb_change` by the gradient times `factor`, a constant; returns a scalar that waits for it.

    XLA would copy the new weight, if its program returned it.
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
    """Builds the optimizer; aggregation.py does the clipping.

    Call it inside the strategy's scope. With `compiled` XLA compiles LAMB.

    Raises:
      ValueError: the name is neither lamb nor adamw.
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
        # Where the warm-up ends the rate falls at once: the decay has counted from step 0.
        return tf.where(warmup_steps < self.num_warmup_steps, warmup_rate, rate)

    def __call__(self, update: tf.Tensor) -> tf.Tensor:
        """The rate of update `update` (from 0), float32 scalar."""
        return self.at_step((tf.cast(update, tf.int64) + 1) * self.steps_per_update - 1)
