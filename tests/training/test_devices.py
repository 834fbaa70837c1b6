"""Cluster environments: TF_CONFIG of all kinds, and what srun sets, as its manual describes it."""

import dataclasses
import json
import types
from pathlib import Path

import jax
import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.programs import jax_step
from mlperf_bert.training import devices, processes
from mlperf_bert.training.config import Cluster
from mlperf_bert.training.workers import read_cluster
from tests.training.configurations import run_config


def tf_config(cluster, kind="worker", index=0) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


TWO = {"worker": ["a:1", "b:1"]}


TFJOB = {"worker": ["w0:2222", "w1:2222"], "chief": ["c:2222"]}
WITH_CHIEF = ("c:2222", "w0:2222", "w1:2222")
BRACKETED = ["a:1", "[::1]:22", "[fe80::1%eth0]:3"]


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({}, None),
        ({"TF_CONFIG": "{}"}, None),
        (tf_config({"worker": ["a:1"]}), None),
        (tf_config(TWO, index=1), Cluster(("a:1", "b:1"), 1)),
        (tf_config(TFJOB, "chief"), Cluster(WITH_CHIEF, 0)),
        (tf_config(TFJOB, "worker", 1), Cluster(WITH_CHIEF, 2)),
        (tf_config({"worker": BRACKETED}), Cluster(tuple(BRACKETED), 0)),
    ],
)
def test_processes_of_tf_config(environment, expected):
    assert read_cluster(environment) == expected
    assert expected is None or expected.is_chief == (expected.index == 0)


BAD_CONFIGS = {
    "no JSON": ({"TF_CONFIG": "{cluster"}, r"TF_CONFIG is not as expected \(.*should look like"),
    "a list": ({"TF_CONFIG": "[1]"}, r"TF_CONFIG is not as expected"),
    "an index that is not a number": (tf_config(TWO, index="x"), r"is not as expected"),
    "a host twice": (
        tf_config({"worker": ["a:1", "a:1"]}),
        r"a:1 stands twice: give every process its own port",
    ),
    "a host in two jobs": (
        tf_config({"chief": ["a:1"], "worker": ["a:1"]}),
        r"a:1 stands twice: give every process its own port",
    ),
    "no port": (tf_config({"worker": ["a", "b:1"]}), r"'a' is not host:port"),
    "a table of hosts": (tf_config({"worker": {"0": "a:1"}}), r"'0' is not host:port"),
    "an IPv6 address without brackets": (
        tf_config({"worker": ["::1:1", "b:1"]}),
        r"'::1:1' is not host:port",
    ),
    "a port too high": (
        tf_config({"worker": ["a:65536", "b:1"]}),
        r"'a:65536' is not host:port",
    ),
    "a number": (tf_config({"worker": [1, "b:1"]}), r"1 is not host:port"),
    "a list as kind": (tf_config(TWO, kind=[]), r"is \[\] 0, which is not in its cluster"),
    "an infinite index": (tf_config(TWO, index=float("inf")), r"is not as expected"),
    "nested deeply": ({"TF_CONFIG": "[" * 100_000}, r"not JSON \(nested too deeply\)"),
    "a parameter server": (
        tf_config({**TWO, "ps": ["c:1"]}),
        r"'ps': every process here is a chief",
    ),
    "an index too high": (tf_config(TWO, index=2), r"'worker' 2, which is not in its cluster"),
    "no task": ({"TF_CONFIG": json.dumps({"cluster": TWO})}, r"None 0, which is not in its"),
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_bad_tf_config_is_told_in_one_line(case):
    environment, message = BAD_CONFIGS[case]
    with pytest.raises(ValueError, match=message) as error:
        read_cluster(environment)
    assert "\n" not in str(error.value)


def slurm(**changed) -> dict[str, str]:
    return {
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NODELIST": "gpu[07-08]",
        "SLURM_STEP_TASKS_PER_NODE": "2,1",
        "SLURM_JOB_ID": "10123",
        "SLURM_PROCID": "2",
    } | changed


def test_tasks_of_slurm():
    assert read_cluster(slurm()) == Cluster(("gpu07:20123", "gpu07:20124", "gpu08:20123"), 2)
    assert read_cluster(slurm() | tf_config(TWO)) == Cluster(("a:1", "b:1"), 0)
    hosts = {"SLURM_STEP_NODELIST": "n[2,10],b", "SLURM_STEP_TASKS_PER_NODE": "1(x3)"}
    # In the order of the tasks, not of the names.
    assert read_cluster(slurm(**hosts)).addresses == ("n2:20123", "n10:20123", "b:20123")
    assert read_cluster({"SLURM_JOB_ID": "1"}) is None  # in the batch script, not under srun


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, "task 2 of 3 in .*, 4 are in SLURM_STEP_NODELIST"),
        ({"SLURM_PROCID": "3"}, "this is task 3 of 3 .* with srun and its block distribution"),
        ({"SLURM_PROCID": "x"}, "Slurm's variables are not as expected .*start .* with srun"),
        ({"SLURM_STEP_NODELIST": "gpu[x-]"}, "Slurm's variables are not as expected"),
        ({"SLURM_STEP_NODELIST": "gpu[1-2].cluster"}, "not as expected .* set TF_CONFIG"),
    ],
)
def test_variables_of_slurm_that_do_not_fit_are_told(changed, message):
    with pytest.raises(ValueError, match=message):
        read_cluster(slurm(**changed))
    with pytest.raises(ValueError, match=r"not as expected \('SLURM_JOB_ID' is missing\)"):
        read_cluster({k: v for k, v in slurm().items() if k != "SLURM_JOB_ID"})


