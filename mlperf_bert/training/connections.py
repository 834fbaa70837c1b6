"""What connects the processes of a run, once they have met, and watches them: its runtime."""

from typing import Any, Protocol, TypeVar

from mlperf_bert.training.config import Cluster, RunConfig
from mlperf_bert.training.devices import Devices

_Part = TypeVar("_Part")


class Connection(Protocol):
    """What a runtime promises of several processes that it has connected."""

    devices: Devices
    """Of all processes."""

    def watched(self, part: _Part) -> _Part:
        """A trainer or evaluator whose calls raise an error if another process is lost."""

    def pass_on(self, error: BaseException) -> str | None:
        """Tells the other processes why this one ends; returns which other is lost, if one is."""

    def leave(self) -> None:
        """Ends the connection, once all processes have done their part."""


def connect(config: RunConfig, cluster: Cluster) -> Connection:
    """Connects the processes, which have met: no runtime could name one that is missing.

    Raises:
      ValueError: the devices are not there, or differ.
      OSError: a process has ended meanwhile.
    """
    connection: Connection = _module_of(config.runtime).Connection(config, cluster)
    return connection


def obstacle(config: RunConfig, cluster: Cluster) -> str | None:
    """Why this process cannot be connected: the others would wait for it without an end."""
    found: str | None = _module_of(config.runtime).obstacle(config.device, cluster)
    return found


def _module_of(runtime: str) -> Any:
    if runtime == "jax":
        from mlperf_bert.training import jax_processes

        return jax_processes
    from mlperf_bert.training import tensorflow_processes

    return tensorflow_processes
