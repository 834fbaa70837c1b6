"""Which optimizer; without TensorFlow, so that a run can be described without it."""

import dataclasses

from mlperf_logging.mllog import constants


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Which optimizer, with which constants."""

    name: str = "lamb"
    """lamb or adamw."""
    weight_decay_rate: float = 0.01
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6

    def hyperparameters(self, *, poly_power: float) -> dict[str, object]:
        """MLLOG key -> value; with both keys of epsilon, as the rulesets differ in it.

        `poly_power` is the power of the learning rate's decay; only LAMB logs it.
        """
        of_all: dict[str, object] = {"opt_epsilon": self.epsilon}
        if self.name == constants.ADAMW:
            return of_all | {
                constants.OPT_ADAMW_EPSILON: self.epsilon,
                constants.OPT_ADAMW_BETA_1: self.beta_1,
                constants.OPT_ADAMW_BETA_2: self.beta_2,
                constants.OPT_ADAMW_WEIGHT_DECAY: self.weight_decay_rate,
            }
        if self.name != constants.LAMB:
            raise ValueError(f"optimizer {self.name!r}: no keys of the log are known for it")
        return of_all | {
            constants.OPT_LAMB_EPSILON: self.epsilon,
            constants.OPT_LAMB_BETA_1: self.beta_1,
            constants.OPT_LAMB_BETA_2: self.beta_2,
            constants.OPT_LAMB_WEIGHT_DECAY: self.weight_decay_rate,
            constants.OPT_LAMB_LR_DECAY_POLY_POWER: poly_power,
        }


# The reference's AdamW takes no flag but the learning rate.
ADAMW = OptimizerConfig(name="adamw")
