"""Several processes by jax: connected, watched over, and told why one of them has ended.

They have met before (processes.py). Jax's coordination service, which lives in the chief, then
connects them. What it does about a lost process is of no use here: it ends the others by abort(),
within C++, so that no log is closed. So its own limits are out of reach, and the processes watch
each other by its table of keys and values:

    run/beat/N   a count, which process N raises every second, and how long it may be silent
    run/ended    why the run ends: who is lost or has failed; the first to know it writes it
    run/left/N   process N has done its part, or has read why the run ends

A collective operation on CPUs (gloo) fails at once where a process is killed, and names none; for
one that is stopped it waits without an end. NCCL and TPUs have not been tried. So devices are
waited for in a thread of their own, which is left behind if a process is lost: `Connection.call`.

This is the only module that uses jax's private names of several processes.
"""

import atexit
import contextlib
import functools
import itertools
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeVar, cast

import jax
from jax.sharding import Mesh

from mlperf_bert import messages
from mlperf_bert.tensorflow_import import lines_left_out
from mlperf_bert.training import devices, processes
from mlperf_bert.training.config import Cluster, DeviceConfig, RunConfig

_Result = TypeVar("_Result")
_Part = TypeVar("_Part")

CONNECTING_SECONDS = 300.0
SILENT_SECONDS = 20
"""So long a process may raise no count while it trains."""
_SILENT_BEFORE = 300
"""The same before it trains: Python's lock is kept while a program is exported, 13 s were seen."""
_SILENT_AFTER_A_FAILURE = 3
"""The same, for all, once a collective operation has failed: then somebody is lost."""
_READING_SECONDS = 5.0
_BEAT_SECONDS = 1.0
_LOOK_SECONDS = 0.25
_OUT_OF_REACH_SECONDS = 10**6
_RUN, _BEAT, _ENDED, _LEFT = "run/", "run/beat/", "run/ended", "run/left/"
_COMPUTES = {"compile", "usable_bytes", "train", "gathered", "evaluate"}
_GLOO = re.compile(rb"\[Gloo\] Rank|^Expected number of connected peer ranks")


def cluster_of_tpu() -> Cluster | None:
    """The hosts of the TPU that this host is one of, as jax finds them; None if it has none.

    Raises:
      ValueError: they are not found, or are of several TPUs.
    """
    from jax._src.clusters import cloud_tpu_cluster as tpus

    try:
        kinds = (tpus.GkeTpuCluster, tpus.GceTpuCluster)
        kind = next((each for each in kinds if each.is_env_present()), None)
        if not kind:
            return None
        names = [name.partition(":")[0] for name in kind._get_worker_list_in_slice()]
        count, index = kind.get_process_count(), kind.get_process_id()
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"--use_tpu: jax does not find the hosts of this TPU ({error}); set TF_CONFIG"
        ) from error
    if count != len(names):
        raise ValueError(
            f"--use_tpu: this is one of {count // len(names)} TPUs that work together; use one"
        )
    return Cluster(tuple(f"{name}:{tpus.coordinator_port}" for name in names), index)


class Lost(OSError):
    """Another process is lost or has failed; the text begins with its name."""


def obstacle(_: DeviceConfig, cluster: Cluster) -> str | None:
    """Why this process cannot be connected: the others would wait for it."""
    try:
        _state().client  # noqa: B018 - only whether it is there
        if cluster.is_chief:  # nobody else listens
            processes.require_free_port(cluster)
    except (ImportError, AttributeError) as error:
        return f"jax {jax.__version__} is not as expected ({error}); install that of pyproject.toml"
    except ValueError as error:
        return str(error)
    return None


def _state() -> Any:
    from jax._src import distributed

    return distributed.global_state


