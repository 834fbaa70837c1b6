"""Connections to the other processes of a run: made before TensorFlow starts, open until the end.

TensorFlow watches its processes too. Measured on loopback with TensorFlow 2.20 by
`python -m benchmarks.lost_processes`: seconds until the remaining process has ended.

    the other process             coordination service    check_health    this module
    is killed                     1.2                     1.3             0.2
    is stopped (SIGSTOP)          9                       58              12, by TensorFlow
    never starts                  not in 150              not in 150      300, with its name
    has another learning rate     both train to the end   the same        at the start
    has another batch size        an error of shapes at the first step    at the start

So this module leaves stopped processes to TensorFlow's coordination service, which is on by
default; `loss` only turns its error into one line. `meet` is needed: without it TensorFlow waits
for a missing process, and trains with different flags without an error. The connections stay open
for what TensorFlow does not report: which process is gone, why it failed ("disk is full"), and a
loss before all of TensorFlow's servers have connected. When a process dies its connections close,
and the others end at once with one line; the kernel notices a lost host after a minute. A process
that is stopped (SIGSTOP) between `meet` and the start of TensorFlow's servers is not noticed.

The chief reads all new connections at the same time, and accepts those that prove that they belong
to this run (run_key.py says how, and what this protects against). It ignores others with one line.
"""

import contextlib
import dataclasses
import json
import os
import re
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable

from mlperf_bert.files import paths
from mlperf_bert.training import run_key
from mlperf_bert.training.channel import Channel
from mlperf_bert.training.config import Cluster
from mlperf_bert.training.listening import listeners

MEETING_SECONDS = 300.0
_INTRODUCTION_SECONDS = 10.0
_RETRY_SECONDS = 0.2
_WATCH_SECONDS = 3.0
_MAX_UNKNOWN = 100  # connections that are not identified yet
_MAX_INTRODUCTION_BYTES = 4 << 10
_MAX_MESSAGE_BYTES = 64 << 20
_ABORTED = re.compile(r"Collective ops is aborted by: (.*)")
_TASK = re.compile(r"/job:worker/(?:replica:0/)?task:(\d+)")
_RESUME = "run the same command on all processes to resume from the last checkpoint"


class Peers:
    """The chief's connections to all other processes, or another process's one to the chief."""

    def __init__(self, cluster: Cluster, channels: dict[int, Channel]):
        """Takes over the open connections, by index of the process at the other end."""
        self._cluster = cluster
        self._channels = channels
        self._closing = threading.Event()
        self._lock = threading.Lock()

    def watch(self, *, on_loss: Callable[[], None]) -> None:
        """From now on the loss of a process ends this one: `on_loss`, one line, exit code 1."""
        self._on_loss = on_loss
        for index in self._channels:
            threading.Thread(target=self._listen, args=(index,), daemon=True).start()

    def leave(self, failure: str | None = None) -> None:
        """Reports to the others that this process has ended as agreed, or why it failed."""
        self._closing.set()
        self._send_end(failure)

    def await_end(self) -> None:
        """Waits for `watch` to end this process, if TensorFlow has noticed the loss first."""
        time.sleep(_WATCH_SECONDS)

    def loss(self, tensorflow_error: str) -> str | None:
        """One line about the process that TensorFlow's error reports as lost; None if none is."""
        if not (reason := _ABORTED.search(tensorflow_error)):
            return None
        # The chief's coordination service names the process that does not answer. The error names
        # none if this is the chief itself.
        task = _TASK.search(tensorflow_error)
        index = int(task[1]) if task else 0
        return f"{_name(self._cluster, index)} does not answer ({reason[1].rstrip(':')}); {_RESUME}"

    def _send_end(self, failure: str | None) -> None:
        for channel in self._channels.values():
            with contextlib.suppress(OSError):
                channel.send({"end": failure})

    def _listen(self, index: int) -> None:
        try:
            failure = self._channels[index].receive(max_bytes=_MAX_MESSAGE_BYTES).get("end")
        except (OSError, ValueError):
            reason = "is gone"
        else:
            if failure is None:
                return
            reason = f"has ended: {failure}"
        if not self._closing.is_set():
            self._end(f"{_name(self._cluster, index)} {reason}")

    def _end(self, reason: str) -> None:
        with self._lock:  # only one thread reports: it ends the process
            self._send_end(reason)
            with contextlib.suppress(Exception):
                self._on_loss()
            _say(f"{reason}; {_RESUME}")
            os._exit(1)  # the main thread may hang in a collective, where no exception reaches it