def test_processes_compare_flags_sizes_of_both_kinds_of_data_and_the_model(config, tmp_path):
    (tmp_path / "part-1").write_bytes(b"another size")
    (tmp_path / "eval").write_bytes(b"another")
    (tmp_path / "bert_config.json").write_text('{"vocab_size":\n  7}')
    compared = processes.compared(dataclasses.replace(config, cluster=Cluster(("a:1", "b:1"), 1)))
    flags = dataclasses.asdict(config)
    del flags["cluster"]
    assert compared == flags | {
        "TensorFlow": tf.__version__,
        "sources of mlperf_bert": processes._digest_of_sources(),
        "data of --input_file": {f"{tmp_path}/part-0": 9, f"{tmp_path}/part-1": 12},
        "data of --eval_input_file": {f"{tmp_path}/eval": 7},
        "content of --bert_config_file": '{"vocab_size": 7}',
    }
    absent = dataclasses.replace(config, bert_config_file=f"{tmp_path}/absent")
    assert processes.compared(absent)["content of --bert_config_file"] == "no such file"


def test_processes_compare_the_sources_of_the_package(monkeypatch):
    """What each file holds, and where it is; not what Python compiles of it."""
    before, read = processes._digest_of_sources(), Path.read_bytes
    assert before == processes._digest_of_sources()
    for name, is_another in (
        ("optimizers.py", True),
        ("norm_forward.mlir", True),
        ("x.pyc", False),
    ):
        changed = lambda path, of=name: read(path) + b"#" * (path.name == of)  # noqa: E731
        monkeypatch.setattr(Path, "read_bytes", changed)
        assert (processes._digest_of_sources() != before) is is_another


def test_processes_are_reached_without_a_proxy():
    environment = {"https_proxy": "proxy:3128"}
    processes.leave_out_proxies(environment, Cluster(("a:1", "[fe80::1]:22", "a:2"), 0))
    assert environment == {"https_proxy": "proxy:3128", "no_grpc_proxy": "a,fe80::1,127.0.0.1"}
    environment = {"no_grpc_proxy": "given"}
    processes.leave_out_proxies(environment, Cluster(("a:1", "b:1"), 0))
    assert environment == {"no_grpc_proxy": "given"}


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

    def jax_with(plugins: list[str], /, **found: int) -> None:
        def devices_of(platform):
            if platform not in found:
                raise RuntimeError(f"Unknown backend {platform}")
            return [types.SimpleNamespace(process_index=0) for _ in range(found[platform])]

        each = [types.SimpleNamespace(name=name) for name in plugins]
        monkeypatch.setattr(devices.importlib.metadata, "entry_points", lambda group: each)
        monkeypatch.setattr(jax, "devices", devices_of)

    return jax_with


@pytest.mark.parametrize(
    "flags, plugins, gpus, expected",
    [
        ({}, ["xla_cuda12"], 2, "tensorflow"),
        ({"num_gpus": 2}, ["xla_cuda12"], 2, "jax"),
        ({"num_gpus": 2}, ["rocm7"], 2, "jax"),
        ({"num_gpus": 2}, ["xla_cuda12"], 0, "jax"),  # the driver is too old, say: jax tells it
        ({"num_gpus": 2}, ["other"], 2, "jax"),
        ({"num_gpus": 2, "runtime": "tensorflow"}, ["xla_cuda12"], 2, "tensorflow"),
        ({"use_tpu": True}, [], 0, "jax"),
        ({"runtime": "jax"}, [], 0, "jax"),
    ],
)
def test_the_runtime_that_auto_means(jax_with, flags, plugins, gpus, expected):
    jax_with(plugins, **({"gpu": gpus} if gpus else {}))
    assert devices.with_runtime(run_config(**flags)).runtime == expected


def test_where_only_tensorflow_has_gpus_it_computes(jax_with, monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    for plugins, expected in ((["other"], "tensorflow"), (["xla_cuda12"], "jax")):
        jax_with(plugins)
        assert devices.with_runtime(run_config(num_gpus=2)).runtime == expected


def test_the_folder_of_jaxs_own_variable_is_the_runs(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")

    def kept_in(**flags):
        config = dataclasses.replace(run_config(**flags), jax_compilation_cache_dir="~/of jax")
        return devices.with_runtime(config).compilation_cache_dir

    assert kept_in(runtime="jax") == "/home/me/of jax"
    assert kept_in(runtime="jax", compilation_cache_dir="given") == "given"
    assert kept_in(runtime="tensorflow") is None
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
    jax_with(["xla_cuda12"])
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
    jax_with([], **found)
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


def test_a_runtime_that_cannot_be_had_is_told():
    with pytest.raises(ValueError, match=r"^--use_tpu needs --runtime=jax"):
        devices.with_runtime(run_config(use_tpu=True, runtime="tensorflow"))


def test_a_cpu_of_jax_is_named():
    chosen = devices.create(run_config(runtime="jax"))
    assert chosen.num_replicas == 1 and str(chosen) == f"1 x cpu by jax {jax.__version__}"
    of_two = types.SimpleNamespace(size=2, devices=np.repeat(chosen.mesh.devices, 2))
    assert str(chosen._replace(mesh=of_two)) == f"2 x cpu by jax {jax.__version__}"
