"""run_step.py on a folder made by hand: what is not whole is refused before the first step."""

import contextlib
import copy
import json
import shutil
import sys
import types

import numpy as np
import pytest
from hypothesis import given

from mlperf_bert.portable import compile_step, program_folder, run_step
from tests.helpers import programs
from tests.helpers.damaged_json import damaged
from tests.helpers.fuzzing import seeded
from tests.portable.programs_by_hand import serialized

# The losses are the weight w; the step doubles it and counts itself.
STEP = """func.func @main(%ids: tensor<1x4xi32>, %seed: tensor<2xi32>, %w: tensor<3xf32>,
    %n: tensor<i64>) -> (tensor<3xf32>, tensor<3xf32>, tensor<i64>) {
  %one = stablehlo.constant dense<1> : tensor<i64>
  %double = stablehlo.add %w, %w : tensor<3xf32>
  %next = stablehlo.add %n, %one : tensor<i64>
  return %w, %double, %next : tensor<3xf32>, tensor<3xf32>, tensor<i64> }"""
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
    "recorded": {"training": [{"seed": [1, -2], "results": [1.0, 2.0, 3.0]}]},
    "programs": [PROGRAM],
}
WEIGHTS = {"w": np.array([1, 2, 3], np.float32)}
CONFIG = {"train_batch_size": 1, "shuffle": True, "pack_sequences": False, "num_parallel_files": 8}
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
    """Runs the folder's step in this process; the steps that have run are in `ran`."""
    ran, program = [], run_step.Program
    noted = lambda self, *given: ran.append(self) or program.__call__(self, *given)  # noqa: E731
    monkeypatch.setattr(run_step, "Program", type("Noted", (program,), {"__call__": noted}))

    def main(*words):
        monkeypatch.setattr(sys, "argv", ["run_step.py", str(folder), "--num_steps=3", *words])
        run_step.main()

    main.ran = ran
    return main


def test_a_whole_folder_runs(run, capsys):
    run()
    assert len(run.ran) == 3
    assert "agrees                  True" in capsys.readouterr().out


def changed(path: str, value) -> dict:
    """The signature with another value at a path, such as programs.0.flop; None: without it."""
    signature = copy.deepcopy(SIGNATURE)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    parent = signature
    for key in parents:
        parent = parent[key]
    if value is None:
        del parent[last]
    else:
        parent[last] = value
    return signature


@pytest.mark.parametrize(
    "path, values, reason",
    [
        ("seed", (None, "0", -1, True), "seed is missing or is not a whole number of 0 or more"),
        ("precision", (None, 32, ["float32"]), "signature.json: precision is missing or is not"),
        ("tolerance", (None, "1e-5", -1, float("nan"), float("inf")), "tolerance is missing"),
        ("initializer_range", (None, "x"), "initializer_range is missing or is not a number"),
        ("init_checkpoint", (None, 5), "init_checkpoint"),
        ("parameters", (None, []), "parameters is missing or is not an object"),
        ("programs", (None, {}, [5]), "program"),
        ("recorded", (None, [], {}, {"training": {}}), "recorded"),
        ("recorded.training.0.results", (None, 5, ["a"] * 3, [1.0], [[1.0]] * 3), "results"),
        ("recorded.training.0.seed", (None, 5, [1], ["a", "b"], [2**40, 0], [1.5, 0]), "seed"),
        ("programs.0.flop", (None, "many", -1, [1]), "step.stablehlo: flop is missing"),
        ("programs.0.num_examples", (None, 1.5), "num_examples is missing or is not a whole"),
        ("programs.0.num_rows", (None, "1"), "num_rows is missing"),
        ("programs.0.file", (None, 7), "file is missing"),
        ("programs.0.outputs.1.name", (None, "v"), "name|v is an output, but not an input"),
        ("programs.0.inputs.0.shape", (None, [1, "4"], [1, 4.0], [-1, 4]), "shape"),
        ("programs.0.inputs.2.dtype", (None, 32), "dtype is missing"),
        ("programs.0.outputs", ([], [W | {"feeds": 2}]), "result"),
    ],
)
def test_a_field_that_is_missing_or_of_another_type_is_told_before_the_first_step(
    folder, run, path, values, reason
):
    for value in values:
        (folder / "signature.json").write_text(json.dumps(changed(path, value)))
        with pytest.raises(SystemExit, match=rf"^run_step.py: {folder}: [^\n]*({reason})[^\n]*$"):
            run()
        assert not run.ran


@pytest.mark.parametrize(
    "name, arrays, reason",
    [
        ("weights", {}, r"weights.npz lacks w \(1 of 1\); copy the folder here again"),
        ("weights", WEIGHTS | {"v": np.ones(3)}, "weights.npz has v, which no program takes"),
        (
            "weights",
            {"w": np.ones(4, np.float32)},
            r"w is float32 \[4\], its program takes float32",
        ),
        ("weights", {"w": np.ones(3)}, r"w is float64 \[3\], its program takes float32 \[3\]"),
        ("batches", {"training/0/ids": np.zeros([1, 4])}, "batch 0 of batches.npz: no program"),
        ("batches", {"training/0/input_ids": np.zeros([1, 5], np.int32)}, r"int32 \[1, 5\]"),
        ("batches", BATCHES | {"training/0/more": np.zeros(1)}, "has more, which no program"),
        ("batches", {"training/0/input_ids": np.zeros([2, 4], np.int32)}, "that many rows"),
    ],
)
def test_an_array_that_is_missing_or_another_is_named_before_the_first_step(
    folder, run, name, arrays, reason
):
    np.savez(folder / f"{name}.npz", **arrays)
    with pytest.raises(SystemExit, match=reason):
        run()
    assert not run.ran


