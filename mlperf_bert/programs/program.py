"""The training step, or an evaluation step, as a portable program: StableHLO with its signature.

Every weight, slot and counter is an input, and, where the step changes it, an output. So the
program needs neither TensorFlow nor Python: run_step.py runs it with jax.

For several devices the step is two programs, gradients and update; the caller adds up the gradients
between the two.
"""

import functools
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import tensorflow as tf
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from mlperf_bert.checkpoints import names, reading
from mlperf_bert.model import pretrainer
from mlperf_bert.programs import program_cache
from mlperf_bert.programs.config import LOSSES
from mlperf_bert.programs.jax_step import ExportedProgram, operations
from mlperf_bert.programs.tf_trainer import Evaluator, Trainer

WEIGHT, SLOT, ACCUMULATOR = "weight", "slot", "accumulator"
COUNTER, CONSTANT = "counter", "constant"
SEED, BATCH, COUNT, GRADIENT, RESULT = "seed", "batch", "count", "gradient", "result"
VARIABLE = "variable"
EXAMPLE_WEIGHTS = "example_weights"

_DIALECTS = {"builtin", "func", "stablehlo"}
# Every version that an operation may need, the oldest first; after 0.20.0 came 1.0.0.
_VERSIONS = [*((0, minor, 0) for minor in range(21)), *((1, minor, 0) for minor in range(100))]


class Value(TypedDict):
    """One input or output of a program, as signature.json has it."""

    name: str
    shape: list[int]
    dtype: str
    role: str
    """weight, slot, accumulator, counter, constant, seed, batch, count, gradient, or result; in a
    program that is not written to a folder, variable."""
    initial: NotRequired[str | float]
    """The first value of an input that is state: normal, or a number."""
    feeds: NotRequired[int]
    """The index of the input that an output replaces in the next step."""


def read_or_export(
    folder: Path | None, depends_on: str, make: Callable[[], ExportedProgram]
) -> ExportedProgram:
    """An exported program: read if an earlier run has left it in a folder, else made and kept.

    Args:
      folder: where programs are kept; None: nowhere.
      depends_on: all that decides what the program is, besides code and libraries.
      make: exports it.
    """
    if folder is None:
        return make()
    key = hashlib.sha256(f"{_digest_of_code()} {depends_on}".encode()).hexdigest()
    file = folder / f"{key}.stablehlo"
    if (cached := program_cache.read(file)) is not None:
        entry, _, content = cached.partition(b"\n")
        return ExportedProgram(content, json.loads(entry))
    made = make()
    program_cache.write(file, json.dumps(made.entry).encode() + b"\n" + made.content)
    return made


@functools.cache
def _digest_of_code() -> str:
    """One digest of all that decides how a step is exported: our files and libraries' versions."""
    package = Path(__file__).parents[1]
    subpackages = ("model", "optimization", "programs")
    every = (file for name in subpackages for file in sorted((package / name).rglob("*")))
    files = [file for file in every if file.suffix in (".py", ".mlir")]
    versions = [
        tf.__version__,
        *map(importlib.metadata.version, ("tf-keras", "tf-models-official")),
    ]
    return hashlib.sha256(
        b"".join(map(Path.read_bytes, files)) + str(versions).encode()
    ).hexdigest()


def of_training(trainer: Trainer, batch: dict[str, tf.Tensor]) -> ExportedProgram:
    """The step of `trainer`, of one replica, for batches of the shapes of `batch`.

    The seed of dropout is an input, int32 [2]. Results: the three losses before the step [3].
    """

    def step(features, seed):
        num_predictions = tf.reduce_sum(features["masked_lm_weights"])
        losses, gradients = trainer.gradients_of(
            features, seed, num_predictions, trainer.batch_size
        )
        trainer.apply(gradients)
        return losses

    seed = tf.zeros([2], tf.int32)
    inputs = [*_inputs_of_batch(batch), _value("seed", seed, SEED)]
    return _export(step, (batch, seed), inputs, [_LOSSES], state_of(trainer))


