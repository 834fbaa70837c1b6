"""Several processes: how they are named, how they agree, and how the end of one ends all.

Real ones, on loopback, are in test_faults.py.

Long because each way to name processes, to agree and to end has its test.
"""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from mlperf_bert.signals import Interrupted
from mlperf_bert.training import devices, workers
from mlperf_bert.training.config import Cluster, DeviceConfig
from mlperf_bert.training.devices import Devices
from mlperf_bert.training.workers import read_cluster


def tf_config(cluster, kind="worker", index=0) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


TWO = {"worker": ["a:1", "b:1"]}
TFJOB = {"worker": ["w0:2222", "w1:2222"], "chief": ["c:2222"]}
MASTER = {"worker": ["a:1"], "master": ["c:1"]}
WITH_CHIEF = ("c:2222", "w0:2222", "w1:2222")
BRACKETED = ["a:1", "[::1]:22", "[fe80::1%eth0]:3"]
SLURM = {
    "SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "11",
    "SLURM_STEP_NUM_NODES": "2", "SLURM_LOCALID": "3",
}  # fmt: skip
OPEN_MPI = {
    f"OMPI_COMM_WORLD_{name}": number
    for name, number in {"SIZE": "4", "RANK": "3", "LOCAL_SIZE": "2", "LOCAL_RANK": "1"}.items()
}


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({}, None),
        ({"TF_CONFIG": "{}"}, None),
        (tf_config({"worker": ["a:1"]}), None),
        (tf_config(TWO, index=1), Cluster(2, 1, 2, 1, 0, ("a:1", "b:1"))),
        (tf_config(TFJOB, "chief"), Cluster(3, 0, 3, 1, 0, WITH_CHIEF)),
        (tf_config(TFJOB, "worker", 1), Cluster(3, 2, 3, 1, 0, WITH_CHIEF)),
        (tf_config(MASTER, "master"), Cluster(2, 0, 2, 1, 0, ("c:1", "a:1"))),
        (tf_config({"worker": BRACKETED}), Cluster(3, 0, 3, 1, 0, tuple(BRACKETED))),
        (
            tf_config({"worker": ["a:1", "b:1", "a:2"]}, index=2),
            Cluster(3, 2, 2, 2, 1, ("a:1", "b:1", "a:2")),
        ),
        (SLURM, Cluster(16, 11, 2, 8, 3)),
        (OPEN_MPI, Cluster(4, 3, 2, 2, 1)),
        (OPEN_MPI | SLURM, Cluster(16, 11, 2, 8, 3)),  # srun, in a job of mpirun
        (SLURM | tf_config(TWO), Cluster(2, 0, 2, 1, 0, ("a:1", "b:1"))),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, None),
        ({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}, None),  # in a batch script, not under srun
    ],
)
def test_processes_are_those_of_tf_config_or_of_a_launcher(environment, expected):
    assert read_cluster(environment) == expected
    assert expected is None or expected.is_chief == (expected.index == 0)


DOES_NOT_FIT = r"launcher are .*\(.*{}.* srun .* set TF_CONFIG$"
TWICE = r"a:1 appears twice: give every process its own port"
BAD_ENVIRONMENTS = {  # values of other types are drawn in tests/test_damaged_files.py
    "no JSON": ({"TF_CONFIG": "{cluster"}, r"TF_CONFIG is not as expected \(.*should look like"),
    "a host twice": (tf_config({"worker": ["a:1", "a:1"]}), TWICE),
    "a host in two jobs": (tf_config({"chief": ["a:1"], "worker": ["a:1"]}), TWICE),
    "no port": (tf_config({"worker": ["a", "b:1"]}), r"'a' is not host:port"),
    "an IPv6 address without brackets": (
        tf_config({"worker": ["::1:1", "b:1"]}),
        r"'::1:1' is not host:port",
    ),
    "a port too high": (
        tf_config({"worker": ["a:65536", "b:1"]}),
        r"'a:65536' is not host:port",
    ),
    "a parameter server": (
        tf_config({**TWO, "ps": ["c:1"]}),
        r"'ps': every process here is a chief",
    ),
    "an index too high": (tf_config(TWO, index=2), r"'worker' 2, which is not in its cluster"),
    "no task": ({"TF_CONFIG": json.dumps({"cluster": TWO})}, r"None 0, which is not in its"),
    "a rank too high": (
        SLURM | {"SLURM_PROCID": "16"},
        DOES_NOT_FIT.format("SLURM_PROCID=16 of SLURM_STEP_NUM_TASKS=16"),
    ),
    # 13 on one host and 3 on the other, say.
    "a local rank too high": (SLURM | {"SLURM_LOCALID": "8"}, "the same number on each host"),
    "no rank": (SLURM | {"SLURM_PROCID": "x"}, DOES_NOT_FIT.format("invalid literal")),
    "no nodes": (SLURM | {"SLURM_STEP_NUM_NODES": "0"}, DOES_NOT_FIT.format("division")),
    "no local rank": (
        {name: SLURM[name] for name in SLURM if name != "SLURM_LOCALID"},
        DOES_NOT_FIT.format("'SLURM_LOCALID' is missing"),
    ),
}


