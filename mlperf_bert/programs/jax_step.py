"""Makes what jax compiles of exported programs: a step of one device, or of several.

Needs jax and numpy alone: an exported folder has a copy, beside run_step.py and compile_step.py.
"""

import dataclasses
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_enable_x64", True)  # the counters are int64; jax would cut them to 32 bits
warnings.filterwarnings("ignore", "Some donated buffers were not usable")  # the constants'
if "XLA_CLIENT_MEM_FRACTION" not in os.environ:  # jax's other name of the same
    # jax takes 75% of a GPU's memory, and compiles for that: steps that fit the device would not.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.96")

GIVEN = ("batch", "seed", "count", "gradient")  # roles of what is not state
_OF_A_STEP = ("batch", "seed")  # of these, what a device is given from outside
_OLDEST = 8.0  # compute capability with bfloat16 in its tensor cores
EACH = "device"  # the axis over all devices
NORMALIZATIONS = ("global", "replica_sum", "replica_mean")

State = dict[str, Any]
Batch = Mapping[str, Any]


class Part(NamedTuple):
    """One exported program."""

    content: bytes
    """StableHLO, serialized."""
    entry: dict[str, Any]
    """What signature.json says of it: inputs, outputs, calls; of gradients num_examples too."""


def state_inputs(parts: Sequence[Part]) -> dict[str, dict]:
    """What a step is given beside a batch, by name; its halves have some of it in common."""
    inputs = [value for part in parts for value in part.entry["inputs"]]
    return {value["name"]: value for value in inputs if value["role"] not in GIVEN}


def num_bytes(values: Mapping[str, dict]) -> int:
    """What inputs or outputs take in memory."""
    return sum(math.prod(v["shape"]) * np.dtype(v["dtype"]).itemsize for v in values.values())


def function(part: Part, platform: str | None = None) -> Callable[[dict], tuple[list, dict]]:
    """Takes the inputs by name; returns the results and what replaces inputs in the next step."""
    inputs, outputs = part.entry["inputs"], part.entry["outputs"]
    if not part.content.startswith(b"ML\xefR"):
        raise ValueError(f"{part.entry.get('file', 'a program')} is not StableHLO")
    shapes = [jax.ShapeDtypeStruct(v["shape"], v["dtype"]) for v in inputs]
    # jax has no public way in for a program; so one of the same types gives up its text.
    same = jax.jit(
        lambda *_: [jax.numpy.zeros(v["shape"], v["dtype"]) for v in outputs], keep_unused=True
    )
    program = export.export(same, platforms=platform and [platform])(*shapes)
    call = dataclasses.replace(program, mlir_module_serialized=part.content).call

    def by_name(values: dict) -> tuple[list, dict]:
        arrays = call(*(values[v["name"]] for v in inputs))
        results = [array for v, array in zip(outputs, arrays) if "feeds" not in v]
        return results, {v["name"]: a for v, a in zip(outputs, arrays) if "feeds" in v}

    return by_name


def one_device(part: Part, platform: str | None = None, *, of: int = 1) -> Callable:
    """A whole step or evaluation: (state, batch) -> (losses or totals, the new state if any).

    `of` several devices each evaluates its share of the batch, and the totals are added up.
    """
    program = function(part, platform)

    def step(state: State, batch: Batch) -> tuple:
        (results,), changed = program({**state, **batch})
        results = results if of == 1 else jax.lax.psum(results, EACH)
        return results, state | changed if changed else {}

    return step


def many_devices(
    gradients: Part, update: Part, *, normalization: str, platform: str | None = None
) -> Callable:
    """The part of one of several devices in a step, with an all-reduce between its two halves.

    Each device has its share of the batch, seed included, and the whole state.
    """
    backward, change = function(gradients, platform), function(update, platform)
    all_sum, all_mean = (partial(op, axis_name=EACH) for op in (jax.lax.psum, jax.lax.pmean))
    is_global = normalization == "global"

    def step(state: State, batch: Batch) -> tuple:
        counts = {
            "num_predictions": batch["masked_lm_weights"].sum(),
            "num_examples": jax.numpy.float32(gradients.entry["num_examples"]),
        }
        counts = all_sum(counts) if is_global else counts
        (losses, *parts), _ = backward({**state, **batch, **counts})
        reduced = (all_mean if normalization == "replica_mean" else all_sum)(parts)
        names = [v["name"] for v in gradients.entry["outputs"][1:]]
        _, changed = change(state | dict(zip(names, reduced)))
        return (all_sum if is_global else all_mean)(losses), state | changed

    return step