class Connection:
    """This process of a run, connected with the others, and its watch over them."""

    def __init__(self, config: RunConfig, cluster: Cluster):
        """Connects with the others, which have met, and begins to watch.

        Raises:
          OSError: not all are connected in time, or, as Lost, one has ended meanwhile.
          ValueError: processes have different devices, or as `devices.jax_devices`.
        """
        self._cluster = cluster
        self._lost: str | None = None
        self._own_end: str | None = None
        self._may_be_silent = _SILENT_BEFORE
        self._others_may_be_silent = _SILENT_BEFORE  # whatever they say themselves
        self._looks_unanswered = 0
        self._unreached = ""
        self._knows = threading.Event()  # who is lost
        self._leaves, self._is_over = threading.Event(), threading.Event()
        self._watch_thread = threading.Thread(target=self._watch, daemon=True)
        # Else Python would wait for devices that wait for others, and jax for those that are lost.
        atexit.register(_end)
        self._connect(cluster.addresses[0] if cluster.is_chief else self._relay())
        self._watch_thread.start()
        try:
            self.devices = self.call(devices.jax_devices, config)
            _require_alike(cluster, self.devices.mesh)
        except BaseException as error:
            self.pass_on(error)
            raise

    def _connect(self, address: str) -> None:
        # Proxies are left out (`processes.leave_out_proxies`), of which jax would warn.
        jax.config.update("jax_check_proxy_envs", False)
        try:
            self.call(
                jax.distributed.initialize,
                address,
                len(self._cluster.addresses),
                self._cluster.index,
                cluster_detection_method="deactivate",
                # Never reached: jax would end this process by abort().
                initialization_timeout=int(2 * CONNECTING_SECONDS),
                heartbeat_timeout_seconds=_OUT_OF_REACH_SECONDS,
                seconds=CONNECTING_SECONDS,
            )
        except TimeoutError as error:
            raise OSError(
                f"not all processes are connected within {CONNECTING_SECONDS:.0f} s"
                f"{self._unreached}; see what the others say, and that every host can connect to "
                f"{self._cluster.name(0)}"
            ) from error

    def watched(self, part: _Part) -> _Part:
        """A trainer or evaluator whose calls raise Lost if another process is lost."""
        return cast(_Part, _Watched(self, part))

    def train(self, train: Callable[..., _Result], *arguments) -> _Result:
        """As `call`; from now on this process is not silent for long."""
        self._may_be_silent = SILENT_SECONDS
        result = self.call(train, *arguments)
        # All train: one that is lost from now on has perhaps not said it yet.
        self._others_may_be_silent = SILENT_SECONDS
        return result

    def call(
        self,
        function: Callable[..., _Result],
        *arguments,
        seconds: float = float("inf"),
        **options,
    ) -> _Result:
        """Calls a function that waits for devices, in another thread, and returns its result.

        Raises:
          Lost: another process is lost or has failed.
          TimeoutError: the function takes longer than `seconds`.
        """
        self._require_all()
        future: futures.Future = futures.Future()
        work = (future, function, arguments, options)
        threading.Thread(target=_fulfil, args=work, daemon=True).start()
        deadline = time.monotonic() + seconds
        while not futures.wait([future], _LOOK_SECONDS).done:
            if self._chief_is_silent():
                self._lose(self._silent(0, SILENT_SECONDS))
            self._require_all()
            if time.monotonic() > deadline:
                raise TimeoutError
        error = future.exception()
        if isinstance(error, jax.errors.JaxRuntimeError):
            # Another process is probably the cause, and the watch will know it.
            self._others_may_be_silent = _SILENT_AFTER_A_FAILURE
            self._knows.wait(SILENT_SECONDS)
            self._require_all(error)
        return future.result()

    def _require_all(self, cause: BaseException | None = None) -> None:
        if self._lost:
            raise Lost(self._lost) from cause

    def _chief_is_silent(self) -> bool:
        """Whether the watch waits for its answer: the watch itself could not tell."""
        # Looks are counted, not seconds: a run that was suspended as a whole goes on.
        self._looks_unanswered += self._watch_thread.is_alive()
        return self._looks_unanswered * _LOOK_SECONDS > SILENT_SECONDS

    def _silent(self, index: int, seconds: int) -> str:
        return f"{self._cluster.name(index)} does not answer (silent for {seconds} s)"

    def _lose(self, who: str) -> None:
        self._lost = self._lost or who
        self._knows.set()

    def pass_on(self, error: BaseException) -> str | None:
        """Tells the other processes why this one ends; returns which other is lost, if one is."""
        lost = self._lost if isinstance(error, Lost) else None
        self._own_end = lost or processes.end_of(self._cluster, error)
        self._leave(_READING_SECONDS)
        return lost

    def leave(self) -> None:
        """Waits until all processes have done their part: the table ends with the chief."""
        self._leave(float("inf"))

    def _leave(self, seconds: float) -> None:
        self._leaves.set()
        deadline = time.monotonic() + seconds
        while not self._is_over.wait(_LOOK_SECONDS) and not self._chief_is_silent():
            if time.monotonic() > deadline:
                return

    def _watch(self) -> None:
        try:
            self._exchange(_state().client)
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).splitlines()[0]
            self._lose(f"{self._cluster.name(0)} does not answer ({reason})")
        self._is_over.set()

    def _exchange(self, table) -> None:
        """Writes and reads the table until all have left, or know why the run ends."""
        own = self._cluster.index
        others = set(range(len(self._cluster.addresses))) - {own}
        beats, silences = dict[int, str](), dict.fromkeys(others, 0)
        for count in itertools.count():
            beat = f"{count}:{self._may_be_silent}"
            table.key_value_set(f"{_BEAT}{own}", beat, allow_overwrite=True)
            if self._own_end:
                _set_first(table, _ENDED, self._own_end)
            said = dict(table.key_value_dir_get(_RUN))
            self._looks_unanswered = 0
            if _ENDED in said:
                self._lose(said[_ENDED])
            leaves = self._knows.is_set() or self._leaves.is_set()
            if leaves:
                table.key_value_set(f"{_LEFT}{own}", "yes", allow_overwrite=True)
            others -= {index for index in others if f"{_LEFT}{index}" in said}
            # If the run has failed, the chief stays until the others have read why.
            if leaves and (not others or (self._knows.is_set() and own)):
                return
            for index in others:
                beat = said.get(f"{_BEAT}{index}", f"-1:{_SILENT_BEFORE}")
                silences[index] = silences[index] + 1 if beat == beats.get(index) else 0
                beats[index] = beat
            longest = max(others, key=silences.__getitem__, default=own)
            limit = int(beats.get(longest, "0:0").partition(":")[2])
            limit = min(limit, self._others_may_be_silent)
            if silences.get(longest, 0) * _BEAT_SECONDS > limit:
                others.remove(longest)
                self._own_end = self._own_end or self._silent(longest, limit)
            if leaves:
                time.sleep(_LOOK_SECONDS)
            else:
                self._leaves.wait(_BEAT_SECONDS)

    def _relay(self) -> str:
        """An address on this host that leads to the chief, and stays when the chief has gone.

        A thread of jax waits for the chief's service, and calls abort() as soon as that closes the
        connection.
        """
        server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    def _accept(self, server: socket.socket) -> None:
        host, _, port = self._cluster.addresses[0].rpartition(":")
        while True:
            here, _ = server.accept()
            there = None
            while not there:
                try:
                    there = socket.create_connection((host.strip("[]"), int(port)))
                except OSError as error:  # the chief begins to listen when it connects itself
                    self._unreached = f" ({error.strerror or error})"
                    time.sleep(_LOOK_SECONDS)
            for ends in ((here, there, lambda: None), (there, here, self._chief_has_closed)):
                threading.Thread(target=_copy, args=ends, daemon=True).start()

    def _chief_has_closed(self) -> None:
        # If this process leaves too, the chief has only been faster.
        if not self._leaves.is_set():
            self._lose(f"{self._cluster.name(0)} does not answer (it has closed its connection)")
        self._is_over.set()


