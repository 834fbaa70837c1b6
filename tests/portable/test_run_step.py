"""run_step.py on a folder made by hand: what is not whole is one line, and how time counts."""

import json
import os
import re
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
from hypothesis import given

from mlperf_bert.portable import compile_step, run_step
from tests.helpers import programs
from tests.helpers.fuzzing import damaged, seeded
from tests.portable.programs_by_hand import serialized

# The losses are the weight w and the first number of the seed; the step doubles w, counts itself.
STEP = """func.func @main(%ids: tensor<1x4xi32>, %seed: tensor<2xi32>, %w: tensor<3xf32>,
    %n: tensor<i64>) -> (tensor<3xf32>, tensor<3xf32>, tensor<i64>) {
  %one = stablehlo.constant dense<1> : tensor<i64>
  %double = stablehlo.add %w, %w : tensor<3xf32>
  %next = stablehlo.add %n, %one : tensor<i64>
  %first = stablehlo.slice %seed [0:1] : (tensor<2xi32>) -> tensor<1xi32>
  %number = stablehlo.convert %first : (tensor<1xi32>) -> tensor<1xf32>
  %drawn = stablehlo.broadcast_in_dim %number, dims = [0] : (tensor<1xf32>) -> tensor<3xf32>
  %losses = stablehlo.add %w, %drawn : tensor<3xf32>
  return %losses, %double, %next : tensor<3xf32>, tensor<3xf32>, tensor<i64> }"""
IDS = {"name": "input_ids", "shape": [1, 4], "dtype": "int32", "role": "batch", "below": 9}
SEED = {"name": "seed", "shape": [2], "dtype": "int32", "role": "seed"}
W = {"name": "w", "shape": [3], "dtype": "float32", "role": "weight", "initial": 1.0}
COUNT = {"name": "n", "shape": [], "dtype": "int64", "role": "counter", "initial": 0}
LOSSES = {"name": "losses", "shape": [3], "dtype": "float32", "role": "result"}
PROGRAM = {
    "file": "step.stablehlo",
    "kind": "training",
    "num_rows": 1,
    "num_examples": 1,
    "flop": 100,
    "inputs": [IDS, SEED, W, COUNT],
    "outputs": [LOSSES, W | {"feeds": 2}, COUNT | {"feeds": 3}],
}
SIGNATURE = {
    "format": run_step.FORMAT,
    "init_checkpoint": "model.ckpt-0",
    "seed": 0,
    "initializer_range": 0.02,
    "precision": "float32",
    "tolerance": 1e-5,
    "parameters": {"normalization": "global"},
    "recorded": {"training": [{"seed": [1, -2], "results": [2.0, 3.0, 4.0]}]},
    "programs": [PROGRAM],
}
WEIGHTS = {"w": np.array([1, 2, 3], np.float32)}
BATCHES = {"training/0/input_ids": np.zeros([1, 4], np.int32)}


@pytest.fixture
def folder(tmp_path):
    """A whole folder."""
    (tmp_path / "signature.json").write_text(json.dumps(SIGNATURE))
    (tmp_path / "step.stablehlo").write_bytes(serialized(STEP))
    np.savez(tmp_path / "weights.npz", **WEIGHTS)
    np.savez(tmp_path / "batches.npz", **BATCHES)
    return tmp_path


@pytest.fixture
def run(folder, monkeypatch):
    """Runs the folder's step in this process."""

    def main(*words):
        monkeypatch.setattr(sys, "argv", ["run_step.py", str(folder), "--num_steps=3", *words])
        run_step.main()

    return main


def test_a_whole_folder_runs(run, capsys, tmp_path):
    """The seed of the first step is the recorded one, those of later ones are drawn."""
    run(f"--output={tmp_path}/figures.json")
    assert "agrees                  True" in capsys.readouterr().out
    figures = json.loads((tmp_path / "figures.json").read_text())
    random, weights = np.random.RandomState(0), WEIGHTS["w"]
    seeds = [random.randint(1 << 31, size=2)[0] for _ in range(3)]
    seeds[0] = 1
    expected = [weights * 2**n + np.float32(seed) for n, seed in enumerate(seeds)]
    assert figures["results"] == np.array(expected).tolist()
    assert (figures["compared_steps"], figures["largest_difference"]) == (1, 0)
    assert (figures["precision"], figures["formula_flop"]) == ("float32", 100)
    assert not list(tmp_path.glob(".*"))


