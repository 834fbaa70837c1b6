"""Which devices compute, by which runtime, and where what is compiled for them is kept."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from mlperf_bert.programs import jax_step
from mlperf_bert.training import devices
from mlperf_bert.training.config import Cluster
from tests.training.configurations import run_config


def test_gpus_whose_memory_others_hold_are_told_in_one_line(monkeypatch):
    def devices_of_jax(platform):
        raise RuntimeError(
            f"Unable to initialize {platform}: CUDA_ERROR_OUT_OF_MEMORY:\n out of memory"
        )

    monkeypatch.setattr(jax, "devices", devices_of_jax)
    with pytest.raises(
        ValueError, match=r"^--num_gpus=2: out of memory \(.*\); end other .*smi"
    ) as told:
        devices.create(run_config(runtime="jax", num_gpus=2))
    assert "\n" not in str(told.value)


@pytest.fixture
def jax_with(monkeypatch):
    """Makes jax find so many devices by platform; others raise, as jax's do."""

    def jax_with(**found: int) -> None:
        def devices_of(platform):
            if platform not in found:
                raise RuntimeError(f"Unknown backend {platform}")
            return [types.SimpleNamespace(process_index=0) for _ in range(found[platform])]

        monkeypatch.setattr(jax, "devices", devices_of)

    return jax_with


TWO_PROCESSES = Cluster(2, 0, 1, 2, 0)


@pytest.mark.parametrize(
    "flags, cluster, expected",
    [
        ({}, None, "tensorflow"),
        ({"runtime": "jax"}, None, "jax"),
        ({"num_gpus": 2}, None, "jax"),
        ({"use_tpu": True}, None, "jax"),
        ({}, TWO_PROCESSES, "jax"),
        ({"num_gpus": 2, "runtime": "tensorflow"}, None, "--num_gpus=2 needs jax"),
        ({"use_tpu": True, "runtime": "tensorflow"}, None, "--use_tpu needs jax"),
        ({"runtime": "tensorflow"}, TWO_PROCESSES, "several processes needs jax"),
    ],
)
def test_tensorflow_computes_on_one_cpu_and_jax_on_all_else(flags, cluster, expected):
    given = dataclasses.replace(run_config(**flags), cluster=cluster)
    if " " not in expected:
        assert devices.with_runtime(given).runtime == expected
        return
    with pytest.raises(ValueError, match=rf"^--runtime=tensorflow .*{expected}; leave --runtime"):
        devices.with_runtime(given)