@pytest.mark.parametrize("case", BAD_ENVIRONMENTS)
def test_a_bad_environment_is_told_in_one_line(case):
    environment, message = BAD_ENVIRONMENTS[case]
    with pytest.raises(ValueError, match=message) as error:
        read_cluster(environment)
    assert "\n" not in str(error.value)


def test_processes_compare_flags_sizes_of_both_kinds_of_data_and_the_model(config, tmp_path):
    (tmp_path / "part-1").write_bytes(b"another size")
    (tmp_path / "eval").write_bytes(b"another")
    (tmp_path / "bert_config.json").write_text('{"vocab_size":\n  7}')
    found = workers.to_compare(dataclasses.replace(config, cluster=TWO_HOSTS))
    assert found == workers.to_compare(config)
    assert found["data of --input_file"] == {f"{tmp_path}/part-0": 9, f"{tmp_path}/part-1": 12}
    assert found["data of --eval_input_file"] == {f"{tmp_path}/eval": 7}
    assert found["content of --bert_config_file"] == '{"vocab_size": 7}'
    assert found["jax"] == jax.__version__ and found["kind of devices"] == "cpu"
    assert {field.name for field in dataclasses.fields(config)} - found.keys() == {"cluster"}
    assert {"TensorFlow", "sources of mlperf_bert", "number of devices"} <= found.keys()
    absent = dataclasses.replace(config, bert_config_file=f"{tmp_path}/absent")
    assert workers.to_compare(absent)["content of --bert_config_file"] == "no such file"


def test_what_cannot_be_read_is_compared_as_its_refusal(config, tmp_path):
    """Each process says it, and `why_not` compares the words."""
    (tmp_path / "bert_config.json").write_bytes(b"\x1f\x8b\x08")
    absent = dataclasses.replace(config, input_file=f"{tmp_path}/none*", eval_input_file=None)
    found = workers.to_compare(absent)
    told = f"--input_file: no file matches '{tmp_path}/none*'; make TFRecords"
    assert found["data of --input_file"].startswith(told)
    assert found["data of --eval_input_file"] == {}
    assert "is compressed by gzip" in found["content of --bert_config_file"]
    folder = dataclasses.replace(config, bert_config_file=str(tmp_path))
    told = workers.to_compare(folder)["content of --bert_config_file"]
    assert "is not a regular file" in told


TWO_HOSTS = Cluster(2, 1, 2, 1, 0, ("a:1", "b:1"))


def said(host: str, **changed) -> dict:
    """What a process says of itself."""
    data = {f"part-{n}": 9 for n in range(500)}
    return {"host": host, "obstacle": None} | {"compared": {"rate": 1, "data": data}} | changed


