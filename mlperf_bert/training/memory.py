"""How much memory a step of TensorFlow takes on a CPU, estimated before it is built.

Steps of jax are not estimated: their compiler says it (fit.py). Steps of TensorFlow on GPUs are
neither. The peak of a step is the largest of three moments; what is always there is added to each:

    always      weights, slots (two of each weight), the accumulator of aggregation; libraries
    backward    at its start: all kept activations, logits three times, what one block needs
    gradients   at its end: all gradients, the activations of one block, what it needs
    update      all gradients, clipped and not, and LAMB's six tensors of the largest weight

Activations that a block keeps, counted on encoder.py, for one row, in elements of S*H (tokens
times hidden), of S*I (inner) and of N*S*S (heads, tokens, tokens):

    fused       S*H: input, query, key, value, context, two outputs of dropout, LayerNorm's: 8;
                S*I: before and after the activation: 2; N*S*S: probabilities, before dropout
                and after it: 2
    layers      the default, tf-models' own: S*H 13, S*I 4 (the steps of gelu), N*S*S 3 (also the
                mask of dropout)
    attention   as fused, without the two of N*S*S
    blocks      the input alone: S*H 1

An element has four bytes, or two in bfloat16, which also keeps a copy of every kernel unless blocks
are recomputed. While a block goes backward it needs what it does not keep, and the gradients of it:
once more what the fused block keeps, and N*S*S twice. The last block is counted as the others.
Source of the method: Korthikanti et al., arXiv 2205.05198, section 4. Tests compare the estimate
with the measurements of benchmarks/memory.py.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from mlperf_bert.checkpoints.names import FLOAT_BYTES, checkpoint_bytes, num_weights
from mlperf_bert.input import packing
from mlperf_bert.messages import WARNING, Finding
from mlperf_bert.model import pretrainer
from mlperf_bert.model.config import (
    RECOMPUTE_ATTENTION,
    RECOMPUTE_BLOCKS,
    RECOMPUTE_CHOICES,
    BertConfig,
)
from mlperf_bert.training.config import RunConfig

LIBRARY_BYTES = 900_000_000
"""What is not a step's: Python with TensorFlow, traces and compiled programs, measured."""
TOLERANCE = 0.15
"""Measurements differ from the estimate by no more than this share."""
_MEMORY_LIMITS = (  # of a container, with cgroup version 2 and 1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def step_bytes(config: RunConfig, model: BertConfig, *, num_rows: int) -> int:
    """The peak of a step of so many rows on one CPU."""
    predictions = config.shape.max_predictions_per_seq
    if config.pack_sequences:
        predictions = packing.predictions_per_row(predictions)
    length = config.shape.max_seq_length
    element_bytes = 2 if config.precision == "bfloat16" else FLOAT_BYTES

    def bytes_of(*, hidden: int = 0, inner: int = 0, scores: int = 0) -> int:
        """So many times S*H, S*I and N*S*S of all rows."""
        of_a_token = hidden * model.hidden_size + inner * model.intermediate_size
        of_a_token += scores * model.num_attention_heads * length
        return num_rows * length * of_a_token * element_bytes

    gradients = num_weights(model) * FLOAT_BYTES
    keeps_kernels = config.precision == "bfloat16" and config.recompute != RECOMPUTE_BLOCKS
    kernels = gradients // 2 if keeps_kernels else 0
    # Logits, their softmax and their gradient, float32.
    logits = 3 * num_rows * predictions * model.vocab_size * FLOAT_BYTES
    # What one block needs while it goes backward.
    working = bytes_of(hidden=8, inner=2, scores=4)
    # What one block keeps for the backward pass.
    if config.recompute == RECOMPUTE_BLOCKS:
        activations = bytes_of(hidden=1)
    elif config.recompute == RECOMPUTE_ATTENTION:
        activations = bytes_of(hidden=8, inner=2)
    elif pretrainer.is_fused(
        config.precision, config.compilation.passes, config.pack_sequences, config.recompute
    ):
        activations = bytes_of(hidden=8, inner=2, scores=2)
    else:
        activations = bytes_of(hidden=13, inner=4, scores=3)
    moments = (
        # backward, gradients, update: the moments that the head of this file describes.
        activations * model.num_hidden_layers + logits + working + kernels,
        gradients + activations + working + kernels,
        2 * gradients + 6 * model.vocab_size * model.hidden_size * FLOAT_BYTES,
    )
    state = checkpoint_bytes(model, steps_per_update=config.steps_per_update)
    # A checkpoint is written while the training goes on, from a copy.
    return LIBRARY_BYTES + state * (1 + config.saves_while_training) + max(moments)


def smaller(config: RunConfig, num_rows: int) -> Iterator[tuple[str, RunConfig]]:
    """The same updates in less memory, the smallest change first, each with its flags.

    Recomputation comes before smaller steps, and less before more. A flag that the user gave is
    never turned off: less recomputation needs more memory.

    Args:
      config: of the run.
      num_rows: of a step on one device.
    """
    changes: dict[str, Any] = {}

    def with_change(**change) -> tuple[str, RunConfig]:
        changes.update(change)
        flags = " ".join(f"--{name}={value}" for name, value in changes.items())
        return flags, dataclasses.replace(config, **changes)

    if config.saves_while_training:
        yield with_change(async_checkpoint=False)
    for recompute in RECOMPUTE_CHOICES[RECOMPUTE_CHOICES.index(config.recompute) + 1 :]:
        yield with_change(recompute=recompute)
    for times in range(2, num_rows + 1):
        if num_rows % times == 0:
            yield with_change(
                train_batch_size=config.train_batch_size // times,
                steps_per_update=config.steps_per_update * times,
                num_train_steps=config.num_train_steps * times,
            )


def shortfall(config: RunConfig, model: BertConfig, *, num_replicas: int = 1) -> Finding | None:
    """Warns that a run does not fit into the memory here, with the smallest change that does.

    It is no error: the memory available changes with other processes, and there may be swap.
    """
    # A packed batch may have as many rows as examples, and is compiled with as many.
    num_rows = config.train_batch_size // num_replicas
    needed, available = run_bytes(config, model, num_rows=num_rows), memory_bytes()
    if needed <= available:
        return None
    does = "no change of --recompute and --train_batch_size makes it fit"
    for flags, changed in smaller(config, num_rows):
        rows = changed.train_batch_size // num_replicas
        if run_bytes(changed, model, num_rows=rows) <= available:
            does = f"{flags} does"
            if rows < num_rows:
                does += "; multiply the other flags that count steps too (docs/training.md)"
            break
    return Finding(
        WARNING,
        f"the run does not fit into the {in_words(available)} available here: about "
        f"{in_words(needed)}; {does}",
    )


def run_bytes(config: RunConfig, model: BertConfig, *, num_rows: int) -> int:
    """What a run takes of this host: the steps of TensorFlow on a CPU, else a copy of the state."""
    by_tensorflow = config.device.kind == "CPU" and config.runtime != "jax"
    if by_tensorflow and config.emulate_step_seconds is None:
        return step_bytes(config, model, num_rows=num_rows)
    copied = checkpoint_bytes(model, steps_per_update=config.steps_per_update)
    return copied * config.saves_while_training


def memory_bytes() -> int:
    """Memory that this process may take: what the host has left, or a container's limit."""
    # That of the host, also in a container: the limit of one stands in a file of its control group.
    available = psutil.virtual_memory().available
    for limit in _MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            available = min(available, int(limit.read_text()))
    return available


def in_words(num_bytes: float) -> str:
    """Bytes as a user reads them: 1.5 GB, 0.2 MB."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
