"""Runs a program of mlperf_bert.portable.export with jax and numpy alone, on CPU, GPU or TPU.

    python run_step.py step/ --num_steps=20

Compares the losses with those that TensorFlow recorded, where it did, and prints the time of a
step, samples and model FLOP per second, their share of the device's peak, and the memory. With
--num_devices each device computes the gradients of a batch, and all add them up.
Copy this file and the folder to any machine; nothing else of the project is needed.
"""

import argparse
import collections
import dataclasses
import json
import os
import re
import resource
import statistics
import sys
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import jax
import numpy as np
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

# Products per second in bfloat16 without sparsity, in TFLOP, by jax's name of a device. Sources: of
# TPUs cloud.google.com/tpu/docs/v2 to v6e, which gives chips: jax's device is one of the two cores
# of a chip of v2 (45) and v3 (123), and the whole chip of later ones. Of GPUs NVIDIA's data sheets;
# V100 computes bfloat16 as float32. None: cards with less than the modules of their name.
PEAK_TFLOP: dict[str, float | None] = {
    "TPU v2": 45 / 2,
    "TPU v3": 123 / 2,
    "TPU v4": 275,
    "TPU v5 lite": 197,
    "TPU v5": 459,
    "TPU v6 lite": 918,
    "Tesla V100-SXM2": 15.7,
    "NVIDIA A100": 312,
    "NVIDIA L4": 121,
    "NVIDIA H100": 989,
    "NVIDIA H100 PCIe": None,
    "NVIDIA H100 NVL": None,
    "NVIDIA H200": 989,
    "NVIDIA H200 NVL": None,
    "NVIDIA B200": 2250,
}
jax.config.update("jax_enable_x64", True)  # the counters are int64; jax would cut them to 32 bits
warnings.filterwarnings("ignore", "Some donated buffers were not usable")  # the constants'
if "XLA_CLIENT_MEM_FRACTION" not in os.environ:  # jax's other name of the same
    # jax takes 75% of a GPU's memory, and compiles for that: steps that fit the device would not.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.96")


FORMAT = 2
TRAINING, GRADIENTS, UPDATE = "training", "gradients", "update"  # kinds of programs
GIVEN = ("batch", "seed", "count", "gradient")  # roles of what is not state
EACH = "device"  # the axis over all devices


def peak_tflop(kind: str) -> float | None:
    """Of a device, by jax's name of it; None if it is not known, or of a part of a GPU."""
    known = [name for name in PEAK_TFLOP if re.match(rf"{re.escape(name)}(?![\w])", kind)]
    return None if " MIG " in kind else PEAK_TFLOP.get(max(known, key=len, default=""))


def xla_cost(program: jax.stages.Lowered | jax.stages.Compiled) -> dict:
    """What XLA counts in a program, before or after it optimizes it."""
    counted = program.cost_analysis() or {}
    return {"xla_flop": counted.get("flops"), "xla_bytes": counted.get("bytes accessed")}


def function(folder: Path, entry: dict, platform: str | None = None) -> Callable:
    """A program of the folder: takes its inputs by name, returns its results and its new state."""
    shapes = [jax.ShapeDtypeStruct(v["shape"], v["dtype"]) for v in entry["inputs"]]
    outputs = [(v["shape"], v["dtype"]) for v in entry["outputs"]]
    text = (folder / entry["file"]).read_bytes()
    if not text.startswith(b"ML\xefR"):
        raise ValueError(f"{entry['file']} is not StableHLO")
    # jax has no public way in for a program; so one of the same types gives up its text.
    same = jax.jit(lambda *_: [jax.numpy.zeros(*each) for each in outputs], keep_unused=True)
    program = export.export(same, platforms=platform and [platform])(*shapes)
    call = dataclasses.replace(program, mlir_module_serialized=text).call

    def by_name(values: dict) -> tuple[list, dict]:
        found = call(*(values[v["name"]] for v in entry["inputs"]))
        results = [array for v, array in zip(entry["outputs"], found) if "feeds" not in v]
        changed = {v["name"]: a for v, a in zip(entry["outputs"], found) if "feeds" in v}
        return results, changed

    return by_name


def one_device(folder: Path, entry: dict, platform: str | None = None) -> Callable:
    """A whole step: (state, batch) -> (losses or totals, state)."""
    program = function(folder, entry, platform)

    def step(state: dict, batch: dict) -> tuple:
        (results,), changed = program(state | batch)
        return results, state | changed

    return step


