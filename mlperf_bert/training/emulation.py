"""Training whose computation is a sleep: it shows what storage would have to do for a fast device.

Input, checkpoints and logs are real. Nothing is learnt, so a run of this kind is never evaluated,
cannot reach the target, and ends as aborted in the open division.
"""

import time
from typing import Any, cast

import tensorflow as tf

from mlperf_bert.training.loop import FIGURES
from mlperf_bert.training.steps import Trainer


def asleep(trainer: Trainer, step_seconds: float) -> Trainer:
    """The trainer, which now sleeps in place of computing a step; it learns nothing."""
    return cast(Trainer, _Asleep(trainer, step_seconds))


class _Asleep:
    """A trainer that fetches every batch and then sleeps; all else is that of the one it wraps."""

    def __init__(self, trainer: Trainer, step_seconds: float):
        self._trainer, self._step_seconds = trainer, step_seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def train(self, iterator, num_steps: tf.Tensor) -> tf.Tensor:
        """Fetches `num_steps` batches, and sleeps after each; returns zeros and the waits."""
        waits = []
        for _ in range(int(num_steps)):
            began = time.monotonic()
            next(iterator)
            waits.append(time.monotonic() - began)
            time.sleep(self._step_seconds)
            self.step.assign_add(1)
        return tf.pad(tf.constant(waits)[:, None], [[0, 0], [len(FIGURES) - 1, 0]])

    def warm_up(self, batches: tf.data.Dataset, *, keeps_weights: bool = True) -> None:
        """Nothing is compiled."""