def of_gradients(trainer: Trainer, batch: dict[str, tf.Tensor]) -> ExportedProgram:
    """The first half of the step of one of several replicas; it changes nothing.

    The losses are divided by two inputs, float32 scalars: the number of predictions and of examples
    of all replicas with normalization "global", else of this one. Results: the three losses [3],
    and the gradient of every weight, which the others clip before it is added up.
    """

    def half(features, seed, num_predictions, num_examples):
        losses, gradients = trainer.gradients_of(features, seed, num_predictions, num_examples)
        return losses, *gradients

    seed, one = tf.zeros([2], tf.int32), tf.ones([])
    counts = [_value(name, one, COUNT) for name in ("num_predictions", "num_examples")]
    inputs = [*_inputs_of_batch(batch), _value("seed", seed, SEED), *counts]
    results = [_LOSSES, *_gradients(trainer)]
    return _export(half, (batch, seed, one, one), inputs, results, state_of(trainer))


def of_update(trainer: Trainer) -> ExportedProgram:
    """The second half: changes the state by the reduced gradient of every weight, an input."""

    def half(*gradients):
        trainer.apply(list(gradients))

    shapes = [tf.TensorSpec(each.shape, each.dtype) for each in trainer.variables_to_train]
    return _export(half, tuple(shapes), _gradients(trainer), [], state_of(trainer))


def of_evaluation(evaluator: Evaluator, batch: dict[str, tf.Tensor]) -> ExportedProgram:
    """The evaluation step for batches of the shapes of `batch`; it changes nothing.

    Results: the totals of the batch [6], in the order of `metrics.Totals`.
    """
    weights = tf.ones([batch["input_ids"].shape[0]])
    result = Value(name="totals", shape=[6], dtype="float32", role=RESULT)
    inputs = [*_inputs_of_batch(batch), _value(EXAMPLE_WEIGHTS, weights, BATCH)]
    known = weights_of(pretrainer.trained_variables(evaluator.model))
    return _export(evaluator.totals, (batch, weights), inputs, [result], known)


def of_function(
    function: Callable, batch: dict[str, tf.Tensor], variables: Iterable[tf.Variable]
) -> ExportedProgram:
    """Any function of a batch, with one result; `variables` are all that it reads or changes."""
    return _export(function, (batch,), _inputs_of_batch(batch), None, numbered(variables))


def numbered(variables: Iterable[tf.Variable]) -> Iterator[tuple[tf.Variable, Value]]:
    """Variables of any kind, with names of their own."""
    for number, variable in enumerate(variables):
        yield variable, _value(f"{number} {variable.name}", variable, VARIABLE)


_LOSSES = Value(name="losses", shape=[len(LOSSES)], dtype="float32", role=RESULT)


def _export(
    function: Callable,
    arguments: tuple,
    own_inputs: list[Value],
    results: list[Value] | None,
    state: Iterable[tuple[tf.Variable, Value]],
) -> ExportedProgram:
    step = tf.function(function, jit_compile=True, autograph=False)
    concrete = step.get_concrete_function(*arguments)
    if results is None:
        results = [_value("result", each, RESULT) for each in concrete.outputs]
    known = {id(variable.handle): value for variable, value in state}
    captured = [
        known.get(id(handle)) or _constant(concrete, handle) for handle in concrete.captured_inputs
    ]
    inputs = [*own_inputs, *captured]
    exported = step.experimental_get_compiler_ir(*arguments)(stage="stablehlo_serialized")
    content, version, replaced, calls = as_portable(exported)
    assert sorted(replaced) == [*range(len(results), len(results) + len(replaced))], (
        "TensorFlow orders outputs differently"
    )
    changed = [
        {key: each for key, each in inputs[index].items() if key != "initial"} | {"feeds": index}
        for _, index in sorted(replaced.items())
    ]
    about = {"stablehlo_version": version, "inputs": inputs, "outputs": [*results, *changed]}
    return ExportedProgram(content, about | {"calls": calls})


