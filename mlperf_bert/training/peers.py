"""The other processes of a run: met before TensorFlow starts, watched until the end.

TensorFlow watches its processes too. What it says, measured on loopback with TensorFlow 2.20 by
`python -m benchmarks.lost_processes`, seconds until the process that is left has ended:

    the other one                 coordination service    check_health    this module
    is killed                     1.2                     1.3             0.2
    falls silent                  9                       58              12, by TensorFlow
    never comes                   not in 150              not in 150      300, with its name
    has another learning rate     both train to the end   the same        at the start
    has another batch size        an error of shapes at the first step    at the start

So silence is left to TensorFlow's coordination service, which is on by default: `loss` only turns
its error into a line. The meeting stays: without it a process that is missing is waited for, and
training with other flags goes unnoticed. And the connections stay open until the end, for what
TensorFlow does not say: who is gone, why it gave up ("disk is full"), and that it went before all
of TensorFlow's servers had met. A process that dies closes them, and the others end at once with
one line; a host that vanishes is noticed by the kernel after a minute. Not noticed is a process
that is stopped (SIGSTOP) between the meeting and the start of TensorFlow's servers.

Connections are heard side by side, and believed once they prove that they are of this run
(run_key.py says how, what that keeps out, and what it does not). All else is ignored with one line.
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
from pathlib import Path

from mlperf_bert.training import run_key
from mlperf_bert.training.channel import Channel
from mlperf_bert.training.cluster import Cluster
from mlperf_bert.training.listening import listeners

MEETING_SECONDS = 300.0
_INTRODUCTION_SECONDS = 10.0
_RETRY_SECONDS = 0.2
_WATCH_SECONDS = 3.0
_MAX_STRANGERS = 100
_MAX_INTRODUCTION_BYTES = 4 << 10
_MAX_MESSAGE_BYTES = 64 << 20
_ABORTED = re.compile(r"Collective ops is aborted by: (.*)")
_TASK = re.compile(r"/job:worker/(?:replica:0/)?task:(\d+)")
_GO_ON = "the same command on all processes goes on from the last checkpoint"


class Peers:
    """Connections to the other processes: the chief has one to each, the others one to it."""

    def __init__(self, cluster: Cluster, channels: dict[int, Channel]):
        """Takes over the open connections, by index of the process at the other end."""
        self._cluster = cluster
        self._channels = channels
        self._closing = threading.Event()
        self._lock = threading.Lock()

    def watch(self, *, on_loss: Callable[[], None]) -> None:
        """From now on the end of any process ends this one: `on_loss`, a line, exit code 1."""
        self._on_loss = on_loss
        for index in self._channels:
            threading.Thread(target=self._listen, args=(index,), daemon=True).start()

    def leave(self, failure: str | None = None) -> None:
        """Tells the others that this process has ended as agreed, or why it failed."""
        self._closing.set()
        self._tell_all(failure)

    def await_end(self) -> None:
        """Gives the watch the time to end this process: TensorFlow has noticed a loss before it."""
        time.sleep(_WATCH_SECONDS)

    def loss(self, tensorflow_error: str) -> str | None:
        """What an error of TensorFlow says about a lost process, in one line.

        Returns:
          None if the error is about something else.
        """
        if not (reason := _ABORTED.search(tensorflow_error)):
            return None
        # The chief's coordination service knows who is silent. Where it is silent itself, the
        # others only find that it does not answer.
        task = _TASK.search(tensorflow_error)
        index = int(task[1]) if task else 0
        return f"{_name(self._cluster, index)} does not answer ({reason[1].rstrip(':')}); {_GO_ON}"

    def _tell_all(self, failure: str | None) -> None:
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
        with self._lock:  # one of the listeners speaks, for the process ends with it
            self._tell_all(reason)
            with contextlib.suppress(Exception):
                self._on_loss()
            _say(f"{reason}; {_GO_ON}")
            os._exit(1)  # the main thread may hang in a collective, out of Python's reach


def meet(
    cluster: Cluster,
    told: dict,
    decide: Callable[[], dict],
    *,
    folder: Path,
    seconds: float = MEETING_SECONDS,
) -> tuple[Peers, dict]:
    """Meets all processes of the cluster; returns the connections and what the chief decided.

    Args:
      cluster: of this process.
      told: what must be equal on all of them, name -> JSON value.
      decide: called on the chief once all are known to be equal; its result goes to everyone.
      folder: shared by all; on the chief the key of the run lies there while they meet.
      seconds: how long to wait for the others.

    Raises:
      ValueError: something differs; the message names the process and the difference.
      OSError: a process did not come in time, or the address or the folder cannot be used.
    """
    deadline = time.monotonic() + seconds
    told = json.loads(json.dumps(told))
    if not cluster.is_chief:
        return _join(cluster, told, deadline)
    members = _gather(cluster, folder, deadline)
    problem = _missing(cluster, members, seconds) or _difference(cluster, told, members)
    decision = None
    if not problem:
        try:
            decision = decide()
        except (ValueError, OSError) as error:
            problem = str(error)
    for member in members.values():
        with contextlib.suppress(OSError):
            member.channel.send({"problem": problem, "decision": decision})
    if problem:
        raise ValueError(problem)
    return Peers(cluster, {index: member.channel for index, member in members.items()}), decision


@dataclasses.dataclass(frozen=True)
class _Member:
    """A process that has proved to be of this run."""

    channel: Channel
    told: dict


def _gather(cluster: Cluster, folder: Path, deadline: float) -> dict[int, _Member]:
    """The chief's part of the meeting: the others by index, as many as have come in time."""
    with contextlib.ExitStack() as opened:
        key_path, key = opened.enter_context(run_key.left_in(folder))
        listening = [opened.enter_context(listener) for listener in listeners(cluster)]
        reception = _Reception(cluster, key_path, key)
        selector = opened.enter_context(selectors.DefaultSelector())
        for listener in listening:
            selector.register(listener, selectors.EVENT_READ)
        while not reception.is_complete() and time.monotonic() < deadline:
            for ready, _ in selector.select(timeout=_RETRY_SECONDS):
                reception.admit(ready.fileobj)
        return reception.close()