def test_a_difference_is_named_and_of_a_table_only_what_differs():
    other = {"rate": 2, "data": said("c")["compared"]["data"] | {"part-7": 8}}
    assert workers.why_not([said("a"), said("b")]) is None
    assert workers.why_not([said("a"), said("b"), said("c", compared=other)]) == (
        "process 2 (c) was started differently (rate: 1 on the chief, 2 there; data: part-7=9 on "
        "the chief, part-7=8 there); give all processes the same flags, data and software"
    )
    obstacle = "--num_gpus=8, but jax sees 4 GPUs"
    assert (
        workers.why_not([said("a"), said("b", obstacle=obstacle)]) == f"process 1 (b): {obstacle}"
    )


def test_processes_compare_the_sources_of_the_package(monkeypatch):
    """What each file holds, and where it is; not what Python compiles of it."""
    before, read = workers.digest_of_sources(), Path.read_bytes
    assert before == workers.digest_of_sources()
    for name, is_another in (
        ("optimizers.py", True),
        ("norm_forward.mlir", True),
        ("x.pyc", False),
    ):
        changed = lambda path, of=name: read(path) + b"#" * (path.name == of)  # noqa: E731
        monkeypatch.setattr(Path, "read_bytes", changed)
        assert (workers.digest_of_sources() != before) is is_another


@pytest.fixture
def together(monkeypatch):
    """Makes `process_allgather` answer as for two processes; the other says what is given."""
    others: list = []

    def gather(own):
        text = np.frombuffer(json.dumps(others[0]).encode(), np.uint8)
        if own.dtype != np.uint8:
            return np.stack([own, [len(text)]])
        size = len(own)
        return np.stack([own, np.pad(text[:size], (0, size - len(text[:size])))])

    from jax.experimental import multihost_utils

    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    return others


@pytest.mark.parametrize("other", ["short", {"long": "text" * 99}])
def test_what_processes_say_may_have_any_length(together, other):
    together.append(other)
    assert workers.exchange({"a": [1, None]}) == [{"a": [1, None]}, other]


@pytest.fixture
def initialized(monkeypatch, config):
    """Connects with nobody, and returns what jax was given; `fails` is what it raises."""

    def connect(cluster, environment=None, fails=None, **device):
        given, updated = {}, {}
        monkeypatch.setattr(workers.os, "environ", environment if environment is not None else {})
        monkeypatch.setattr(jax.config, "update", updated.__setitem__)

        def initialize(**options):
            # jax neither takes Python's signals nor warns of proxies.
            names = ("jax_enable_preemption_service", "jax_check_proxy_envs")
            assert updated == dict.fromkeys(names, False)
            given.update(options)
            if fails:
                raise fails

        monkeypatch.setattr(jax.distributed, "initialize", initialize)
        run = dataclasses.replace(config, cluster=cluster, device=DeviceConfig(**device))
        return workers._connect(run), given

    return connect


TIMES = {"initialization_timeout": 300, "heartbeat_timeout_seconds": 20}


def test_jax_is_told_what_the_environment_says_and_finds_the_rest(initialized, capsys):
    environment = {"https_proxy": "proxy:3128"}
    cluster = Cluster(3, 0, 2, 2, 0, ("a:1", "[fe80::1]:22", "a:2"))
    found, given = initialized(cluster, environment)
    assert found == cluster
    assert given == TIMES | {"num_processes": 3, "process_id": 0, "coordinator_address": "a:1"}
    assert environment == {"https_proxy": "proxy:3128", "no_grpc_proxy": "a,fe80::1,127.0.0.1"}
    assert capsys.readouterr().out == "waiting up to 300 s for 2 other processes at a:1\n"
    initialized(cluster, own := {"no_grpc_proxy": "given"})
    assert own == {"no_grpc_proxy": "given"} and capsys.readouterr().out
    of_slurm = Cluster(16, 11, 2, 8, 3)
    _, given = initialized(of_slurm, num_gpus=1)
    expected = {"num_processes": 16, "process_id": 11, "local_device_ids": [3]}
    assert given == TIMES | expected
    assert capsys.readouterr().out == "waiting up to 300 s for 15 other processes\n"
    assert initialized(None) == (None, {})


