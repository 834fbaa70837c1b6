"""What compile_step.py counts in a compiled program, what it says, and its exit codes."""

import dataclasses
import json
import re
import sys
import types
from pathlib import Path

import jax
import pytest

from mlperf_bert.portable import compile_step, run_step
from tests.helpers import programs
from tests.portable.programs_by_hand import OPTIMIZED, serialized


def test_the_kernels_of_a_program_and_their_bytes():
    assert compile_step.kernels(OPTIMIZED) == {
        "start": 128 + 128,
        "fused": 16 + 128 + 32,
        "row": 32 + 4,  # of the table it reads a row
        "total": 32 + 128 + 4,
        "call": 32 + 32,
        "near": 32,  # its result stays on the chip
        "wide": 32 + 64,
        "negated": 32 + 32,  # in a branch of the condition
    }


def test_small_arrays_may_stay_in_the_cache_of_a_gpu():
    found = compile_step.kernels(OPTIMIZED, cache_bytes=32)
    assert found["fused"] == 128 and found["near"] == 0


def test_the_bytes_of_an_all_reduce():
    assert compile_step.all_reduce_bytes(OPTIMIZED) == 128


BATCHED = """func.func @main(%0: tensor<3x4x5xf32>, %1: tensor<3x5x7xf32>) -> tensor<3x4x7xf32> {
  %2 = stablehlo.dot_general %0, %1, batching_dims = [0] x [0], contracting_dims = [2] x [1] :
    (tensor<3x4x5xf32>, tensor<3x5x7xf32>) -> tensor<3x4x7xf32>
  return %2 : tensor<3x4x7xf32> }"""
ONE_THAT_NOBODY_USES = """func.func @main(%0: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %1 = stablehlo.dot %0, %0 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = stablehlo.dot %1, %0 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = stablehlo.abs %2 : tensor<4x4xf32>
  return %1 : tensor<4x4xf32> }"""


@pytest.mark.parametrize(
    ("text", "flop"),
    [(BATCHED, 2 * 3 * 4 * 5 * 7), (ONE_THAT_NOBODY_USES, 2 * 4 * 4 * 4)],
    ids=["batched", "one that nobody uses"],
)
def test_the_flop_of_products(text, flop):
    assert compile_step.product_flop(serialized(text)) == flop


@pytest.mark.parametrize(
    "name, logged_mb",  # the least and the most in public logs of TensorFlow
    [("a100-40", (38068, 38482)), ("h100", (78763, 78763)), ("l4", (20549, 20967))],
)
def test_a_program_may_use_no_more_of_a_gpu_than_tensorflow_gets(name, logged_mb):
    usable_mb = compile_step.DEVICES[name].memory_bytes / 2**20
    assert 0.97 * logged_mb[0] < usable_mb <= logged_mb[1]


@pytest.mark.parametrize(
    "kind",
    ["NVIDIA H100 PCIe", "NVIDIA L40S", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "TPU v7x", "cpu"],
)
def test_other_devices_have_no_known_peak(kind):
    assert run_step.peak_tflop(kind) is None


ENTRY = {"file": "step.mlir", "num_examples": 64, "state_bytes": 2**30}


def exported(compile_it):
    """In place of a folder: its program compiles so."""
    program = types.SimpleNamespace(compile=compile_it)
    return types.SimpleNamespace(folder=Path("step"), lowered=lambda *_: program)


class Whole:
    """A program that fits, by what its compiler says."""

    def memory_analysis(self):
        return types.SimpleNamespace(
            argument_size_in_bytes=50, temp_size_in_bytes=70, output_size_in_bytes=40,
            alias_size_in_bytes=30,
        )  # fmt: skip

    def cost_analysis(self):
        return {"flops": 11.0, "bytes accessed": 12.0}

    def as_text(self):
        return OPTIMIZED


class Unreadable(Whole):
    """As libtpu's for a whole BERT-large on a v5p."""

    def as_text(self):
        raise jax.errors.JaxRuntimeError("INTERNAL: RET_CHECK failure\nmore")


def test_a_program_that_jax_cannot_read_has_its_memory(monkeypatch):
    device = types.SimpleNamespace(device_kind="TPU v5p")
    monkeypatch.setattr(compile_step, "devices_of", lambda name, count: [device])
    row = compile_step.compiled(exported(lambda: Unreadable()), ENTRY, "tpu-v5p", 1)
    assert (row["result"], row["peak_bytes"]) == ("fits", 130) and "num_kernels" not in row
    assert row["reason"] == "this jax cannot read the compiled program: INTERNAL: RET_CHECK failure"


