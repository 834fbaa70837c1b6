"""Processes that jax connects: one is lost, fails, is late, is another; small ones, on loopback."""

import dataclasses
import json
import re
import signal
import sys
import time

import pytest
from jax._src.clusters import cloud_tpu_cluster

from benchmarks.processes import environment_of, free_addresses
from mlperf_bert.training import processes, workers
from mlperf_bert.training.config import Cluster
from tests.helpers import starts, waiting

SECONDS_TO_END = 60
AGAIN = "; run the same command on all processes, to go on from the last checkpoint if there is one"
# So that what is silent is lost soon; a busy machine is never silent for so long by itself.
SOON = {"SILENT_SECONDS": 6, "_SILENT_AFTER_A_FAILURE": 2}

gate = pytest.mark.gate


def start(folder, number: int, **options) -> list[starts.Start]:
    """So many members."""
    (folder / "options.json").write_text(json.dumps({"steps": 10**6, "limits": SOON} | options))
    command = [sys.executable, "tests/training/jax_member.py", folder / "options.json"]
    return starts.workers([command] * number)


def wait_until_all_train(started) -> None:
    for each in started:
        waiting.until(lambda: "trains" in each.output(), *started)  # noqa: B023


def line_of(ended: tuple[int, str, str]) -> str:
    """What a process has said at its end, in one line without its own name."""
    code, _, errors = ended
    [line] = [line for line in errors.splitlines() if line.startswith("jax_member.py: ")]
    # C++ says why it calls abort() in a line with an F.
    assert code == 1 and not re.search(r"Traceback|^F\d{4} ", errors, re.M), errors
    return line.removeprefix("jax_member.py: ")


@gate
@pytest.mark.parametrize("late", [0, 1])
def test_processes_end_together_when_all_have_done_their_part(tmp_path, late):
    """The chief's table is there until the other has done its part, and the other waits for it."""
    started = start(tmp_path, 2, steps=5, **{str(late): {"goes_on": 2}})
    waiting.until(lambda: "goes on" in started[late].output(), *started)
    time.sleep(1)
    assert [each.poll() for each in started] == [None, None]
    assert [(code, errors) for code, _, errors in starts.ends(started)] == [(0, "")] * 2


@gate
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_process_ends_the_others_with_its_name(tmp_path, number, victim):
    started = start(tmp_path, 3)
    wait_until_all_train(started)
    time.sleep(1.5)  # until each has told the others that it is not silent for long any more
    started[victim].send_signal(number)
    others = [each for index, each in enumerate(started) if index != victim]
    try:
        lines = set(map(line_of, starts.ends(others, seconds=SECONDS_TO_END)))
    finally:
        started[victim].kill()
    for line in lines:
        assert line.startswith(f"worker {victim} (localhost:") and line.endswith(AGAIN)
        assert "does not answer (" in line
    assert victim == 0 or len(lines) == 1


@gate
@pytest.mark.parametrize("victim", [0, 1])
def test_a_failure_is_told_to_the_others(tmp_path, victim):
    ended = starts.ends(start(tmp_path, 3, **{str(victim): {"fails_at": 3}}))
    lines = list(map(line_of, ended))
    assert lines.pop(victim) == "disk is full"
    for line in lines:
        assert line.startswith(f"worker {victim} (localhost:")
        assert line.endswith(f"has ended: disk is full{AGAIN}")


@gate
@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.all)])
def test_a_run_that_is_suspended_as_a_whole_goes_on(tmp_path, first):
    """The one that goes on first is alone for a moment, as it was before."""
    started = start(tmp_path, 2, steps=150)
    wait_until_all_train(started)
    in_order = (started[first], started[1 - first])
    for each in reversed(in_order):
        time.sleep(1.5)
        each.send_signal(signal.SIGSTOP)
    time.sleep(SOON["SILENT_SECONDS"] + 2)
    for each in in_order:
        each.send_signal(signal.SIGCONT)
        time.sleep(1)
    assert [code for code, _, _ in starts.ends(started)] == [0, 0]


def start_alone(folder, index: int, **limits) -> tuple[starts.Start, str]:
    """One of two members, whose other has ended after both have met; and the chief's address."""
    addresses = free_addresses(2)
    (folder / "options.json").write_text(json.dumps({"steps": 1, "limits": limits}))
    command = [sys.executable, "tests/training/jax_member.py", folder / "options.json"]
    return starts.Start(command, env=environment_of(addresses, index)), addresses[0]


