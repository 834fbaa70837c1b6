"""Runs a program of export_training_step.py with jax and numpy alone, on CPU, GPU or TPU.

    python run_step.py step/ --num_steps=20

Compares the losses with those that TensorFlow recorded, where it did, and prints the time of a
step, samples and model FLOP per second, their share of the device's peak, and the memory.
Copy this file and the folder to any machine; nothing else of the project is needed.
"""

import argparse
import dataclasses
import json
import resource
import statistics
import sys
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from jax import export

# Products per second in bfloat16 without sparsity, as the makers publish them, by jax's name.
PEAK_FLOP = {
    "NVIDIA A100": 312e12, "NVIDIA H100": 989e12, "NVIDIA H200": 989e12, "Tesla V100": 125e12,
    "TPU v3": 123e12, "TPU v4": 275e12, "TPU v5 lite": 197e12, "TPU v5": 459e12,
}  # fmt: skip
TOLERANCE = {
    "float32": 1e-5,
    "tf32": 1e-3,
    "bfloat16": 1e-2,
}  # of a result, relative where it is above 1
jax.config.update("jax_enable_x64", True)  # the counters are int64; jax would cut them to 32 bits
warnings.filterwarnings("ignore", "Some donated buffers were not usable")  # the constants'


class Program:
    """One compiled program."""

    def __init__(self, folder: Path, entry: dict):
        """Compiles it for jax's first device."""
        self.entry, self.inputs, self.outputs = entry, entry["inputs"], entry["outputs"]
        shapes = [jax.ShapeDtypeStruct(v["shape"], v["dtype"]) for v in self.inputs]
        results = [(v["shape"], v["dtype"]) for v in self.outputs]
        # jax has no public way in for a program; so one of the same types gives up its text.
        same = jax.jit(lambda *_: [jax.numpy.zeros(*each) for each in results], keep_unused=True)
        text = (folder / entry["file"]).read_bytes()
        exported = dataclasses.replace(export.export(same)(*shapes), mlir_module_serialized=text)
        replaced = tuple(v["feeds"] for v in self.outputs if "feeds" in v)
        began = time.perf_counter()
        jitted = jax.jit(exported.call, donate_argnums=replaced)
        self.compiled = jitted.lower(*shapes).compile()
        self.compile_seconds = time.perf_counter() - began

    def __call__(self, state: dict, batch: dict) -> np.ndarray:
        """Runs one step, replaces what it changes in `state`, and returns the first output."""
        values = [state[v["name"]] if "initial" in v else batch[v["name"]] for v in self.inputs]
        result, *changed = jax.block_until_ready(self.compiled(*values))
        state.update({v["name"]: array for v, array in zip(self.outputs[1:], changed)})
        return np.asarray(result)


class Exported:
    """A folder of export_training_step.py, for one kind of step."""

    def __init__(self, folder: Path, kind: str):
        """Reads the signature; raises OSError, ValueError or KeyError if the folder is none."""
        self.folder, self.kind = folder, kind
        self.signature = json.loads((folder / "signature.json").read_text())
        every = [entry for entry in self.signature["programs"] if entry["kind"] == kind]
        self.entries = {entry["num_rows"]: entry for entry in every}
        self.recorded = self.signature["recorded"][kind]

    def first_state(self) -> dict:
        """Weights of the folder, or drawn from its seed as the exporter draws them; slots are 0."""
        file, state = self.folder / "weights.npz", {}
        stored = np.load(file) if file.exists() else {}
        for value in next(iter(self.entries.values()))["inputs"]:
            if (initial := value.get("initial")) is None:
                continue
            if value["name"] in stored:
                array = stored[value["name"]]
            elif initial == "normal":
                seed = [self.signature["seed"], zlib.crc32(value["name"].encode())]
                random = np.random.RandomState(seed)
                array = np.clip(random.standard_normal(value["shape"]), -2, 2)
                array *= self.signature["initializer_range"]
            else:
                array = np.full(value["shape"], {"zeros": 0, "ones": 1}.get(initial, initial))
            state[value["name"]] = jax.device_put(array.astype(value["dtype"]))
        return state

    def real_batches(self) -> list[dict]:
        """The batches of batches.npz, in their order."""
        batches: dict[int, dict] = {}
        with np.load(self.folder / "batches.npz") as stored:
            for key in stored.files:
                kind, number, name = key.split("/")
                if kind == self.kind:
                    batches.setdefault(int(number), {})[name] = stored[key]
        return [batches[number] for number in sorted(batches)]

    def synthetic_batch(self) -> dict:
        """Full rows of random tokens, all of one block where rows are packed."""
        entry, random, batch = list(self.entries.values())[-1], np.random.RandomState(0), {}
        below = {"next_sentence_labels": 2, "masked_lm_positions": entry["num_tokens"]}
        for name in ("input_ids", "masked_lm_ids"):
            below[name] = self.signature["bert_config"]["vocab_size"]
        for value in (v for v in entry["inputs"] if v["role"] == "batch"):
            name, shape = value["name"], value["shape"]
            array = np.full(shape, name == "block_ids" or name.endswith(("mask", "weights")))
            if name in below:
                array = random.randint(below[name], size=shape)
            batch[name] = array.astype(value["dtype"])
        return batch


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
        result = programs[rows](state, batch).tolist()
        yield result, time.perf_counter() - began, programs[rows]


