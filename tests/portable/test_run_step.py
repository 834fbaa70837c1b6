"""run_step.py on a folder made by hand: figures, exit codes, and what is not whole in one line.

Long because a folder may be cut, changed or meant for other devices in many ways.
"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
from hypothesis import given

from mlperf_bert.portable import run_step
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
IDS = {"name": "input_ids", "shape": [1, 4], "dtype": "int32", "role": "batch"}
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
        with pytest.raises(SystemExit) as ended:
            run_step.main()
        return ended.value.code

    return main


def test_a_whole_folder_runs(run, capsys, tmp_path):
    """The seed of the first step is the recorded one, those of later ones are drawn."""
    assert run(f"--output={tmp_path}/figures.json") == 0
    assert "agrees                  True" in capsys.readouterr().out
    figures = json.loads((tmp_path / "figures.json").read_text())
    random, weights = np.random.RandomState(0), WEIGHTS["w"]
    seeds = [random.randint(1 << 31, size=2)[0] for _ in range(3)]
    seeds[0] = 1
    expected = [weights * 2**n + np.float32(seed) for n, seed in enumerate(seeds)]
    assert figures["results"] == np.array(expected).tolist()
    assert (figures["compared_steps"], figures["largest_difference"]) == (1, 0)
    assert (figures["precision"], figures["formula_flop"]) == ("float32", 100)


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
    of_one = run_step.Exported(folder, "training").batches()
    assert [batch["input_ids"][0, 0] for batch in of_one] == list(range(12))
    of_three = run_step.Exported(folder, "training", 3)
    assert of_three.recorded == []  # what TensorFlow recorded is of one device
    rows = [batch["input_ids"][:, 0].tolist() for batch in of_three.batches()]
    assert rows == [[0, 2, 3], [4, 5, 6], [7, 8, 9]]  # one is left, and two of two rows
    of_two = run_step.Exported(folder, "training", 2).batches()
    assert [len(batch["input_ids"]) for batch in of_two] == [2, 2, 2, 2, 4, 2]
    with pytest.raises(SystemExit, match="than there are devices; export it with --num_batches=13"):
        run_step.Exported(folder, "training", 13).batches()


@pytest.mark.parametrize("normalization, factor", [("global", 1.0), ("replica_mean", 0.5)])
def test_two_devices_have_a_batch_each_and_share_their_gradients(folder, normalization, factor):
    """The loss is the weight, the gradient is the batch's mask; the weight becomes less by it."""
    w, more = W | {"shape": [1, 2]}, "%p: tensor<f32>, %e: tensor<f32>"
    mask = w | {"name": "masked_lm_weights", "role": "batch"}
    gradient, losses = w | {"name": "g", "role": "gradient"}, LOSSES | {"shape": [1, 2]}
    counts = [w | {"name": f"num_{n}", "shape": [], "role": "count"} for n in COUNTS]
    texts = (
        f"""func.func @main(%i: tensor<1x4xi32>, %s: tensor<2xi32>, %m: tensor<1x2xf32>, {more},
        %w: tensor<1x2xf32>) -> (tensor<1x2xf32>, tensor<1x2xf32>) {{
        return %w, %m : tensor<1x2xf32>, tensor<1x2xf32> }}""",
        """func.func @main(%g: tensor<1x2xf32>, %w: tensor<1x2xf32>) -> tensor<1x2xf32> {
        %next = stablehlo.subtract %w, %g : tensor<1x2xf32>
        return %next : tensor<1x2xf32> }""",
    )
    of = {
        "gradients": {"inputs": [IDS, SEED, mask, *counts, w], "outputs": [losses, gradient]},
        "update": {"inputs": [gradient, w], "outputs": [w | {"feeds": 1}]},
    }
    halves = [{"file": kind, "kind": kind, **each} for kind, each in of.items()]
    halves[0] |= {"num_rows": 1, "num_examples": 1}
    for kind, text in zip(of, texts):
        (folder / kind).write_bytes(serialized(text))
    whole = SIGNATURE | {
        "programs": [PROGRAM | {"inputs": [IDS, SEED, w]}, *halves],
        "parameters": {"normalization": normalization},
    }
    (folder / "signature.json").write_text(json.dumps(whole))
    masks = {f"training/{n}/masked_lm_weights": np.full([1, 2], n, np.float32) for n in range(4)}
    ids = {f"training/{n}/input_ids": np.zeros([1, 4], np.int32) for n in range(4)}
    np.savez(folder / "batches.npz", **masks, **ids)
    np.savez(folder / "weights.npz", w=np.array([[1, 2]], np.float32))
    words = [sys.executable, run_step.__file__, folder, "--num_devices=2", "--num_steps=3"]
    devices = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = programs.run(*words, f"--output={folder}/figures.json", env=devices)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "figures.json").read_text())["results"]
    # Of the first batch the masks are 0 and 1, of the second 2 and 3.
    each = [np.array([[1, 2]]) - factor * before for before in (0, 1, 1 + 5)]
    assert found == [(weight * 2 * factor).tolist() for weight in each]


