"""Runs a program of export_training_step.py with jax and numpy alone, on CPU, GPU or TPU.

    python run_step.py step/ --num_steps=20

Compares the losses with those that TensorFlow recorded, where it did, and prints the time of a
step, samples and model FLOP per second, their share of the device's peak, and the memory.
Copy this file and the folder to any machine; nothing else of the project is needed.
"""

import argparse
import collections
import dataclasses
import json
import os
import resource
import statistics
import sys
import time
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from jax import export

# Products per second in bfloat16 without sparsity, as the makers publish them, by jax's name.
# The cards for PCIe have less than the modules of their name: --peak_tflops gives it.
PEAK_TFLOP: dict[str, int | None] = {"NVIDIA A100": 312, "NVIDIA H100": 989, "NVIDIA H200": 989}
PEAK_TFLOP |= {"NVIDIA H100 PCIe": None, "NVIDIA H100 NVL": None, "NVIDIA H200 NVL": None}
PEAK_TFLOP |= {"TPU v3": 123, "TPU v4": 275, "TPU v5 lite": 197, "TPU v5": 459}
jax.config.update("jax_enable_x64", True)  # the counters are int64; jax would cut them to 32 bits
warnings.filterwarnings("ignore", "Some donated buffers were not usable")  # the constants'


def lowered(folder: Path, entry: dict) -> jax.stages.Lowered:
    """A program of the folder, for jax's first device; `entry` describes it in the signature."""
    shapes = [jax.ShapeDtypeStruct(v["shape"], v["dtype"]) for v in entry["inputs"]]
    results = [(v["shape"], v["dtype"]) for v in entry["outputs"]]
    # jax has no public way in for a program; so one of the same types gives up its text.
    same = jax.jit(lambda *_: [jax.numpy.zeros(*each) for each in results], keep_unused=True)
    text = (folder / entry["file"]).read_bytes()
    if not text.startswith(b"ML\xefR"):
        raise ValueError(f"{entry['file']} is no StableHLO")
    exported = dataclasses.replace(export.export(same)(*shapes), mlir_module_serialized=text)
    replaced = tuple(v["feeds"] for v in entry["outputs"][1:])
    return jax.jit(exported.call, donate_argnums=replaced).lower(*shapes)


def xla_cost(program: jax.stages.Lowered | jax.stages.Compiled) -> dict:
    """What XLA counts in a program, before or after it optimizes it."""
    counted = program.cost_analysis() or {}
    return {"xla_flop": counted.get("flops"), "xla_bytes": counted.get("bytes accessed")}


class Program:
    """One program, compiled for jax's first device."""

    def __init__(self, folder: Path, entry: dict):
        """Compiles it; `entry` describes it in the signature."""
        self.entry, self.inputs, self.outputs = entry, entry["inputs"], entry["outputs"]
        began = time.perf_counter()
        self.compiled = lowered(folder, entry).compile()
        self.compile_seconds = time.perf_counter() - began

    def __call__(self, state: dict, batch: dict) -> list[float]:
        """Runs one step, replaces what it changes in `state`, and returns its results."""
        values = [(batch if v["name"] in batch else state)[v["name"]] for v in self.inputs]
        results, *changed = jax.block_until_ready(self.compiled(*values))
        state.update({v["name"]: array for v, array in zip(self.outputs[1:], changed)})
        return results.tolist()


class Exported:
    """A folder of export_training_step.py, for one kind of step."""

    def __init__(self, folder: Path, kind: str):
        """Reads the signature; raises OSError, ValueError or KeyError if the folder is none."""
        self.folder, self.kind = folder, kind
        self.signature = json.loads((folder / "signature.json").read_text())
        every = [entry for entry in self.signature["programs"] if entry["kind"] == kind]
        self.entries = {entry["num_rows"]: entry for entry in every}
        self.recorded = self.signature["recorded"][kind]

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
        state = ((v["name"], v) for v in inputs if v["role"] not in ("batch", "seed"))
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


