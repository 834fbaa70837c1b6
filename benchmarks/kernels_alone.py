"""The kernels of a step alone on a GPU: errors, the same bits again, milliseconds.

    python3 -m benchmarks.kernels_alone --output=build/kernels.json build/card/data/large_*

Needs jax and numpy alone. The masks are full rows, and those of the first batches of exported
steps. An error is the norm of the difference from a formula in float64, of that of the formula,
for the first row and the last: some 2e-3 is what bfloat16 rounds, above 1e-2 a kernel is wrong.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.model import kernel_call
from mlperf_bert.model.kernels import BLOCK, HEAD_SIZE, INNER, NUM_HEADS, ROWS, STEPS
from mlperf_bert.options import expanded_arguments

SEED, RATE = (5, -7), 0.1
Of = Callable[[str, tuple, Sequence], Callable]
"""Returns a kernel by its name, its grid, and shapes and types of its results."""


def stored(name: str, grid: tuple, results: Sequence) -> Callable:
    """A kernel as its text is stored, called as by an exported step."""
    call = jax.ffi.ffi_call(
        kernel_call.TARGET, [jax.ShapeDtypeStruct(*each) for each in results],
        custom_call_api_version=3,
        legacy_backend_config=kernel_call.config(name, (*grid, 1, 1)[:3]),
    )  # fmt: skip
    return jax.jit(lambda *arrays: call(*arrays))


def settings(seq: int) -> jax.Array:
    """The numbers of kernel_encoder.settings."""
    return jnp.array([*SEED, *kernel_call.dropout(RATE), seq // BLOCK], jnp.int32)


def ranges(ids: np.ndarray) -> np.ndarray:
    """The parts of a row that each block needs, as kernel_encoder._ranges has them."""
    rows, seq = ids.shape
    same = (ids[:, :, None] == ids[:, None, :]) & (ids > 0)[:, None, :]
    needed = same.reshape(rows, seq // BLOCK, BLOCK, seq // INNER, INNER).any((2, 4))
    number, most = np.arange(seq // INNER), seq // INNER
    first, last = np.where(needed, number, most).min(2), np.where(needed, number + 1, 0).max(2)
    return np.stack([first, last], 2).reshape(-1, 2).astype(np.int32)


def kept(first_row: int, rows: int, columns: int) -> np.ndarray:
    """What dropout multiplies with, [rows, columns]: fusion._drop_elements' hash, by numpy."""

    def mixed(bits, shift, factor):
        return (bits ^ (bits >> np.uint32(shift))) * np.uint32(factor)

    one, other = np.array(SEED, np.int32).astype(np.uint32)[:, None]
    one = mixed(mixed(one, 17, 0xED5AD4BB), 11, 0xAC4C1B51)
    of_rows = np.arange(first_row, first_row + rows, dtype=np.uint32) ^ one
    of_rows = mixed(mixed(of_rows, 16, 0x7FEB352D), 15, 0x846CA68B)
    of_columns = np.arange(columns, dtype=np.uint32) * np.uint32(0x9E3779B9) + other
    bits = of_rows[:, None] ^ of_columns
    bits = mixed(mixed(bits, 17, 0xED5AD4BB), 11, 0x31848BAB)
    kept_from, factor = np.array(kernel_call.dropout(RATE), np.int32)
    return ((bits ^ (bits >> np.uint32(14))) >> np.uint32(1) >= kept_from) * factor.view(np.float32)


def float64(array: jax.Array) -> np.ndarray:
    """The array as formulas take it."""
    return np.asarray(array, np.float64)


def distance(computed: np.ndarray, expected: np.ndarray) -> float:
    """The error of what is found."""
    return float(np.linalg.norm(computed - expected) / np.linalg.norm(expected))


def milliseconds(run: Callable, repeat: int = 20) -> float:
    """The mean time of a call, of many that are started one after the other."""
    jax.block_until_ready(run())
    began = time.perf_counter()
    jax.block_until_ready([run() for _ in range(repeat)])
    return (time.perf_counter() - began) / repeat * 1e3


def same_bits(run: Callable) -> bool:
    """Whether a second call gives the bits of the first, and all of them are numbers."""
    pairs = zip(run(), run(), strict=True)
    return all(bool(((one == other) & jnp.isfinite(one)).all()) for one, other in pairs)


