"""The kernels by Pallas's interpreter: so a CPU computes, compiles and exports steps with them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export
from jax.experimental import pallas as pl
from tensorflow.compiler.tf2xla.python import xla

from mlperf_bert.model import kernel_encoder
from mlperf_bert.model.kernels import attention, norm

KERNELS = {
    "attention_forward": attention.forward,
    "attention_backward": attention.backward,
    "norm_forward": norm.forward,
    "norm_backward": norm.backward,
}
BLOCK, INNER = 16, 8
"""Sizes in place of 128 and 64: the generated task's rows are short."""


def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has Pallas interpret kernels, which lacks the one instruction that is a GPU's."""
    monkeypatch.setattr(pl, "pallas_call", partial(pl.pallas_call, interpret=True))
    monkeypatch.setattr(attention, "exp2", jnp.exp2)


def install(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has steps call the interpreter, with smaller blocks; returns the names of what is called."""
    interpret(monkeypatch)
    for module in (attention, kernel_encoder):
        monkeypatch.setattr(module, "BLOCK", BLOCK)
        monkeypatch.setattr(module, "INNER", INNER)
    made: dict[tuple, export.Exported] = {}
    called = []

    def call(name: str, grid: tuple, operands, results) -> list[tf.Tensor]:
        called.append(name)
        given = [tf.convert_to_tensor(each) for each in operands]
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype.as_numpy_dtype) for x in given]
        key = (name, *map(str, shapes))
        if key not in made:
            function = jax.jit(lambda *x: tuple(KERNELS[name](*x)))
            with jax.enable_x64(False):  # as the texts for GPUs are made
                made[key] = export.export(function, platforms=["cpu"])(*shapes)
            expected = [(tuple(shape), tf.as_dtype(dtype)) for shape, dtype in results]
            assert [(x.shape, tf.as_dtype(x.dtype)) for x in made[key].out_avals] == expected
            assert int(np.prod(grid)) * _elements(name) == given[0].shape.num_elements()
        return xla.call_module(
            given,
            version=made[key].calling_convention_version,
            module=made[key].mlir_module_serialized,
            Tout=[dtype for _, dtype in results],
            Sout=[shape for shape, _ in results],
            platforms=["CPU"],
        )

    monkeypatch.setattr(kernel_encoder, "_call", call)
    return called


def _elements(name: str) -> int:
    """What a program of the grid has of qkv, or of hidden of the tiny model."""
    if name.startswith("attention"):
        return BLOCK * 3 * 8  # the generated task's heads are of 8
    return 32 * kernel_encoder.ROWS * (kernel_encoder.STEPS if "backward" in name else 1)
