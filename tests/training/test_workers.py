"""Processes that meet in a folder: equal, different, missing; what TensorFlow says of a loss."""

import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from tensorflow import errors
from tensorflow.python.eager import context

from benchmarks.processes import environment_of, free_addresses
from mlperf_bert import signals
from mlperf_bert.training import jax_processes, processes, tensorflow_processes
from mlperf_bert.training.config import Cluster, DeviceConfig
from mlperf_bert.training.processes import Meeting
from tests.helpers import starts, waiting

ADDRESSES = ("a:1", "b:2", "c:3")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The folder that all processes share; it does not exist. They look for each other often."""
    monkeypatch.setattr(processes, "_LOOK_SECONDS", 0.01)
    return tmp_path / "a" / "run"


def meet_all(
    folder: Path,
    parameters: list[dict],
    *,
    decide=lambda: {"seed": 7},
    obstacles=(None, None, None),
    seconds=30.0,
    absent=(),
) -> list:
    """What every process gets: the decision, or the error's text. One thread stands for each."""
    found = [None] * len(parameters)

    def join(index):
        cluster = Cluster(ADDRESSES[: len(parameters)], index)
        try:
            held = Meeting(cluster, folder, seconds=seconds)
            found[index] = held.hold(parameters[index], obstacles[index], decide)
        except (ValueError, OSError) as error:
            found[index] = str(error)

    indices = [index for index in range(len(parameters)) if index not in absent]
    threads = [threading.Thread(target=join, args=(n,), name=str(n)) for n in reversed(indices)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 20)
        assert not thread.is_alive()
    assert not list(folder.glob("*")) + list(folder.glob(".*"))
    return found


def test_equal_processes_get_the_decision_of_the_chief(folder):
    asked = []
    found = meet_all(folder, [{"a": (1, 2)}] * 3, decide=lambda: asked.append(1) or {"seed": 7})
    assert found == [{"seed": 7}] * 3 and asked == [1]


def test_a_difference_is_named_on_every_process(folder):
    """Of a table only what differs."""
    given = [{"a": 1, "data": {f"part-{n}": 9 for n in range(500)}} for _ in range(3)]
    given[2] = {"a": 2, "data": given[2]["data"] | {"part-7": 8}}
    [line] = set(meet_all(folder, given))
    assert "worker 2 (c:3) was started differently (a: 1 on the chief, 2 there" in line
    assert "data: part-7=9 on the chief, part-7=8 there" in line


def test_what_stops_one_process_is_told_by_all(folder):
    def refuse():
        raise ValueError("--output_dir holds another run")

    assert meet_all(folder, [{}] * 3, decide=refuse) == ["--output_dir holds another run"] * 3
    obstacles = (None, "--num_gpus=8, but TensorFlow sees 4 GPUs", None)
    found = meet_all(folder, [{}] * 3, obstacles=obstacles, decide=pytest.fail)
    assert found == ["worker 1 (b:2): --num_gpus=8, but TensorFlow sees 4 GPUs"] * 3


def test_a_missing_process_is_named_in_time_by_all(folder, monkeypatch):
    """The time is over once the chief has read the sign of the process that is there."""
    signs = []

    def sleep(seconds):
        if threading.current_thread().name == "0":
            signs.append((folder / ".worker-1.json").exists())
        time.sleep(seconds)

    def monotonic():
        # The chief reads between two sleeps: a sign that is there at both has been read.
        return time.monotonic() + 100 * (signs.count(True) > 1)

    monkeypatch.setattr(processes, "time", types.SimpleNamespace(sleep=sleep, monotonic=monotonic))
    found = meet_all(folder, [{}] * 3, absent=[2], decide=pytest.fail)
    assert found[0].startswith(
        f"worker 2 (c:3) left no sign in --output_dir={folder} within 30 s; check that every "
        "process was started"
    )
    # It may be as long over as the chief, and then names the chief.
    assert found[1] == found[0] or "worker 0 (a:1), the chief, has " in found[1]


def test_a_missing_chief_is_named_in_time(folder):
    [_, line] = meet_all(folder, [{}] * 2, seconds=0.2, absent=[0])
    assert line.startswith(f"worker 0 (a:1), the chief, has not answered in --output_dir={folder}")


def test_a_chief_that_is_interrupted_ends_the_others_at_once(folder):
    met = threading.Event()

    def interrupt():
        met.set()
        raise KeyboardInterrupt

    def lead():
        with pytest.raises(KeyboardInterrupt):
            Meeting(Cluster(ADDRESSES[:2], 0), folder).hold({}, None, interrupt)

    thread = threading.Thread(target=lead)
    thread.start()
    with pytest.raises(OSError, match=r"^worker 0 \(a:1\), the chief, has ended; start all again$"):
        Meeting(Cluster(ADDRESSES[:2], 1), folder).hold({}, None, pytest.fail)
    thread.join()
    assert met.is_set()