def test_the_processes_of_a_tpu_are_those_that_jax_finds(initialized, monkeypatch, capsys):
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    monkeypatch.setattr(jax, "process_index", lambda: 2)
    assert initialized(None, use_tpu=True) == (Cluster(4, 2, 4, 1, 0), TIMES)
    assert "for the other hosts of the TPU" in capsys.readouterr().out
    monkeypatch.setattr(jax, "process_count", lambda: 1)
    assert initialized(None, use_tpu=True)[0] is None
    no_tpu = ValueError("coordinator_address should be defined.")
    assert initialized(None, use_tpu=True, fails=no_tpu)[0] is None


@pytest.mark.parametrize("cluster", [TWO_HOSTS, None])
def test_processes_that_are_not_connected_are_told_in_one_line(initialized, monkeypatch, cluster):
    """Also those of a TPU: none goes on alone."""
    monkeypatch.setattr(workers.atexit, "register", lambda _: None)
    refused = RuntimeError("UNKNOWN: Failed to add port to server\nmore")
    with pytest.raises(OSError, match=r"^the processes are not connected: UNKNOWN: .* server$"):
        initialized(cluster, fails=refused, use_tpu=not cluster)


@pytest.mark.parametrize(
    "cluster, visible, expected",
    [
        (Cluster(2, 1, 2, 1, 0), None, [0, 1]),  # one on each host
        (Cluster(16, 11, 2, 8, 3), None, [6, 7]),
        (Cluster(16, 11, 2, 8, 3), "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", [6, 7]),
        (Cluster(16, 11, 2, 8, 3), "6,7", [0, 1]),  # Slurm shows each its own
    ],
)
def test_processes_of_one_host_share_its_gpus(config, cluster, visible, expected):
    device = DeviceConfig(num_gpus=2)
    run = dataclasses.replace(config, device=device, cuda_visible_devices=visible)
    assert workers.own_gpus(run, cluster) == expected


LOST = jax.errors.JaxRuntimeError("UNAVAILABLE: Connection reset by peer\nmore")
FULL = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")


@pytest.mark.parametrize("is_alone", [True, False])
def test_however_a_run_ends_its_directory_is_free_and_no_process_waits_for_one_that_is_lost(
    monkeypatch, is_alone
):
    told = []
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: told.append("shutdown"))
    monkeypatch.setattr(workers.atexit, "register", lambda what: told.append(what.__name__))
    cluster = None if is_alone else TWO_HOSTS
    team = workers.Team(
        cluster=cluster, output=SimpleNamespace(release=lambda: told.append("release")),
        seed=0, was_started_before=True, latest_step=5,
    )  # fmt: skip
    for error, then in (
        (None, "shutdown"),
        (Interrupted("SIGTERM"), "shutdown"),
        (FloatingPointError("NaN"), "shutdown"),
        (OSError("disk is full"), "_end_at_once"),
        (KeyboardInterrupt("Ctrl-C"), "_end_at_once"),
        (FULL, "_end_at_once"),
        (LOST, "_end_at_once"),
        (ValueError("UNKNOWN: Gloo AllGather failed"), "_end_at_once"),
    ):
        told.clear()
        raised = None
        try:
            with team.ending_together():
                if error:
                    raise error
        except BaseException as caught:
            raised = caught
        assert told == ["release"] * bool(error) + [then] * (not is_alone), error
        if not is_alone and ("Gloo" in str(error) or error is LOST):
            assert isinstance(raised, OSError)
            reason = str(error).splitlines()[0]
            assert str(raised) == f"another process was lost ({reason}); start all again"
        else:
            assert raised is error


def test_a_team_goes_on_from_a_checkpoint():
    def has_checkpoint(started, step):
        return workers.Team(
            cluster=None, output=None, seed=0, was_started_before=started, latest_step=step
        ).has_checkpoint

    every = [(started, step) for started in (True, False) for step in (None, 0, 5)]
    assert [each for each in every if has_checkpoint(*each)] == [(True, 0), (True, 5)]


@pytest.mark.parametrize("index", [0, 1])
def test_only_the_chief_writes(index, capsys):
    published = []
    output = SimpleNamespace(log_path=lambda: "log", publish=lambda: published.append(index))
    team = workers.Team(
        cluster=dataclasses.replace(TWO_HOSTS, index=index), output=output,
        seed=0, was_started_before=False, latest_step=None,
    )  # fmt: skip
    team.say("a line")
    team.publish()
    assert team.log_path() == (None if index else "log")
    assert (published, capsys.readouterr().out) == (([], "") if index else ([0], "a line\n"))