def attention(of: Of, ids: np.ndarray, heads: int = NUM_HEADS, size: int = HEAD_SIZE) -> dict:
    """Both kernels, with ids [R, S]."""
    (rows, seq), keys = ids.shape, jax.random.split(jax.random.key(0), 3)
    tokens, grid = rows * seq, (rows * seq // BLOCK, heads)
    qkv = jax.random.normal(keys[0], (tokens, 3, heads, size), jnp.bfloat16)
    up = jax.random.normal(keys[1], (tokens, heads, size), jnp.bfloat16)
    bias, parts = 0.3 * jax.random.normal(keys[2], (3, heads, size)), ranges(ids)
    masks = jnp.array(ids.reshape(-1), jnp.int32), jnp.array(parts), settings(seq)
    results = [(up.shape, jnp.bfloat16), ((tokens * heads,), jnp.float32)]
    forward = partial(of("attention_forward", grid, results), qkv, bias, *masks)
    context, lse = forward()
    product = (up.astype(jnp.float32) * context.astype(jnp.float32)).sum(2)
    delta = product.reshape(rows, seq, heads).transpose(0, 2, 1).reshape(-1)
    results = [(qkv.shape, jnp.bfloat16), ((grid[0], 3, heads, size), jnp.float32)]
    backward = of("attention_backward", grid, results)
    backward = partial(backward, qkv, bias, up, lse, delta, *masks)
    gradient, errors = backward()[0], {}
    for row in {0, rows - 1}:
        at, own = slice(row * seq, row * seq + seq), ids[row]
        query, _, value = float64(qkv[at] + bias.astype(jnp.bfloat16)).transpose(1, 2, 0, 3)
        key, down = float64(qkv[at, 1]).swapaxes(0, 1), float64(up[at]).swapaxes(0, 1)
        mask = kept(row * heads * seq, heads * seq, seq).reshape(heads, seq, seq)
        allowed = (own[:, None] == own) & (own > 0)
        scores = np.where(allowed, query @ key.swapaxes(1, 2) / size**0.5, -1e300)
        powers = np.where(allowed, np.exp(scores - scores.max(-1, keepdims=True)), 0)
        p = powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300)
        of_p = mask * (down @ value.swapaxes(1, 2))
        of_scores = p * (of_p - (p * of_p).sum(-1, keepdims=True)) / size**0.5
        # As the gradients of its inputs, [3, N, S, D]: what is multiplied by a gradient of scores.
        formula = [of_scores @ key, of_scores.swapaxes(1, 2) @ query]
        formula.append((mask * p).swapaxes(1, 2) @ down)
        gradients = float64(gradient[at]).transpose(1, 2, 0, 3)
        of_context = distance(float64(context[at]).swapaxes(0, 1), mask * p @ value)
        errors[f"row {row}"] = [of_context, *map(distance, gradients, formula)]
    needed = np.maximum(0, np.diff(parts)).sum() / (len(parts) * seq // INNER)
    return {
        "errors of context, query, key, value": errors,
        "share of tiles": float(needed),
        "same bits": same_bits(lambda: [*forward(), *backward()]),
        "forward_ms": milliseconds(forward),
        "backward_ms": milliseconds(backward),
    }


def norm(of: Of, tokens: int, width: int = NUM_HEADS * HEAD_SIZE) -> dict:
    """Both kernels of the norm of a sum; errors of the first 512 tokens."""
    keys = jax.random.split(jax.random.key(1), 7)
    arrays = [jax.random.normal(key, (tokens, width), jnp.bfloat16) for key in keys[:4]]
    hidden, update, one, other = arrays
    bias, gamma, beta = (jax.random.normal(key, (width,)) for key in keys[4:])
    inputs, wide = (hidden, update, bias, gamma), (hidden.shape, jnp.bfloat16)
    of_token = [((tokens,), jnp.float32)] * 2
    forward = of("norm_forward", (tokens // ROWS,), [wide, *of_token])
    forward = partial(forward, *inputs, beta, settings(BLOCK))
    y, *statistics = forward()
    programs = tokens // ROWS // STEPS
    results = [wide] * 2 + [((programs, width), jnp.float32)] * 3
    backward = of("norm_backward", (programs,), results)
    backward = partial(backward, *inputs, settings(BLOCK), *statistics, one, other)
    of_hidden, of_update = (float64(each[:512]) for each in backward()[:2])
    first = slice(min(512, tokens))
    mask = kept(0, first.stop, width)
    dropped = mask * float64(update[first] + bias.astype(jnp.bfloat16))
    total = float64(hidden[first]) + float64(jnp.array(dropped, jnp.bfloat16))
    deviation = total.std(1, keepdims=True)
    x = (total - total.mean(1, keepdims=True)) / deviation
    w = (float64(one[first]) + float64(other[first])) * float64(gamma)
    of_total = (w - w.mean(1, keepdims=True) - x * (w * x).mean(1, keepdims=True)) / deviation
    pairs = (float64(y[first]), x * float64(gamma) + float64(beta)), (of_hidden, of_total)
    errors = [distance(*each) for each in (*pairs, (of_update, mask * of_total))]
    figures = {"errors of y, hidden, update": errors}
    figures["same bits"] = same_bits(lambda: [*forward(), *backward()])
    for name, run, moved in (("forward", forward, 3), ("backward", backward, 6)):
        figures[f"{name}_ms"] = milliseconds(run)
        figures[f"{name}_gb_per_second"] = moved * 2 * tokens * width / figures[f"{name}_ms"] / 1e6
    return figures


@ends_in_one_line("kernels_alone")
def main() -> None:
    """Tries the kernels, with every mask."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("steps", type=Path, nargs="*", help="exported, for their masks")
    parser.add_argument("--output", type=Path, required=True, help="a .json file")
    arguments = parser.parse_args(expanded_arguments())
    masks: dict = {"full": np.ones((56, 512), np.int32)}
    for folder in arguments.steps:
        with np.load(folder / "batches.npz") as arrays:
            name = "block_ids" if "training/0/block_ids" in arrays.files else "input_mask"
            masks[folder.name] = arrays[f"training/0/{name}"]
    figures = {}
    for name, ids in ({"norm": None} | masks).items():
        figures[name] = norm(stored, 28672) if ids is None else attention(stored, ids)
        print(json.dumps({name: figures[name]}), flush=True)  # each, if a later one never ends
    arguments.output.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    sys.exit(main())
