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


class ReferenceAdamW(AdamWeightDecay):
    """AdamW without bias correction, as BERT was first trained.

    update = m / (sqrt(v) + epsilon) + weight_decay_rate * weight. Source: Devlin et al.'s
    optimizer, kept by the reference.
    """

    def _prepare_local(self, var_device, var_dtype, apply_state):
        super()._prepare_local(var_device, var_dtype, apply_state)
        # Keras folds the two corrections into lr = lr_t*sqrt(1-beta_2^t)/(1-beta_1^t), and its
        # dense kernel divides them out again from these powers: 0 means no correction.
        zero = tf.zeros([], var_dtype)
        apply_state[(var_device, var_dtype)].update(beta_1_power=zero, beta_2_power=zero)


def create_optimizer(
    config: OptimizerConfig, schedule: tf_keras.optimizers.schedules.LearningRateSchedule
) -> tf_keras.optimizers.legacy.Optimizer:
    """Builds the optimizer; clipping is the aggregation's task (aggregation.py).

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
        return lamb.LAMB(**constants)
    if config.name == "adamw":
        return ReferenceAdamW(**constants, gradient_clip_norm=0.0)
    raise ValueError(f"optimizer must be lamb or adamw, got {config.name!r}")