def test_batches_are_in_the_order_of_their_numbers_and_those_of_several_devices_alike(folder):
    numbers = np.random.RandomState(0).permutation(12)
    arrays = {
        f"{kind}/{n}/input_ids": np.full([2 if n in (1, 10) else 1, 4], sign * n)
        for n in numbers
        for kind, sign in (("training", 1), ("evaluation", -1))
    }
    np.savez(folder / "batches.npz", **arrays)
    entries = [PROGRAM, *({"kind": kind} | {"num_rows": 1} for kind in ("gradients", "update"))]
    (folder / "signature.json").write_text(json.dumps(SIGNATURE | {"programs": entries}))
    of_one = run_step.Exported(folder, "training").batches(synthetic=False)
    assert [batch["input_ids"][0, 0] for batch in of_one] == list(range(12))
    of_three = run_step.Exported(folder, "training", 3)
    assert of_three.recorded == []  # what TensorFlow recorded is of one device
    rows = [batch["input_ids"][:, 0].tolist() for batch in of_three.batches(synthetic=False)]
    assert rows == [[0, 2, 3], [4, 5, 6], [7, 8, 9]]  # one is left, and two of two rows
    of_two = run_step.Exported(folder, "training", 2).batches(synthetic=False)
    assert [len(batch["input_ids"]) for batch in of_two] == [2, 2, 2, 2, 4, 2]
    [whole] = of_three.batches(synthetic=True)
    assert whole["input_ids"].shape == (3, 4)


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("signature.json", SIGNATURE | {"format": 1}, "its format is 1, and this file reads 2: ex"),
        ("signature.json", {}, "KeyError: 'format'"),
        ("signature.json", [], "TypeError: "),
        ("signature.json", SIGNATURE | {"programs": [PROGRAM | {"flop": "many"}]}, "TypeError: "),
        ("weights.npz", {}, "KeyError: .*w"),
        ("weights.npz", {"w": np.ones(4, np.float32)}, r"float32\[3\]"),
        ("weights.npz", {"w": np.ones(3)}, r"float32\[3\]"),
        ("weights.npz", None, "No such file or directory: '.*weights.npz'"),
        ("batches.npz", {}, "it has fewer batches than there are devices"),
        ("batches.npz", {"training/0/ids": np.zeros([1, 4])}, "KeyError: 'input_ids'"),
        ("batches.npz", {"training/0/input_ids": np.zeros([1, 5], np.int32)}, r"int32\[1,4\]"),
        ("batches.npz", BATCHES | {"training/0/more": np.zeros(1)}, "ValueError: "),
        ("batches.npz", {"training/0/input_ids": np.zeros([2, 4], np.int32)}, "KeyError: 2"),
    ],
)
def test_a_damaged_folder_is_one_line(folder, run, file, content, reason):
    if file == "signature.json":
        (folder / file).write_text(json.dumps(content))
    elif content is None:
        (folder / file).unlink()
    else:
        np.savez(folder / file, **content)
    whole = rf"^run_step.py: {folder}: not a whole folder [^\n(]*\([^\n]*{reason}[^\n]*\); copy"
    with pytest.raises(SystemExit, match=whole):
        run()


