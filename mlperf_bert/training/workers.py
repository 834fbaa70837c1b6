"""The processes of a run: which there are, that they agree before it starts, and that one ends all.

The environment names them; run_pretraining.py reads it once, and no other module of the package
does. How several find each other, agree and notice a loss is in processes.py, which a run of one
process does not load.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from mlperf_bert.checkpoints.state import newest_checkpoint
from mlperf_bert.signals import Interrupted
from mlperf_bert.training.config import Cluster, RunConfig
from mlperf_bert.training.devices import Devices
from mlperf_bert.training.output import OutputDirectory

_RESUME = "run the same command on all processes, to go on from the last checkpoint if there is one"
# All processes raise these at the same step.
_AGREED_ENDS = (Interrupted, FloatingPointError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Team:
    """The processes of a run, seen from one of them."""

    cluster: Cluster | None
    """None: only this one."""
    devices: Devices | None
    """Of all processes, connected, if there are several; None: the checks choose those of one."""
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
            raise
        except BaseException as error:
            self.release()
            if self.cluster:
                from mlperf_bert.training import processes

                if loss := processes.pass_on(self.cluster, error):
                    raise OSError(f"{loss}; {_RESUME}") from error
            raise


def agree(config: RunConfig) -> Team:
    """Meets and connects the other processes, if any; the chief locks the output directory.

    Raises:
      ValueError: flags or data differ, or one process cannot start (the message names the process
        and the reason), or the output directory cannot be used.
      OSError: a process is missing.
    """
    cluster, connected = config.cluster, None
    output = OutputDirectory.of(config)
    release = output.release
    try:
        if cluster:
            from mlperf_bert.training import processes

            held = processes.Meeting(cluster, output.location)
            release = functools.partial(_release, output, held.made)
            decision = held.hold(
                processes.compared(config),
                processes.obstacle(config.device, cluster),
                lambda: _claim(output, config.seed),
            )
            # Only now: TensorFlow waits for all of them, and could not name one that is missing.
            connected = Devices(processes.create_strategy(config.device, cluster))
        else:
            decision = _claim(output, config.seed)
        return Team(cluster=cluster, devices=connected, output=output, release=release, **decision)
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


def read_cluster(environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster that the environment describes; None for a single process.

    Raises:
      ValueError: as `processes.cluster_of`.
    """
    # Set by srun only: in a batch script the other variables of Slurm are there too.
    if not environment.keys() & {"TF_CONFIG", "SLURM_STEP_NUM_TASKS"}:
        return None
    from mlperf_bert.training import processes

    cluster = processes.cluster_of(environment)
    return cluster if len(cluster.addresses) > 1 else None