@pytest.mark.parametrize("gb_per_second, usable", [(450, 130), (1e9, 129)])
def test_a_program_that_compiles_is_a_row(monkeypatch, tmp_path, gb_per_second, usable):
    """Bounded by the memory, or by the products of a device of much faster memory."""
    (tmp_path / "step.mlir").write_bytes(serialized(BATCHED))
    device = compile_step.DEVICES["tpu-v3"]
    device = dataclasses.replace(device, gb_per_second=gb_per_second, memory_bytes=usable)
    monkeypatch.setitem(compile_step.DEVICES, "tpu-v3", device)
    monkeypatch.setattr(
        compile_step, "devices_of", lambda *_: [types.SimpleNamespace(device_kind="TPU v3")]
    )
    step = exported(lambda: Whole())
    step.folder = tmp_path
    row = compile_step.compiled(step, ENTRY, "tpu-v3", 8)
    moved = sum(compile_step.kernels(OPTIMIZED).values())
    products, memory = 840 / 61.5e12, moved / gb_per_second / 1e9
    assert row.pop("compile_seconds") >= 0
    assert row == {
        "step": tmp_path.name,
        "file": "step.mlir",
        "device": "tpu-v3",
        "device_kind": "TPU v3",
        "num_devices": 8,
        "num_examples": 512,
        "usable_bytes": usable,
        "result": "fits" if usable == 130 else "does not fit",
        "arguments_bytes": 50,
        "temporary_bytes": 70,
        "peak_bytes": 130,  # what is not written over
        "xla_flop": 11,
        "xla_bytes": 12,
        "num_kernels": 8,
        "collective_bytes": 128,
        "product_flop": 840,
        "kernel_bytes": moved,
        "products_seconds_bound": pytest.approx(products),
        "memory_seconds_bound": pytest.approx(memory),
        "step_seconds_bound": pytest.approx(max(products, memory)),
        "samples_per_second_bound": pytest.approx(512 / max(products, memory)),
    }


def test_the_step_of_the_most_rows_is_compiled_if_no_other_is_asked_for(tmp_path):
    entries = [{"kind": "training", "num_rows": rows, "num_examples": 8} for rows in (3, 5, 4)]
    signature = {"format": run_step.FORMAT, "programs": entries, "recorded": {"training": []}}
    (tmp_path / "signature.json").write_text(json.dumps(signature))
    assert compile_step.step_of(tmp_path, "training", 1)[1] == entries[1]
    assert compile_step.step_of(tmp_path, "training", 1, 4)[1] == entries[2]
    with pytest.raises(SystemExit, match=r"it has no program of 6 rows, but of \[3, 5, 4\]$"):
        compile_step.step_of(tmp_path, "training", 1, 6)
    with pytest.raises(SystemExit, match=r"no programs for several devices: export it with --da"):
        compile_step.step_of(tmp_path, "training", 2)


def test_a_folder_that_is_not_an_export_is_one_line(tmp_path):
    words = [sys.executable, "mlperf_bert/portable/compile_step.py", tmp_path, "--devices=h100"]
    done = programs.run(*words)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"compile_step.py: {tmp_path}: FileNotFoundError")
    (tmp_path / "signature.json").write_text(json.dumps({"format": 1}))
    done = programs.run(*words)
    assert "export the step again" in done.stderr and done.returncode == 1


def exits(monkeypatch, tmp_path, *results: str) -> int:
    """The exit code if the devices have these results."""
    rows = iter(results)

    def row(exported, entry, name, count):
        return {"device": name, "num_devices": count, "result": next(rows), "usable_bytes": 1}

    monkeypatch.setattr(compile_step, "compiled", row)
    monkeypatch.setattr(compile_step, "step_of", lambda *_: ({}, {}))
    monkeypatch.setattr(compile_step.jax.config, "update", lambda *_: None)
    monkeypatch.setattr(compile_step.os, "environ", {})
    devices = ",".join(["h100"] * len(results))
    words = ["compile_step.py", "x", f"--devices={devices}", f"--output={tmp_path}/t.json"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        compile_step.main()
    return ended.value.code


def test_a_program_that_does_not_fit_has_its_own_exit_code(monkeypatch, tmp_path):
    assert exits(monkeypatch, tmp_path, "fits", "fits") == 0
    assert exits(monkeypatch, tmp_path, "fits", "does not fit") == 3
    assert exits(monkeypatch, tmp_path, "does not fit", "does not compile") == 1
    assert exits(monkeypatch, tmp_path, "no compiler") == 1
    assert len(json.loads((tmp_path / "t.json").read_text())["rows"]) == 1


@pytest.mark.parametrize("name, package", [("tpu-v3", "'libtpu'"), ("h100", r"'jax\[cuda12\]'")])
def test_a_compiler_that_is_missing_or_too_old_is_told(monkeypatch, capsys, name, package):
    def unknown(**_):
        raise RuntimeError("NOT_FOUND: no v3:2x2\nmore")

    monkeypatch.setattr(compile_step.topologies, "get_topology_desc", unknown)
    row = compile_step.compiled(exported(None), ENTRY, name, 1)
    assert f": compiling {row['step']} for {name}; " in capsys.readouterr().err
    assert row["result"] == "no compiler"
    assert re.search(rf"pip install .*{package} \(NOT_FOUND: no v3:2x2\)$", row["reason"])


@pytest.mark.parametrize(
    "said, result, peak_gib",
    [
        ("RESOURCE_EXHAUSTED: the total memory required (26.83G) exceeds available HBM (15.48G).",
         "does not fit", 27.83),
        ("RESOURCE_EXHAUSTED: out of memory", "does not fit", None),
        ("RESOURCE_EXHAUSTED: Shared memory size limit exceeded", "does not compile", None),
        ("failed to legalize operation 'mhlo.copy'\nsecond line", "does not compile", None),
    ],
)  # fmt: skip
def test_what_the_compiler_refuses_is_a_row_with_its_reason(monkeypatch, said, result, peak_gib):
    def refuses():
        raise RuntimeError(said)

    core = types.SimpleNamespace(device_kind="TPU v3")
    monkeypatch.setattr(compile_step, "devices_of", lambda *_: [core])
    row = compile_step.compiled(exported(refuses), ENTRY, "tpu-v3", 1)
    assert row["result"] == result and row["reason"] == said.splitlines()[0]
    assert row.get("peak_bytes") == (peak_gib and pytest.approx(peak_gib * 2**30))
