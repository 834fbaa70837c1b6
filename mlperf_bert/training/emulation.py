"""Training whose computation is a sleep: it shows what storage would have to do for a fast device.

Input, checkpoints and logs are real. Nothing is learnt, so a run of this kind is never evaluated,
cannot reach the target, and ends as aborted in the open division.
"""

import functools
import time
from collections.abc import Callable

import tensorflow as tf

from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.steps import FIGURES, Trainer


class EmulatedTrainer(Trainer):
    """A trainer that fetches every batch and then sleeps."""

    def __init__(self, *, step_seconds: float, **parts):
        """Takes the seconds of a step, and what `Trainer` takes."""
        super().__init__(**parts)
        self.step_seconds = step_seconds

    def train(self, iterator, num_steps: tf.Tensor) -> tf.Tensor:
        """Fetches `num_steps` batches, and sleeps after each; returns zeros and the waits."""
        waits = []
        for _ in range(int(num_steps)):
            began = time.monotonic()
            next(iterator)
            waits.append(time.monotonic() - began)
            time.sleep(self.step_seconds)
            self.step.assign_add(1)
        return tf.pad(tf.constant(waits)[:, None], [[0, 0], [len(FIGURES) - 1, 0]])

    def warm_up(self, batches: tf.data.Dataset, *, keeps_weights: bool = True) -> None:
        """Nothing is compiled."""


def trainer_class(step_seconds: float | None) -> Callable[..., Trainer]:
    """What makes the trainer of a run; None: one that computes."""
    if step_seconds is None:
        return Trainer
    return functools.partial(EmulatedTrainer, step_seconds=step_seconds)


def notice(config: RunConfig) -> str | None:
    """What a run says about its steps; None: they are computed."""
    if config.emulate_step_seconds is None:
        return None
    return f"no result: each step is a sleep of {config.emulate_step_seconds} s"
