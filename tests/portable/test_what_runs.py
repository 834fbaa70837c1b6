"""What compile_step.py and run_step.py compile of an exported folder is what a run by jax runs.

The same flags make the folder, whose batch is that of one device, and the run of several.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import REPOSITORY
from tests.helpers import programs, starts
from tests.portable.programs_by_hand import flags_of
from tests.training import generated_task

TASK = generated_task.SMALL
OF_ONE_DEVICE = 2  # examples
PRESET = ["--flagfile=configs/tpu_v3_128_bs8192.flags"]  # LAMB, bfloat16, blocks recomputed
OTHER = ["--optimizer=adamw", "--pack_sequences", "--normalization=replica_sum"]
OTHER += ["--steps_per_update=2"]
TPU = "tpu-v3:128"


def exported(task: Path, folder: Path, *flags: str) -> Path:
    """The folder of a step, without barriers as runs on TPUs and CPUs are."""
    own = ["--nouse_tpu", "--nobarriers", "--num_recorded_steps=0", "--num_batches=1"]
    own += [f"--train_batch_size={OF_ONE_DEVICE}", f"--output_dir={folder}"]
    command = [sys.executable, "mlperf_bert/portable/export.py", *flags, *flags_of(task), *own]
    starts.run(command, check=True)
    return folder


@pytest.fixture(scope="module")
def preset_step(task, tmp_path_factory) -> Path:
    """The folder of the TPU recipe's step; only to be read."""
    return exported(task, tmp_path_factory.mktemp("preset") / "step", *PRESET)


def compared(
    task: Path, folder: Path, *flags: str, num_devices: int, topology: str = "here"
) -> subprocess.CompletedProcess:
    """What lowered_run.py says of a run on so many devices; `here` are those of a CPU."""
    own = ["--nouse_tpu", "--runtime=jax"] if topology == "here" else []
    own += [f"--train_batch_size={num_devices * OF_ONE_DEVICE}", f"--output_dir={folder}-run"]
    command = [sys.executable, "-m", "tests.portable.lowered_run", folder, topology]
    number = f"--xla_force_host_platform_device_count={num_devices}"
    devices = os.environ | {"XLA_FLAGS": number}
    return programs.run(*command, *flags, *flags_of(task), *own, env=devices)


@pytest.mark.gate
def test_a_run_of_two_devices_compiles_what_the_folder_gives_two(task, preset_step):
    done = compared(task, preset_step, *PRESET, num_devices=2)
    assert done.stdout.splitlines()[-1:] == ["1 equal"], done.stderr


@pytest.mark.gate
def test_the_tpu_recipe_compiles_what_the_folder_gives_its_128_cores(task, preset_step):
    """Of which compile_step.py tells; without libtpu for as many devices of a CPU."""
    has_compiler = any(REPOSITORY.glob(".venv-compilers/lib/python*/site-packages/libtpu"))
    topology = TPU if has_compiler else "here"
    done = compared(task, preset_step, *PRESET, num_devices=128, topology=topology)
    assert done.stdout.splitlines()[-1:] == ["1 equal"], done.stderr


@pytest.mark.all
def test_packed_steps_of_one_and_two_devices_too(task, tmp_path):
    """A program for each number of rows: a batch of two has one or two."""
    folder = exported(task, tmp_path / "step", *OTHER)
    for num_devices in (1, 2):
        done = compared(task, folder, *OTHER, num_devices=num_devices)
        assert done.stdout.splitlines()[-1:] == ["2 equal"], done.stderr