def test_what_a_folder_does_not_hold_is_drawn_as_ever():
    """The losses that TensorFlow has recorded are those of these weights."""
    kernel = {"name": "kernel", "initial": "normal", "shape": [1000], "dtype": "float32"}
    tokens = {"name": "input_ids", "below": 40, "shape": [5], "dtype": "int32"}
    one, other, ids = (
        run_step.drawn(value, {"seed": 5, "initializer_range": 0.02})
        for value in (kernel, kernel | {"name": "other"}, tokens)
    )
    assert one[:3].tolist() == pytest.approx([-0.020785, 0.005832, -0.004581], abs=1e-6)
    assert one.max() == -one.min() == np.float32(0.04) and (one != other).sum() > 900
    assert ids.tolist() == [16, 21, 39, 13, 3]


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_folder_without_a_checkpoint_draws_its_weights(folder, run, capsys, is_recorded):
    """Those of recorded losses as ever, others on the device: alike but for the numbers."""
    (folder / "weights.npz").unlink()
    recorded = SIGNATURE["recorded"] if is_recorded else {"training": []}
    signature = SIGNATURE | {"init_checkpoint": None, "recorded": recorded}
    (folder / "signature.json").write_text(json.dumps(signature))
    run("--synthetic")
    assert re.search(r"^samples_per_second +\d", capsys.readouterr().out, re.MULTILINE)
    kernel = {"name": "kernel", "initial": "normal", "shape": [9, 99], "dtype": "float32"}
    exported = run_step.Exported(folder, "training")
    exported.entries[1]["inputs"] += [kernel | {"role": "weight"}]
    state, own = exported.first_state(), exported.signature
    assert all(state[v["name"]].dtype == v["dtype"] for v in (W, COUNT, kernel))
    assert state["w"].tolist() == [1, 1, 1] and state["n"].tolist() == 0
    assert (state["kernel"] == run_step.drawn(kernel, own)).all() == is_recorded
    assert 0.015 < state["kernel"].std() < 0.02 and abs(state["kernel"]).max() <= np.float32(0.04)
    other = run_step.drawn_on_device(kernel, own | {"seed": 1})
    assert (other != run_step.drawn_on_device(kernel, own)).sum() > 800


@pytest.mark.parametrize(
    "module, word", [(run_step, "--num_steps=1"), (compile_step, "--devices=h100")]
)
def test_a_script_whose_reader_has_ended_ends_quietly(folder, module, word):
    """As with `| head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, module.__file__, folder, word]
    buffers = os.environ | {"PYTHONUNBUFFERED": ""}  # so that its end flushes what is left
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, env=buffers)
    os.close(writing)
    said = rb"(\w+\.py: (compiling|putting) .*\n)+"
    assert done.returncode == 141 and re.fullmatch(said, done.stderr)


@pytest.mark.parametrize("script", [run_step, compile_step])
@pytest.mark.parametrize(
    ("jax", "said"),
    [
        (
            "__version__ = '0.6.0'",
            "No module named 'jax_step': run the copy in the exported folder",
        ),
        (
            "__version__ = '0.4.38'",
            "needs jax 0.6 or later, and this is jax 0.4.38: pip install --",
        ),
        ("import absl_", "No module named 'absl_': pip install absl_"),
        ("raise ModuleNotFoundError('no', name='absl.logging')", "no: pip install absl-py"),
        ("raise ModuleNotFoundError('a\\nb', name='jaxlib')", "a: pip install jax absl-py"),
        ("raise RuntimeError('jaxlib is\\nnewer')", "cannot load jax, .*Error: jaxlib is newer"),
        ("raise ValueError('JAX_X=maybe')", "cannot load jax, or jax_step.py .*Error: JAX_X=maybe"),
    ],
)
def test_a_script_without_what_it_needs_is_one_line(tmp_path, script, jax, said):
    for module in (run_step, script):
        shutil.copy(module.__file__, tmp_path)
    (tmp_path / "jax.py").write_text(jax)
    name = f"{script.__name__.rpartition('.')[2]}.py"
    done = programs.run(sys.executable, name, "step", cwd=tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(rf"{name}: {said}.*\n", done.stderr)


def test_a_copy_that_is_cut_is_one_line(tmp_path):
    for module in (run_step, run_step.jax_step):
        shutil.copy(module.__file__, tmp_path)
    os.truncate(tmp_path / "jax_step.py", 0)
    done = programs.run(sys.executable, "run_step.py", "step", cwd=tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(r"run_step.py: cannot load jax, or jax_step.py beside it.*\n", done.stderr)


def test_what_comes_from_jaxs_cache_is_no_time_of_compiling(folder, monkeypatch, tmp_path):
    """Also where the folder's name is one of the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "~/kept")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    for said in (r"\d[\d.]+", r"\d[\d.e-]+, from the cache"):
        done = programs.run(sys.executable, run_step.__file__, folder, "--num_steps=1")
        assert re.search(rf"^compile_seconds +{said}$", done.stdout, re.MULTILINE), done.stdout
        assert list((tmp_path / "kept").iterdir())
    each = [types.SimpleNamespace(compile_seconds=1.5, is_from_cache=n > 0) for n in range(3)]
    assert run_step.compile_seconds(each) == "4.5, 2 of 3 from the cache"