class _Reception:
    """Hears everyone who connects to the chief, each in a thread: nobody holds up the others."""

    def __init__(self, cluster: Cluster, key_path: str, key: bytes):
        """Nobody has come yet."""
        self._cluster, self._key_path, self._key = cluster, key_path, key
        self._lock = threading.Lock()
        self._strangers: set[socket.socket] = set()
        self._members: dict[int, _Member] = {}
        self._ignored: set[tuple[str, str]] = set()
        self._closed = False

    def is_complete(self) -> bool:
        """Whether all have come."""
        return len(self._members) == len(self._cluster.addresses) - 1

    def admit(self, listener: socket.socket) -> None:
        """Takes a connection; of too many at once the last are turned away, to come again."""
        try:
            connection, address = listener.accept()
        except OSError:  # it is gone already, or there are too many open files
            time.sleep(_RETRY_SECONDS)
            return
        if len(self._strangers) >= _MAX_STRANGERS + len(self._cluster.addresses):
            connection.close()
            return
        self._strangers.add(connection)
        threading.Thread(target=self._hear, args=(connection, address[0]), daemon=True).start()

    def close(self) -> dict[int, _Member]:
        """Those who have come; whoever is still speaking is sent away."""
        with self._lock:
            self._closed = True
            for connection in self._strangers:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        return self._members

    def _hear(self, connection: socket.socket, host: str) -> None:
        try:
            index, member = self._introduced(Channel(connection))
        except (OSError, ValueError) as error:
            self._ignore(connection, host, str(error))
            return
        with self._lock:
            self._strangers.discard(connection)
            if self._closed:
                connection.close()
                return
            if index in self._members:  # it has lost its connection and comes again
                self._members[index].channel.close()
            self._members[index] = member

    def _introduced(self, channel: Channel) -> tuple[int, _Member]:
        """Lets both ends prove that they know the key, then hears what the other tells."""
        deadline = time.monotonic() + _INTRODUCTION_SECONDS
        own = run_key.challenge()
        channel.send({"key_file": self._key_path, "challenge": own})
        said = channel.receive(max_bytes=_MAX_INTRODUCTION_BYTES, deadline=deadline)
        index, theirs = said.get("index"), said.get("challenge")
        run_key.require_proof(said.get("proof"), self._key, "other", index, own, theirs)
        channel.send({"proof": run_key.proof(self._key, "chief", index, own, theirs)})
        told = channel.receive(max_bytes=_MAX_MESSAGE_BYTES, deadline=deadline)
        if index not in range(1, len(self._cluster.addresses)):
            raise ValueError(f"says that it is worker {index}, which the cluster lacks")
        return index, _Member(channel, told)

    def _ignore(self, connection: socket.socket, host: str, reason: str) -> None:
        """One line for every host and reason, and not endlessly many: they shall fill no disk."""
        with self._lock:
            self._strangers.discard(connection)
            connection.close()
            is_new = (host, reason) not in self._ignored and len(self._ignored) < _MAX_STRANGERS
            if is_new and not self._closed:
                self._ignored.add((host, reason))
                _say(f"ignored a connection from {host}: {reason}")