def mesh_of(devices: Sequence[jax.Device]) -> Mesh:
    """The devices in one row, over which batches are divided."""
    return Mesh(np.array(devices), (EACH,))


def replicated(mesh: Mesh) -> NamedSharding:
    """Of what every device has wholly: the state."""
    return NamedSharding(mesh, PartitionSpec())


def divided(mesh: Mesh) -> NamedSharding:
    """Of what is divided by its first dimension: batches, and the seeds of dropout."""
    return NamedSharding(mesh, PartitionSpec(EACH))


def lowered(
    parts: Sequence[Part], devices: Sequence[jax.Device], normalization: str = "global"
) -> jax.stages.Lowered:
    """A step or an evaluation, for devices that need not be there: those of a topology have none.

    It takes (state, batch), both by name, and returns (losses or totals, the new state). A step
    is donated its state, so that it needs no second copy; an evaluation has no new one.

    Args:
      parts: a whole step or an evaluation; or gradients and update, for several devices.
      devices: each has a share of the batch as large as the program's.
      normalization: one of `NORMALIZATIONS`, for several devices.

    Raises:
      WrongDevice: a part calls kernels that such a device cannot run.
    """
    calls = [call for part in parts for call in part.entry.get("calls", ())]
    if calls and (why := obstacle_to_kernels(devices[0])):
        raise WrongDevice(f"it calls kernels, and {why}; export it with --kernels=xla")
    mesh, platform = mesh_of(devices), _platform_of(devices[0])
    first, *rest = parts
    if rest:
        step = many_devices(first, *rest, normalization=normalization, platform=platform)
    else:
        step = one_device(first, platform, of=mesh.size)
    if mesh.size > 1:
        every, each = PartitionSpec(), PartitionSpec(EACH)
        step = jax.shard_map(
            step, mesh=mesh, in_specs=(every, each), out_specs=every, check_vma=False
        )
    inputs = [value for part in parts for value in part.entry["inputs"]]
    state = {
        name: jax.ShapeDtypeStruct(v["shape"], v["dtype"], sharding=replicated(mesh))
        for name, v in state_inputs(parts).items()
    }
    batch = {
        v["name"]: jax.ShapeDtypeStruct(
            [mesh.size * v["shape"][0], *v["shape"][1:]], v["dtype"], sharding=divided(mesh)
        )
        for v in inputs
        if v["role"] in _OF_A_STEP
    }
    changes = any("feeds" in value for part in parts for value in part.entry["outputs"])
    return jax.jit(step, donate_argnums=0 if changes else ()).lower(state, batch)


class WrongDevice(ValueError):
    """A program is for other devices."""


def obstacle_to_kernels(device: Any) -> str | None:
    """Why a device cannot run the project's kernels, if it cannot."""
    if _platform_of(device) != "cuda":
        return f"a {device.platform} is no GPU of NVIDIA"
    capability = str(getattr(device, "compute_capability", _OLDEST))
    if float(capability) < _OLDEST:
        return f"{device.device_kind} has compute capability {capability}, below {_OLDEST}"
    return None


def _platform_of(device: Any) -> str:
    """As jax's exporter calls it."""
    if device.platform != "gpu":
        return device.platform
    version = getattr(getattr(device, "client", None), "platform_version", "")
    return "rocm" if "rocm" in version.lower() else "cuda"


def operations(module: Any) -> list[Any]:
    """All operations of a module in StableHLO, before each those that hold or precede it."""
    from jaxlib.mlir import ir

    listed: list[Any] = []

    def note(operation: Any) -> Any:
        listed.append(operation.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note, ir.WalkOrder.PRE_ORDER)
    return listed


def needed_bytes(compiled: jax.stages.Compiled) -> int:
    """What a program takes on each device: state and batch, what it computes with, its results."""
    memory: Any = compiled.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes  # donated ones take nothing
    return memory.argument_size_in_bytes + memory.temp_size_in_bytes + results


def refused_bytes(text: str) -> float | None:
    """What a program would take beside its inputs, by the refusal of a TPU's compiler."""
    needed = re.search(r"\(([\d.]+)G\) exceeds available", text)
    return float(needed[1]) * 2**30 if needed else None


def xla_cost(program: jax.stages.Lowered | jax.stages.Compiled) -> dict:
    """What XLA counts in a program, before or after it optimizes it."""
    counted = program.cost_analysis() or {}
    return {"xla_flop": counted.get("flops"), "xla_bytes": counted.get("bytes accessed")}
