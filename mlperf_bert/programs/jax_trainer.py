"""Runs the step and the evaluation with jax, on any devices that jax knows.

TensorFlow defines both, once: its `Trainer` is exported as a program (program.py), which jax
compiles. TensorFlow also reads the input, draws the seeds of dropout, and holds the variables from
which the first state comes and by which checkpoints are written. Between the two the state stays on
the devices.

Shapes: D=devices of all processes, B=batch of one of them, S=sequence.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from mlperf_bert.messages import Progress
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.ledger import Ledger
from mlperf_bert.model import metrics, pretrainer
from mlperf_bert.programs import jax_step, program
from mlperf_bert.programs.device_state import Arrays, DeviceState, put_batch
from mlperf_bert.programs.jax_step import ExportedProgram
from mlperf_bert.programs.program import EXAMPLE_WEIGHTS
from mlperf_bert.programs.tf_trainer import Evaluator, Trainer


class JaxTrainer(DeviceState):
    """Trains as `Trainer` does, whose contract it keeps; the devices are those of a mesh.

    Each of several devices has a share of the batch and the whole state; gradients are added up.
    """

    def __init__(self, trainer: Trainer, mesh: Mesh, *, step_identity: str = ""):
        """Wraps a trainer on one CPU; compiles nothing yet.

        `step_identity` says everything that determines the step, except the shapes of batches.
        """
        super().__init__(mesh, program.state_of(trainer))
        self._trainer, self._step_identity = trainer, step_identity
        self._num_local = len(mesh.local_devices)
        self._compiled: dict[int, jax.stages.Compiled] = {}
        self._calls: list[str] = []
        self._names: list[str] = []
        """The names of the state that a step is given; known once a step is lowered."""
        self.state_bytes = 0
        """Bytes that the state takes on each device; known once a step is lowered."""
        self._count = jax.jit(_counts, out_shardings=jax_step.replicated(mesh))
        # The attributes that the contract of a trainer asks for besides methods.
        self.model, self.optimizer, self.step = trainer.model, trainer.optimizer, trainer.step
        self.variables_to_train, self.state = trainer.variables_to_train, trainer.state

    def profiling(self, directory: str) -> AbstractContextManager:
        """Profiles what happens within, for TensorBoard."""
        return jax.profiler.trace(directory)

    def train(self, iterator, num_steps: tf.Tensor) -> np.ndarray:
        """Trains `num_steps` (int32 scalar) micro-batches, in the order of the iterator.

        Returns: as `Trainer.train`.

        Nothing here waits for the devices before the end, except `_pad_rows`: they compute while
        the next batch is drawn and sent. A step has waited for its batch if the step before it
        ended meanwhile; the figure is the longest wait that the devices can have had.
        """
        results: list[tuple[Any, jax.Array]] = []
        waits = []
        for _ in range(int(num_steps)):
            called = monotonic()
            drawn = {name: each.numpy() for name, each in next(iterator).items()}
            is_idle = not results or results[-1][0].is_ready()
            waits.append(monotonic() - called if is_idle else 0.0)
            batch = self._pad_rows(drawn)
            compiled = self._compiled_for(batch)
            on_devices = put_batch(batch | {"seed": self._own_seeds()}, self.mesh)
            # Kept at once: the state before is donated, so it is gone.
            losses, self._state = compiled(self.arrays(self._names), on_devices)
            results.append((losses, self._count(on_devices["input_mask"])))
            self.step.assign_add(1)
        # Fetched together: one after the other they would each wait for a transfer.
        fetched = jax.device_get(results)
        figures = [[*losses, *counts, wait] for (losses, counts), wait in zip(fetched, waits)]
        return np.array(figures, np.float32)

    def _pad_rows(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Pads a packed batch with empty rows until all processes have equally many."""
        if jax.process_count() == 1 or len(self._compiled) < 2:
            return batch
        rows = len(batch["input_ids"])
        # Only this place within a call waits for the devices: they say what other processes have.
        missing = int(self.gather([rows]).max()) - rows
        return {
            name: np.pad(each, [(0, missing), *[(0, 0)] * (each.ndim - 1)])
            for name, each in batch.items()
        }

    def _own_seeds(self) -> np.ndarray:
        # All processes draw the seeds of all devices, so that their generators stay equal.
        number = 2 * self._num_local
        first = number * jax.process_index()
        seeds = self._trainer.dropout_seeds(self.mesh.size).numpy()
        return seeds[first : first + number]

    def warm_up(self, batches: tf.data.Dataset, *, keeps_weights: bool = True) -> None:
        """Compiles the step for one device's batches of all these shapes, and runs each once.

        The first execution takes seconds that are not the training's: it connects the devices and
        loads kernels. TensorFlow's variables are kept in any case.
        """
        each_shape = list(batches)
        self.compile(each_shape)
        kept = [
            (each.state, each.state.numpy()) for each in pretrainer.random_generators(self.model)
        ]
        together = [
            {name: tf.repeat(value, self._num_local, axis=0) for name, value in batch.items()}
            for batch in each_shape
        ]
        # This runs before the steps, which wait for all devices and so for its connections too.
        self.gather([0.0])
        self.train(iter(together), tf.constant(len(together)))
        for variable, value in kept:
            variable.assign(value)
        self.step.assign(0)
        self._state = {}  # the steps above have changed it

    def _compiled_for(self, batch: Mapping[str, np.ndarray]) -> jax.stages.Compiled:
        rows = len(batch["input_ids"]) // self._num_local
        if rows not in self._compiled:
            self.compile([{name: tf.constant(v[:rows]) for name, v in batch.items()}])
        return self._compiled[rows]

    def compile(self, batches: Sequence[dict[str, tf.Tensor]]) -> int:
        """Compiles the step for batches of one device, unless it is compiled for their shapes.

        Exports them one by one, and compiles several at once. Executes nothing.

        Returns: bytes that a step takes on each device, the most of all compiled steps.
        """
        batches = [each for each in batches if len(each["input_ids"]) not in self._compiled]
        with (
            ThreadPoolExecutor(os.cpu_count()) as pool,
            Progress(total=len(batches), unit="programs", description="compiling") as progress,
        ):
            compiling = {
                rows: pool.submit(_compiled, step, self._calls)
                for rows, step in self.lowered(batches)
            }
            for rows, future in compiling.items():
                self._compiled[rows] = future.result()
                progress.advance(1)
        return max(map(jax_step.needed_bytes, self._compiled.values()))

    def usable_bytes(self) -> int | None:
        """Bytes that programs may use on the smallest of all devices; None if no device says it.

        All processes must call it.
        """
        own = super().usable_bytes()
        return own and int(self.gather([own]).min())

    def lowered(
        self, batches: Sequence[dict[str, tf.Tensor]]
    ) -> Iterator[tuple[int, jax.stages.Lowered]]:
        """The steps for these batches of one device, lowered, each with its number of rows."""
        export = partial(_exported, self._step_identity)
        halves: list[ExportedProgram] = []  # holds the second half, which takes no batch
        for batch in batches:
            if self.mesh.size == 1:
                parts = [export(program.of_training, self._trainer, batch)]
            else:
                halves = halves or [export(program.of_update, self._trainer)]
                parts = [export(program.of_gradients, self._trainer, batch), *halves]
            parts[0].entry["num_examples"] = self._trainer.batch_size / self.mesh.size
            state = jax_step.state_inputs(parts)
            self.state_bytes = jax_step.num_bytes(state)
            self._calls = [call for part in parts for call in part.entry["calls"]]
            self._names = [*state]
            self.add_constants(state)
            devices = [*self.mesh.devices.flat]
            step = jax_step.lowered(parts, devices, self._trainer.normalization)
            yield len(batch["input_ids"]), step

    def batches(self, make_dataset: Callable[[tf.distribute.InputContext], tf.data.Dataset]):
        """An iterator over this process's share of the global batches.

        `make_dataset` makes the batches of one device, in the order of its examples.
        """
        context = tf.distribute.InputContext(
            num_input_pipelines=jax.process_count(),
            input_pipeline_id=jax.process_index(),
            num_replicas_in_sync=self.mesh.size,
        )
        dataset = make_dataset(context)
        if self._num_local > 1:
            # Packed batches may have other numbers of rows: rows without examples are added.
            dataset = dataset.padded_batch(self._num_local, drop_remainder=True).map(_merged)
        return iter(dataset)

    def gather(self, values: Sequence[float]) -> np.ndarray:
        """The values of every process, the chief first: [processes, values]."""
        if jax.process_count() == 1:
            return np.array([values])
        return multihost_utils.process_allgather(np.array(values))


