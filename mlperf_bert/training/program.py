"""The training step, or an evaluation step, as one portable program: StableHLO with its signature.

Every weight, slot and counter is an input, and, where the step changes it, an output. So the
program needs neither TensorFlow nor Python: run_step.py runs it with jax.
"""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from mlperf_bert.checkpoints import names
from mlperf_bert.training.evaluation import Evaluator
from mlperf_bert.training.steps import LOSSES, Trainer

WEIGHT, SLOT, ACCUMULATOR, COUNTER, CONSTANT = (
    "weight",
    "slot",
    "accumulator",
    "counter",
    "constant",
)
SEED, BATCH, RESULT = "seed", "batch", "result"
EXAMPLE_WEIGHTS = "example_weights"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Value:
    """One input or output of a program."""

    name: str
    shape: list[int]
    dtype: str
    role: str
    """weight, slot, accumulator, counter, constant, seed, batch, or, of an output, result."""
    initial: str | float | None = None
    """The first value of an input, or that of a synthetic batch: normal, or a number."""
    below: int | None = None
    """Of an input of a batch: in a synthetic one it is drawn from 0 up to this."""
    feeds: int | None = None
    """Of an output: the index of the input that it replaces in the next step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A serialized program and the order of its inputs and outputs."""

    artifact: bytes
    """Portable StableHLO, versioned by its own header."""
    inputs: list[Value]
    outputs: list[Value]


def of_training(trainer: Trainer, batch: dict[str, tf.Tensor]) -> Program:
    """The step of `trainer`, of one replica, for batches of the shapes of `batch`.

    The seed of dropout is an input, int32 [2]. Results: the three losses before the step [3].
    """

    @tf.function(jit_compile=True, autograph=False)
    def step(features, seed):
        return trainer.step_of_one_replica(features, seed)[: len(LOSSES)]

    seed = tf.zeros([2], tf.int32)
    result = Value(name="losses", shape=[len(LOSSES)], dtype="float32", role=RESULT)
    given = [*_inputs_of_batch(batch, trainer), _given("seed", seed, SEED)]
    return _export(step, (batch, seed), given, result, trainer)


def of_evaluation(evaluator: Evaluator, trainer: Trainer, batch: dict[str, tf.Tensor]) -> Program:
    """The evaluation step for batches of the shapes of `batch`; it changes nothing.

    Results: the totals of the batch [6], in the order of `metrics.Totals`.
    """

    @tf.function(jit_compile=True, autograph=False)
    def step(features, example_weights):
        return evaluator.totals(features, example_weights)

    weights = tf.ones([batch["input_ids"].shape[0]])
    result = Value(name="totals", shape=[6], dtype="float32", role=RESULT)
    given = _inputs_of_batch(batch, trainer)
    given.append(dataclasses.replace(_given(EXAMPLE_WEIGHTS, weights, BATCH), initial=1.0))
    return _export(step, (batch, weights), given, result, trainer)


def _export(
    step: Any, arguments: tuple, given: list[Value], result: Value, trainer: Trainer
) -> Program:
    concrete = step.get_concrete_function(*arguments)
    known = {id(variable.handle): value for variable, value in _state(trainer)}
    captured = [
        known.get(id(handle)) or _constant(concrete, handle) for handle in concrete.captured_inputs
    ]
    inputs = [*given, *captured]
    compiler_ir = step.experimental_get_compiler_ir(*arguments)
    changed = [
        dataclasses.replace(inputs[index], initial=None, feeds=index)
        for index in _replaced_inputs(compiler_ir(stage="hlo"))
    ]
    artifact = compiler_ir(stage="stablehlo_serialized")
    return Program(artifact=artifact, inputs=inputs, outputs=[result, *changed])


def _replaced_inputs(hlo: str) -> list[int]:
    """The index of the input that each output after the first replaces.

    The first line of the text pairs each variable that changes with its new value: output 1 with
    input 8 is `{1}: (8, {}, may-alias)`.
    """
    header = hlo.split("\n", 1)[0]
    pairs = {int(a): int(b) for a, b in re.findall(r"\{(\d+)\}: \((\d+), \{\}", header)}
    assert sorted(pairs) == list(range(1, len(pairs) + 1)), "TensorFlow orders outputs differently"
    return [pairs[index] for index in sorted(pairs)]


def _inputs_of_batch(batch: dict[str, tf.Tensor], trainer: Trainer) -> list[Value]:
    """With what a synthetic batch holds: full rows of random tokens, each row one example."""
    vocab_size = trainer.model.encoder_network.get_config()["vocab_size"]
    below = {
        "input_ids": vocab_size,
        "masked_lm_ids": vocab_size,
        "masked_lm_positions": batch["input_ids"].shape[1],
        "next_sentence_labels": 2,
    }
    ones = ("input_mask", "block_ids", "masked_lm_weights", "next_sentence_weights")
    return [
        dataclasses.replace(
            _given(name, batch[name], BATCH),
            below=below.get(name),
            initial=None if name in below else float(name in ones),
        )
        for name in sorted(batch)
    ]


def _given(name: str, tensor: tf.Tensor, role: str) -> Value:
    return Value(name=name, shape=tensor.shape.as_list(), dtype=tensor.dtype.name, role=role)


def _state(trainer: Trainer) -> Iterable[tuple[tf.Variable, Value]]:
    """Every variable that a step may change, with its name in TF1 checkpoints and its role."""

    def of(variable: tf.Variable, name: str, role: str, initial: str | float = 0.0):
        value = _given(name, variable, role)
        return variable, dataclasses.replace(value, initial=initial)

    num_layers = trainer.model.encoder_network.get_config()["num_layers"]
    tf1_names = {weight.our_name: weight.tf1_name for weight in names.weights(num_layers)}
    optimizer = trainer.optimizer
    for index, variable in enumerate(trainer.variables_to_train):
        name = tf1_names[names.our_name(variable.name)]
        yield of(variable, name, WEIGHT, _initial(name))
        for slot in optimizer.optimizer.get_slot_names():
            yield of(optimizer.optimizer.get_slot(variable, slot), f"{name}/adam_{slot}", SLOT)
        if optimizer.accumulators:
            yield of(optimizer.accumulators[index], f"{name}/grad_accum", ACCUMULATOR)
    yield of(trainer.step, "global_step", COUNTER)
    yield of(optimizer.optimizer.iterations, "num_updates", COUNTER)


def weights(trainer: Trainer) -> list[tuple[tf.Variable, Value]]:
    """The weights alone."""
    return [pair for pair in _state(trainer) if pair[1].role == WEIGHT]


def _initial(tf1_name: str) -> str | float:
    if tf1_name.endswith("gamma"):
        return 1.0
    return 0.0 if re.search(r"(bias|beta)$", tf1_name) else "normal"


def _constant(concrete, handle: tf.Tensor) -> Value:
    """A captured variable that no step changes: a constant of the optimizer."""
    variable = next(each for each in concrete.graph.variables if each.handle is handle)
    value = _given(variable.name.removesuffix(":0"), variable, CONSTANT)
    return dataclasses.replace(value, initial=float(variable.numpy()))