def test_a_cache_that_jax_cannot_use_is_a_line(folder, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/proc/none")
    done = programs.run(sys.executable, run_step.__file__, folder, "--num_steps=1")
    assert done.returncode == 0
    weights, compiling, warning = done.stderr.splitlines()
    assert weights.startswith("run_step.py: putting the weights on the device; ")
    assert compiling.startswith("run_step.py: compiling step.stablehlo; of BERT-large")
    assert re.fullmatch(r"run_step.py: warning: Error reading persistent .*none'", warning)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--num_steps=0"], "--num_steps and --peak_tflops must be above 0"),
        (["--peak_tflops=0"], "--num_steps and --peak_tflops must be above 0"),
        (["--output=a.txt"], "argument --output: a.txt: name a .json file, in a folder that is"),
        *(([f"--num_devices={n}"], f"--num_devices={n}: jax has 2; ") for n in (0, -1, 10**30)),
        (["--num_devices=2", "--kind=evaluation"], "several devices train; run an evaluation with"),
    ],
)
def test_wrong_usage_is_one_line(monkeypatch, capsys, words, reason):
    monkeypatch.setattr(sys, "argv", ["run_step.py", "step", *words])
    monkeypatch.setattr(run_step.jax, "devices", lambda: ["one", "two"])
    with pytest.raises(SystemExit) as ended:
        run_step.arguments()
    [line] = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line.startswith(f"run_step.py: {reason}")


def test_other_weights_are_found_out(folder, run):
    np.savez(folder / "weights.npz", w=1.5 * WEIGHTS["w"])
    with pytest.raises(SystemExit, match=r"results differ from TensorFlow's by more than the tol"):
        run()


@pytest.mark.parametrize("variable", ["JAX_PLATFORMS", "JAX_PLATFORM_NAME", None])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            RuntimeError("no backend 'cuda' (set JAX_PLATFORMS='' to)\nand more"),
            "no backend 'cuda'",
        ),
        (AssertionError(), "its plugin or device is not there"),
    ],
)
def test_a_platform_that_is_not_there_is_one_line(monkeypatch, variable, error, reason):
    def absent():
        raise error

    monkeypatch.setattr(sys, "argv", ["run_step.py", "step"])
    monkeypatch.setattr(run_step.jax, "devices", absent)
    by, without = "", ""
    if variable:
        monkeypatch.setenv(variable, "cuda")
        by, without = f" by {variable}=cuda", f", or leave {variable} out"
    with pytest.raises(SystemExit) as ended:
        run_step.arguments()
    assert str(ended.value) == (
        f"run_step.py: jax finds no device{by} ({reason}); install its driver and jax's plugin for "
        f"it (jax[cuda12], jax[tpu]){without}"
    )


def test_jax_that_compiles_nothing_is_told(run):
    run_step.jax.config.update("jax_disable_jit", True)
    try:
        with pytest.raises(
            SystemExit, match=r"^run_step.py: JAX_DISABLE_JIT: .*leave the variable"
        ):
            run()
    finally:
        run_step.jax.config.update("jax_disable_jit", False)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_result_that_is_no_number_does_not_agree(bad):
    recorded = [{"results": [2.0, 1.0]} for _ in range(3)]
    done = [([2.0, 1.0], 0.1, None), ([2.0, bad], 0.1, None), ([2.0, 1.0], 0.1, None)]
    assert not run_step.agreement(done, recorded, 1e-5)["agrees"]
    assert run_step.agreement(done[:1], recorded, 1e-5)["agrees"]
    assert run_step.agreement([], recorded, 1e-5) == {}