def leave(folder: Path, index: int, content: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".worker-{index}.json"
    path.write_text(content)
    return path


# What a process has left that was killed, or something else.
LEFT = {
    "nothing of it": "",
    "no object": "[]",
    "another start": json.dumps({"token": "1", "chief": "2", "parameters": {}, "obstacle": None}),
    "another chief": json.dumps({"token": "1"}),
    "another answer": json.dumps({"token": "1", "3": 1, "problem": None, "decision": {"seed": 8}}),
    "an answer to nobody": json.dumps({"problem": None, "decision": {"seed": 8}}),
}


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("content", LEFT.values(), ids=LEFT)
def test_what_a_killed_process_has_left_is_no_sign_of_life(folder, content, index):
    path = leave(folder, index, content)
    found = meet_all_but(folder, index, path)
    assert "the chief, has not answered" in found if index == 0 else "left no sign" in found
    leave(folder, index, content)
    assert meet_all(folder, [{"a": 1}] * 2) == [{"seed": 7}] * 2


def meet_all_but(folder: Path, absent: int, left: Path) -> str:
    """The line of the process that is there, of two; the chief removes what is left over."""
    held = Meeting(Cluster(ADDRESSES[:2], 1 - absent), folder, seconds=0.2)
    with pytest.raises((OSError, ValueError)) as failure:
        held.hold({}, None, pytest.fail)
    assert left.exists() == (absent == 0)
    return str(failure.value)


def test_of_a_process_that_was_started_twice_one_is_refused(folder):
    """The later one writes over what the chief has compared: it is not meant by the answer."""
    found, file = [], folder / ".worker-1.json"

    def join():
        try:
            found.append(Meeting(Cluster(ADDRESSES[:2], 1), folder).hold({}, None, dict))
        except OSError as error:
            found.append(str(error))

    threads = [threading.Thread(target=join) for _ in range(2)]

    def decide():
        compared = file.read_text()
        threads[1].start()
        while file.read_text() == compared:
            time.sleep(0.01)
        return {"seed": 7}

    threads[0].start()
    assert Meeting(Cluster(ADDRESSES[:2], 0), folder).hold({}, None, decide) == {"seed": 7}
    for thread in threads:
        thread.join()
    assert found == [{"seed": 7}, "worker 0 (a:1), the chief, has ended; start all again"]


def test_a_process_that_ends_before_it_reads_the_answer_is_named(folder, monkeypatch):
    monkeypatch.setattr(processes, "_ANSWER_SECONDS", 0.2)
    ended = threading.Event()

    def take_part():
        chief = folder / ".worker-0.json"
        while not ended.is_set():
            if chief.exists() and not (folder / ".worker-1.json").exists():
                token = json.loads(chief.read_text())["token"]
                said = {"token": "1", "chief": token, "parameters": {}, "obstacle": None}
                leave(folder, 1, json.dumps(said))
            time.sleep(0.01)

    thread = threading.Thread(target=take_part)
    thread.start()
    try:
        with pytest.raises(ValueError, match=r"^worker 1 \(b:2\) has not read the answer"):
            Meeting(Cluster(ADDRESSES[:2], 0), folder).hold({}, None, dict)
    finally:
        ended.set()
        thread.join()


def test_a_folder_that_cannot_be_written_is_named(folder):
    folder.parent.write_text("a file")
    with pytest.raises(OSError, match=r"--output_dir=.*/a/run: Not a directory; give .* share"):
        Meeting(Cluster(ADDRESSES, 0), folder).hold({}, None, dict)


def test_what_others_put_into_the_folder_stays(folder):
    leave(folder, 7, "")
    theirs = folder / ".worker-7.json"
    with pytest.raises(ValueError, match="left no sign"):
        Meeting(Cluster(ADDRESSES, 0), folder, seconds=0.1).hold({}, None, dict)
    assert theirs.exists()


@pytest.mark.parametrize("runtime", [jax_processes, tensorflow_processes])
def test_a_port_in_use_is_named(runtime):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        obstacle = runtime.obstacle(DeviceConfig(), Cluster((f"localhost:{port}", "b:2"), 0))
    assert obstacle.startswith(f"cannot listen on port {port} (Address already in use); end the")
    assert runtime.obstacle(DeviceConfig(), Cluster((f"[::1]:{port}", "b:2"), 0)) is None


def test_devices_that_are_not_there_are_named_before_others_wait():
    cluster = Cluster((*free_addresses(1), "b:2"), 0)
    obstacle = tensorflow_processes.obstacle(DeviceConfig(num_gpus=99), cluster)
    assert "--num_gpus=99, but TensorFlow sees" in obstacle


# Of TensorFlow 2.21, as benchmarks/lost_processes.py and three processes saw them.
RECVBUF = (
    "Additional GRPC error information from remote target /job:worker/replica:0/task:{} while "
    "calling /tensorflow.WorkerService/RecvBuf:\n"
)
UNHEALTHY = "The following tasks are unhealthy (stopped sending heartbeats):"
ERRORS = {
    "killed": (
        "Graph execution error:\n\nCollective ops is aborted by: recvmsg:Connection reset by peer\n"
        + RECVBUF.format(1),
        "worker 1 (b:2) does not answer (recvmsg:Connection reset by peer)",
    ),
    "killed, and told by another": (
        "Collective ops is aborted by: Collective ops is aborted by: Socket closed\n"
        + RECVBUF.format(1)
        + RECVBUF.format(2),
        "worker 1 (b:2) does not answer (Socket closed)",
    ),
    "silent": (
        f"Collective ops is aborted by: Error reported from /job:worker/task:1: {UNHEALTHY}\n"
        "/job:worker/replica:0/task:1\nThe tasks have crashed.",
        "worker 1 (b:2) does not answer (Error reported from /job:worker/task:1: "
        f"{UNHEALTHY.rstrip(':')})",
    ),
    "a silent chief": (
        "Graph execution error:\n\nCollective ops is aborted by: Deadline Exceeded\n"
        "RPC: /tensorflow.CoordinationService/Heartbeat\n",
        "worker 0 (a:1) does not answer (Deadline Exceeded)",
    ),
    "failed": (
        "Graph execution error:\n\nDetected at node CollectiveReduceV2\n\n"
        "Collective ops is aborted by: Error reported from /job:worker/task:2: worker 2 (c:3) has "
        "ended: disk is full\n\t [[{{node CollectiveReduceV2}}]]",
        "worker 2 (c:3) has ended: disk is full",
    ),
    "failed, and told by its connection": (
        "Collective ops is aborted by: worker 0 (a:1) has ended: disk is full\n"
        + RECVBUF.format(0),
        "worker 0 (a:1) has ended: disk is full",
    ),
    "failed because of another": (
        "Collective ops is aborted by: Error reported from /job:worker/task:2: "
        "worker 0 (a:1) does not answer (Socket closed)\n",
        "worker 0 (a:1) does not answer (Socket closed)",
    ),
    "told in the graph of another task": (
        "Graph execution error:\n\nDetected at node 'CollectiveReduceV2' defined at "
        "/job:worker/replica:0/task:2/device:CPU:0\n\nCollective ops is aborted by: "
        "recvmsg:Connection reset by peer\n" + RECVBUF.format(1),
        "worker 1 (b:2) does not answer (recvmsg:Connection reset by peer)",
    ),
    "of its own": ("Graph execution error:\n\nOOM when allocating tensor", None),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_of_tensorflow_names_who_is_lost(case):
    error, expected = ERRORS[case]
    assert tensorflow_processes.loss(Cluster(ADDRESSES, 1), error) == expected


def test_a_report_that_nobody_can_receive_has_no_effect():
    with pytest.raises((ValueError, errors.OpError)):
        context.context().report_error_to_cluster(errors.ABORTED, "disk is full")
    tensorflow_processes.report("disk is full")


def test_a_report_is_told_to_tensorflow(monkeypatch):
    told = []
    monkeypatch.setattr(
        context.Context, "report_error_to_cluster", lambda _, *given: told.append(given)
    )
    tensorflow_processes.report("disk is full")
    assert told == [(errors.ABORTED, "disk is full")]


def test_signals_are_handled_again_once_all_are_connected():
    handlers = {number: lambda *_: None for number in signals.SIGNALS}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        with tensorflow_processes.connecting():
            assert {signal.getsignal(number) for number in handlers} == {signal.SIG_DFL}
        assert {number: signal.getsignal(number) for number in handlers} == handlers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(error_file: str) -> None:
    os.dup2(os.open(error_file, os.O_WRONLY | os.O_CREAT), 2)
    tensorflow_processes.CONNECTING_SECONDS = 0.2
    with tensorflow_processes.connecting():
        time.sleep(60)


def test_tensorflow_waits_for_the_others_so_long_only(tmp_path):
    process = multiprocessing.get_context("forkserver").Process(
        target=_wait, args=(str(tmp_path / "errors"),)
    )
    process.start()
    process.join(200)
    assert process.exitcode == 1
    assert "in _wait" in (tmp_path / "errors").read_text()


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port)).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.all
def test_ctrl_c_ends_a_process_while_tensorflow_waits_for_another(tmp_path):
    """After both have met, the other one has ended: TensorFlow calls no handler of Python then."""
    (tmp_path / "plan.json").write_text('{"cases": []}')
    addresses = free_addresses(2)
    program = [sys.executable, "tests/training/distributed_losses.py"]
    process = starts.Start(
        [*program, tmp_path / "plan.json", tmp_path / "found.json"],
        env=environment_of(addresses, 0),
    )
    try:
        host, _, port = addresses[0].rpartition(":")
        waiting.until(lambda: answers(host, int(port)), process)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == -signal.SIGINT
    finally:
        process.kill()