def meet(
    cluster: Cluster,
    parameters: dict,
    decide: Callable[[], dict],
    *,
    folder: paths.Location,
    seconds: float = MEETING_SECONDS,
) -> tuple[Peers, dict]:
    """Connects all processes of the cluster; returns the connections and the chief's decision.

    Args:
      cluster: of this process.
      parameters: what must be equal on all processes, name -> JSON value.
      decide: called on the chief once all are known to be equal; its result is sent to all.
      folder: shared by all; the chief keeps the key of the run there while they connect.
      seconds: how long to wait for the others.

    Raises:
      ValueError: something differs; the message names the process and the difference.
      OSError: a process did not connect in time, or the address or the folder cannot be used.
    """
    deadline = time.monotonic() + seconds
    parameters = json.loads(json.dumps(parameters))
    if not cluster.is_chief:
        return _join(cluster, parameters, folder, deadline)
    members = _gather(cluster, folder, deadline)
    problem = _missing(cluster, members, seconds) or _difference(cluster, parameters, members)
    decision = None
    if not problem:
        try:
            decision = decide()
        except (ValueError, OSError) as error:
            problem = str(error)
    for member in members.values():
        with contextlib.suppress(OSError):
            member.channel.send({"problem": problem, "decision": decision})
    if decision is None:
        raise ValueError(problem)
    return Peers(cluster, {index: member.channel for index, member in members.items()}), decision


@dataclasses.dataclass(frozen=True)
class _Member:
    """A process that has proved that it belongs to this run."""

    channel: Channel
    parameters: dict


def _gather(cluster: Cluster, folder: paths.Location, deadline: float) -> dict[int, _Member]:
    """The chief's part of `meet`: index -> process, for all that have connected in time."""
    with contextlib.ExitStack() as opened:
        key_path, key = opened.enter_context(run_key.temporary_key(folder))
        listening = [opened.enter_context(listener) for listener in listeners(cluster)]
        connections = _Connections(cluster, key_path, key)
        selector = opened.enter_context(selectors.DefaultSelector())
        for listener in listening:
            selector.register(listener, selectors.EVENT_READ, data=listener)
        while not connections.is_complete() and time.monotonic() < deadline:
            for ready, _ in selector.select(timeout=_RETRY_SECONDS):
                connections.admit(ready.data)
        return connections.close()


class _Connections:
    """Reads the connections to the chief, each in its own thread, so that none delays another."""

    def __init__(self, cluster: Cluster, key_path: str, key: bytes):
        """No process has connected yet."""
        self._cluster, self._key_path, self._key = cluster, key_path, key
        self._lock = threading.Lock()
        self._unknown: set[socket.socket] = set()
        self._members: dict[int, _Member] = {}
        self._ignored: set[tuple[str, str]] = set()
        self._closed = False

    def is_complete(self) -> bool:
        """Whether all processes have connected."""
        return len(self._members) == len(self._cluster.addresses) - 1

    def admit(self, listener: socket.socket) -> None:
        """Accepts a connection; closes it if too many are open, so that the process tries again."""
        try:
            connection, address = listener.accept()
        except OSError:  # the connection is closed already, or there are too many open files
            time.sleep(_RETRY_SECONDS)
            return
        if len(self._unknown) >= _MAX_UNKNOWN + len(self._cluster.addresses):
            connection.close()
            return
        self._unknown.add(connection)
        threading.Thread(target=self._identify, args=(connection, address[0]), daemon=True).start()

    def close(self) -> dict[int, _Member]:
        """Returns the processes that have connected; closes all unfinished connections."""
        with self._lock:
            self._closed = True
            for connection in self._unknown:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        return self._members

    def _identify(self, connection: socket.socket, host: str) -> None:
        try:
            index, member = self._introduction(Channel(connection))
        except (OSError, ValueError) as error:
            self._ignore(connection, host, str(error))
            return
        with self._lock:
            self._unknown.discard(connection)
            if self._closed:
                connection.close()
                return
            if index in self._members:  # it lost its connection and connects again
                self._members[index].channel.close()
            self._members[index] = member

    def _introduction(self, channel: Channel) -> tuple[int, _Member]:
        """Lets both ends prove that they know the key, then reads the parameters of the other."""
        deadline = time.monotonic() + _INTRODUCTION_SECONDS
        own = run_key.challenge()
        channel.send({"key_file": self._key_path, "challenge": own})
        said = channel.receive(max_bytes=_MAX_INTRODUCTION_BYTES, deadline=deadline)
        index, theirs = said.get("index"), said.get("challenge")
        run_key.require_proof(said.get("proof"), self._key, "other", index, own, theirs)
        channel.send({"proof": run_key.proof(self._key, "chief", index, own, theirs)})
        parameters = channel.receive(max_bytes=_MAX_MESSAGE_BYTES, deadline=deadline)
        if not isinstance(index, int) or index not in range(1, len(self._cluster.addresses)):
            raise ValueError(f"says that it is worker {index}, which is not in the cluster")
        return index, _Member(channel, parameters)

    def _ignore(self, connection: socket.socket, host: str, reason: str) -> None:
        """Prints one line per host and reason, up to a limit, so that the output fills no disk."""
        with self._lock:
            self._unknown.discard(connection)
            connection.close()
            is_new = (host, reason) not in self._ignored and len(self._ignored) < _MAX_UNKNOWN
            if is_new and not self._closed:
                self._ignored.add((host, reason))
                _say(f"ignored a connection from {host}: {reason}")