COUNTS = ("predictions", "examples")


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("signature.json", [], "TypeError: "),
        ("weights.npz", {}, "KeyError: .*w"),
        ("weights.npz", {"w": np.ones(4, np.float32)}, r"float32\[3\]"),
        ("weights.npz", None, "No such file or directory: '.*weights.npz'"),
        ("batches.npz", {"training/0/ids": np.zeros([1, 4])}, "KeyError: 'input_ids'"),
        ("batches.npz", {"training/0/input_ids": np.zeros([1, 5], np.int32)}, r"int32\[1,4\]"),
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
    whole = rf"run_step.py: {folder}: not a whole folder [^\n(]*\([^\n]*{reason}[^\n]*\); copy"
    assert re.match(whole, run())


def test_what_a_folder_does_not_hold_is_drawn_as_ever():
    """The losses that TensorFlow has recorded are those of these weights."""
    kernel = {"name": "kernel", "initial": "normal", "shape": [1000], "dtype": "float32"}
    one, other = (
        run_step.drawn(kernel | {"name": name}, {"seed": 5, "initializer_range": 0.02})
        for name in ("kernel", "other")
    )
    assert one[:3].tolist() == pytest.approx([-0.020785, 0.005832, -0.004581], abs=1e-6)
    assert one.max() == -one.min() == np.float32(0.04) and (one != other).sum() > 900


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_folder_without_a_checkpoint_draws_its_weights(folder, run, is_recorded):
    """Weights of recorded losses are drawn as ever, others on the device, with other numbers."""
    (folder / "weights.npz").unlink()
    recorded = SIGNATURE["recorded"] if is_recorded else {"training": []}
    signature = SIGNATURE | {"init_checkpoint": None, "recorded": recorded}
    (folder / "signature.json").write_text(json.dumps(signature))
    ended = run()  # the recorded losses are of other weights
    assert "differ from TensorFlow's" in ended if is_recorded else ended == 0
    kernel = {"name": "kernel", "initial": "normal", "shape": [9, 99], "dtype": "float32"}
    exported = run_step.Exported(folder, "training")
    exported.entries[1]["inputs"] += [kernel | {"role": "weight"}]
    state, own = exported.first_state(), exported.signature
    assert state["w"].tolist() == [1, 1, 1] and state["n"].tolist() == 0
    assert (state["kernel"] == run_step.drawn(kernel, own)).all() == is_recorded
    assert 0.015 < state["kernel"].std() < 0.02 and abs(state["kernel"]).max() <= np.float32(0.04)
    other = run_step.drawn_on_device(kernel, own | {"seed": 1})
    assert (other != run_step.drawn_on_device(kernel, own)).sum() > 800


