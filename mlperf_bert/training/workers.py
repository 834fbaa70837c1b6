"""The processes of a run: which there are, that they agree before it starts, and that one ends all.

The environment names them, and no other module of the package reads it. How several find each other
is in processes.py, how they notice a loss in a module for each runtime: one process loads none.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from mlperf_bert.checkpoints.state import newest_checkpoint
from mlperf_bert.signals import Interrupted
from mlperf_bert.training.config import Cluster, RunConfig
from mlperf_bert.training.devices import Devices
from mlperf_bert.training.output import OutputDirectory

if TYPE_CHECKING:  # a run loads that of its runtime, if it has several processes
    from mlperf_bert.training import jax_processes, tensorflow_processes

    Connection = jax_processes.Connection | tensorflow_processes.Connection

_RESUME = "run the same command on all processes, to go on from the last checkpoint if there is one"
# All processes raise these at the same step.
_AGREED_ENDS = (Interrupted, FloatingPointError)


def module_of(runtime: str) -> ModuleType:
    """What connects several processes: its `Connection`, and the `obstacle` that is in its way."""
    if runtime == "jax":
        from mlperf_bert.training import jax_processes

        return jax_processes
    from mlperf_bert.training import tensorflow_processes

    return tensorflow_processes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Team:
    """The processes of a run, seen from one of them."""

    cluster: Cluster | None
    """None: only this one."""
    connection: "Connection | None"
    """With the others, if there are any."""
    output: OutputDirectory
    """Locked by the chief until the end."""
    release: Callable[[], None]
    """Unlocks it; removes the folders that this process has made, if nothing is in them."""
    seed: int
    resumes: bool
    """Whether the run was started before."""
    latest_step: int | None
    """The step of the chief's newest checkpoint at the start; None without one."""
    time_spent: float = 0.0
    """The seconds of its time budget that the run has used before."""
    samples_at_success: float | None = None
    """After how many samples the run has reached its target before; it has only to end then."""

    @property
    def devices(self) -> Devices | None:
        """Of all processes, if there are several; None: the checks choose those of one."""
        return self.connection.devices if self.connection else None

    @property
    def is_chief(self) -> bool:
        """Whether this process writes log, checkpoints and results."""
        return self.cluster is None or self.cluster.is_chief

    @property
    def goes_on(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.resumes and self.latest_step is not None

    def log_path(self) -> Path | None:
        """Where this process writes its MLPerf log; None if it writes none."""
        return self.output.log_path() if self.is_chief else None

    def publish(self) -> None:
        """Uploads logs and metrics, on the chief, if they belong in a bucket."""
        if self.is_chief:
            self.output.publish()

    def say(self, text: object) -> None:
        """Prints a line, on the chief."""
        if self.is_chief:
            print(text, flush=True)

    @contextlib.contextmanager
    def failures_reported(self) -> Iterator[None]:
        """Reports a failure of this part of the run to the other processes.

        Raises:
          OSError: another process is lost or has failed; the message names it.
        """
        try:
            yield
        except _AGREED_ENDS:
            self.release()
            if self.connection:
                self.connection.leave()
            raise
        except BaseException as error:
            self.release()
            if self.connection and (loss := self.connection.pass_on(error)):
                raise OSError(f"{loss}; {_RESUME}") from error
            raise
        if self.connection:
            self.connection.leave()


def agree(config: RunConfig) -> Team:
    """Meets and connects the other processes, if any; the chief locks the output directory.

    Raises:
      ValueError: flags or data differ, or one process cannot start (the message names the process
        and the reason), or the output directory cannot be used.
      OSError: a process is missing.
    """
    cluster, joined = config.cluster, None
    output = OutputDirectory.of(config)
    release = output.release
    try:
        if cluster:
            from mlperf_bert.training import processes  # one process does not load it

            processes.leave_out_proxies(os.environ, cluster)
            held = processes.Meeting(cluster, output.location)
            release = functools.partial(_release, output, held.made)
            decision = held.hold(
                processes.compared(config),
                module_of(config.runtime).obstacle(config.device, cluster),
                lambda: _claim(output, config.seed),
            )
            # They have met: no runtime could name one that is missing.
            joined = module_of(config.runtime).Connection(config, cluster)
        else:
            decision = _claim(output, config.seed)
        return Team(cluster=cluster, connection=joined, output=output, release=release, **decision)
    except BaseException:
        release()
        raise


def _release(output: OutputDirectory, made: list[Path]) -> None:
    output.release()
    for folder in made:
        with contextlib.suppress(OSError):  # it is not empty
            folder.rmdir()


def _claim(output: OutputDirectory, seed: int | None) -> dict:
    # The lock first: between a look and a lock another process could begin. It also fetches what a
    # bucket holds of the run, which the rest of this reads.
    output.claim()
    latest_step, _ = newest_checkpoint(str(output.location))
    return output.beginning(seed, latest_step=latest_step)


def read_cluster(
    environment: Mapping[str, str] = os.environ, *, use_tpu: bool = False
) -> Cluster | None:
    """The cluster that the environment describes, or that a TPU has; None for a single process.

    Raises:
      ValueError: as `processes.cluster_of` and `jax_processes.cluster_of_tpu`.
    """
    cluster: Cluster | None = None
    # Set by srun only: in a batch script the other variables of Slurm are there too.
    if environment.keys() & {"TF_CONFIG", "SLURM_STEP_NUM_TASKS"}:
        from mlperf_bert.training import processes

        cluster = processes.cluster_of(environment)
    elif use_tpu:
        from mlperf_bert.training import jax_processes

        cluster = jax_processes.cluster_of_tpu()
    return cluster if cluster and len(cluster.addresses) > 1 else None