def many_devices(
    folder: Path, gradients: dict, update: dict, normalization: str, platform: str | None = None
) -> Callable:
    """The part of one of several devices in a step, with an all-reduce between its two halves.

    Each device has its share of the batch, seed included, and the whole state.
    """
    backward, change = function(folder, gradients, platform), function(folder, update, platform)
    all_sum, all_mean = (partial(op, axis_name=EACH) for op in (jax.lax.psum, jax.lax.pmean))
    is_global = normalization == "global"

    def step(state: dict, batch: dict) -> tuple:
        counts = {
            "num_predictions": batch["masked_lm_weights"].sum(),
            "num_examples": jax.numpy.float32(gradients["num_examples"]),
        }
        counts = all_sum(counts) if is_global else counts
        (losses, *parts), _ = backward(state | batch | counts)
        reduced = (all_mean if normalization == "replica_mean" else all_sum)(parts)
        names = [v["name"] for v in gradients["outputs"][1:]]
        _, changed = change(state | dict(zip(names, reduced)))
        return (all_sum if is_global else all_mean)(losses), state | changed

    return step


def lowered(
    folder: Path, entry: dict, devices: list | None = None, signature: dict | None = None
) -> jax.stages.Lowered:
    """A step for jax's first device, or for those given; `entry` describes it in the signature.

    Devices of a topology are not there, and have a compiler all the same. For several devices, for
    which the signature must be given, the step is made of its halves, and each has a whole batch.
    """
    mesh = jax.sharding.Mesh(np.array(devices or jax.devices()[:1]), (EACH,))
    named = devices[0].platform if devices else None
    platform = "cuda" if named == "gpu" else named
    every, each = PartitionSpec(), PartitionSpec(EACH)
    if mesh.size == 1:
        step = one_device(folder, entry, platform)
    else:
        assert signature is not None
        kinds = {(e["kind"], e.get("num_rows")): e for e in signature["programs"]}
        halves = kinds[GRADIENTS, entry["num_rows"]], kinds[UPDATE, None]
        step = many_devices(folder, *halves, signature["parameters"]["normalization"], platform)
        step = jax.shard_map(
            step, mesh=mesh, in_specs=(every, each), out_specs=every, check_vma=False
        )

    def shape(value: dict) -> jax.ShapeDtypeStruct:
        if value["role"] not in GIVEN:
            sharding, sizes = NamedSharding(mesh, every), value["shape"]
        else:
            first, *rest = value["shape"]
            sharding, sizes = NamedSharding(mesh, each), [mesh.size * first, *rest]
        return jax.ShapeDtypeStruct(sizes, value["dtype"], sharding=sharding)

    state, batch = (
        {v["name"]: shape(v) for v in entry["inputs"] if (v["role"] in GIVEN) is given}
        for given in (False, True)
    )
    return jax.jit(step, donate_argnums=0).lower(state, batch)


class Program:
    """One step, compiled for jax's first devices."""

    def __init__(self, exported: "Exported", entry: dict):
        """Compiles it; `entry` describes it in the signature."""
        self.entry, devices = entry, jax.devices()[: exported.num_devices]
        began = time.perf_counter()
        self.compiled = lowered(exported.folder, entry, devices, exported.signature).compile()
        self.compile_seconds = time.perf_counter() - began

    def __call__(self, state: dict, batch: dict) -> list[float]:
        """Runs one step, replaces what it changes in `state`, and returns its results."""
        results, changed = jax.block_until_ready(self.compiled(state, batch))
        state.update(changed)
        return results.tolist()