@pytest.mark.parametrize("cluster", [None, TWO_HOSTS])
def test_processes_agree_or_leave_the_directory_and_do_not_wait(monkeypatch, config, cluster):
    told, output = [], SimpleNamespace(release=lambda: told.append("release"))
    decision = {"seed": 7, "was_started_before": True, "latest_step": 5}
    monkeypatch.setattr(workers.atexit, "register", lambda what: told.append(what.__name__))
    monkeypatch.setattr(workers, "OutputDirectory", SimpleNamespace(of=lambda _: output))
    monkeypatch.setattr(workers, "_connect", lambda _: cluster)
    monkeypatch.setattr(workers, "_join", lambda *_: (Devices("mesh"), decision))
    monkeypatch.setattr(workers, "_claim", lambda *_: decision)
    found, team = workers.agree(config)
    assert found.cluster == team.cluster == cluster and (team.seed, team.latest_step) == (7, 5)
    assert team.devices == (cluster and Devices("mesh")) and not told

    def refuse(*_):
        raise ValueError("holds another run")

    monkeypatch.setattr(workers, "_join" if cluster else "_claim", refuse)
    with pytest.raises(ValueError, match=r"^holds another run$"):
        workers.agree(config)
    assert told == ["release"] + ["_end_at_once"] * bool(cluster)


def test_a_process_that_does_not_wait_ends_with_its_exit_code(monkeypatch):
    """Also if nobody reads what it prints."""

    def flush():
        flushed.append(True)
        raise BrokenPipeError

    flushed, codes = [], []
    monkeypatch.setattr(workers.os, "_exit", codes.append)
    monkeypatch.setattr(workers.messages, "exit_code", 75)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(workers.sys, name, SimpleNamespace(flush=flush))
    workers._end_at_once()
    assert (len(flushed), codes) == (2, [75])


@pytest.mark.parametrize("index", [0, 1])
def test_the_chief_decides_and_what_stops_one_is_told_by_all(monkeypatch, config, index):
    """The chief looks at the directory last, and only if nothing else is in the way."""
    asked, others, config = [], {"claim": None}, dataclasses.replace(config, seed=5)
    cluster = dataclasses.replace(TWO_HOSTS, index=index)
    monkeypatch.setattr(devices, "jax_devices", lambda _: Devices("mesh"))
    monkeypatch.setattr(workers, "to_compare", lambda _: {"rate": 1})

    def claim(_, seed):
        asked.append(seed)
        if others["claim"]:
            raise ValueError(others["claim"])
        return {"seed": 7}

    def exchange(own):
        if isinstance(own, dict):
            other = own | {"host": "other", "compared": others.get("compared", {"rate": 1})}
            return [own, other] if index == 0 else [other, own]
        return [own if index == 0 else [others["claim"], {"seed": 7}]]

    monkeypatch.setattr(workers, "_claim", claim)
    monkeypatch.setattr(workers, "exchange", exchange)
    assert workers._join(config, cluster, None) == (Devices("mesh"), {"seed": 7})
    assert asked == [5] * (index == 0)
    others["claim"] = "--output_dir holds another run"
    with pytest.raises(ValueError, match=r"^--output_dir holds another run$"):
        workers._join(config, cluster, None)
    asked.clear()
    others["compared"] = {"rate": 2}
    if index == 0:
        with pytest.raises(ValueError, match=r"^process 1 \(other\) was started differently"):
            workers._join(config, cluster, None)
        assert not asked

        def no_devices(_):
            raise ValueError("--num_gpus=8, but jax sees 4 GPUs")

        del others["compared"]
        monkeypatch.setattr(devices, "jax_devices", no_devices)
        with pytest.raises(ValueError, match=r"^process 0 \(.*\): --num_gpus=8, but jax sees 4 G"):
            workers._join(config, cluster, None)
        assert not asked
