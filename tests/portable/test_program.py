"""The exported step under jax equals TensorFlow's, with all that shapes a step; and bad input."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jax.interpreters import mlir
from jaxlib.mlir.dialects import stablehlo as jaxlib_stablehlo

from mlperf_bert.model.config import BertConfig
from mlperf_bert.portable import flop
from mlperf_bert.programs import jax_step, program
from tests.helpers import programs, starts
from tests.portable.programs_by_hand import export, serialized
from tests.training import generated_task

pytestmark = pytest.mark.usefixtures("starts_compile_quickly")

RUN_STEP = "mlperf_bert/portable/run_step.py"
# The model has dropout, and one layer: XLA compiles it in half the time of two.
TASK = generated_task.SMALL
PACKED = ["--optimizer=lamb", "--pack_sequences", "--train_batch_size=2"]  # 1 or 2 rows
BFLOAT16 = ["--precision=bfloat16"]


@pytest.fixture(scope="module")
def lamb(task, tmp_path_factory) -> Path:
    """The folder of LAMB's step with aggregation, its halves and the evaluation; to be read."""
    folder = tmp_path_factory.mktemp("lamb") / "step"
    flags = ["--do_train", "--optimizer=lamb", "--steps_per_update=2"]  # the first is in presets
    flags += [f"--init_checkpoint={task}/init/model.ckpt-0", "--train_batch_size=8"]
    flags += ["--evaluation", f"--eval_input_file={task}/eval.tfrecord", "--eval_batch_size=9"]
    export(task, folder, *flags, "--num_recorded_steps=6")
    return folder


def signature_of(folder: Path) -> dict:
    return json.loads((folder / "signature.json").read_text())


def run(folder, *flags: str, check: bool = True) -> tuple[dict, str]:
    """The figures of run_step.py, and what it prints."""
    output = folder.parent / "figures.json"
    words = [sys.executable, RUN_STEP, folder, f"--output={output}", *flags]
    done = starts.run(words, check=check)
    return json.loads(output.read_text()), done.stdout


def results_equal_to_tensorflows(folder: Path, number: int, *flags: str) -> list[list[float]]:
    figures, _ = run(folder, f"--num_steps={number}", *flags)
    assert figures["compared_steps"] == number and figures["agrees"]
    return figures["results"]


@pytest.mark.gate
def test_six_steps_of_lamb_with_dropout_equal_tensorflows(lamb):
    results = results_equal_to_tensorflows(lamb, 6)
    assert len({loss for loss, *_ in results}) == 6


@pytest.mark.gate
def test_evaluation_equals_tensorflows(lamb):
    results = results_equal_to_tensorflows(lamb, 5, "--kind=evaluation")
    assert sum(result[5] for result in results) == 45  # every example once


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(PACKED, marks=pytest.mark.all),
        pytest.param([*PACKED, *BFLOAT16, "--recompute=blocks"], marks=pytest.mark.gate),
        pytest.param(
            ["--optimizer=adamw", "--train_batch_size=8", *BFLOAT16], marks=pytest.mark.all
        ),
    ],
    ids=["packed", "packed_bfloat16_recomputed", "adamw_bfloat16"],
)
def test_six_steps_with_dropout_equal_tensorflows(task, tmp_path, flags):
    folder = tmp_path / "step"
    given = [f"--init_checkpoint={task}/init/model.ckpt-0", "--num_recorded_steps=6"]
    export(task, folder, *flags, *given, "--nodata_parallel")
    results = results_equal_to_tensorflows(folder, 6)
    assert len({loss for loss, *_ in results}) == 6
    assert_stablehlo_alone(folder)
    with np.load(folder / "batches.npz") as stored:
        rows = {len(stored[name]) for name in stored.files if name.endswith("input_ids")}
    assert {each["num_rows"] for each in signature_of(folder)["programs"]} == rows


@pytest.mark.gate
def test_the_folder_alone_runs_elsewhere(lamb, tmp_path):
    """Isolated, Python sees no folder but those of installed packages: the project is not one."""
    python, folder = [sys.executable, "-I"], shutil.copytree(lamb, tmp_path / "copied")
    assert programs.run(*python, "-c", "import mlperf_bert", cwd=tmp_path).returncode
    done = programs.run(*python, "copied/run_step.py", folder, "--num_steps=2", cwd=tmp_path)
    assert done.stdout.endswith("agrees                  True\n"), done.stderr


@pytest.mark.all
def test_without_a_checkpoint_both_draw_the_same_weights(task, tmp_path):
    folder = tmp_path / "step"
    export(task, folder, "--num_recorded_steps=2", "--train_batch_size=8", "--nodata_parallel")
    assert not (folder / "weights.npz").exists()
    figures, printed = run(folder, "--num_steps=2")
    assert figures["compared_steps"] == 2 and figures["agrees"]
    assert re.search(r"^samples_per_second +\d", printed, re.MULTILINE)
    assert re.search(r"^share_of_peak +unknown: give --peak_tflops$", printed, re.MULTILINE)


@pytest.mark.gate
def test_the_signature_names_every_value(lamb):
    """Of BERT; what it says of each value is in tests/training/test_small_programs.py."""
    signature = signature_of(lamb)
    roles = [value["role"] for value in signature["programs"][0]["inputs"]]
    num_weights = roles.count("weight")
    assert num_weights == 30 and roles.count("slot") == 2 * 30
    assert roles.count("accumulator") == 30 and roles.count("batch") == 7
    assert signature["licence"].startswith("Apache-2.0") and signature["made_with"]["commit"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--evaluation"], "--evaluation needs --eval_input_file, for its batches"),
        (
            ["--time_budget=1h"],
            "--emulate_step_seconds: leave them out of a program",
        ),
        (["--bert_config_file=absent.json"], "absent.json: No such file"),
    ],
)
def test_bad_input_is_one_line(task, tmp_path, flags, message):
    done = export(task, tmp_path / "step", *flags, check=False)
    assert done.returncode == 1 and message in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "step").exists()