def test_weights_that_are_not_an_archive_or_that_nobody_names_are_refused(folder, run):
    (folder / "signature.json").write_text(json.dumps(SIGNATURE | {"init_checkpoint": None}))
    with pytest.raises(SystemExit, match=r"weights.npz is there, but signature.json names no"):
        run()
    (folder / "signature.json").write_text(json.dumps(SIGNATURE))
    with (folder / "weights.npz").open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(SystemExit, match=r"weights.npz holds one array, not several by name"):
        run()
    (folder / "weights.npz").unlink()
    with pytest.raises(SystemExit, match=r"No such file or directory: '.*weights.npz'"):
        run()
    assert not run.ran


def test_a_folder_without_a_checkpoint_draws_its_weights(folder, run):
    (folder / "weights.npz").unlink()
    (folder / "signature.json").write_text(json.dumps(SIGNATURE | {"init_checkpoint": None}))
    run("--synthetic")
    assert len(run.ran) == 3


def test_several_devices_need_a_known_normalization(folder):
    halves = [PROGRAM | {"kind": kind} for kind in ("training", "gradients", "update")]
    for normalization in ("replicas", 5):
        parameters = {"normalization": normalization}
        made = SIGNATURE | {"programs": halves, "parameters": parameters}
        (folder / "signature.json").write_text(json.dumps(made))
        with pytest.raises(ValueError, match=f"normalization is {normalization!r}"):
            run_step.Exported(folder, "training", num_devices=2)


def test_a_script_without_what_it_needs_is_one_line(tmp_path):
    shutil.copy(run_step.__file__, tmp_path)
    done = programs.run(sys.executable, "run_step.py", "step", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "run_step.py: No module named 'jax_step': run the copy in the exported folder\n"
    )


def test_compile_step_refuses_the_same(folder):
    (folder / "signature.json").write_text(json.dumps(changed("programs.0.flop", "many")))
    with pytest.raises(SystemExit, match=f"^compile_step.py: {folder}: [^\n]*flop is missing"):
        compile_step.step_of(folder, "training", 1)


@pytest.mark.parametrize("number", [0, -1, 2, 10**30])
def test_a_number_of_devices_that_jax_has_not_is_one_line(monkeypatch, number):
    monkeypatch.setattr(sys, "argv", ["run_step.py", "step", f"--num_devices={number}"])
    monkeypatch.setattr(run_step.jax, "devices", lambda: ["one"])
    message = f"^run_step.py: --num_devices={number}: jax has 1; give 1 or more, and at most 1$"
    with pytest.raises(SystemExit, match=message):
        run_step.arguments()


def test_a_number_of_devices_that_is_no_number_is_wrong_usage(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run_step.py", "step", "--num_devices=two"])
    with pytest.raises(SystemExit) as raised:
        run_step.arguments()
    assert raised.value.code == 2 and "invalid int value: 'two'" in capsys.readouterr().err


def test_a_platform_that_is_not_there_is_one_line(monkeypatch):
    def absent():
        raise RuntimeError("Unable to initialize backend 'cuda'\nand more")

    monkeypatch.setattr(sys, "argv", ["run_step.py", "step"])
    monkeypatch.setattr(run_step.jax, "devices", absent)
    with pytest.raises(SystemExit, match=r"no device: Unable to initialize backend 'cuda'$"):
        run_step.arguments()


def test_the_time_of_a_step_is_the_median():
    program = types.SimpleNamespace(entry={"flop": 10**12, "num_examples": 8})
    done = [([], seconds, program) for seconds in (50.0, 1.0, 2.0, 6.0)]
    figures = run_step.times(done, "float32", None)
    assert figures["step_seconds"] == 2.0  # the first compiles; the mean is 3
    assert figures["samples_per_second"] == pytest.approx(24 / 9)


@pytest.mark.parametrize("batches, recorded, made", [(1, 3, 3), (4, 3, 4), (2, 0, 2)])
def test_there_is_a_batch_for_every_step_that_is_recorded(monkeypatch, batches, recorded, made):
    read = types.SimpleNamespace(
        checked_input=lambda *_, **__: contextlib.nullcontext(),
        training_batches=lambda *_, **__: range(99),
    )
    monkeypatch.setattr(program_folder, "pipeline", read)
    setup = types.SimpleNamespace(config=types.SimpleNamespace(**CONFIG), files=[], limits=None)
    wanted = types.SimpleNamespace(num_batches=batches, num_recorded_steps=recorded, seed=0)
    assert program_folder._training_batches(setup, wanted) == list(range(made))


def test_a_damaged_signature_ends_in_one_line(folder, run):
    @seeded(60)
    @given(damaged(SIGNATURE))
    def attempt(content):
        (folder / "signature.json").write_bytes(content)
        run.ran.clear()
        try:
            run()
        except SystemExit as end:
            assert str(end).startswith("run_step.py: ") and "\n" not in str(end)
            assert not run.ran or "differ" in str(end)

    attempt()


def test_a_folder_without_a_step_of_this_kind_is_told(folder):
    with pytest.raises(ValueError, match="no evaluation step: export it with --evaluation"):
        run_step.Exported(folder, "evaluation")


def test_a_program_that_is_cut_is_one_line(folder, run):
    (folder / "step.stablehlo").write_bytes(b"ML\xefR\rStableHLO_v1.0.0 and no more")
    message = f"^run_step.py: {folder}: .*deserialize StableHLO; copy the folder here again$"
    with pytest.raises(SystemExit, match=message):
        run()
