"""How much memory a training step takes, estimated before it is built.

The peak of a step is the largest of three moments; what is always there is added to each:

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

The compiler of a TPU computes again what does not fit, if no product made it. There the estimate is
what is left then: S*H 6 and, without recomputation, N*S*S 1 and S*H 1 (the context by heads, for
attention's gradient, beside that by tokens); and a block that goes backward needs N*S*S twice less.
A step with more room takes more of it.

An element has four bytes, or two in bfloat16, which also keeps a copy of every kernel unless blocks
are recomputed. While a block goes backward it needs what it does not keep, and the gradients of it:
once more what the fused block keeps, and N*S*S twice. The last block is counted as the others.
Source of the method: Korthikanti et al., arXiv 2205.05198, section 4. Tests compare the estimate
with the measurements of benchmarks/memory.py, on CPUs, and with what the compilers of GPUs and TPUs
say that a whole step takes (benchmarks/compiled.json, of compile_step.py). Of these an H100 alone
has run some: the exported step, under jax (benchmarks/accelerator.jsonl).
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pynvml

from mlperf_bert.checkpoints.names import FLOAT_BYTES, checkpoint_bytes, num_weights
from mlperf_bert.messages import ERROR, WARNING, Finding
from mlperf_bert.model import pretrainer
from mlperf_bert.model.config import (
    RECOMPUTE_ATTENTION,
    RECOMPUTE_BLOCKS,
    RECOMPUTE_CHOICES,
    RECOMPUTE_NONE,
    BertConfig,
)
from mlperf_bert.training.config import RunConfig

if TYPE_CHECKING:  # it imports this
    from mlperf_bert.training.checks import Setup

LIBRARY_BYTES = {"CPU": 900_000_000, "GPU": 9 * 2**28, "TPU": 0}
"""What is not a step's: on a CPU Python with TensorFlow, traces and compiled programs, measured; on
a GPU CUDA's context and what TensorFlow leaves to its libraries, by TensorFlow's public logs."""
TPU_BYTES = {
    "v2": 7.48 * 2**30,
    "v3": 15.48 * 2**30,
    "v4": 30.75 * 2**30,
    "v5litepod": 15.75 * 2**30,
    "v5p": 95.73 * 2**30,
    "v6e": 31.24 * 2**30,
}
"""What a program may use of a core of v2 and v3, a chip of the others; source: the compiler's
refusals (libtpu 0.0.52)."""
TOLERANCE = 0.15
"""Measurements differ from the estimate by no more than this share."""
_FAR_OVER = 2
_MEMORY_LIMITS = (  # of a container, with cgroup version 2 and 1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """What the memory of a step on one replica depends on."""

    model: BertConfig
    num_rows: int
    sequence_length: int
    predictions_per_row: int
    precision: str
    fused: bool
    """encoder.py computes, in place of tf-models' layers."""
    recompute: str
    steps_per_update: int
    device: str = "CPU"
    """CPU, GPU or TPU."""
    copies_state: bool = False
    """Checkpoints are written while the training goes on, from a copy in the same memory."""

    def total_bytes(self) -> int:
        """The peak of a step."""
        model, on_tpu = self.model, self.device == "TPU"
        gradients = num_weights(model) * FLOAT_BYTES
        keeps_kernels = self.precision == "bfloat16" and self.recompute != RECOMPUTE_BLOCKS
        kernels = gradients // 2 if keeps_kernels else 0
        # Logits, their softmax and their gradient, float32.
        logits = 3 * self.num_rows * self.predictions_per_row * model.vocab_size * FLOAT_BYTES
        # What one block needs while it goes backward.
        working = self._bytes_of(hidden=8, inner=2, scores=2 if on_tpu else 4)
        # What one block keeps for the backward pass.
        if self.recompute == RECOMPUTE_BLOCKS:
            activations = self._bytes_of(hidden=1)
        elif on_tpu:  # what its compiler computes again is not counted, even if it is kept
            kept = int(self.recompute == RECOMPUTE_NONE)
            activations = self._bytes_of(hidden=6 + kept, scores=kept)
        elif self.recompute == RECOMPUTE_ATTENTION:
            activations = self._bytes_of(hidden=8, inner=2)
        elif self.fused:
            activations = self._bytes_of(hidden=8, inner=2, scores=2)
        else:
            activations = self._bytes_of(hidden=13, inner=4, scores=3)
        # On a TPU the last block goes backward in what the logits took.
        beside = max(logits, working) if on_tpu else logits + working
        moments = (
            # backward, gradients, update: the moments that the head of this file describes.
            activations * model.num_hidden_layers + beside + kernels,
            gradients + activations + working + kernels,
            2 * gradients + 6 * model.vocab_size * model.hidden_size * FLOAT_BYTES,
        )
        always = checkpoint_bytes(model, steps_per_update=self.steps_per_update)
        return LIBRARY_BYTES[self.device] + always * (1 + self.copies_state) + max(moments)

    def _bytes_of(self, *, hidden: int = 0, inner: int = 0, scores: int = 0) -> int:
        """So many times S*H, S*I and N*S*S of all rows."""
        model, length = self.model, self.sequence_length
        of_a_token = hidden * model.hidden_size + inner * model.intermediate_size
        of_a_token += scores * model.num_attention_heads * length
        element_bytes = 2 if self.precision == "bfloat16" else FLOAT_BYTES
        return self.num_rows * length * of_a_token * element_bytes


@dataclasses.dataclass(frozen=True)
class Change:
    """Flags with which the global batch size stays the same, but a step takes less memory."""

    recompute: str
    times_steps: int
    """So many times as many steps make an update, of a batch divided by as many."""