def test_the_flop_are_those_of_every_product():
    """3 rows of 8 tokens, 5 of them predicted; hidden 6, inner 20, 11 words, 2 blocks."""
    sizes = {"hidden_size": 6, "intermediate_size": 20, "vocab_size": 11, "num_hidden_layers": 2}
    config = BertConfig(**generated_task.CONFIG | sizes | {"num_attention_heads": 2})
    dense, scores = 4 * (8 * 6 * 6), 2 * (8 * 8 * 6)  # both heads together
    block, heads = dense + scores + 2 * (8 * 6 * 20), 5 * 6 * 6 + 5 * 6 * 11
    shape = {"num_rows": 3, "num_tokens": 8, "num_predictions": 5}
    assert flop.of_forward_pass(config, **shape) == 2 * 3 * (2 * block + heads)
    assert flop.of_training_step(config, **shape) == 3 * 2 * 3 * (2 * block + heads)


def test_a_folder_that_is_there_stays(task, tmp_path):
    done = export(task, tmp_path, check=False)
    assert done.returncode == 1 and "exists; give a folder that is not there yet" in done.stderr
    assert not list(tmp_path.iterdir())


def program_in(path: Path):
    return jaxlib_stablehlo.deserialize_portable_artifact(mlir.make_ir_context(), path.read_bytes())


def assert_stablehlo_alone(folder: Path) -> None:
    for entry in signature_of(folder)["programs"]:
        module = program_in(folder / entry["file"])  # without it its operations are no more
        dialects = {each.name.split(".")[0] for each in jax_step.operations(module)}
        assert dialects == {"builtin", "func", "stablehlo"}, entry["file"]
        assert re.fullmatch(r"\d+\.\d+\.\d+", entry["stablehlo_version"])


@pytest.mark.gate
def test_every_operation_is_stablehlos(lamb):
    assert_stablehlo_alone(lamb)
    kinds = [each["kind"] for each in signature_of(lamb)["programs"]]
    assert kinds == ["training", "gradients", "update", "evaluation"]


@pytest.mark.gate
def test_sums_are_where_a_gpu_computes_them_fast_and_once(lamb):
    module = program_in(lamb / "step.stablehlo")
    sums, held = [], []  # shape of the first operand, of a sum or maximum with its axes
    for op in jax_step.operations(module):
        if op.name == "stablehlo.reduce":
            sums.append((list(op.operands[0].type.shape), list(op.attributes["dimensions"])))
        elif op.name == "stablehlo.optimization_barrier":
            held.append(list(op.operands[0].type.shape))
    # XLA would store the hidden states of all blocks with the rows last on a GPU (encoder.py).
    over = [(len(shape), axes) for shape, axes in sums]
    assert (3, [0]) not in over and (3, [2]) in over
    # In the softmax alone: a gradient that sums scores, or computes the softmax again, took an H100
    # a tenth of a step.
    length = generated_task.SHAPE.max_seq_length
    scores = [shape for shape, axes in sums if axes == [3] and shape[-1] == length]
    assert len(scores) == 2  # maximum and sum, of the only layer
    # Behind the probabilities, and before the gradients of gelu in the block and in the head.
    assert scores[0] in held and sorted(map(len, held)) == [3, 3, 4]


def test_a_program_names_the_oldest_version_that_holds_it():
    def exported(operation):
        return serialized(
            "func.func @main(%0: tensor<2xf32>) -> tensor<2xf32> {"
            f"  %1 = {operation} return %1 : tensor<2xf32> }}",
            True,
        )

    _, version, *_ = program.as_portable(exported("stablehlo.tan %0 : tensor<2xf32>"))
    assert version == "1.4.0"
    _, version, *_ = program.as_portable(exported("stablehlo.abs %0 : tensor<2xf32>"))
    assert version == jaxlib_stablehlo.get_minimum_version()
    with pytest.raises(ValueError, match=r"not StableHLO: chlo\.tan; export it with"):
        program.as_portable(exported("chlo.tan %0 : tensor<2xf32> -> tensor<2xf32>"))


@pytest.mark.all
@pytest.mark.parametrize("normalization", ["global", "replica_sum"])
def test_two_devices_train_as_one_with_the_whole_batch(tmp_path, normalization):
    """The examples have different numbers of predictions, and nothing is dropped."""
    task, one, two = (tmp_path / name for name in ("task", "one", "two"))
    generated_task.write_task(task, dropout=0.0, num_hidden_layers=1)
    same = ["--optimizer=lamb", "--noshuffle", "--num_recorded_steps=0"]
    same.append(f"--init_checkpoint={task}/init/model.ckpt-0")
    export(task, two, *same, "--train_batch_size=4", f"--normalization={normalization}")
    export(task, one, *same, "--train_batch_size=8", "--nodata_parallel")
    with np.load(two / "batches.npz") as stored:
        counts = [stored[f"training/{n}/masked_lm_weights"].sum() for n in range(2)]
    assert counts[0] != counts[1]
    figures = tmp_path / "figures.json"
    command = [sys.executable, RUN_STEP, two, "--num_steps=4", "--num_devices=2"]
    devices = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    subprocess.run([*command, f"--output={figures}"], env=devices, check=True)
    shared = json.loads(figures.read_text())["results"]
    whole = run(one, "--num_steps=4")[0]["results"]
    close = np.allclose(shared, whole, rtol=1e-5, atol=0)
    # The reference's ways divide by each device's own count: another computation.
    assert close == (normalization == "global")
