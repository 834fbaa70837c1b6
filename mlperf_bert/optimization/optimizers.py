"""LAMB and AdamW as the reference computes them."""

import dataclasses

import tensorflow as tf
import tf_keras
from official.modeling.optimization import lamb
from official.modeling.optimization.legacy_adamw import AdamWeightDecay

# Patterns of variables that neither decay nor adapt layer-wise. `output_bias` counts as a bias;
# embeddings, the position embeddings too, decay. Source: the reference's optimizer set-up.
NOT_DECAYED = ("LayerNorm", "layer_norm", "bias")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Which optimizer, with which constants."""

    name: str = "lamb"
    """lamb or adamw."""
    weight_decay_rate: float = 0.01
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6


# The reference's AdamW takes no flag but the learning rate.
ADAMW = OptimizerConfig(name="adamw")


class OneByOneLAMB(lamb.LAMB):
    """tf-models' LAMB, on each device one variable after the other.

    All at once, the intermediate results of all variables would be in memory together. With
    `compiled`, XLA makes one program for all variables of a shape, in place of one for each; not so
    on several replicas, all of which would hand over the slots of the first.
    """

    def __init__(self, *, compiled: bool, **kwargs):
        super().__init__(**kwargs)
        alone = tf.distribute.get_strategy().num_replicas_in_sync == 1
        self._change = tf.function(_change, jit_compile=True) if compiled and alone else _change
        self._last_changes = {}

    def _prepare(self, var_list):
        self._last_changes = {}
        return super()._prepare(var_list)

    def _resource_apply_dense(self, grad, var, apply_state=None):
        slots = {name: self.get_slot(var, name) for name in ("m", "v")}
        decays = self._do_use_weight_decay(var.name)
        place = var.device, var.dtype.base_dtype
        coefficients = (apply_state or {}).get(place) or self._fallback_apply_state(*place)
        with tf.control_dependencies(self._last_changes.get(var.device, [])):
            change = self._change(grad, var, slots, coefficients, decays)
        self._last_changes[var.device] = [change]
        return change


def _change(grad, var, slots, coefficients, decays):
    return _DetachedLAMB(slots, decays)._resource_apply_dense(
        grad, var, {(var.device, var.dtype.base_dtype): coefficients}
    )


class _DetachedLAMB(lamb.LAMB):
    """tf-models' LAMB for a single variable that it neither knows by name nor keeps slots of."""

    def __init__(self, slots: dict[str, tf.Variable], decays: bool):
        super().__init__()
        self._slots_of_variable = slots
        self._decays = decays

    def get_slot(self, var, slot_name):
        return self._slots_of_variable[slot_name]

    def _do_use_weight_decay(self, param_name):
        return self._decays

    def _do_layer_adaptation(self, param_name):
        return self._decays


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
        # 1 - beta is taken in double precision: in float32 it would be off by 1e-5.
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
    """Builds the optimizer; clipping is the aggregation's task (aggregation.py).

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
        return OneByOneLAMB(**constants, compiled=compiled)
    if config.name == "adamw":
        return ReferenceAdamW(**constants, gradient_clip_norm=0.0)
    raise ValueError(f"optimizer must be lamb or adamw, got {config.name!r}")