def as_portable(exported: bytes) -> tuple[bytes, str, dict[int, int], list[str]]:
    """Takes what TensorFlow's compiler returns for the stage `stablehlo_serialized`.

    jax writes it: TensorFlow registers no pass that writes an older version.

    Returns: StableHLO's portable form; the oldest version of StableHLO that has all its operations,
    later ones read it too; for each output that replaces an input, variables that change, the index
    of both; and the names of what it calls that is not StableHLO's own, kernels.
    """
    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, exported)
        # TensorFlow copies every variable that it returns, by mhlo.copy. Only jax's compiler for
        # CPUs knows this operation; its operand has the same value.
        for copy in [op for op in operations(module) if op.name == "mhlo.copy"]:
            copy.result.replace_all_uses_with(copy.operands[0])
            copy.erase()
        attributes = module.operation.attributes
        replaced = _replaced_inputs(attributes)
        for name in [name for name in attributes if name.startswith("mhlo.")]:
            del attributes[name]
        # TensorFlow's name has a counter; without it the same step is the same, kept program.
        attributes["sym_name"] = ir.StringAttr.get("step")
        every = operations(module)
        kinds = {op.name for op in every}
        custom = [op for op in every if op.name == "stablehlo.custom_call"]
        calls = {op.attributes["call_target_name"].value for op in custom}
        if foreign := sorted(n for n in kinds if n.split(".")[0] not in _DIALECTS):
            raise ValueError(
                f"the program has operations that are not StableHLO: {', '.join(foreign)}; "
                "export it with the TensorFlow and jax of environment/requirements-dev.lock"
            )
        oldest = tuple(map(int, stablehlo.get_minimum_version().split(".")))
        for version in (".".join(map(str, each)) for each in _VERSIONS if each >= oldest):
            try:
                content = stablehlo.serialize_portable_artifact(module, version)
            except ValueError:  # an operation is newer than this version
                continue
            return content, version, replaced, sorted(calls)
    raise AssertionError("the newest version holds every program")


def _replaced_inputs(attributes: Any) -> dict[int, int]:
    """Index of an output -> index of the input that it replaces, from TensorFlow's aliases.

    An alias is `{alias = {..., parameter_number = 8 : i64}, output_index = array<i64: 1>}`.
    """
    name = "mhlo.input_output_alias"
    text = str(attributes[name]) if name in attributes else ""
    pattern = r"parameter_number = (\d+) : i64}, output_index = array<i64(?:: (\d+))?>"
    return {int(output or 0): int(parameter) for parameter, output in re.findall(pattern, text)}


def _inputs_of_batch(batch: dict[str, tf.Tensor]) -> list[Value]:
    return [_value(name, batch[name], BATCH) for name in sorted(batch)]


def _value(name: str, tensor: tf.Tensor | tf.Variable, role: str, **more: Any) -> Value:
    shape, dtype = tensor.shape.as_list(), tensor.dtype.name
    return cast(Value, {"name": name, "shape": shape, "dtype": dtype, "role": role, **more})


def state_of(trainer: Trainer) -> Iterator[tuple[tf.Variable, Value]]:
    """Every variable that a step may change, with its name in TF1 checkpoints and its role."""
    variables, optimizer = trainer.variables_to_train, trainer.optimizer
    for index, (variable, value) in enumerate(weights_of(variables)):
        yield variable, value
        for slot in optimizer.optimizer.get_slot_names():
            moment = optimizer.optimizer.get_slot(variable, slot)
            yield moment, _value(f"{value['name']}/adam_{slot}", moment, SLOT, initial=0.0)
        if optimizer.accumulators:
            total = optimizer.accumulators[index]
            yield total, _value(f"{value['name']}/grad_accum", total, ACCUMULATOR, initial=0.0)
    for name, counter in (
        ("global_step", trainer.step),
        ("num_updates", optimizer.optimizer.iterations),
    ):
        yield counter, _value(name, counter, COUNTER, initial=0.0)


def weights_of(variables: Sequence[tf.Variable]) -> Iterator[tuple[tf.Variable, Value]]:
    """The trained variables, with their names in TF1 checkpoints."""
    tf1_names = {weight.our_name: weight.tf1_name for weight in reading.weights_of(variables)}
    for variable in variables:
        name = tf1_names[names.our_name(variable.name)]
        yield variable, _value(name, variable, WEIGHT, initial=_initial(name))


def _gradients(trainer: Trainer) -> list[Value]:
    """The gradient of every weight, in the order in which they are trained."""
    return [
        _value(f"{value['name']}/gradient", variable, GRADIENT)
        for variable, value in weights_of(trainer.variables_to_train)
    ]


def _initial(tf1_name: str) -> str | float:
    if tf1_name.endswith("gamma"):
        return 1.0
    return 0.0 if re.search(r"(bias|beta)$", tf1_name) else "normal"


def _constant(concrete, handle: tf.Tensor) -> Value:
    """A captured variable that no step changes: a constant of the optimizer."""
    variable = next(each for each in concrete.graph.variables if each.handle is handle)
    name = variable.name.removesuffix(":0")
    return _value(name, variable, CONSTANT, initial=float(variable.numpy()))