def test_a_script_whose_reader_has_ended_ends_quietly(folder):
    """A reader such as `| head -1` may end first."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, run_step.__file__, folder, "--num_steps=1"]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert done.returncode == -signal.SIGPIPE and b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("jax", "said"),
    [
        ("__version__ = '0.4.38'", "this is jax 0.4.38"),
        ("raise ModuleNotFoundError('no', name='absl')", "ModuleNotFoundError: no"),
        ("raise RuntimeError('jaxlib is\\nnewer')", "RuntimeError: jaxlib is newer"),
        (None, "AttributeError: module 'jax_step'"),  # its copy is cut
    ],
)
def test_a_script_without_what_it_needs_is_one_line(tmp_path, jax, said):
    shutil.copy(run_step.__file__, tmp_path)
    (tmp_path / "jax_step.py").touch()
    if jax:
        (tmp_path / "jax.py").write_text(jax)
    done = programs.run(sys.executable, "run_step.py", "step", cwd=tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(rf"run_step.py: cannot load jax, or .*{said}.*\n", done.stderr)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--num_steps=0"], "--num_steps=0: must be above 0"),
        (["--peak_tflops=nan"], "--peak_tflops=nan: must be above 0"),
        (["--output=a.txt"], "--output=a.txt: name a .json file, in a folder that is there"),
    ],
)
def test_wrong_usage(run, capsys, words, reason):
    assert run(*words) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"run_step.py: error: {reason}"


def test_other_weights_are_found_out(folder, run):
    np.savez(folder / "weights.npz", w=1.5 * WEIGHTS["w"])
    assert "the results differ from TensorFlow's by more than the tolerance" in run()


@pytest.mark.parametrize("error", [RuntimeError("no 'cuda'\nand more"), AssertionError()])
def test_a_platform_that_is_not_there_is_one_line(monkeypatch, run, error):
    def absent():
        raise error

    monkeypatch.setattr(run_step.jax, "devices", absent)
    assert re.fullmatch(r"run_step.py: jax finds no device \((no 'cuda'|Assert.*)\); .*", run())


def test_jax_that_compiles_nothing_is_told(run):
    with run_step.jax.disable_jit():
        assert run().startswith("run_step.py: JAX_DISABLE_JIT: it runs compiled programs; leave")


def test_the_memory_of_a_step_is_in_bytes():
    """A process on a CPU has no less than now, and no more than the machine has."""
    process = psutil.Process()
    # The kernel counts up to 64 pages of each thread later. Source: proc(5), "inaccurate".
    uncounted = 64 * resource.getpagesize() * process.num_threads()
    now = process.memory_info().rss
    assert now - uncounted <= run_step.peak_memory_bytes() < psutil.virtual_memory().total


def test_more_devices_than_there_are(run):
    assert run("--num_devices=9").endswith("--num_devices=9: jax has 1")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_result_that_is_no_number_does_not_agree(bad):
    recorded = [{"results": [2.0, 1.0]} for _ in range(3)]
    done = [run_step.Step(each, 0.1, {}, None) for each in ([2.0, 1.0], [2.0, bad], [2.0, 1.0])]
    assert not run_step.agreement(done, recorded, 1e-5)["agrees"]
    assert run_step.agreement(done[:1], recorded, 1e-5)["agrees"]
    assert run_step.agreement([], recorded, 1e-5) == {}


def test_the_figures_of_speed_are_without_the_first_step_of_a_program():
    entry = {"file": "step.stablehlo", "flop": 989 * 10**10, "num_examples": 8}
    done = [run_step.Step([], seconds, entry, None) for seconds in (50.0, 0.01, 0.02, 0.03)]
    done.append(run_step.Step([], 70.0, entry | {"file": "step-2.stablehlo"}, None))
    found = run_step.times(done, 989)
    assert found["share_of_peak"] == pytest.approx(0.5)
    assert found["samples_per_second"] == pytest.approx(400)
    assert found["step_seconds"] == 0.02
    of_two = run_step.times(done, 989, num_devices=2)  # each has the whole work of an entry
    assert of_two["samples_per_second"] == pytest.approx(800)
    assert of_two["share_of_peak"] == pytest.approx(0.5)
    assert run_step.times(done, None)["share_of_peak"] == "unknown: give --peak_tflops"


def test_a_damaged_signature_ends_in_one_line(folder, run):
    @seeded(60)
    @given(damaged(SIGNATURE))
    def attempt(content):
        (folder / "signature.json").write_bytes(content)
        end = run()
        assert end == 0 or (end.startswith("run_step.py: ") and "\n" not in end)

    attempt()


@pytest.mark.parametrize(
    ("signature", "words", "said"),
    [
        (SIGNATURE, "--kind=evaluation", "it has no evaluation step: export it with --evaluation"),
        (SIGNATURE | {"format": 1}, "", "its format is 1, but this file reads 2: export the step"),
    ],
)
def test_what_a_folder_does_not_hold_is_told(folder, run, signature, words, said):
    (folder / "signature.json").write_text(json.dumps(signature))
    assert said in run(*words.split())


def test_a_program_that_is_cut_is_one_line(folder, run):
    (folder / "step.stablehlo").write_bytes(b"ML\xefR\rStableHLO_v1.0.0 and no more")
    message = f"run_step.py: {folder}: .*deserialize StableHLO; copy the folder here again"
    assert re.fullmatch(message, run())


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("INTERNAL: CUDA error: an illegal memory access\nmore", "export it with --kernels=xla"),
        ("RESOURCE_EXHAUSTED: 9 GB", "export it with a smaller batch, or with --recompute=blocks"),
    ],
)
def test_a_step_that_fails_on_the_device_is_one_line(folder, run, monkeypatch, said, remedy):
    monkeypatch.setattr(run_step, "steps", raising(run_step.jax.errors.JaxRuntimeError(said)))
    line = run()
    assert line.startswith(f"run_step.py: {folder}: {said.splitlines()[0]}; ")
    assert line.endswith(remedy)


# --- devices that are not there -------------------------------------------------------------------


def raising(error):
    def raises(*_, **__):
        raise error

    return raises


@pytest.fixture
def compiles(monkeypatch, run):
    """Compiles the folder's step for a topology, in whose place stand the devices of a CPU."""
    monkeypatch.setattr(run_step, "without_hardware", lambda: None)
    monkeypatch.setattr(run_step, "devices_of", lambda topology: run_step.jax.devices())
    return lambda topology: run(f"--topology={topology}")