class Exported:
    """A folder of mlperf_bert.portable.export, for one kind of step."""

    def __init__(self, folder: Path, kind: str, num_devices: int = 1):
        """Reads the signature; OSError, ValueError or KeyError: the folder is not whole."""
        self.folder, self.kind, self.num_devices = folder, kind, num_devices
        self.signature = json.loads((folder / "signature.json").read_text())
        if self.signature["format"] != FORMAT:
            raise ValueError(
                f"its format is {self.signature['format']}, and this file reads {FORMAT}: export "
                "the step again with the mlperf_bert.portable.export of this file's version"
            )
        kinds = [entry["kind"] for entry in self.signature["programs"]]
        if num_devices > 1 and UPDATE not in kinds:
            raise ValueError(
                "it has no programs for several devices: export it with --data_parallel"
            )
        every = [entry for entry in self.signature["programs"] if entry["kind"] == kind]
        self.entries = {entry["num_rows"]: entry for entry in every}
        if not every:
            raise ValueError(f"it has no {kind} step: export it with --evaluation")
        self.recorded = self.signature["recorded"][kind] if num_devices == 1 else []

    def drawn(self, value: dict) -> np.ndarray:
        """The first value of an input, drawn as the exporter draws it."""
        random = np.random.RandomState([self.signature["seed"], zlib.crc32(value["name"].encode())])
        if "below" in value:
            array = random.randint(value["below"], size=value["shape"])
        elif value["initial"] == "normal":
            array = np.clip(random.standard_normal(value["shape"]), -2, 2)
            array *= self.signature["initializer_range"]
        else:
            array = np.full(value["shape"], value["initial"])
        return array.astype(value["dtype"])

    def first_state(self) -> dict:
        """Weights of the folder, or drawn ones; slots and counters are 0."""
        file, inputs = self.folder / "weights.npz", next(iter(self.entries.values()))["inputs"]
        stored = np.load(file) if self.signature["init_checkpoint"] else {}
        state = ((v["name"], v) for v in inputs if v["role"] not in GIVEN)
        return {n: jax.device_put(stored[n] if n in stored else self.drawn(v)) for n, v in state}

    def real_batches(self) -> list[dict]:
        """The batches of batches.npz, in their order."""
        batches: dict[int, dict] = collections.defaultdict(dict)
        with np.load(self.folder / "batches.npz") as stored:
            for kind, number, name in (key.split("/") for key in stored.files):
                if kind == self.kind:
                    batches[int(number)][name] = stored[f"{kind}/{number}/{name}"]
        return [batches[number] for number in sorted(batches)]

    def synthetic_batch(self) -> dict:
        """Full rows of random tokens, all of one block where rows are packed."""
        inputs = self.entries[max(self.entries)]["inputs"]
        return {v["name"]: self.drawn(v) for v in inputs if v["role"] == "batch"}

    def of_all_devices(self, batches: list[dict]) -> list[dict]:
        """Batches of all devices, each put together of as many with the same number of rows."""
        waiting: dict[int, list] = collections.defaultdict(list)
        found = []
        for batch in batches:
            same = waiting[len(batch["input_ids"])]
            same.append(batch)
            if len(same) == self.num_devices:
                found.append({name: np.concatenate([b[name] for b in same]) for name in batch})
                same.clear()
        return found


