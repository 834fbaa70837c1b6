"""The contract of trainers and evaluators: what a run asks of them.

Five classes keep it: Trainer (TensorFlow), JaxTrainer, SleepingTrainer, and those of fine-tuning,
TaskTrainer and JaxTaskTrainer.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from mlperf_bert.mlperf.ledger import Ledger
from mlperf_bert.model.metrics import Evaluation


class TrainerContract(Protocol):
    """Changes weights step by step; between two steps the state may be on devices."""

    @property
    def step(self) -> tf.Variable:
        """The steps trained so far, int64 scalar."""

    @property
    def state(self) -> dict[str, object]:
        """What a checkpoint holds, as variables of TensorFlow."""

    def train(self, iterator: Iterator, num_steps: Any) -> Any:
        """Trains n steps on the batches of the iterator; returns float32 [steps, figures]."""

    def put_state(self) -> None:
        """Takes the state from TensorFlow's variables."""

    def fetch_state(self) -> None:
        """Brings the state back to TensorFlow's variables."""

    def gather(self, values: Sequence[float]) -> np.ndarray:
        """The values of every process, the chief first: [processes, values]."""


class PretrainerContract(TrainerContract, Protocol):
    """A trainer that also reads the input, and compiles before the clock starts."""

    @property
    def variables_to_train(self) -> list[tf.Variable]:
        """The weights, in the model's order."""

    def batches(self, make_dataset: Callable[[tf.distribute.InputContext], tf.data.Dataset]) -> Any:
        """An iterator over this process's share of the input."""

    def warm_up(self, batches: tf.data.Dataset, *, keeps_weights: bool = True) -> None:
        """Compiles the step on one batch of every shape, and leaves no other trace."""

    def profiling(self, directory: str) -> AbstractContextManager:
        """Profiles what happens within, for TensorBoard."""


class EvaluatorContract(Protocol):
    """Evaluates the weights as they are."""

    def evaluate(self, dataset: tf.data.Dataset, time: Ledger | None = None) -> Evaluation:
        """Evaluates all batches; `time` takes the seconds."""


class LocalState:
    """The methods of the contract that have nothing to do if one process holds all state."""

    def put_state(self) -> None:
        """Nothing: the state is where the variables are."""

    def fetch_state(self) -> None:
        """Nothing: the state is where the variables are."""

    def gather(self, values: Sequence[float]) -> np.ndarray:
        """The values of this process, which is the only one: [1, values]."""
        return np.array([values])