class _Watched:
    """What computes on the devices of all processes, under the watch of a connection."""

    def __init__(self, connection: Connection, part: Any):
        self._connection, self._part = connection, part

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._part, name)
        if name not in _COMPUTES:
            return attribute
        call = self._connection.train if name == "train" else self._connection.call
        return functools.partial(call, attribute)

    def warm_up(self, *arguments, **options) -> None:
        """Without what gloo says of the connections, which it makes meanwhile."""
        with lines_left_out(_GLOO, of=1):
            self._connection.call(self._part.warm_up, *arguments, **options)


def _require_alike(cluster: Cluster, mesh: Mesh | None) -> None:
    kinds: dict[int, list[str]] = {}
    for device in mesh.devices.flat if mesh else []:
        kinds.setdefault(device.process_index, []).append(device.device_kind)
    for index, each in sorted(kinds.items()):
        if each != kinds[0]:
            raise ValueError(
                f"{cluster.name(index)} has {len(each)} x {each[0]}, the chief "
                f"{len(kinds[0])} x {kinds[0][0]}; give all processes the same devices"
            )


def _fulfil(future: futures.Future, function: Callable, arguments: tuple, options: dict) -> None:
    try:
        future.set_result(function(*arguments, **options))
    except BaseException as error:
        future.set_exception(error)


def _copy(source: socket.socket, target: socket.socket, at_the_end: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(2**16):
            target.sendall(data)
    at_the_end()


def _set_first(table, key: str, value: str) -> None:
    try:
        table.key_value_set(key, value)
    except jax.errors.JaxRuntimeError as error:
        if "ALREADY_EXISTS" not in str(error):
            raise


def _end() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # who reads it has gone
            stream.flush()
    os._exit(messages.exit_code)