def smallest_change(step: Step, *, available_bytes: float) -> Change | None:
    """The smallest change with which a step fits; None if there is none.

    The same step with recomputation comes before smaller steps, and less recomputation before more.
    """
    # A flag that the user gave is never turned off: less recomputation needs more memory.
    later = RECOMPUTE_CHOICES[RECOMPUTE_CHOICES.index(step.recompute) :]
    for times in _divisors(step.num_rows):
        for recompute in later:
            changed = dataclasses.replace(
                step,
                num_rows=step.num_rows // times,
                recompute=recompute,
                fused=step.fused or recompute != RECOMPUTE_NONE,
                # One step an update has no accumulator: 2 stands for any greater number.
                steps_per_update=max(step.steps_per_update, min(times, 2)),
            )
            if changed.total_bytes() <= available_bytes:
                return Change(recompute, times)
    return None


def _divisors(number: int) -> Iterator[int]:
    """In order, the smallest first."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    yield from sorted({*small, *(number // n for n in small)})


def shortfall(setup: "Setup") -> Finding | None:
    """Says that a step does not fit, and the smallest change that does; None if it fits.

    It is a warning: no training has been measured on GPUs and TPUs, and on a CPU the memory
    available changes with other processes, and there may be swap. On a GPU or TPU it is an error if
    the estimate is more than twice the memory. GPUs of which NVML does not report the memory are
    not checked, neither is a TPU whose type nobody names.
    """
    config = setup.config
    # After an error there may be no such step: a batch that the replicas cannot share, say.
    asleep = config.emulate_step_seconds is not None
    if not setup.devices or setup.findings.errors or asleep:
        return None
    available, where = _memory_of(config)
    step = _step_of(setup)
    needed = step.total_bytes()
    if available is None or needed <= available:
        return None
    change = smallest_change(step, available_bytes=available)
    return Finding(
        ERROR if step.device != "CPU" and needed > _FAR_OVER * available else WARNING,
        f"a step does not fit into the {available / 1e9:.1f} GB {where}: about "
        f"{needed / 1e9:.1f} GB; {_in_flags(config, change)}",
    )


def shortfall_of_copy(setup: "Setup") -> Finding | None:
    """Warns if this host cannot hold a copy of the state too; activations are not counted."""
    config, bert_config = setup.config, setup.bert_config
    if not config.saves_while_training:
        return None
    copied = checkpoint_bytes(bert_config, steps_per_update=config.steps_per_update)
    gradients = num_weights(bert_config) * FLOAT_BYTES
    on_device = config.device.kind != "CPU"
    # On a CPU the state itself and its gradients are in the same memory as the copy.
    needed = copied if on_device else 2 * copied + gradients
    available = memory_bytes()
    if available >= needed:
        return None
    of_run = "" if on_device else f" and {in_words(copied + gradients)} for the training"
    return Finding(
        WARNING,
        f"asynchronous checkpoints: {in_words(copied)} of memory for a copy of weights and "
        f"slots{of_run}, but {in_words(available)} are available; give --noasync_checkpoint",
    )


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


def _memory_of(config: RunConfig) -> tuple[float | None, str]:
    """The memory of the device, None if it is not known, and how a message calls it."""
    if config.device.use_tpu:
        generation = config.tpu_type.rpartition("-")[0]
        return TPU_BYTES.get(generation), f"of a device of this {config.tpu_type}"
    if config.device.num_gpus:
        return gpu_bytes(config.device.num_gpus), "of this GPU"
    return memory_bytes(), "available here"


def gpu_bytes(num_gpus: int) -> int | None:
    """The memory of the smallest GPU; None if NVML does not report it, or it shows other GPUs too.

    NVML shows all GPUs in the order of the bus, whatever CUDA_VISIBLE_DEVICES says: only where it
    shows as many as the run uses are they the same, or where all have the same memory.
    """
    try:
        pynvml.nvmlInit()
        indices = range(pynvml.nvmlDeviceGetCount())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in indices]
        sizes = [pynvml.nvmlDeviceGetMemoryInfo(handle).total for handle in handles]
    except pynvml.NVMLError:
        return None
    are_ours = len(sizes) == num_gpus or len(set(sizes)) == 1
    return min(sizes) if sizes and are_ours else None


def _step_of(setup: "Setup") -> Step:
    config = setup.config
    predictions = config.shape.max_predictions_per_seq
    if config.pack_sequences:
        from mlperf_bert.input import packing  # only a run that packs loads it

        predictions = packing.predictions_per_row(predictions)
    return Step(
        model=setup.bert_config,
        # A packed batch may have as many rows as examples, and is compiled with as many.
        num_rows=setup.replica_batch_size,
        sequence_length=config.shape.max_seq_length,
        predictions_per_row=predictions,
        precision=config.precision,
        fused=pretrainer.is_fused(
            precision=config.precision,
            compile_passes=config.compilation.passes,
            pack_sequences=config.pack_sequences,
            recompute=config.recompute,
        ),
        recompute=config.recompute,
        steps_per_update=config.steps_per_update,
        device=config.device.kind,
        copies_state=config.saves_while_training and config.device.kind == "CPU",
    )


def _in_flags(config: RunConfig, change: Change | None) -> str:
    if change is None:
        return "no change of --recompute and --train_batch_size makes it fit"
    flags = []
    if change.recompute != config.recompute:
        flags.append(f"--recompute={change.recompute}")
    if change.times_steps > 1:
        flags.append(f"--train_batch_size={config.train_batch_size // change.times_steps}")
        flags.append(f"--steps_per_update={config.steps_per_update * change.times_steps}")
        also = " if the flags that count steps are multiplied too (docs/training.md)"
    else:
        also = ""
    return f"{' '.join(flags)} does{also}"
