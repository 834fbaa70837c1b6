"""The processes of a run: which there are, that they agree before it starts, and that one ends all.

The environment names them: TF_CONFIG, which Kubernetes' TFJob sets too, or the variables of Slurm's
srun. run_pretraining.py reads it once; no other module of the package does.

Before TensorFlow connects them they meet in the --output_dir that they share; see meeting.py. Once
they are connected, TensorFlow's coordination service notices a loss; see coordination.py. A run of
one process loads neither.
"""

import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import tensorflow as tf

from mlperf_bert.checkpoints.state import newest_checkpoint
from mlperf_bert.files import json_text
from mlperf_bert.signals import Interrupted
from mlperf_bert.training import devices
from mlperf_bert.training.config import Cluster, RunConfig
from mlperf_bert.training.output import OutputDirectory

_RESUME = "run the same command on all processes to resume from the last checkpoint"
# All processes raise these at the same step.
_AGREED_ENDS = (Interrupted, FloatingPointError)

_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)
# An IPv6 address is in brackets.
_ADDRESS = re.compile(r"([^\s:\[\]]+|\[[0-9a-fA-F:.]+(%\w+)?\]):(?P<port>[0-9]{1,5})")
_MAX_PROCESSES = 100_000
# Slurm assigns no ports; different jobs on one node need different ones.
_SLURM_FIRST_PORT, _SLURM_NUM_PORTS = 20000, 10000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Team:
    """The processes of a run, seen from one of them."""

    cluster: Cluster | None
    """None: only this one."""
    strategy: tf.distribute.Strategy | None
    """It has connected the processes, if there are several; None: the checks make that of one."""
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
                from mlperf_bert.training import coordination

                if loss := coordination.pass_on(self.cluster, error):
                    raise OSError(f"{loss}; {_RESUME}") from error
            raise


def agree(config: RunConfig) -> Team:
    """Meets and connects the other processes, if any; the chief locks the output directory.

    Raises:
      ValueError: flags or data differ, or one process cannot start (the message names the process
        and the reason), or the output directory cannot be used.
      OSError: a process is missing.
    """
    cluster, strategy = config.cluster, None
    output = OutputDirectory.of(config)
    release = output.release
    try:
        if cluster:
            from mlperf_bert.training import meeting

            held = meeting.Meeting(cluster, output.location)
            release = functools.partial(_release, output, held.made)
            decision = held.hold(
                meeting.compared(config),
                meeting.obstacle(config.device, cluster),
                lambda: _claim(output, config.seed),
            )
            # Only now: TensorFlow waits for all of them, and could not name one that is missing.
            strategy = devices.create_strategy(config.device, cluster)
        else:
            decision = _claim(output, config.seed)
        return Team(cluster=cluster, strategy=strategy, output=output, release=release, **decision)
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
      ValueError: TF_CONFIG is malformed, or names a host twice.
    """
    # Before Slurm's variables: where these do not fit, their messages send the user to TF_CONFIG.
    if "TF_CONFIG" in environment:
        cluster = _from_tf_config(environment["TF_CONFIG"])
    elif "SLURM_STEP_NUM_TASKS" in environment:  # set by srun only, not in a batch script
        cluster = _from_slurm(environment)
    else:
        return None
    return cluster if len(cluster.addresses) > 1 else None


def _from_tf_config(text: str) -> Cluster:
    def refuse(reason: str) -> ValueError:
        return ValueError(f"TF_CONFIG {reason}; it should look like {_EXAMPLE}")

    try:
        described = json_text.parse_object(text)
        jobs, task = described.get("cluster") or {}, described.get("task") or {}
        kind, index = task.get("type"), int(task.get("index", 0))
        listed = {job: list(addresses) for job, addresses in jobs.items()}
    except (ValueError, AttributeError, TypeError, OverflowError) as error:
        raise refuse(f"is not as expected ({error})") from error
    if not jobs:
        return Cluster((), 0)
    if foreign := sorted(listed.keys() - {"chief", "master", "worker"}):
        raise refuse(
            f"has tasks of kind {foreign[0]!r:.80}: every process here is a chief or a worker"
        )
    # A chief has the first address, so that its index is 0; the others are numbered after it.
    order = [job for job in ("chief", "master", "worker") if job in listed]
    if kind not in order or not 0 <= index < len(listed[kind]):
        raise refuse(f"says that this process is {kind!r:.80} {index}, which is not in its cluster")
    addresses = tuple(address for job in order for address in listed[job])
    for address in addresses:
        if not _is_address(address):
            raise refuse(f"names {address!r:.80}, which is not host:port")
        if addresses.count(address) > 1:
            raise refuse(f"names {address:.80} twice: give every process its own port")
    before = sum(len(listed[job]) for job in order[: order.index(kind)])
    return Cluster(addresses, before + index)


def _is_address(text: object) -> bool:
    address = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    return address is not None and 0 < int(address["port"]) < 2**16


def _from_slurm(environment: Mapping[str, str]) -> Cluster:
    """One worker per task; source: srun's manual, section OUTPUT ENVIRONMENT VARIABLES."""
    try:
        hosts = expand_hosts(environment["SLURM_STEP_NODELIST"])
        counts = _expand_counts(environment["SLURM_STEP_TASKS_PER_NODE"])
        job, task = int(environment["SLURM_JOB_ID"]), int(environment["SLURM_PROCID"])
        num_tasks = int(environment["SLURM_STEP_NUM_TASKS"])
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"Slurm's variables are not as expected ({error!r}); start the processes with srun, or "
            "set TF_CONFIG"
        ) from error
    first_port = _SLURM_FIRST_PORT + job % _SLURM_NUM_PORTS
    # In blocks, the tasks of one host after those of the one before; each has a port of its own.
    addresses = tuple(
        f"{host}:{first_port + number}"
        for host, count in zip(hosts, counts)
        for number in range(count)
    )
    if len(addresses) != num_tasks or not 0 <= task < num_tasks:
        raise ValueError(
            f"Slurm's variables disagree: {num_tasks} tasks in SLURM_STEP_NUM_TASKS, "
            f"{len(addresses)} in SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE, and this is "
            f"task {task}; use srun's block distribution, or set TF_CONFIG"
        )
    return Cluster(addresses, task)


def expand_hosts(text: str) -> list[str]:
    """Slurm's short form of host names: "a[1-3,07],b" -> a1, a2, a3, a07, b."""
    hosts = []
    # A comma within brackets separates numbers, not hosts.
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        prefix, bracket, rest = part.partition("[")
        inside, _, suffix = rest.partition("]")
        if not bracket:
            hosts.append(prefix)
            continue
        for item in inside.split(","):
            first, _, last = item.partition("-")
            for number in range(int(first), int(last or first) + 1):
                # The suffix may have brackets too. A number is as wide as the first of its range.
                hosts += expand_hosts(f"{prefix}{number:0{len(first)}d}{suffix}")
                if len(hosts) > _MAX_PROCESSES:
                    raise ValueError(f"{text!r} names more than {_MAX_PROCESSES} hosts")
    return hosts


def _expand_counts(text: str) -> list[int]:
    """Slurm's short form of counts: "2(x3),1" -> 2, 2, 2, 1."""
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    if sum(int(count) * int(times or 1) for count, times in counts) > _MAX_PROCESSES:
        raise ValueError(f"{text!r} counts more than {_MAX_PROCESSES} processes")
    return [int(count) for count, times in counts for _ in range(int(times or 1))]
