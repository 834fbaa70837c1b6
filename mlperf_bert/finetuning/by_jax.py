"""The training step and the predictions with jax, on one device: a GPU, a core of a TPU, a CPU."""

from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import Mesh

from mlperf_bert.finetuning.config import FinetuningConfig
from mlperf_bert.finetuning.splits import Features
from mlperf_bert.finetuning.task_trainer import TaskTrainer
from mlperf_bert.messages import Finding
from mlperf_bert.model import tf_models
from mlperf_bert.options import expand_home
from mlperf_bert.programs import jax_step
from mlperf_bert.programs.contract import LocalState
from mlperf_bert.programs.device_state import CompiledFunctions
from mlperf_bert.training import devices, fit


def mesh_of(config: FinetuningConfig) -> Mesh:
    """One device of the kind that a configuration asks for."""
    cache_dir = expand_home(config.jax_compilation_cache_dir) or None
    return jax_step.mesh_of(devices.all_of_jax(config.device, cache_dir=cache_dir)[:1])


class JaxTaskTrainer(CompiledFunctions, LocalState):
    """Trains and predicts as `TaskTrainer` does, whose contract it keeps.

    Dropout draws other numbers from the same generators than TensorFlow's own kernels do.
    """

    def __init__(self, trainer: TaskTrainer, mesh: Mesh):
        """Wraps a trainer; compiles nothing yet."""
        generators = tf_models.random_generators(trainer.model)
        slots = trainer.optimizer.optimizer.variables()
        states = (generator.state for generator in generators)
        super().__init__(mesh, [*trainer.model.variables, *slots, *states])
        self._trainer = trainer
        # The attributes that the contract of a trainer asks for besides methods.
        self.step, self.state = trainer.step, trainer.state

    def compile_for(self, to_train: Features, to_predict: Features) -> Finding:
        """Compiles both programs; returns what they take of the device."""
        return fit.memory_finding(
            self,
            step=lambda: self.compile(self._trainer.update, to_train) + self.state_bytes,
            evaluation=lambda: self.compile(self._trainer.logits, to_predict) + self.state_bytes,
            remedy="lower --train_batch_size or --max_seq_length",
        )

    def train(self, iterator: Iterator[Features], num_steps: int) -> np.ndarray:
        """Does what `TaskTrainer.train` does."""
        losses = [self.call(self._trainer.update, next(iterator)) for _ in range(num_steps)]
        self.step.assign_add(num_steps)
        return np.array(jax.device_get(losses), np.float32)[:, None]

    def predict(self, batch: Features) -> np.ndarray:
        """Returns what `TaskTrainer.predict` returns."""
        return np.asarray(self.call(self._trainer.logits, batch))
