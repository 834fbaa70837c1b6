"""Variables of TensorFlow on the devices of jax, and any functions of them.

TensorFlow defines a function and exports it (program.py); jax compiles it. Between its calls the
variables stay on the devices.
"""

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import Mesh

from mlperf_bert.programs import jax_step, program
from mlperf_bert.programs.jax_step import ExportedProgram

Arrays = dict[str, jax.Array]


class DeviceState:
    """Variables of TensorFlow on the devices of a mesh, where jax changes them."""

    def __init__(self, mesh: Mesh, variables: Iterable[tuple[tf.Variable, program.Value]]):
        """Takes nothing from the variables yet."""
        self.mesh = mesh
        self._initial: dict[str, tf.Variable | tf.Tensor] = {
            value["name"]: each for each, value in variables
        }
        self._state: Arrays = {}

    def put_state(self) -> None:
        """Takes all of the state from TensorFlow's variables."""
        self._state = {name: _put(each, self.mesh) for name, each in self._initial.items()}

    def fetch_state(self) -> None:
        """Brings the state back to TensorFlow's variables; waits for the devices."""
        for name, array in self._state.items():
            if isinstance(variable := self._initial[name], tf.Variable):
                # A copy, because the array is donated to the next step, and on a CPU shares memory.
                variable.assign(np.array(array.addressable_data(0)))

    def arrays(self, names: Iterable[str]) -> Arrays:
        """The named arrays on the devices; arrays that are not there come from TensorFlow."""
        return {
            name: self._state[name] if name in self._state else _put(self._initial[name], self.mesh)
            for name in names
        }

    def usable_bytes(self) -> int | None:
        """Bytes that programs may use on this process's smallest device; None if none says it."""
        stats = [device.memory_stats() or {} for device in self.mesh.local_devices]
        if not all("bytes_limit" in each for each in stats):  # a CPU has none
            return None
        return min(each["bytes_limit"] for each in stats)

    def add_constants(self, state: Mapping[str, dict]) -> None:
        """Adds the optimizer's constants, which programs take as state and no variable holds."""
        for name, value in state.items():
            if value["role"] == program.CONSTANT:
                self._initial[name] = tf.constant(value["initial"], value["dtype"], value["shape"])


class CompiledFunctions(DeviceState):
    """Functions of a batch and of variables, some of which they may change; each has one result."""

    def __init__(self, mesh: Mesh, variables: Sequence[tf.Variable]):
        """Compiles nothing yet; `variables` are all that the functions read or change."""
        super().__init__(mesh, program.numbered(variables))
        self._variables = variables
        self._programs: dict[str, tuple[jax.stages.Compiled, dict[str, dict]]] = {}
        """The programs by the names of their functions, each with what it is given of the state."""

    def compile(self, function: Callable, batch: Mapping[str, np.ndarray]) -> int:
        """Compiles a function that TensorFlow can trace, unless it is compiled; executes nothing.

        Returns: bytes that it takes on each device besides the whole state.
        """
        name = function.__name__
        if name not in self._programs:
            example = {name: tf.constant(values) for name, values in batch.items()}
            part = program.of_function(function, example, self._variables)
            state = jax_step.state_inputs([part])
            self.add_constants(state)
            self._programs[name] = _compiled(part.content, json.dumps(part.entry), self.mesh), state
        compiled, state = self._programs[name]
        return jax_step.needed_bytes(compiled) - jax_step.num_bytes(state)

    @property
    def state_bytes(self) -> int:
        """Bytes that all variables take on each device."""
        return sum(each.shape.num_elements() * each.dtype.size for each in self._variables)

    def call(self, function: Callable, batch: Mapping[str, np.ndarray]) -> jax.Array:
        """The result of a function that TensorFlow can trace; its changes stay on the devices."""
        self.compile(function, batch)
        compiled, state = self._programs[function.__name__]
        result, changed = compiled(self.arrays(state), put_batch(batch, self.mesh))
        self._state |= changed
        return result


@functools.lru_cache(maxsize=4)  # trainers that differ in their seeds have the same programs
def _compiled(content: bytes, entry: str, mesh: Mesh) -> jax.stages.Compiled:
    return jax_step.lowered(
        [ExportedProgram(content, json.loads(entry))], [*mesh.devices.flat]
    ).compile()


def _put(value: tf.Variable | tf.Tensor, mesh: Mesh) -> jax.Array:
    """Puts a copy on every device, so that TensorFlow's memory is not donated to a step."""
    kept = np.array(value.numpy())
    return jax.make_array_from_callback(kept.shape, jax_step.replicated(mesh), kept.__getitem__)


def put_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> Arrays:
    """This process's share of a global batch, on its devices."""
    of_device = jax_step.divided(mesh)
    return {
        name: jax.make_array_from_process_local_data(of_device, value)
        for name, value in batch.items()
    }
