"""Training, exporting and refusing with --kernels=triton; the kernels are interpreted on a CPU."""

import json
import re
import sys
import types

import jax
import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.checkpoints.state import RunState
from mlperf_bert.mlperf import rules
from mlperf_bert.model.config import BertConfig
from mlperf_bert.programs import jax_step, jax_trainer
from mlperf_bert.training import checks, devices
from tests.helpers import programs
from tests.model import interpreted
from tests.portable import programs_by_hand
from tests.training import by_jax
from tests.training.configurations import run_config
from tests.training.small_trainer import batches_of, make_trainer

KERNELS = {"kernels": "triton", "precision": "bfloat16"}
USUAL = {"precision": "bfloat16"}
# The last block is computed without kernels.
TWO_LAYERS = {"config": {"num_hidden_layers": 2, "initializer_range": 0.02}}
# So slow that the next losses show the kernels' rounding, and not what updates make of it.
SLOW = {"dropout": 0.1, "learning_rate": 1e-4, **TWO_LAYERS}


def trainer_of(**flags) -> jax_trainer.JaxTrainer:
    return by_jax.of_devices(make_trainer(compilation=by_jax.COMPILED, **SLOW, **flags))


def losses_of(trainer, task, num_steps: int, **given) -> np.ndarray:
    batches = iter(batches_of(task, **given))
    return trainer.train(batches, tf.constant(num_steps))[:, :3]


