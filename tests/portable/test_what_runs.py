"""What run_step.py compiles of an exported folder is what a run by jax runs.

The same flags make the folder, whose batch is that of one device, and the run of several.

    python -m tests.portable.test_what_runs FOLDER DEVICES --flags --of --the --run

compares the two. DEVICES: `here` for those that jax has, or a topology, such as v3:8x8. Prints the
number of programs, and ends with 1 if one differs; then both are beside the folder.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from absl import flags

from mlperf_bert import command_line
from mlperf_bert.portable import run_step
from mlperf_bert.programs import jax_step
from mlperf_bert.training import build, checks
from mlperf_bert.training.config import Mode, RunConfig
from mlperf_bert.training.devices import Devices, with_runtime
from tests.fixtures import REPOSITORY
from tests.helpers import programs, starts
from tests.portable.programs_by_hand import flags_of
from tests.training import generated_task

TASK = generated_task.SMALL
OF_ONE_DEVICE = 2  # examples
PRESET = ["--flagfile=configs/tpu_v3_128_bs8192.flags"]  # LAMB, bfloat16, blocks recomputed
OTHER = ["--optimizer=adamw", "--pack_sequences", "--normalization=replica_sum"]
OTHER += ["--steps_per_update=2"]
TPU = "v3:8x8"


def exported(task: Path, folder: Path, *flags: str) -> Path:
    """The folder of a step, without barriers as runs on TPUs and CPUs are."""
    own = ["--nouse_tpu", "--nobarriers", "--num_recorded_steps=0", "--num_batches=8"]
    own += [f"--train_batch_size={OF_ONE_DEVICE}", f"--output_dir={folder}"]
    command = [sys.executable, "mlperf_bert/portable/export.py", *flags, *flags_of(task), *own]
    starts.run(command, check=True)
    return folder


def compared(
    task: Path, folder: Path, *flags: str, num_devices: int, topology: str = "here"
) -> subprocess.CompletedProcess:
    """What `main` says of a run on so many devices; `here` are those of a CPU."""
    own = ["--nouse_tpu", "--runtime=jax"] if topology == "here" else []
    own += [f"--train_batch_size={num_devices * OF_ONE_DEVICE}", f"--output_dir={folder}-run"]
    command = [sys.executable, "-m", "tests.portable.test_what_runs", folder, topology]
    number = f"--xla_force_host_platform_device_count={num_devices}"
    devices = os.environ | {"XLA_FLAGS": number}
    return programs.run(*command, *flags, *flags_of(task), *own, env=devices)


@pytest.mark.gate
def test_the_tpu_recipe_compiles_what_the_folder_gives_its_128_cores(task, tmp_path):
    """Where there is no libtpu, as many devices of a CPU stand for the cores."""
    has_compiler = any(REPOSITORY.glob(".venv-compilers/lib/python*/site-packages/libtpu"))
    topology = TPU if has_compiler else "here"
    folder = exported(task, tmp_path / "step", *PRESET)
    done = compared(task, folder, *PRESET, num_devices=128, topology=topology)
    assert done.stdout.splitlines()[-1:] == ["1 equal"], done.stderr


@pytest.mark.all
def test_packed_steps_of_one_and_two_devices_too(task, tmp_path):
    """A program for each number of rows: a batch of two has one or two."""
    folder = exported(task, tmp_path / "step", *OTHER)
    for num_devices in (1, 2):
        done = compared(task, folder, *OTHER, num_devices=num_devices)
        assert done.stdout.splitlines()[-1:] == ["2 equal"], done.stderr


# TensorFlow counts all functions of a process, and names the branches of a condition by it.
_BRANCHES = re.compile(r"(@cond_(?:true|false))_\d+")


def devices_named(name: str) -> Devices | None:
    """The devices of a topology, as if they were there; None: the run takes those it finds."""
    if name == "here":
        return None
    # After this environment's own packages, so that it lends libtpu alone.
    sys.path.extend(map(str, REPOSITORY.glob(".venv-compilers/lib/python*/site-packages")))
    run_step.without_hardware()
    return Devices(jax_step.mesh_of(run_step.devices_of(name)))


def pairs(folder: Path, name: str) -> Iterator[tuple[jax.stages.Lowered, jax.stages.Lowered]]:
    """The run's program and the folder's, for each number of rows."""
    config = with_runtime(command_line.read(RunConfig, cluster=None))
    setup = checks.inspect(config, connected=devices_named(name))
    assert setup.devices.mesh
    devices = [*setup.devices.mesh.devices.flat]
    exported = run_step.Exported(folder, "training", len(devices))
    built = build.build_programs(setup, seed=1)
    for rows, step in built.trainer.lowered(list(built.synthetic_batches)):
        entry = exported.entries[rows]
        yield step, exported.lowered(entry, devices)


def main() -> None:
    """Compares them."""
    _, folder, name, *words = sys.argv
    command_line.define(RunConfig, Mode)  # every preset has a mode
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
