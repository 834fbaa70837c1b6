"""Compares what a run gives to the compiler of its devices with what an exported folder gives.

    python -m tests.portable.lowered_run FOLDER DEVICES --flags --of --the --run

DEVICES: `here` for those that jax has, or as compile_step.py names them: tpu-v3:128. Prints the
number of programs, and ends with 1 if one differs; then both are beside the folder.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import tensorflow as tf
from absl import flags

from mlperf_bert import command_line
from mlperf_bert.portable import compile_step, run_step
from mlperf_bert.programs import jax_step
from mlperf_bert.training import build, checks
from mlperf_bert.training.config import Mode, RunConfig
from mlperf_bert.training.devices import Devices, with_runtime
from tests.fixtures import REPOSITORY

# TensorFlow counts all functions of a process, and names the branches of a condition by it.
_BRANCHES = re.compile(r"(@cond_(?:true|false))_\d+")

command_line.define(RunConfig, Mode)  # every preset has a mode


def devices_named(name: str) -> Devices | None:
    """Of a topology, for a run as if they were there; None: the run shall take those it finds."""
    if name == "here":
        return None
    # After this environment's own packages, so that it lends libtpu alone.
    sys.path.extend(map(str, REPOSITORY.glob(".venv-compilers/lib/python*/site-packages")))
    compile_step.without_hardware()
    [(kind, count)] = compile_step.parse_devices(name)
    mesh = jax_step.mesh_of(compile_step.devices_of(kind, count))
    return Devices(tf.distribute.OneDeviceStrategy("CPU:0"), mesh)


def pairs(folder: Path, name: str) -> Iterator[tuple[jax.stages.Lowered, jax.stages.Lowered]]:
    """The run's program and the folder's, for each number of rows."""
    config = with_runtime(command_line.read(RunConfig, cluster=None))
    setup = checks.inspect(config, connected=devices_named(name)).setup()
    assert setup.devices.mesh
    devices = [*setup.devices.mesh.devices.flat]
    exported = run_step.Exported(folder, "training", len(devices))
    programs = build.build_programs(setup, seed=1)
    for rows, step in programs.trainer.lowered(list(programs.batches)):
        entry = exported.entries[rows]
        yield step, exported.lowered(entry, devices)


def main() -> None:
    """Compares them."""
    _, folder, name, *words = sys.argv
    flags.FLAGS([sys.argv[0], *words])
    compared = 0
    for of_run, of_folder in pairs(Path(folder), name):
        texts = [_BRANCHES.sub(r"\1", program.as_text()) for program in (of_run, of_folder)]
        if texts[0] != texts[1]:
            for text, file in zip(texts, ("run.mlir", "folder.mlir")):
                Path(folder).with_name(file).write_text(text)
            sys.exit(f"program {compared + 1} differs: diff {folder}/../{{run,folder}}.mlir")
        compared += 1
    print(f"{compared} equal")


if __name__ == "__main__":
    main()