def _join(
    cluster: Cluster, parameters: dict, folder: paths.Location, deadline: float
) -> tuple[Peers, dict]:
    """The part of `meet` on all processes but the chief."""
    while True:
        try:
            channel = _introduce(cluster, parameters, folder)
            answer = channel.receive(max_bytes=_MAX_MESSAGE_BYTES, deadline=deadline + 1)
            break
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline:
                raise OSError(
                    f"{_name(cluster, 0)}, the chief, cannot be reached ({error}); check that it "
                    "runs and that its port is open"
                ) from error
            time.sleep(_RETRY_SECONDS)
    if answer["problem"]:
        raise ValueError(answer["problem"])
    return Peers(cluster, {0: channel}), answer["decision"]


def _introduce(cluster: Cluster, parameters: dict, folder: paths.Location) -> Channel:
    """Connects to the chief; once both have proved that they know the key, sends the parameters."""
    channel = Channel(socket.create_connection(cluster.host_and_port(0), timeout=2))
    try:
        deadline = time.monotonic() + _INTRODUCTION_SECONDS
        said = channel.receive(max_bytes=_MAX_INTRODUCTION_BYTES, deadline=deadline)
        key, theirs = run_key.read(said.get("key_file"), folder=folder), said.get("challenge")
        own, index = run_key.challenge(), cluster.index
        proof = run_key.proof(key, "other", index, theirs, own)
        channel.send({"index": index, "challenge": own, "proof": proof})
        said = channel.receive(max_bytes=_MAX_INTRODUCTION_BYTES, deadline=deadline)
        run_key.require_proof(said.get("proof"), key, "chief", index, theirs, own)
        channel.send(parameters)
    except BaseException:
        channel.close()
        raise
    return channel


def _missing(cluster: Cluster, members: dict, seconds: float) -> str | None:
    others = set(range(1, len(cluster.addresses)))
    absent = sorted(others - members.keys())
    if not absent:
        return None
    names = ", ".join(_name(cluster, index) for index in absent)
    return (
        f"{names} did not connect within {seconds:.0f} s; check that every process was started and "
        f"can reach {cluster.addresses[0]}"
    )


def _difference(cluster: Cluster, parameters: dict, members: dict[int, _Member]) -> str | None:
    for index, member in sorted(members.items()):
        other = member.parameters
        names = sorted(parameters.keys() | other.keys())
        differing = [name for name in names if parameters.get(name) != other.get(name)]
        if differing:
            details = "; ".join(
                f"{name}: {_short(parameters.get(name), other.get(name))} on the chief, "
                f"{_short(other.get(name), parameters.get(name))} there"
                for name in differing
            )
            return (
                f"{_name(cluster, index)} was started differently ({details}); give all processes "
                "the same flags and data"
            )
    return None


def _short(value, other) -> str:
    """A value as text; of a dict only the entries that differ from the other's."""
    if isinstance(value, dict) and isinstance(other, dict):
        names = [name for name in value if value[name] != other.get(name)]
        shown = ", ".join(f"{name}={value[name]}" for name in names[:3])
        return (shown + (", ..." if len(names) > 3 else "")) or "nothing more"
    return str(value)


def _name(cluster: Cluster, index: int) -> str:
    return f"worker {index} ({cluster.addresses[index]})"


def _say(line: str) -> None:
    print(f"run_pretraining.py: {line}", file=sys.stderr, flush=True)