def assert_as_without_kernels(losses: np.ndarray, task, flags: dict, **given) -> None:
    expected = losses_of(trainer_of(**USUAL, **flags), task, len(losses), **given)
    # Of equal weights; then the roundings of bfloat16 are in the updates too.
    np.testing.assert_allclose(losses[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(losses, expected, rtol=2e-4)
    assert len(set(losses[:, 0])) == len(losses)


@pytest.mark.gate
@pytest.mark.usefixtures("compiles_quickly")
def test_aggregated_and_resumed_in_an_update(task, monkeypatch, tmp_path):
    flags = {"steps_per_update": 2, "clip_by_global_norm_after_gradient_allreduce": True}
    called, trainer = interpreted.install(monkeypatch), trainer_of(**KERNELS, **flags)
    batches = iter(batches_of(task))
    state = RunState(
        str(tmp_path), parts=trainer.state, keep_checkpoint_max=0, fetch=trainer.fetch_state
    )
    state.attach_input(batches)
    before = trainer.train(batches, tf.constant(3))[:, :3]
    path = state.save(3)
    after = trainer.train(batches, tf.constant(3))[:, :3]
    assert sorted(set(called)) == sorted(interpreted.KERNELS)
    assert_as_without_kernels(np.concatenate([before, after]), task, flags)

    trainer.fetch_state()
    weights = [each.numpy() for each in trainer.variables_to_train]
    state.restore(path)
    state.restore_input(batches)
    trainer.put_state()
    np.testing.assert_array_equal(trainer.train(batches, tf.constant(3))[:, :3], after)
    trainer.fetch_state()
    for one, other in zip(weights, trainer.variables_to_train):
        np.testing.assert_array_equal(one, other, err_msg=other.name)


# --- what refuses ---------------------------------------------------------------------------------

ON_GPUS = {"runtime": "jax", "num_gpus": 1, **KERNELS}
LARGE = BertConfig(**rules.BERT_LARGE)


@pytest.mark.parametrize("kernels", ["auto", "xla"])
def test_the_compilers_kernels_are_the_default(kernels):
    assert devices.with_runtime(run_config(kernels=kernels)).kernels == "xla"
    assert devices.with_runtime(run_config(**ON_GPUS)).kernels == "triton"


@pytest.mark.parametrize(
    "flags, by",
    [
        ({}, "tensorflow on a CPU"),
        ({"runtime": "jax"}, "jax on a CPU"),
        ({"use_tpu": True}, "jax on a TPU"),
    ],
)
def test_kernels_without_jax_on_gpus_are_told(flags, by):
    with pytest.raises(ValueError, match=f"^--kernels=triton needs GPUs and jax, .* by {by}; give"):
        devices.with_runtime(run_config(kernels="triton", **flags))


@pytest.mark.parametrize(
    "flags, config, message",
    [
        ({"precision": "float32"}, {}, "--precision=float32, but the kernels compute in bfloat16"),
        ({"precision": "tf32"}, {}, "--precision=tf32, but"),
        ({"max_seq_length": 500}, {}, "--max_seq_length=500 is not a multiple of 64"),
        ({}, {"num_attention_heads": 8}, "8 heads of 128, but the kernels are for 16 of 64"),
        ({}, {"hidden_size": 512}, "16 heads of 32, but the kernels are for 16 of 64"),
    ],
)
def test_what_the_kernels_are_not_made_for_is_told(flags, config, message):
    run = run_config(**{"max_seq_length": 512, **ON_GPUS, **flags})
    with pytest.raises(ValueError, match=f"^--kernels=triton: {message}.*, or give --kernels=xla$"):
        checks._require_kernels(run, BertConfig(**rules.BERT_LARGE | config))
    checks._require_kernels(run_config(max_seq_length=512, **ON_GPUS), LARGE)


def device(platform: str, kind: str, capability: str | None = None, version: str = "cuda 12090"):
    given = {"compute_capability": capability} if capability else {}
    client = types.SimpleNamespace(platform_version=version)
    return types.SimpleNamespace(platform=platform, device_kind=kind, client=client, **given)


@pytest.mark.parametrize(
    "given, obstacle",
    [
        (device("cpu", "cpu"), "a cpu is not an NVIDIA GPU"),
        (device("tpu", "TPU v3"), "a tpu is not an NVIDIA GPU"),
        (device("gpu", "AMD MI300", version="rocm 7"), "a gpu is not an NVIDIA GPU"),
        (device("gpu", "Tesla V100", "7.0"), "Tesla V100 has compute capability 7.0, below 8.0"),
        (device("gpu", "NVIDIA A100", "8.0"), None),
        (device("gpu", "NVIDIA B200", "10.0"), None),
    ],
)
def test_devices_that_cannot_run_the_kernels(given, obstacle, monkeypatch):
    assert jax_step.obstacle_to_kernels(given) == obstacle
    monkeypatch.setattr(jax, "devices", lambda kind=None: [given])
    monkeypatch.setattr(given, "process_index", 0, raising=False)
    if obstacle and given.platform == "gpu":
        with pytest.raises(ValueError, match=f"^--kernels=triton: {obstacle}; give --kernels=xla$"):
            devices.create(run_config(**ON_GPUS))


def test_what_xla_refuses_names_the_way_back():
    trainer = object.__new__(jax_trainer.JaxTrainer)
    trainer._compiled, trainer._calls = {}, ["__gpu$xla.gpu.triton"]

    class Refused:
        def compile(self):
            raise jax.errors.JaxRuntimeError("INTERNAL: Failed to parse Triton module\nmore")

    trainer.lowered = lambda batches: [(8, Refused())]
    message = (
        r"^--kernels=triton: XLA of jax \S+ does not compile them \(INTERNAL: Failed to parse "
    )
    with pytest.raises(ValueError, match=message + r"Triton module\); give --kernels=xla$"):
        trainer.compile([{"input_ids": tf.zeros([8])}])


@pytest.mark.gate
def test_an_exported_step_names_its_kernels_and_runs_on_no_cpu(tmp_path):
    folder = tmp_path / "step"
    programs_by_hand.export_with_kernels(tmp_path, folder)
    signature = json.loads((folder / "signature.json").read_text())
    [entry] = signature["programs"]
    assert entry["calls"] == ["__gpu$xla.gpu.triton"] and signature["recorded"]["training"]
    done = programs.run(sys.executable, folder / "run_step.py", folder)
    *_, line = done.stderr.splitlines()
    assert done.returncode == 1 and "Traceback" not in done.stderr
    wanted = r"run_step.py: \S+: it calls kernels, and a cpu is not an NVIDIA GPU; export it with "
    assert re.fullmatch(wanted + "--kernels=xla", line)
