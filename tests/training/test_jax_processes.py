"""Processes that jax connects: one is lost, fails, is late, is another; small ones, on loopback."""

import dataclasses
import json
import re
import signal
import sys
import time
import types

import jax
import pytest
from jax._src.clusters import cloud_tpu_cluster

from benchmarks.processes import environment_of, free_addresses
from mlperf_bert.training import jax_processes, processes, workers
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
    time.sleep(1.5)  # until each has told the others that its long silence is over
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


class Table:
    """Jax's table of keys and values, where the other processes say at each look what is given."""

    def __init__(self, *looks: dict[str, str]):
        self.said, self._looks = {}, list(looks)

    def key_value_set(self, key, value, allow_overwrite=False):
        if key in self.said and not allow_overwrite:
            raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: {key}")
        self.said[key] = value

    def key_value_dir_get(self, prefix):
        self.said |= self._looks.pop(0)
        return [(key, value) for key, value in self.said.items() if key.startswith(prefix)]

    def exchange(self, connection) -> int:
        """How many looks are left at the end."""
        connection._exchange(self)
        return len(self._looks)


@pytest.fixture
def connected(monkeypatch):
    """Makes a process of three that is connected with nobody, and does not wait between looks."""
    monkeypatch.setattr(jax_processes.Connection, "_connect", lambda *_: None)
    monkeypatch.setattr(jax_processes.Connection, "_relay", lambda _: "")
    monkeypatch.setattr(jax_processes.Connection, "_watch", lambda _: None)
    monkeypatch.setattr(jax_processes.atexit, "register", lambda _: None)
    alone = types.SimpleNamespace(mesh=None)
    monkeypatch.setattr(jax_processes.devices, "jax_devices", lambda _: alone)
    monkeypatch.setattr(jax_processes, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(jax_processes, "_READING_SECONDS", 0.0)
    monkeypatch.setattr(jax_processes.threading.Event, "wait", lambda self, _=0: self.is_set())

    def connected(index: int) -> jax_processes.Connection:
        return jax_processes.Connection(None, Cluster(("a:1", "b:2", "c:3"), index))

    return connected


def beats(count: int, *, silent_is_2: bool = False) -> dict[str, str]:
    """What three processes say, of which the last may be silent for three seconds only."""
    return {
        "run/beat/0": f"{count}:9",
        "run/beat/1": f"{count}:300",
        "run/beat/2": f"{0 if silent_is_2 else count}:3",
    }


SILENT = "worker 2 (c:3) does not answer (silent for 3 s)"


@pytest.mark.parametrize("own", [0, 1])
def test_who_is_silent_for_longer_than_it_said_is_lost_and_the_chief_stays_until_all_know(
    connected, own
):
    connection = connected(own)
    other, quiet = 1 - own, [beats(count, silent_is_2=True) for count in range(1, 8)]
    # Its first count is new; the same three seconds long is as agreed, and one longer is not.
    table = Table(beats(0), *quiet, {f"run/left/{other}": "yes"}, {})
    left = table.exchange(connection)
    assert connection._lost == table.said["run/ended"] == SILENT
    assert table.said[f"run/left/{own}"] == "yes"
    # Lost after the fifth look, read at the sixth: a worker leaves then, the chief after the other.
    assert left == (1 if own == 0 else 4)
    with pytest.raises(jax_processes.Lost, match=r"^worker 2 \(c:3\) does not answer"):
        connection.call(pytest.fail)


@pytest.mark.parametrize("has_failed", [True, False])
def test_a_failure_or_a_step_shortens_how_long_anybody_may_be_silent(
    connected, monkeypatch, has_failed
):
    monkeypatch.setattr(jax_processes, "SILENT_SECONDS", 3)
    connection = connected(1)
    if has_failed:
        connection._others_may_be_silent = jax_processes._SILENT_AFTER_A_FAILURE
    else:
        connection.train(lambda: None)
    quiet = [{**beats(count), "run/beat/0": "0:300"} for count in range(1, 9)]
    Table(beats(0), *quiet).exchange(connection)
    assert connection._lost == "worker 0 (a:1) does not answer (silent for 3 s)"


def test_the_first_reason_is_the_one_that_all_are_told(connected):
    connection = connected(1)
    assert connection.pass_on(OSError("disk is full")) is None
    table = Table({"run/ended": "worker 2 (c:3) has ended: killed"})
    assert table.exchange(connection) == 0
    assert connection._lost == "worker 2 (c:3) has ended: killed"
    alone = connected(1)
    alone.pass_on(OSError("disk is full"))
    table = Table({})
    table.exchange(alone)
    assert table.said["run/ended"] == "worker 1 (b:2) has ended: disk is full"


def test_a_process_that_trains_says_that_it_is_not_silent_for_long(connected):
    """It leaves once the others have left; none of them is lost meanwhile, however quiet."""
    connection = connected(1)
    connection._leaves.set()
    left = [{}, {"run/left/2": "yes"}, {"run/left/0": "yes"}]
    before = Table(*left)
    assert before.exchange(connection) == 0 and before.said["run/beat/1"] == "2:300"
    connection = connected(1)
    assert connection.train(lambda value: value + 1, 2) == 3
    connection._leaves.set()
    training = Table(*left)
    training.exchange(connection)
    assert training.said["run/beat/1"] == "2:20" and connection._lost is None


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