def steps(
    exported: Exported, batches: list[dict], recorded: list, *, num_steps: int
) -> Iterator[tuple[list, float, Program]]:
    """Runs the steps; yields results and seconds of each, and its program: one per row count."""
    state, random, programs = exported.first_state(), np.random.RandomState(0), {}
    num_devices = exported.num_devices
    for number in range(num_steps):
        batch = dict(batches[number % len(batches)])
        drawn = random.randint(1 << 31, size=2 * num_devices)
        if exported.kind == TRAINING:
            seed = recorded[number]["seed"] if number < len(recorded) else drawn
            batch["seed"] = np.array(seed, np.int32)
        if (rows := len(batch["input_ids"]) // num_devices) not in programs:
            programs[rows] = Program(exported, exported.entries[rows])
        program = programs[rows]
        state, batch = jax.block_until_ready(
            jax.device_put((state, batch), program.compiled.input_shardings[0])
        )
        began = time.perf_counter()
        results = program(state, batch)
        yield results, time.perf_counter() - began, program


def times(done: list, precision: str, peak_tflops: float | None, num_devices: int = 1) -> dict:
    """The figures of speed, without the first step of each program."""
    firsts: dict[int, int] = {}
    timed = [step for n, step in enumerate(done) if firsts.setdefault(id(step[2]), n) != n]
    if not timed:
        return {"step_seconds": "unknown: give more --num_steps"}
    known = peak_tflop(jax.devices()[0].device_kind) if precision == "bfloat16" else None
    peak = peak_tflops or known
    seconds = sum(step[1] for step in timed)
    tflop = sum(step[2].entry["flop"] for step in timed) / seconds / 1e12  # of one device
    num_examples = num_devices * sum(step[2].entry["num_examples"] for step in timed)
    return {
        "step_seconds": statistics.median(step[1] for step in timed),
        "samples_per_second": num_examples / seconds,
        "model_tflop_per_second": tflop,
        "share_of_peak": tflop / peak if peak else "unknown: give --peak_tflops",
    }


def cost(program: Program) -> dict:
    """Memory (of the device, or of the process on a CPU), and operations by formula and XLA."""
    memory = program.compiled.memory_analysis()
    of_process = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    of_device = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    on_cpu = jax.devices()[0].platform == "cpu"
    return {
        "program_bytes": memory and memory.argument_size_in_bytes + memory.temp_size_in_bytes,
        "peak_memory_bytes": of_device or (of_process if on_cpu else "unknown"),
        "formula_flop": program.entry["flop"],
    } | xla_cost(program.compiled)


def agreement(done: list, recorded: list, tolerance: float) -> dict:
    """How far the results are from TensorFlow's, relative where those are above 1."""
    pairs = [(np.array(a[0]), np.array(b["results"])) for a, b in zip(done, recorded)]
    # numpy's maximum, which is NaN where anything is: then they do not agree.
    worst = np.max([np.max(np.abs(a - b) / np.maximum(1, np.abs(b))) for a, b in pairs], initial=0)
    found = {"compared_steps": len(pairs), "largest_difference": float(worst)}
    return found | {"agrees": bool(worst <= tolerance)} if pairs else {}


def path(text: str) -> Path:
    """Of the command line; ~ is the home folder."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - an unknown user's stays as it is


def batches_for(exported: Exported, *, synthetic: bool) -> list[dict]:
    """What all devices train on, step after step; raises ValueError if it is not enough."""
    of_one = [exported.synthetic_batch()] * exported.num_devices if synthetic else None
    if not (found := exported.of_all_devices(of_one or exported.real_batches())):
        raise ValueError("it has fewer batches than there are devices: give --synthetic")
    return found


def arguments() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=path, help="of mlperf_bert.portable.export")
    parser.add_argument("--num_steps", type=int, default=20, help="how many to run")
    parser.add_argument("--num_devices", type=int, default=1, help="of jax's, for one step of all")
    parser.add_argument(
        "--kind", choices=(TRAINING, "evaluation"), default=TRAINING, help="of step"
    )
    parser.add_argument("--synthetic", action="store_true", help="random tokens, full rows")
    parser.add_argument("--peak_tflops", type=float, help="of the device, for the share of it")
    parser.add_argument("--output", type=path, help="also write the figures here, as JSON")
    given = parser.parse_args()
    output = given.output or Path("figures.json")
    if output.suffix != ".json" or output.name == "signature.json" or not output.parent.is_dir():
        sys.exit(f"run_step.py: --output={output}: name a .json file, in a folder that is there")
    if given.num_steps < 1 or not (given.peak_tflops is None or given.peak_tflops > 0):
        sys.exit("run_step.py: --num_steps and --peak_tflops must be above 0")
    if not 1 <= (wanted := given.num_devices) <= (most := len(jax.devices())):
        sys.exit(f"run_step.py: --num_devices={wanted}: jax has {most}; give at most that")
    if given.num_devices > 1 and given.kind != TRAINING:
        sys.exit("run_step.py: several devices train; run an evaluation with --num_devices=1")
    return given


def main() -> None:
    """Runs the steps and prints the figures."""
    given = arguments()
    try:
        exported = Exported(given.folder, given.kind, given.num_devices)
        recorded = [] if given.synthetic else exported.recorded
        batches = batches_for(exported, synthetic=given.synthetic)
        done = list(steps(exported, batches, recorded, num_steps=given.num_steps))
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        sys.exit(f"run_step.py: {given.folder}: not a whole folder of the exporter ({reason})")
    except jax.errors.JaxRuntimeError as error:  # a program that is cut, or too large
        smaller = "export it with a smaller batch, or with --recompute=blocks"
        remedy = smaller if "RESOURCE_EXHAUSTED" in str(error) else "copy the folder here again"
        sys.exit(f"run_step.py: {given.folder}: {str(error).splitlines()[0]}; {remedy}")
    precision = exported.signature["precision"]
    figures = {"device": jax.devices()[0].device_kind, "precision": precision}
    figures["compile_seconds"] = sum(p.compile_seconds for p in {step[2] for step in done})
    figures |= times(done, precision, given.peak_tflops, given.num_devices) | cost(done[0][2])
    figures |= agreement(done, recorded, exported.signature["tolerance"])
    for name, value in figures.items():
        print(f"{name:23} {value:.6g}" if isinstance(value, float) else f"{name:23} {value}")
    if given.output:
        figures["results"] = [step[0] for step in done]
        beside = given.output.with_name(f".{given.output.name}.partial")
        beside.write_text(json.dumps(figures, indent=1) + "\n")
        beside.replace(given.output)
    if figures.get("agrees") is False:
        sys.exit("run_step.py: the results differ from TensorFlow's by more than the tolerance")


if __name__ == "__main__":
    main()
