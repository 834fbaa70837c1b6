"""Which optimizer; without TensorFlow, so that a run can be described without it."""

import dataclasses


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
