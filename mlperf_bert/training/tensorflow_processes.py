"""Several processes by TensorFlow: connected, watched over, and told why one of them has ended.

They have met before (processes.py), for while TensorFlow waits for a process it keeps Python's
lock: nothing could name one that does not start, and no signal would be heard.

Then TensorFlow's coordination service watches: `MultiWorkerMirroredStrategy` starts it, in the
chief. A process whose heartbeats stop for ten seconds (TensorFlow's own setting: a shorter one
would take a busy host for a lost one), whose connections close, or that reports a failure ends the
collective operations of all others with an error, also those that wait in one. The error comes out
where a process trains, at its next step or evaluation. This is the only module that uses
TensorFlow's private names of it.
"""

import contextlib
import faulthandler
import re
import signal
from collections.abc import Iterator
from typing import TypeVar

import tensorflow as tf
from tensorflow.python.eager import context

from mlperf_bert import signals
from mlperf_bert.training import devices, processes
from mlperf_bert.training.config import Cluster, DeviceConfig, RunConfig
from mlperf_bert.training.devices import Devices

_Part = TypeVar("_Part")
CONNECTING_SECONDS = 300.0
_STANDARD_ERROR = 2
# TensorFlow's errors name a process that is lost as its "remote target"; the first is the cause,
# others have only passed it on. Where they name none, the chief with the service itself is lost.
_ABORTED = re.compile(r"(?:Collective ops is aborted by: )+(.*)")
_TASK = re.compile(r"/job:worker/(?:replica:0/)?task:(\d+)")
# As `Cluster.name` begins what a process has reported, whichever way it comes.
_REPORTED = re.compile(r"(?:Error reported from \S+: )?(worker \d+ \(.*)")


def obstacle(device: DeviceConfig, cluster: Cluster) -> str | None:
    """Why TensorFlow cannot start here: the others would wait for this process without an end."""
    try:
        devices.require_devices(device)
        processes.require_free_port(cluster)
    except ValueError as error:
        return str(error)
    return None


class Connection:
    """This process of a run, connected with the others."""

    def __init__(self, config: RunConfig, cluster: Cluster):
        """Connects."""
        self._cluster = cluster
        self.devices = Devices(create_strategy(config.device, cluster))

    def watched(self, part: _Part) -> _Part:
        """The part itself: TensorFlow ends its collective operations."""
        return part

    def pass_on(self, error: BaseException) -> str | None:
        """Reports to the other processes why this one ends; returns which other is lost."""
        # The failure of another process comes out here as an error of TensorFlow: that process is
        # the cause, and is named to the others too.
        lost = loss(self._cluster, str(error)) if isinstance(error, tf.errors.OpError) else None
        report(lost or processes.end_of(self._cluster, error))
        return lost

    def leave(self) -> None:
        """Nothing waits for this process any more."""


@contextlib.contextmanager
def connecting() -> Iterator[None]:
    """While TensorFlow connects the processes: a signal ends this one at once, five minutes too.

    TensorFlow keeps Python's lock until all are connected. So no thread of Python runs, and no
    handler of a signal; after the time, Python's own watchdog prints where this process has waited.
    """
    # The default action of a signal needs no lock of Python, as a handler would. Process 1 of a
    # container has no default action: there only the watchdog ends the wait.
    handlers = {number: signal.getsignal(number) for number in signals.SIGNALS}
    signals.ends_at_once()
    faulthandler.dump_traceback_later(CONNECTING_SECONDS, exit=True, file=_STANDARD_ERROR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def create_strategy(device: DeviceConfig, cluster: Cluster) -> tf.distribute.Strategy:
    """One replica for each GPU of each process, or one on each process's CPU.

    This waits for all of them. Before it, `Meeting` names one that is missing, and `obstacle` what
    TensorFlow lacks.
    """
    num_gpus = device.num_gpus
    # TensorFlow would reserve memory on every GPU that it sees, also on those of other processes.
    tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[:num_gpus], "GPU")
    kinds = tf.distribute.experimental.CommunicationImplementation
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        # To TensorFlow the chief is a worker too, the first one; `loss` reads these names in its
        # errors.
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.index,
        num_accelerators={"GPU": num_gpus},
        rpc_layer="grpc",
    )
    options = tf.distribute.experimental.CommunicationOptions(
        # NCCL needs GPUs; between processors TensorFlow sends by its own ring.
        implementation=kinds.NCCL if num_gpus else kinds.RING
    )
    # TensorFlow connects processes only before its first operation: whatever a run does before this
    # line reads names, sizes and records, and computes nothing.
    with connecting():
        return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)


def report(failure: str) -> None:
    """Ends the other processes; without effect if none is connected any more.

    Args:
      failure: a line that begins with `Cluster.name` of the process that has failed, or is lost.
    """
    with contextlib.suppress(ValueError, tf.errors.OpError):
        context.context().report_error_to_cluster(tf.errors.ABORTED, failure)


def loss(cluster: Cluster, error: str) -> str | None:
    """Which process an error of TensorFlow reports as lost, and why; None if it reports none."""
    aborted = _ABORTED.search(error)
    # Any other error is this process's own, such as a device without memory.
    if not aborted:
        return None
    reason = aborted[1].rstrip(":")
    if reported := _REPORTED.match(reason):
        return reported[1]
    task = _TASK.search(error, aborted.start())
    return f"{cluster.name(int(task[1]) if task else 0)} does not answer ({reason})"
