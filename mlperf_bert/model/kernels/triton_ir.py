"""Writes the kernels as Triton's intermediate representation, which XLA compiles into a step.

    python -m mlperf_bert.model.kernels.triton_ir

A text serves every number of rows and every length: what depends on them is an operand. The texts
are stored, so that a step does not depend on jax's version: later ones write them differently.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager
from jaxlib.triton import dialect

from mlperf_bert.files.whole import write_whole
from mlperf_bert.model.kernels import BLOCK, HEAD_SIZE, NUM_HEADS, attention, norm


def texts(num_blocks: int = 1009) -> Iterator[tuple[str, str]]:
    """The name of every kernel, and its text, which is the same for any number of blocks."""

    def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    # A prime number: a number that a kernel has too would be the same constant in the text.
    tokens, heads, size = num_blocks * BLOCK, NUM_HEADS, HEAD_SIZE
    qkv = array(tokens, 3, heads, size, dtype=jnp.bfloat16), array(3, heads, size)
    up, of_scores = array(tokens, heads, size, dtype=jnp.bfloat16), array(tokens * heads)
    settings = array(5, dtype=jnp.int32)
    masks = array(tokens, dtype=jnp.int32), array(tokens // BLOCK, 2, dtype=jnp.int32), settings
    yield _text(attention.forward, *qkv, *masks)
    yield _text(attention.backward, *qkv, up, of_scores, of_scores, *masks)
    hidden = array(tokens, heads * size, dtype=jnp.bfloat16)
    vector, of_token = array(heads * size), array(tokens)
    sums = hidden, hidden, vector, vector
    yield _text(norm.forward, *sums, vector, settings)
    yield _text(norm.backward, *sums, settings, of_token, of_token, hidden, hidden)


def _text(kernel: Callable, *operands: jax.ShapeDtypeStruct) -> tuple[str, str]:
    with jax.enable_x64(False):  # other modules of this process may have set it
        lowered = jax.jit(kernel).trace(*operands).lower(lowering_platforms=("cuda",))
    [main] = lowered.compiler_ir("stablehlo").body.operations
    [call] = [each for each in main.entry_block.operations if "custom_call" in each.name]
    config = ir.DictAttr(call.attributes["mhlo.backend_config"])
    launch = [f"{key} = {ir.IntegerAttr(config[key]).value}" for key in ("num_stages", "num_warps")]
    with ir.Context() as context:
        dialect.register_dialect(context)
        module = ir.Module.parse(ir.StringAttr(config["ir"]).value_bytes)
        # This removes unused constants, in which the number of tokens would stand.
        PassManager.parse("builtin.module(canonicalize,cse)").run(module.operation)
        if kernel in (attention.forward, norm.backward):
            # Compilers take a few registers more, and a multiprocessor then has fewer programs.
            module.operation.attributes["ttg.maxnreg"] = ir.Attribute.parse("128 : i32")
        text = module.operation.get_asm(print_generic_op_form=True, enable_debug_info=False)
    return ir.StringAttr(config["name"]).value, f"// {', '.join(launch)}\n{text}"


if __name__ == "__main__":
    for name, text in texts():
        write_whole(Path(__file__).with_name(f"{name}.mlir"), text)
