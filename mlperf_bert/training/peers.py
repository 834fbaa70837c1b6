"""The other processes of a run: met before TensorFlow starts, watched until the end.

TensorFlow's collectives wait for ever for a process that is missing, that was started with other
flags, or that has died. So the processes first meet over plain sockets, on the chief's address:
each tells its flags and data, and the chief answers what it decided, or what differs. The
connections then stay open. A process that dies closes them, and the others end at once, saying who
is gone; one that falls silent, as in a cut network, is gone after `SILENCE_SECONDS`.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable

from mlperf_bert.training.cluster import Cluster

MEETING_SECONDS = 300.0
SILENCE_SECONDS = 60.0
_BEAT_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_MAX_MESSAGE_BYTES = 64 << 20


class Peers:
    """Connections to the other processes: the chief has one to each, the others one to it."""

    def __init__(self, cluster: Cluster, connections: dict[int, socket.socket]):
        """Wraps the open connections, by index of the worker at the other end."""
        self._cluster = cluster
        self._connections = connections
        self._ended: set[int] = set()
        self._closing = threading.Event()
        self._lock = threading.Lock()

    def watch(self, *, on_loss: Callable[[], None]) -> None:
        """From now on the loss of any process ends this one: `on_loss`, a line, exit code 1."""
        self._on_loss = on_loss
        for index in self._connections:
            threading.Thread(target=self._listen, args=(index,), daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def leave(self, failure: str | None = None) -> None:
        """Tells the others that this process has ended as agreed, or why it failed."""
        self._closing.set()
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                _send(connection, {"end": failure})

    def await_loss(self, seconds: float = SILENCE_SECONDS) -> None:
        """Waits for the watch to end this process: TensorFlow has noticed a loss before it."""
        time.sleep(seconds)

    def _beat(self) -> None:
        while not self._closing.wait(_BEAT_SECONDS):
            for connection in self._connections.values():
                with contextlib.suppress(OSError):
                    _send(connection, {})

    def _listen(self, index: int) -> None:
        connection = self._connections[index]
        connection.settimeout(SILENCE_SECONDS)
        lines, reason = connection.makefile("rb"), "is gone"
        try:
            for line in lines:
                message = json.loads(line)
                if "end" in message:
                    if message["end"] is None:
                        return
                    reason = f"has ended: {message['end']}"
                    break
        except TimeoutError:
            reason = f"has been silent for {SILENCE_SECONDS:.0f} s"
        except (OSError, ValueError):
            pass
        if not self._closing.is_set():
            self._end(f"{_name(self._cluster, index)} {reason}")

    def _end(self, reason: str) -> None:
        with self._lock:  # one of the listeners speaks, for the process ends with it
            for connection in self._connections.values():
                with contextlib.suppress(OSError):
                    _send(connection, {"end": reason})
            with contextlib.suppress(Exception):
                self._on_loss()
            print(
                f"run_pretraining.py: {reason}; the same command on all processes goes on from the "
                "last checkpoint",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)  # the main thread may hang in a collective, out of Python's reach


def meet(
    cluster: Cluster, told: dict, decide: Callable[[], dict], *, seconds: float = MEETING_SECONDS
) -> tuple[Peers, dict]:
    """Meets all processes of the cluster; returns the connections and what the chief decided.

    Args:
      cluster: of this process.
      told: what must be equal on all of them, name -> JSON value.
      decide: called on the chief once all are known to be equal; its result goes to everyone.
      seconds: how long to wait for the others.

    Raises:
      ValueError: something differs; the message names the process and the difference.
      OSError: a process did not come in time, or the address cannot be used.
    """
    deadline = time.monotonic() + seconds
    told = json.loads(json.dumps(told))
    if not cluster.is_chief:
        return _join(cluster, told, deadline)
    connections, all_told = _gather(cluster, deadline)
    problem = _missing(cluster, connections, seconds) or _difference(cluster, told, all_told)
    decision = None
    if not problem:
        try:
            decision = decide()
        except (ValueError, OSError) as error:
            problem = str(error)
    for connection in connections.values():
        with contextlib.suppress(OSError):
            _send(connection, {"problem": problem, "decision": decision})
    if problem:
        raise ValueError(problem)
    return Peers(cluster, connections), decision


def _gather(cluster: Cluster, deadline: float):
    """The chief's part: index -> connection, and index -> what that process told."""
    port = int(cluster.addresses[0].rpartition(":")[2])
    connections, all_told = {}, {}
    try:
        listener = socket.create_server(("", port), backlog=len(cluster.addresses))
    except OSError as error:
        raise OSError(
            f"cannot listen on port {port} ({error.strerror}); end the program that uses it, or "
            "give the chief another port"
        ) from error
    with listener:
        while len(connections) < len(cluster.addresses) - 1 and time.monotonic() < deadline:
            listener.settimeout(max(deadline - time.monotonic(), 0.01))
            with contextlib.suppress(OSError, ValueError):
                connection, _ = listener.accept()
                connection.settimeout(max(deadline - time.monotonic(), 0.01))
                message = _receive(connection)
                connections[message["index"]] = connection
                all_told[message["index"]] = message["told"]
    return connections, all_told


def _join(cluster: Cluster, told: dict, deadline: float) -> tuple[Peers, dict]:
    host, _, port = cluster.addresses[0].rpartition(":")
    while True:
        try:
            connection = socket.create_connection((host, int(port)), timeout=2)
            connection.settimeout(max(deadline - time.monotonic(), 0.01) + 1)
            _send(connection, {"index": cluster.index, "told": told})
            answer = _receive(connection)
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
    return Peers(cluster, {0: connection}), answer["decision"]


def _missing(cluster: Cluster, connections: dict, seconds: float) -> str | None:
    others = set(range(1, len(cluster.addresses)))
    absent = sorted(others - connections.keys())
    if not absent:
        return None
    names = ", ".join(_name(cluster, index) for index in absent)
    return (
        f"{names} did not come within {seconds:.0f} s; check that every process was started and "
        f"can reach {cluster.addresses[0]}"
    )


def _difference(cluster: Cluster, told: dict, all_told: dict[int, dict]) -> str | None:
    for index, other in sorted(all_told.items()):
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


def _send(connection: socket.socket, message: dict) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket) -> dict:
    """The first message; what follows it at once can only be beats."""
    received = bytearray()
    while not received.endswith(b"\n"):
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError("the connection was closed")
        received += piece
        if len(received) > _MAX_MESSAGE_BYTES:
            raise ValueError("a message without end")
    return json.loads(received.splitlines()[0])