@gate
@pytest.mark.parametrize(("index", "reason"), [(0, ""), (1, " (Connection refused)")])
def test_a_process_that_is_alone_does_not_wait_for_ever(tmp_path, index, reason):
    started, chief = start_alone(tmp_path, index, CONNECTING_SECONDS=3)
    line = line_of(starts.ends([started])[0])
    assert line == (
        f"not all processes are connected within 3 s{reason}; see what the others say, and that "
        f"every host can connect to worker 0 ({chief})"
    )


@gate
@pytest.mark.parametrize("index", [1, pytest.param(0, marks=pytest.mark.all)])
def test_ctrl_c_ends_a_process_that_waits_for_the_others(tmp_path, index):
    started, _ = start_alone(tmp_path, index)
    try:
        waiting.until(lambda: "connects" in started.output(), started)
        time.sleep(0.5)
        started.send_signal(signal.SIGINT)
        assert started.wait(timeout=SECONDS_TO_END) == 128 + signal.SIGINT
    finally:
        started.kill()


@gate
def test_other_devices_are_named(tmp_path):
    for ended in starts.ends(start(tmp_path, 2, **{"1": {"devices": 1}})):
        line = line_of(ended)
        assert line.startswith("worker 1 (localhost:")
        assert line.endswith("has 1 x cpu, the chief 2 x cpu; give all processes the same devices")


def test_of_processes_with_another_jax_that_is_named(config, monkeypatch):
    config = dataclasses.replace(config, runtime="jax")
    here = processes.compared(config)
    monkeypatch.setattr(processes.importlib.metadata, "version", lambda _: "0.1")
    there = processes.compared(config)
    assert [name for name in here if here[name] != there[name]] == ["jax"]


@pytest.fixture
def tpus(monkeypatch):
    """What jax knows of TPUs, on a host that has one."""
    monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
    for name in ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES", "TPU_SKIP_MDS_QUERY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MEGASCALE_COORDINATOR_ADDRESS", "")
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "")
    monkeypatch.setenv("MEGASCALE_SLICE_ID", "")
    return monkeypatch


def test_the_hosts_of_a_tpu_of_kubernetes(tpus):
    tpus.setenv("TPU_WORKER_HOSTNAMES", "tpu-0.svc,tpu-1.svc")
    tpus.setenv("TPU_WORKER_ID", "1")
    cluster = workers.read_cluster({}, use_tpu=True)
    assert cluster == Cluster(("tpu-0.svc:8482", "tpu-1.svc:8482"), 1)
    assert workers.read_cluster({}) is None
    tpus.setenv("TPU_WORKER_HOSTNAMES", "tpu-0.svc")
    assert workers.read_cluster({}, use_tpu=True) is None


METADATA = {
    "agent-worker-number": "2",
    "worker-network-endpoints": "a:0:10.0.0.2,b:1:10.0.0.3,c:2:10.0.0.4",
    "tpu-env": "ACCELERATOR_TYPE: 'v3-32'\n",
}


def test_the_hosts_of_a_tpu_vm(tpus):
    tpus.setattr(cloud_tpu_cluster, "get_metadata", lambda key: (METADATA[key], 200))
    cluster = workers.read_cluster({}, use_tpu=True)
    assert cluster == Cluster(("10.0.0.2:8482", "10.0.0.3:8482", "10.0.0.4:8482"), 2)
    assert cluster.name(1) == "worker 1 (10.0.0.3:8482)"
    # Who sets TF_CONFIG names the processes.
    assert workers.read_cluster({"TF_CONFIG": "{}"}, use_tpu=True) is None


def test_several_tpus_are_refused(tpus):
    tpus.setattr(cloud_tpu_cluster, "get_metadata", lambda key: (METADATA[key], 200))
    tpus.setenv("MEGASCALE_NUM_SLICES", "2")
    with pytest.raises(ValueError, match=r"this is one of 2 TPUs that work together; use one$"):
        workers.read_cluster({}, use_tpu=True)


def test_a_tpu_whose_hosts_are_not_found_is_told_in_one_line(tpus):
    def fail(key):
        raise OSError("metadata.google.internal: Name or service not known")

    tpus.setattr(cloud_tpu_cluster, "get_metadata", fail)
    with pytest.raises(ValueError, match=r"does not find the hosts of this TPU \(metadata.*; set"):
        workers.read_cluster({}, use_tpu=True)


def test_a_host_without_a_tpu_is_alone():
    assert workers.read_cluster({}, use_tpu=True) is None
