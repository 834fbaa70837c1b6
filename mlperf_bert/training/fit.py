"""Whether a run fits its devices: jax's compiler says it, before anything is executed.

What TensorFlow computes is not asked; memory.py estimates it on a CPU.
"""

import dataclasses
import gc
import math
from collections.abc import Callable
from typing import cast

import jax

from mlperf_bert.messages import ERROR, NOTE, WARNING, Finding, Progress
from mlperf_bert.programs import jax_step
from mlperf_bert.programs.jax_trainer import JaxEvaluator, JaxTrainer
from mlperf_bert.training import build, memory
from mlperf_bert.training.build import Programs
from mlperf_bert.training.checks import Setup

_ON_A_CPU = "give --recompute=attention, then blocks, then fewer examples (docs/training.md)"


def finding_of(setup: Setup, programs: Programs) -> Finding:
    """Compiles all programs of a run by jax, and says what they take of each device.

    It is an error if they do not fit, with what would, by the compiler too. On a CPU it is a
    warning: the memory available changes with other processes, and there may be swap.

    Raises:
      JaxRuntimeError: a program does not compile, and not for lack of memory.
    """
    by_jax, mesh = cast(JaxTrainer, programs.trainer), setup.devices.mesh
    assert mesh  # of no other runtime
    limit = by_jax.usable_bytes()
    usable = limit or memory.memory_bytes() // len(mesh.local_devices)
    with build.reading_compilation_cache(setup.config.compilation_cache_dir):
        step = _taken(lambda: by_jax.compile([*programs.batches]), by_jax, usable)
        evaluation = 0.0
        if programs.evaluation:
            spec, asked = programs.evaluation.element_spec, cast(JaxEvaluator, programs.evaluator)
            # Beside it the whole state of the training stays on the device.
            evaluation = _taken(lambda: asked.compile(spec) + by_jax.state_bytes, by_jax, usable)
        kinds = ", ".join(sorted({device.device_kind for device in mesh.devices.flat}))
        each = f"{'each' if mesh.size > 1 else 'this'} {kinds}"
        where = f"{_gib(usable)} GiB {'of' if limit else 'available to'} {each}"
        if max(step, evaluation) <= usable:
            also = f"; an evaluation {_gib(evaluation)} GiB" if evaluation else ""
            return Finding(NOTE, f"a step takes {_gib(step)} of {where}{also}")
        if step <= usable:
            does, what = "lower --eval_batch_size", f"an evaluation takes {_of(evaluation)}"
        else:
            does, what = _ON_A_CPU, f"a step takes {_of(step)}"
            if limit:
                does = _what_fits(setup, usable)
        return Finding(ERROR if limit else WARNING, f"does not fit: {what}{where}; {does}")


def _what_fits(setup: Setup, usable: float) -> str:
    """What smaller steps take, up to the first that fits."""
    config, num_rows = setup.config, setup.replica_batch_size
    candidates = list(memory.smaller(config, num_rows))
    told = []
    with Progress(total=len(candidates), unit="steps", description="what would fit") as progress:
        for flags, smaller in candidates:
            needed = _step_bytes(dataclasses.replace(setup, config=smaller), usable)
            gc.collect()  # a model refers to itself: its weights would stay beside the next one's
            is_known = math.isfinite(needed)
            told.append(f"{flags} takes {_gib(needed) if is_known else 'more than that too'}")
            progress.line(f"{told[-1]} GiB" if is_known else told[-1])
            progress.advance(1)
            if needed <= usable:
                fewer = smaller.train_batch_size < config.train_batch_size
                return ", ".join(told) + (f"; {memory.COUNT_STEPS}" if fewer else "")
    return ", ".join([*told, "and nothing smaller is left"])


def _step_bytes(setup: Setup, usable: float) -> float:
    """What the step of another run takes."""
    programs = build.build_programs(setup, seed=0)
    by_jax = cast(JaxTrainer, programs.trainer)
    *_, largest = programs.batches
    return _taken(lambda: by_jax.compile([largest]), by_jax, usable)


def _taken(compiled: Callable[[], int], trainer: JaxTrainer, usable: float) -> float:
    """What a compiler says, also where it refuses for lack of memory; infinite if it does not."""
    try:
        return compiled()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        needed = trainer.state_bytes + (jax_step.refused_bytes(str(error)) or 0)
        return needed if needed > usable else math.inf


def _of(needed: float) -> str:
    return f"{_gib(needed)} of " if math.isfinite(needed) else "more than the "


def _gib(number: float) -> str:
    gib = number / 2**30
    return f"{gib:.1f}" if gib >= 0.1 else "under 0.1"
