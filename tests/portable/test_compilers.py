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

from mlperf_bert.portable import compile_step
from tests.fixtures import REPOSITORY, lacking
from tests.helpers import programs, starts
from tests.portable.programs_by_hand import export, export_with_kernels

PYTHON = REPOSITORY / ".venv-compilers/bin/python"
TASK = {"dropout": 0.1, "num_hidden_layers": 2}
UNRECORDED = ["--train_batch_size=4", "--num_recorded_steps=0"]


NEWEST = REPOSITORY / ".venv-newest-jax/bin/python"


def require(package: str, python: Path, command: str = "make test-compilers") -> None:
    look = [python, "-c", f"import {package}"]
    if not python.exists() or subprocess.run(look, capture_output=True).returncode:
        lacking(f"{python} has no {package}: {command}")


def compiled(
    folder: Path, *flags: str, package: str = "libtpu", code: int = 0, python: Path = PYTHON
) -> list[dict]:
    """The rows of compile_step.py, which must end with the given code."""
    require(package, python)
    output = folder.parent / "table.json"
    command = [python, "mlperf_bert/portable/compile_step.py", folder, *flags, f"--output={output}"]
    done = programs.run(*command)
    assert done.returncode == code, done.stdout + done.stderr
    assert "INVALID_ARGUMENT" not in done.stderr  # libtpu's, about a host that has no TPU
    rows = json.loads(output.read_text())["rows"]
    for row in rows:  # the table of peaks goes by jax's name
        assert row["device_kind"] == compile_step.DEVICES[row["device"]].kind
    return rows


@pytest.mark.gate
def test_a_step_and_its_halves_on_tpus(task, tmp_path):
    """LAMB in float32: on one core, and on eight with one all-reduce of all gradients."""
    folder = tmp_path / "step"
    export(task, folder, *UNRECORDED, "--optimizer=lamb")
    one, new, eight = compiled(folder, "--devices=tpu-v3,tpu-v5e,tpu-v3:8")
    assert {row["result"] for row in (one, new, eight)} == {"fits"}
    assert one["collective_bytes"] == new["collective_bytes"] == 0
    programs = json.loads((folder / "signature.json").read_text())["programs"]
    [update] = [program for program in programs if program["kind"] == "update"]
    gradients = [v["shape"] for v in update["inputs"] if v["role"] == "gradient"]
    num_gradients = sum(math.prod(shape) for shape in gradients)
    # Beside the gradients three losses and two counts are added up.
    assert eight["collective_bytes"] / 4 == pytest.approx(num_gradients + 5, rel=0.001)
    assert one["product_flop"] == new["product_flop"] == eight["product_flop"] > 0
    assert 0 < one["num_kernels"] < one["kernel_bytes"]


@pytest.mark.all
@pytest.mark.parametrize(
    "flags",
    [
        ["--optimizer=adamw", "--precision=bfloat16", "--recompute=blocks", "--evaluation"],
        ["--optimizer=lamb", "--precision=bfloat16", "--recompute=attention", "--pack_sequences"],
        pytest.param(["--optimizer=lamb", "--steps_per_update=2"], marks=pytest.mark.soak),
    ],
    ids=["adamw_bfloat16_blocks_evaluation", "packed_attention", "aggregated"],
)
def test_other_steps_on_tpus(task, tmp_path, flags):
    evaluates = "--evaluation" in flags
    also = [f"--eval_input_file={task}/eval.tfrecord", "--eval_batch_size=9"] if evaluates else []
    folder = tmp_path / "step"
    export(task, folder, *UNRECORDED, "--nodata_parallel", *flags, *also)
    rows = compiled(folder, "--devices=tpu-v3,tpu-v5e")
    rows += compiled(folder, "--devices=tpu-v3", "--kind=evaluation") if evaluates else []
    assert {row["result"] for row in rows} == {"fits"}


@pytest.mark.soak
def test_steps_on_the_gpus_that_the_documents_name(task, tmp_path):
    folder = tmp_path / "step"
    export(task, folder, *UNRECORDED, "--optimizer=lamb", "--precision=bfloat16")
    names = "v100,a100-40,a100-80,l4,h100,h200,b200,h100:8"
    rows = compiled(folder, f"--devices={names}", package="jax_cuda12_plugin")
    assert {row["result"] for row in rows} == {"fits"} and len(rows) == 8
    assert rows[-1]["collective_bytes"] > 0


@pytest.mark.soak
def test_kernels_compile_for_the_gpus_that_have_bfloat16(tmp_path):
    folder = tmp_path / "step"
    export_with_kernels(tmp_path, folder)
    rows = compiled(folder, "--devices=a100-40,l4,h100,h200,b200", package="jax_cuda12_plugin")
    assert {row["result"] for row in rows} == {"fits"}
    rows = compiled(folder, "--devices=v100,tpu-v3", package="jax_cuda12_plugin", code=1)
    refused = ["compute capability 7.0, below 8.0", "a tpu is no GPU of NVIDIA"]
    for row, why in zip(rows, refused, strict=True):
        assert row["result"] == "does not compile" and why in row["reason"]


# Compiles each text alone for a device that is not there, and prints the names.
EACH_ALONE = """
import sys
import jax, numpy as np
from benchmarks import kernels_alone
from mlperf_bert.portable import compile_step

compile_step.without_hardware()
jax.config.update("jax_enable_x64", False)
done = set()

def of(name, grid, results):
    stored = kernels_alone.stored(name, grid, results)
    mesh = compile_step.jax_step.mesh_of(compile_step.devices_of(sys.argv[1], 1))
    device = compile_step.jax_step.replicated(mesh)

    def run(*given):
        if name not in done:
            specs = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device) for x in given]
            stored.trace(*specs).lower(lowering_platforms=("cuda",)).compile()
            done.add(name)
        return [jax.numpy.zeros(*each) for each in results]

    return run

kernels_alone.attention(of, np.ones((2, 128), np.int32))
kernels_alone.norm(of, 128)
print(jax.__version__, *sorted(done))
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    "python, package", [(PYTHON, "jax_cuda12_plugin"), (NEWEST, "jax_cuda13_plugin")],
    ids=["pinned", "newest"],
)  # fmt: skip
def test_the_kernels_and_a_step_compile_by_the_pinned_jax_and_by_the_newest(
    python, package, tmp_path
):
    """XLA's source marks the target of the calls for removal: this says when it is gone."""
    require(package, python, "make newest-jax" if python == NEWEST else "make test-compilers")
    for device in ("a100-40", "l4", "h100", "b200"):
        done = programs.run(python, "-c", EACH_ALONE, device)
        assert done.returncode == 0, f"{device}: {done.stderr}"
        assert done.stdout.split()[1:] == [
            "attention_backward", "attention_forward", "norm_backward", "norm_forward"
        ]  # fmt: skip
    folder = tmp_path / "step"
    export_with_kernels(tmp_path, folder)
    rows = compiled(folder, "--devices=a100-40,l4,h100,b200", package=package, python=python)
    assert {row["result"] for row in rows} == {"fits"}


@pytest.mark.soak
@pytest.mark.parametrize(
    "num_examples, device, result", [(64, "tpu-v3", "fits"), (192, "tpu-v2", "does not fit")]
)
def test_bert_large_of_the_tpu_recipe_fits_into_a_core(num_examples, device, result, tmp_path):
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
    code = 0 if result == "fits" else 3
    [row] = compiled(tmp_path / "step", f"--devices={device}", code=code)
    assert row["result"] == result
