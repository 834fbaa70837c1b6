"""Asks jax's compiler whether a run fits its devices, before anything is executed."""

import math
from collections.abc import Callable
from typing import cast

import jax

from mlperf_bert.messages import ERROR, NOTE, WARNING, Finding
from mlperf_bert.programs.device_state import DeviceState
from mlperf_bert.programs.jax_trainer import JaxEvaluator, JaxTrainer
from mlperf_bert.training import checks
from mlperf_bert.training.build import Programs


def finding_of(programs: Programs) -> Finding:
    """Compiles all programs of a run with jax, and says what they take of each device.

    Raises:
      JaxRuntimeError: as `memory_finding`.
    """
    by_jax, evaluator = cast(JaxTrainer, programs.trainer), cast(JaxEvaluator, programs.evaluator)
    evaluation = None
    if programs.synthetic_evaluation_batch:
        spec = programs.synthetic_evaluation_batch.element_spec
        # The whole state of the training stays on the device during the evaluation.
        evaluation = lambda: evaluator.compile(spec) + by_jax.state_bytes  # noqa: E731
    return memory_finding(
        by_jax,
        step=lambda: by_jax.compile([*programs.synthetic_batches]),
        evaluation=evaluation,
        remedy="give --recompute=attention, then blocks, then fewer examples with more "
        "--steps_per_update (docs/training.md)",
    )


def memory_finding(
    on: DeviceState, *, step: Callable[[], int], evaluation: Callable[[], int] | None, remedy: str
) -> Finding:
    """Compiles a step and an evaluation, and says how much memory of each device they take.

    It is an error if they do not fit. On a CPU it is a warning: the memory available changes with
    other processes, and there may be swap.

    Args:
      on: the devices, with the state.
      step: compiles it; returns the bytes that it takes on each device.
      evaluation: the same for the evaluation; None without one.
      remedy: what makes a step smaller.

    Raises:
      JaxRuntimeError: a program does not compile, and not for lack of memory.
    """
    limit, mesh = on.usable_bytes(), on.mesh
    usable = limit or checks.memory_bytes() // len(mesh.local_devices)
    of_step, of_evaluation = _needed_bytes(step), _needed_bytes(evaluation) if evaluation else 0.0
    kinds = ", ".join(sorted({device.device_kind for device in mesh.devices.flat}))
    where = f"{_gib(usable)} GiB {'of' if limit else 'available to'} "
    where += f"{'each' if mesh.size > 1 else 'this'} {kinds}"
    if max(of_step, of_evaluation) <= usable:
        also = f"; an evaluation {_gib(of_evaluation)} GiB" if evaluation else ""
        return Finding(NOTE, f"a step takes {_gib(of_step)} of {where}{also}")
    what = f"a step takes {_gib(of_step)}"
    if of_step <= usable:
        what, remedy = f"an evaluation takes {_gib(of_evaluation)}", "lower --eval_batch_size"
    return Finding(ERROR if limit else WARNING, f"does not fit: {what} of {where}; {remedy}")


def _needed_bytes(compiled: Callable[[], int]) -> float:
    """The bytes that a compiler reports; infinite if it refuses for lack of memory."""
    try:
        return compiled()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return math.inf


def _gib(number: float) -> str:
    if math.isinf(number):
        return "more than all"
    gib = number / 2**30
    return f"{gib:.1f}" if gib >= 0.1 else "under 0.1"