def test_a_step_that_fits_a_topology(folder, compiles, capsys):
    assert compiles("h100") == 0
    figures = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert figures["fits"] == "True" and figures["num_devices"] == "1"
    compiled = run_step.Exported(folder, "training").compiled(PROGRAM, run_step.jax.devices())
    assert int(figures["program_bytes"]) == run_step.jax_step.needed_bytes(compiled)
    assert figures["usable_bytes"] == str(run_step.usable_bytes("h100"))
    assert figures["formula_flop"] == "100" and float(figures["xla_flop"]) > 0
    assert compiles("v5e:1x1") == 0  # whose compiler said nothing


def test_of_packed_steps_the_one_with_the_most_rows_is_compiled(folder, compiles, capsys):
    entries = [PROGRAM | {"num_rows": rows, "flop": 100 * rows} for rows in (2, 12, 1)]
    (folder / "signature.json").write_text(json.dumps(SIGNATURE | {"programs": entries}))
    assert compiles("h100") == 0
    assert re.search(r"^formula_flop +1200$", capsys.readouterr().out, re.MULTILINE)


def test_a_step_that_does_not_fit_has_its_own_exit_code(compiles, monkeypatch, capsys):
    """The memory of a GPU decides, or the word of a TPU's compiler."""
    monkeypatch.setitem(run_step.GPUS, "l4", (*run_step.GPUS["l4"][:2], 9 * 2**28, 58, 2, 1, 1))
    assert compiles("l4") == 3
    said = "RESOURCE_EXHAUSTED: the memory required (26.8G) exceeds available HBM (15.5G)."
    error = run_step.jax.errors.JaxRuntimeError(f"{said}\nmore")
    monkeypatch.setattr(run_step.Exported, "compiled", raising(error))
    assert compiles("v3:2x2") == 3
    assert capsys.readouterr().out.endswith(f"{'reason':23} {said}\n")


def test_a_step_that_does_not_compile_is_an_error(compiles, monkeypatch):
    """Shared memory is a core's, so that its lack is none of the device's."""
    error = run_step.jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Shared memory size limit")
    monkeypatch.setattr(run_step.Exported, "compiled", raising(error))
    assert "Shared memory size limit" in compiles("h100")


@pytest.mark.parametrize("topology, package", [("v9:1", "libtpu"), ("h100:8", "'jax[cuda12]'")])
def test_a_topology_that_is_not_known_or_has_no_compiler(monkeypatch, run, topology, package):
    unknown = raising(RuntimeError("NOT_FOUND: none such\nmore"))
    monkeypatch.setattr(run_step, "without_hardware", lambda: None)
    monkeypatch.setattr(run_step.topologies, "get_topology_desc", unknown)
    line = run(f"--topology={topology}")
    assert line.startswith(f"run_step.py: --topology={topology}: NOT_FOUND: none such; give v100, ")
    assert line.endswith(f"pip install --upgrade jax {package}") and "\n" not in line


@pytest.mark.parametrize(
    "name, logged_mb",  # the least and the most in public logs of TensorFlow
    [("a100-40", (38068, 38482)), ("h100", (78763, 78763)), ("l4", (20549, 20967))],
)
def test_a_program_may_use_no_more_of_a_gpu_than_tensorflow_gets(name, logged_mb):
    usable_mb = run_step.usable_bytes(name) / 2**20
    assert 0.97 * logged_mb[0] < usable_mb <= logged_mb[1]