def test_the_peak_of_bfloat16_is_for_bfloat16_only(monkeypatch):
    device = types.SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(run_step.jax, "devices", lambda: [device])
    program = types.SimpleNamespace(entry={"flop": 989 * 10**10, "num_examples": 8})
    done = [([], seconds, program) for seconds in (50.0, 0.01, 0.02, 0.03)]
    found = run_step.times(done, "bfloat16", None)
    assert found["share_of_peak"] == pytest.approx(0.5)
    assert found["samples_per_second"] == pytest.approx(400)  # the first step compiles
    assert found["step_seconds"] == 0.02
    of_two = run_step.times(done, "bfloat16", None, num_devices=2)
    assert of_two["samples_per_second"] == pytest.approx(800)
    assert run_step.times(done, "float32", None)["share_of_peak"] == "unknown: give --peak_tflops"
    assert run_step.times(done, "float32", 989)["share_of_peak"] == pytest.approx(0.5)
    device.device_kind = "NVIDIA H100 PCIe"  # it computes less than the module
    assert run_step.times(done, "bfloat16", None)["share_of_peak"] == "unknown: give --peak_tflops"


def test_a_damaged_signature_ends_in_one_line(folder, run):
    @seeded(60)
    @given(damaged(SIGNATURE))
    def attempt(content):
        (folder / "signature.json").write_bytes(content)
        try:
            run()
        except SystemExit as end:
            assert str(end).startswith("run_step.py: ") and "\n" not in str(end)

    attempt()


def test_a_folder_without_a_step_of_this_kind_is_told(folder):
    with pytest.raises(ValueError, match="no evaluation step: export it with --evaluation"):
        run_step.Exported(folder, "evaluation")


def test_a_program_that_is_cut_is_one_line(folder, run):
    (folder / "step.stablehlo").write_bytes(b"ML\xefR\rStableHLO_v1.0.0 and no more")
    message = f"^run_step.py: {folder}: .*deserialize StableHLO; copy the folder here again$"
    with pytest.raises(SystemExit, match=message):
        run()


@pytest.mark.parametrize(
    ("calls", "said", "remedy"),
    [
        (["a"], "INTERNAL: CUDA error: an illegal memory access\nmore", "export it with --kernels"),
        (["a"], "NOT_FOUND: No registered implementation for a", "export it with --kernels=xla"),
        (["a"], "RESOURCE_EXHAUSTED: 9 GB", "export it with a smaller batch"),
        (["a"], "INVALID_ARGUMENT: Failed to deserialize StableHLO", "copy the folder here again"),
        ([], "INTERNAL: the device is gone", "copy the folder here again"),
    ],
)
def test_a_step_that_fails_on_the_device_is_one_line(folder, run, monkeypatch, calls, said, remedy):
    """A folder that is whole need not be copied again; a kernel of ours has a way around."""
    parameters = SIGNATURE["parameters"] | {"kernels": "triton" if calls else "xla"}
    signature = SIGNATURE | {"programs": [PROGRAM | {"calls": calls}], "parameters": parameters}
    (folder / "signature.json").write_text(json.dumps(signature, indent=1))

    def fails(self, state, batch):
        raise run_step.jax.errors.JaxRuntimeError(said)

    monkeypatch.setattr(run_step.jax_step, "obstacle_to_kernels", lambda device: None)
    monkeypatch.setattr(run_step.Program, "__call__", fails)
    with pytest.raises(SystemExit) as ended:
        run()
    line = str(ended.value)
    assert line.startswith(f"run_step.py: {folder}: {said.splitlines()[0]}; ") and remedy in line
    assert "\n" not in line