def _join(cluster: Cluster, told: dict, deadline: float) -> tuple[Peers, dict]:
    """The others' part of the meeting."""
    while True:
        try:
            channel = _introduce(cluster, told)
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


def _introduce(cluster: Cluster, told: dict) -> Channel:
    """Connects to the chief, and tells it what it asks for once both have proved who they are."""
    channel = Channel(socket.create_connection(cluster.host_and_port(0), timeout=2))
    try:
        deadline = time.monotonic() + _INTRODUCTION_SECONDS
        said = channel.receive(max_bytes=_MAX_INTRODUCTION_BYTES, deadline=deadline)
        key, theirs = run_key.read(said.get("key_file")), said.get("challenge")
        own, index = run_key.challenge(), cluster.index
        proof = run_key.proof(key, "other", index, theirs, own)
        channel.send({"index": index, "challenge": own, "proof": proof})
        said = channel.receive(max_bytes=_MAX_INTRODUCTION_BYTES, deadline=deadline)
        run_key.require_proof(said.get("proof"), key, "chief", index, theirs, own)
        channel.send(told)
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
        f"{names} did not come within {seconds:.0f} s; check that every process was started and "
        f"can reach {cluster.addresses[0]}"
    )


def _difference(cluster: Cluster, told: dict, members: dict[int, _Member]) -> str | None:
    for index, member in sorted(members.items()):
        other = member.told
        names = sorted(told.keys() | other.keys())
        differing = [name for name in names if told.get(name) != other.get(name)]
        if differing:
            details = "; ".join(
                f"{name}: {_short(told.get(name), other.get(name))} on the chief, "
                f"{_short(other.get(name), told.get(name))} there"
                for name in differing
            )
            return (
                f"{_name(cluster, index)} was started differently ({details}); give all processes "
                "the same flags and data"
            )
    return None


def _short(value, other) -> str:
    """A value; of a table only what differs from the other's."""
    if isinstance(value, dict) and isinstance(other, dict):
        names = [name for name in value if value[name] != other.get(name)]
        shown = ", ".join(f"{name}={value[name]}" for name in names[:3])
        return (shown + (", ..." if len(names) > 3 else "")) or "nothing more"
    return str(value)


def _name(cluster: Cluster, index: int) -> str:
    return f"worker {index} ({cluster.addresses[index]})"


def _say(line: str) -> None:
    print(f"run_pretraining.py: {line}", file=sys.stderr, flush=True)
