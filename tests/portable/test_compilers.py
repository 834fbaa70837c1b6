"""Google's and NVIDIA's compilers take the exported steps; no accelerator is needed.

They have an environment of their own: make .venv-compilers/.installed, and for NVIDIA's
.venv-compilers/.installed-gpu; the newest jax has another: make newest-jax. `make test-compilers`
makes all.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from mlperf_bert.portable import run_step
from tests.fixtures import REPOSITORY, lacking
from tests.helpers import programs, starts
from tests.portable.programs_by_hand import export, export_with_kernels
from tests.training import generated_task

PYTHON = REPOSITORY / ".venv-compilers/bin/python"
TASK = generated_task.SMALL
UNRECORDED = ["--train_batch_size=4", "--num_recorded_steps=0"]
NEWEST = REPOSITORY / ".venv-newest-jax/bin/python"


def require(package: str, python: Path, command: str = "make test-compilers") -> None:
    look = [python, "-c", f"import {package}"]
    if not python.exists() or subprocess.run(look, capture_output=True).returncode:
        lacking(f"{python} has no {package}: {command}")


def compiled(
    folder: Path, topology: str, *flags: str, package: str = "libtpu", code: int = 0,
    python: Path = PYTHON,
) -> dict:  # fmt: skip
    """The figures of run_step.py, which must end with the given code."""
    require(package, python)
    output = folder.parent / "figures.json"
    words = [folder / "run_step.py", folder, f"--topology={topology}", f"--output={output}"]
    done = programs.run(python, *words, *flags)
    assert done.returncode == code, done.stdout + done.stderr
    assert "INVALID_ARGUMENT" not in done.stderr  # libtpu's, about a host that has no TPU
    figures = json.loads(output.read_text())
    assert figures["fits"] == (code == 0)
    return figures


@pytest.mark.gate
def test_the_halves_of_a_step_on_eight_cores_of_tpus(task, tmp_path):
    """LAMB in float32."""
    folder = tmp_path / "step"
    export(task, folder, *UNRECORDED, "--optimizer=lamb")
    found = compiled(folder, "v3:2x2")
    assert (found["num_devices"], found["device"]) == (8, "TPU v3") and found["xla_flop"] > 0
    inputs = json.loads((folder / "signature.json").read_text())["programs"][0]["inputs"]
    weights = sum(4 * math.prod(v["shape"]) for v in inputs if v["role"] in ("weight", "slot"))
    assert found["program_bytes"] > weights


@pytest.mark.all
@pytest.mark.parametrize(
    "flags",
    [
        ["--optimizer=adamw", "--precision=bfloat16", "--recompute=blocks", "--evaluation"],
        ["--optimizer=lamb", "--precision=bfloat16", "--recompute=attention", "--pack_sequences"],
    ],
    ids=["adamw_bfloat16_blocks_evaluation", "packed_attention"],
)
def test_other_steps_on_tpus(task, tmp_path, flags):
    evaluates = "--evaluation" in flags
    also = [f"--eval_input_file={task}/eval.tfrecord", "--eval_batch_size=9"] if evaluates else []
    folder = tmp_path / "step"
    export(task, folder, *UNRECORDED, "--nodata_parallel", *flags, *also)
    compiled(folder, "v5e:2x2", "--num_devices=1")
    if evaluates:
        compiled(folder, "v5e:2x2", "--kind=evaluation")


@pytest.mark.all
def test_steps_on_the_gpus_that_the_documents_name(task, tmp_path):
    folder = tmp_path / "step"
    export(task, folder, *UNRECORDED, "--optimizer=lamb", "--precision=bfloat16")
    for topology in (*run_step.GPUS, "h100:8"):
        figures = compiled(folder, topology, package="jax_cuda12_plugin")
        assert figures["device"] == run_step.GPUS[topology.partition(":")[0]][0]


@pytest.mark.all
@pytest.mark.parametrize(
    "python, package", [(PYTHON, "jax_cuda12_plugin"), (NEWEST, "jax_cuda13_plugin")],
    ids=["pinned", "newest"],
)  # fmt: skip
def test_a_step_with_kernels_compiles_by_the_pinned_jax_and_by_the_newest(
    python, package, tmp_path
):
    """XLA's source marks the target of the calls for removal: this says when it is gone."""
    require(package, python, "make newest-jax" if python == NEWEST else "make test-compilers")
    folder = tmp_path / "step"
    export_with_kernels(tmp_path, folder)
    program = (folder / "step.stablehlo").read_bytes()
    kernels = ("attention_forward", "attention_backward", "norm_forward", "norm_backward")
    assert all(f'name = "{name}"'.encode() in program for name in kernels)
    for gpu in ("a100-40", "l4", "h100", "h200", "b200"):
        compiled(folder, gpu, package=package, python=python)
    for topology, why in (("v100", "capability 7.0, below 8.0"), ("v3:2x2", "a tpu is no GPU of")):
        words = [folder / "run_step.py", folder, f"--topology={topology}", "--num_devices=1"]
        done = programs.run(PYTHON, *words)
        assert done.returncode == 1 and why in done.stderr


@pytest.mark.all
@pytest.mark.parametrize("num_examples, topology, code", [(64, "v3:2x2", 0), (192, "v2:2x2", 3)])
def test_bert_large_of_the_tpu_recipe_fits_into_a_core(num_examples, topology, code, tmp_path):
    """64 examples, with the preset's own flags; three times as many not into one of a v2."""
    (tmp_path / "large").mkdir()
    from benchmarks import random_task
    from mlperf_bert.data.validity import ExampleShape
    from mlperf_bert.mlperf.rules import BERT_LARGE

    shape = ExampleShape(max_seq_length=512, max_predictions_per_seq=76)
    random_task.write(tmp_path / "large", dict(BERT_LARGE), shape, [300] * num_examples)
    given = [f"--bert_config_file={tmp_path}/large/bert_config.json", "--num_batches=1"]
    given += [f"--input_file={tmp_path}/large/train.tfrecord", "--num_recorded_steps=0"]
    given += ["--flagfile=configs/tpu_v3_128_bs8192.flags", "--nouse_tpu", "--nodata_parallel"]
    given.append("--nobarriers")
    given += [f"--train_batch_size={num_examples}", f"--output_dir={tmp_path}/step"]
    starts.run([sys.executable, "mlperf_bert/portable/export.py", *given], check=True)
    compiled(tmp_path / "step", topology, "--num_devices=1", code=code)