def test_the_folder_of_jaxs_own_variable_is_the_runs(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")

    def cache_dir(**flags):
        config = dataclasses.replace(run_config(**flags), jax_compilation_cache_dir="~/of jax")
        return devices.with_runtime(config).compilation_cache_dir

    assert cache_dir(runtime="jax") == "/home/me/of jax"
    assert cache_dir(runtime="jax", compilation_cache_dir="given") == "given"
    assert cache_dir(runtime="tensorflow") is None
    assert devices.with_runtime(run_config(runtime="jax")).compilation_cache_dir is None
    with pytest.raises(ValueError, match=r"^--compilation_cache_dir=gs://b/c, or JAX_COMPILATION_"):
        devices.jax_devices(run_config(runtime="jax", compilation_cache_dir="gs://b/c"))


@pytest.fixture
def jax_set():
    """Sets what jax has read of its variables, until the test ends."""
    before = {}

    def jax_set(name: str, value: object) -> None:
        before.setdefault(name, getattr(jax.config, name, ""))
        jax.config.update(name, value)

    yield jax_set
    for name, value in before.items():
        jax.config.update(name, value)


def test_variables_of_jax_choose_no_other_devices_than_the_flags(jax_set, jax_with):
    jax_set("jax_platform_name", "gpu")
    chosen = devices.create(run_config(runtime="jax"))
    assert str(jax.jit(lambda: jax.numpy.ones(2))().devices()) == str({*chosen.mesh.devices.flat})
    jax_with()
    jax_set("jax_platforms", "cpu")
    with pytest.raises(ValueError, match=r"finds none \(Unknown .*; JAX_PLATFORMS=cpu\); check"):
        devices.create(run_config(runtime="jax", num_gpus=1))
    jax_set("jax_disable_jit", True)
    with pytest.raises(ValueError, match=r"^JAX_DISABLE_JIT: .* leave the variable out$"):
        devices.create(run_config(runtime="jax"))


@pytest.mark.parametrize(
    "flags, found, message",
    [
        ({"num_gpus": 3}, {"gpu": 2}, r"^--num_gpus=3, but jax sees 2 GPUs; lower it"),
        ({"num_gpus": 1}, {}, r"^--num_gpus=1: jax finds none \(Unknown .*\); check the driver"),
        ({"use_tpu": True}, {"tpu": 4}, r"^--num_tpu_cores=8, but jax sees 4; give that number$"),
        ({"use_tpu": True, "tpu_name": "t"}, {}, r"^--tpu_name=t: this machine has no TPU.* there"),
        ({"use_tpu": True, "num_gpus": 1}, {}, "^--use_tpu and --num_gpus exclude each other"),
    ],
)
def test_devices_that_jax_has_not_are_told_in_one_line(jax_with, flags, found, message):
    jax_with(**found)
    with pytest.raises(ValueError, match=message):
        devices.create(devices.with_runtime(run_config(**{"runtime": "jax"} | flags)))


@pytest.fixture
def two_processes(monkeypatch):
    """Makes jax find so many GPUs of each of two processes; returns what it is configured with."""

    def two_processes(*numbers: int) -> list[tuple]:
        every = [
            types.SimpleNamespace(process_index=index, name=f"{index}.{number}")
            for index, count in enumerate(numbers)
            for number in range(count)
        ]
        updates = []
        monkeypatch.setattr(jax, "devices", lambda kind: every)
        monkeypatch.setattr(jax_step, "mesh_of", lambda chosen: [each.name for each in chosen])
        monkeypatch.setattr(jax.config, "update", lambda *given: updates.append(given))
        return updates

    return two_processes


def test_every_process_gives_as_many_gpus_and_a_cpu_starts_none(two_processes):
    updates = two_processes(3, 2)
    chosen = devices.jax_devices(run_config(runtime="jax", num_gpus=2))
    assert chosen.mesh == ["0.0", "0.1", "1.0", "1.1"]
    assert updates == [("jax_platform_name", "")]
    with pytest.raises(ValueError, match=r"^--num_gpus=3, but jax sees 2 GPUs; lower it"):
        devices.jax_devices(run_config(runtime="jax", num_gpus=3))
    assert len(devices.jax_devices(run_config(runtime="jax")).mesh) == 5
    assert updates[2:] == [("jax_platforms", "cpu"), ("jax_platform_name", "")]


def test_what_is_compiled_is_kept_for_one_compiler_and_one_kind_of_processor(
    monkeypatch, tmp_path, two_processes
):
    text = "processor: {0}\nmodel name : {1}\nflags : fpu {2}\ncpu MHz : {0}\n"
    folders = []
    for version, *processor in (
        ("1", 0, "old", "sse"), ("1", 7, "old", "sse"),  # only the clock is another
        ("2", 0, "old", "sse"), ("1", 0, "new", "sse"), ("1", 0, "old", "avx"),
    ):  # fmt: skip
        monkeypatch.setattr(jax, "__version__", version)
        described = text.format(*processor)
        monkeypatch.setattr(devices.Path, "read_text", lambda _, of=described: of)
        updates = two_processes(1, 1)
        devices.jax_devices(run_config(runtime="jax", compilation_cache_dir=str(tmp_path)))
        kept = dict(updates)
        assert kept["jax_persistent_cache_min_compile_time_secs"] == 0
        folders.append(kept["jax_compilation_cache_dir"])
    assert len(set(folders)) == 4 and folders[0] == folders[1]
    assert sorted(set(folders)) == sorted(map(str, tmp_path.iterdir()))


def test_a_cpu_of_jax_is_named():
    chosen = devices.create(run_config(runtime="jax"))
    assert chosen.num_replicas == 1 and str(chosen) == f"1 x cpu by jax {jax.__version__}"
    of_two = types.SimpleNamespace(size=2, devices=np.repeat(chosen.mesh.devices, 2))
    assert str(devices.Devices(of_two)) == f"2 x cpu by jax {jax.__version__}"