class JaxEvaluator:
    """Evaluates as `Evaluator` does, on the devices of a mesh."""

    def __init__(
        self,
        evaluator: Evaluator,
        mesh: Mesh,
        arrays_of: Callable[[Iterable[str]], Arrays] | None = None,
        *,
        step_identity: str = "",
    ):
        """Wraps an evaluator on one CPU.

        Args:
          evaluator: its model's variables have the weights, unless `arrays_of` is given.
          mesh: the devices.
          arrays_of: `DeviceState.arrays` of a state on the devices that has the weights.
          step_identity: says everything that determines the step, except the shapes of batches.
        """
        self._evaluator, self.mesh, self._step_identity = evaluator, mesh, step_identity
        of_model = program.weights_of(pretrainer.trained_variables(evaluator.model))
        self._arrays_of = arrays_of or DeviceState(mesh, of_model).arrays
        self._compiled: jax.stages.Compiled | None = None
        self._weights: dict[str, dict] = {}
        """The weights among the program's inputs, by name; known once it is exported."""

    def evaluate(self, dataset: tf.data.Dataset, time: Ledger | None = None) -> metrics.Evaluation:
        """Evaluates all batches of `pipeline.evaluation_batches`; `time` takes the seconds."""
        time = time or Ledger()
        with time.counting(ledger.EVALUATION_COMPUTE):
            compiled = self._compiled_for(dataset.element_spec)
            weights = self._arrays_of(self._weights)
            totals = [
                compiled(weights, put_batch(self._own(*batch), self.mesh))[0]
                for batch in time.waiting(dataset)
            ]
            # Reading a total waits for the devices: that is done once, after all batches.
            return metrics.Evaluation.from_totals(
                [total.tolist() for total in jax.device_get(totals)]
            )

    def compile(self, spec: tuple) -> int:
        """Compiles the evaluation for batches of an `element_spec`, unless it is compiled already.

        Returns: bytes that an evaluation takes on each device besides the weights.
        """
        needed = jax_step.needed_bytes(self._compiled_for(spec))
        return needed - jax_step.num_bytes(self._weights)

    def _compiled_for(self, spec: tuple) -> jax.stages.Compiled:
        if self._compiled:
            return self._compiled
        features = {
            name: tf.zeros([each.shape[0] // self.mesh.size, *each.shape[1:]], each.dtype)
            for name, each in spec[0].items()
        }
        part = _exported(self._step_identity, program.of_evaluation, self._evaluator, features)
        self._weights = jax_step.state_inputs([part])
        lowered = jax_step.lowered([part], [*self.mesh.devices.flat])
        self._compiled = _compiled(lowered, part.entry["calls"])
        return self._compiled

    def _own(self, features: dict[str, tf.Tensor], weights: tf.Tensor) -> dict[str, np.ndarray]:
        """This process's share of a global batch."""
        batch = {name: value.numpy() for name, value in features.items()}
        batch[EXAMPLE_WEIGHTS] = weights.numpy()
        size = len(batch[EXAMPLE_WEIGHTS]) // jax.process_count()
        first = size * jax.process_index()
        return {name: value[first : first + size] for name, value in batch.items()}


def _compiled(lowered: jax.stages.Lowered, calls: Sequence[str]) -> jax.stages.Compiled:
    """Compiles a program with these calls; if XLA refuses them, says how to do without them."""
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        reason = str(error)
        if not calls or "RESOURCE_EXHAUSTED" in reason:
            raise
        raise ValueError(
            f"--kernels=triton: XLA of jax {jax.__version__} does not compile them "
            f"({reason.splitlines()[0]:.200}); give --kernels=xla"
        ) from error


def _counts(input_mask: jax.Array) -> jax.Array:
    """Real tokens and rows of a global batch, float32 [2]."""
    return jax.numpy.array([input_mask.sum(), input_mask.shape[0]], "float32")


def _exported(
    step_identity: str,
    kind: Callable[..., ExportedProgram],
    of: Trainer | Evaluator,
    *batch: dict[str, tf.Tensor],
) -> ExportedProgram:
    """A program of this kind; it is kept beside what jax compiles, though it fits any processor."""
    folder = getattr(jax.config, "jax_compilation_cache_dir")  # noqa: B009 - mypy knows none
    values = sorted((name, each) for features in batch for name, each in features.items())
    shapes = {name: (each.shape, each.dtype) for name, each in values}
    return program.read_or_export(
        Path(folder).parent if folder and step_identity else None,
        f"{kind.__name__} {step_identity} {shapes}",
        partial(kind, of, *batch),
    )


def _merged(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The batches of several devices, [D, B, ...], as one, [D * B, ...]."""
    return {
        name: tf.reshape(value, tf.concat([[-1], tf.shape(value)[2:]], 0))
        for name, value in features.items()
    }