def times(done: list, precision: str, peak_tflops: float | None) -> dict:
    """The figures of speed, without the first step of each program."""
    ran = [program for _, _, program in done]
    timed = [step for number, step in enumerate(done) if step[2] in ran[:number]]
    if not timed:
        return {"step_seconds": "unknown: give more --num_steps"}
    kind = jax.devices()[0].device_kind
    peaks = PEAK_FLOP if precision == "bfloat16" else {}
    known = max((name for name in peaks if kind.startswith(name)), key=len, default="")
    peak = 1e12 * (peak_tflops or 0) or peaks.get(known)
    seconds = sum(step[1] for step in timed)
    flop_per_second = sum(program.entry["flop"] for _, _, program in timed) / seconds
    return {
        "step_seconds": statistics.median(step[1] for step in timed),
        "samples_per_second": len(timed) * ran[0].entry["num_examples"] / seconds,
        "model_tflop_per_second": flop_per_second / 1e12,
        "share_of_peak": flop_per_second / peak if peak else "unknown: give --peak_tflops",
    }


def agreement(done: list, recorded: list, tolerance: float) -> dict:
    """How far the results are from those that TensorFlow recorded."""
    pairs = [(step[0], theirs["results"]) for step, theirs in zip(done, recorded)]
    if not pairs:
        return {}
    worst = max(
        float(np.max(np.abs(np.subtract(a, b)) / np.maximum(1, np.abs(b)))) for a, b in pairs
    )
    return {
        "compared_steps": len(pairs), "largest_difference": worst, "agrees": worst <= tolerance,
    }  # fmt: skip


def cost(program: Program) -> dict:
    """Memory (of the device, or of the process on a CPU), and operations by formula and XLA."""
    memory, counted = program.compiled.memory_analysis(), program.compiled.cost_analysis() or {}
    of_process = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    of_device = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    on_cpu = jax.devices()[0].platform == "cpu"
    return {
        "program_bytes": memory and memory.argument_size_in_bytes + memory.temp_size_in_bytes,
        "peak_memory_bytes": of_device or (of_process if on_cpu else "unknown"),
        "formula_flop": program.entry["flop"],
        "xla_flop": counted.get("flops"),
        "xla_bytes": counted.get("bytes accessed"),
    }


def main() -> None:
    """Parses the command line, runs the steps and prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="of export_training_step.py")
    parser.add_argument("--num_steps", type=int, default=20)
    parser.add_argument("--kind", choices=("training", "evaluation"), default="training")
    parser.add_argument("--synthetic", action="store_true", help="random tokens, full rows")
    parser.add_argument("--peak_tflops", type=float, help="of the device, for the share of it")
    parser.add_argument("--output", type=Path, help="also write the figures here, as JSON")
    given = parser.parse_args()
    try:
        exported = Exported(given.folder, given.kind)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"run_step.py: {given.folder}: no folder of export_training_step.py ({error})")
    if not exported.entries or given.num_steps < 1:
        sys.exit(f"run_step.py: there is no {given.kind} step, or --num_steps is not above 0")
    recorded = [] if given.synthetic else exported.recorded
    batches = [exported.synthetic_batch()] if given.synthetic else exported.real_batches()
    done = list(steps(exported, batches, recorded, num_steps=given.num_steps))
    precision = exported.signature["precision"]
    figures = {"device": jax.devices()[0].device_kind, "precision": precision}
    programs = {step[2] for step in done}
    figures["compile_seconds"] = sum(program.compile_seconds for program in programs)
    figures |= times(done, precision, given.peak_tflops) | cost(done[0][2])
    figures |= agreement(done, recorded, TOLERANCE[precision])
    for name, value in figures.items():
        print(f"{name:23} {value:.6g}" if isinstance(value, float) else f"{name:23} {value}")
    if given.output:
        figures["results"] = [step[0] for step in done]
        given.output.write_text(json.dumps(figures, indent=1) + "\n")
    if figures.get("agrees") is False:
        sys.exit("run_step.py: the results differ from TensorFlow's by more than the tolerance")


if __name__ == "__main__":
    main()