def steps(
    exported: Exported, batches: list[dict], recorded: list, *, num_steps: int
) -> Iterator[tuple[list, float, Program]]:
    """Runs the steps; yields results and seconds of each, and its program: one per row count."""
    state, random, programs = exported.first_state(), np.random.RandomState(0), {}
    for number in range(num_steps):
        batch = dict(batches[number % len(batches)])
        drawn = random.randint(1 << 31, size=2)
        seed = recorded[number].get("seed", drawn) if number < len(recorded) else drawn
        batch["seed"] = np.array(seed, np.int32)
        if (rows := len(batch["input_ids"])) not in programs:
            programs[rows] = Program(exported.folder, exported.entries[rows])
        batch = jax.block_until_ready(jax.device_put(batch))
        began = time.perf_counter()
        results = programs[rows](state, batch)
        yield results, time.perf_counter() - began, programs[rows]


def times(done: list, precision: str, peak_tflops: float | None) -> dict:
    """The figures of speed, without the first step of each program."""
    timed = [step for number, step in enumerate(done) if step[2] in [s[2] for s in done[:number]]]
    if not timed:
        return {"step_seconds": "unknown: give more --num_steps"}
    kind = jax.devices()[0].device_kind
    known = [name for name in PEAK_TFLOP if kind.startswith(name) and precision == "bfloat16"]
    peak = peak_tflops or PEAK_TFLOP.get(max(known, key=len, default=""))
    seconds = sum(step[1] for step in timed)
    tflop = sum(program.entry["flop"] for _, _, program in timed) / seconds / 1e12
    return {
        "step_seconds": statistics.median(step[1] for step in timed),
        "samples_per_second": sum(step[2].entry["num_examples"] for step in timed) / seconds,
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


def _path(text: str) -> Path:
    return Path(os.path.expanduser(text))  # noqa: PTH111 - an unknown user's stays as it is


def main() -> None:
    """Parses the command line, runs the steps and prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=_path, help="of export_training_step.py")
    parser.add_argument("--num_steps", type=int, default=20)
    parser.add_argument("--kind", choices=("training", "evaluation"), default="training")
    parser.add_argument("--synthetic", action="store_true", help="random tokens, full rows")
    parser.add_argument("--peak_tflops", type=float, help="of the device, for the share of it")
    parser.add_argument("--output", type=_path, help="also write the figures here, as JSON")
    given = parser.parse_args()
    output = given.output or Path("figures.json")
    if output.suffix != ".json" or output.name == "signature.json" or not output.parent.is_dir():
        sys.exit(f"run_step.py: --output={output}: name a .json file, in a folder that is there")
    if given.num_steps < 1 or not (given.peak_tflops or 1) > 0:
        sys.exit("run_step.py: --num_steps and --peak_tflops must be above 0")
    try:
        exported = Exported(given.folder, given.kind)
        if not exported.entries:
            sys.exit(f"run_step.py: {given.folder} has no {given.kind} step")
        recorded = [] if given.synthetic else exported.recorded
        batches = [exported.synthetic_batch()] if given.synthetic else exported.real_batches()
        done = list(steps(exported, batches, recorded, num_steps=given.num_steps))
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        sys.exit(f"run_step.py: {given.folder}: no whole folder of the exporter ({reason})")
    precision = exported.signature["precision"]
    figures = {"device": jax.devices()[0].device_kind, "precision": precision}
    figures["compile_seconds"] = sum(p.compile_seconds for p in {step[2] for step in done})
    figures |= times(done, precision, given.peak_tflops) | cost(done[0][2])
    figures |= agreement(done, recorded, exported.signature["tolerance"])
    for name, value in figures.items():
        print(f"{name:23} {value:.6g}" if isinstance(value, float) else f"{name:23} {value}")
    if given.output:
        figures["results"] = [step[0] for step in done]
        beside = output.with_name(f".{output.name}.partial")
        beside.write_text(json.dumps(figures, indent=1) + "\n")
        beside.replace(output)
    if figures.get("agrees") is False:
        sys.exit("run_step.py: the results differ from TensorFlow's by more than the tolerance")


if __name__ == "__main__":
    main()
