"""Which processes make a run, as the environment tells: TF_CONFIG, or Slurm's srun.

Kubernetes' TFJob sets TF_CONFIG too. Nothing else in the project reads the environment, and nothing
here needs TensorFlow.
"""

import dataclasses
import json
import os
import re
from collections.abc import Mapping

_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)
# Slurm gives no ports; tasks of different jobs on one node must not meet.
_SLURM_FIRST_PORT, _SLURM_NUM_PORTS = 20000, 10000


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of a run, one address each; the first is the chief."""

    addresses: tuple[str, ...]
    """host:port of every worker, in the order that all of them agree on."""
    index: int
    """Which of them this process is."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes logs, checkpoints and results."""
        return self.index == 0

    def host_and_port(self, index: int) -> tuple[str, int]:
        """Where a process is; an IPv6 address has no brackets here."""
        host, _, port = self.addresses[index].rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)


def read_cluster(environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster that the environment describes; None for a single process.

    Raises:
      ValueError: TF_CONFIG is malformed, or names a host twice.
    """
    if "TF_CONFIG" in environment:
        cluster = _from_tf_config(environment["TF_CONFIG"])
    elif "SLURM_STEP_NUM_TASKS" in environment:  # set by srun only, not in a batch script
        cluster = _from_slurm(environment)
    else:
        return None
    return cluster if len(cluster.addresses) > 1 else None


def num_workers() -> int:
    """How many processes make the run."""
    cluster = read_cluster()
    return len(cluster.addresses) if cluster else 1


def _from_tf_config(text: str) -> Cluster:
    def refuse(reason: str) -> ValueError:
        return ValueError(f"TF_CONFIG {reason}; it should look like {_EXAMPLE}")

    try:
        given = json.loads(text)
        jobs, task = given.get("cluster") or {}, given.get("task") or {}
        index = int(task.get("index", 0))
        listed = {job: list(addresses) for job, addresses in jobs.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise refuse(f"is not as expected ({error})") from error
    if not jobs:
        return Cluster((), 0)
    if foreign := sorted(listed.keys() - {"chief", "master", "worker"}):
        raise refuse(f"has tasks of kind {foreign[0]!r}: every process here is a chief or a worker")
    kind, order = task.get("type"), [job for job in ("chief", "master", "worker") if job in listed]
    if kind not in listed or not 0 <= index < len(listed[kind]):
        raise refuse(f"says that this process is {kind!r} {index}, which its cluster lacks")
    addresses = tuple(address for job in order for address in listed[job])
    for address in addresses:
        if not re.fullmatch(r"\S+:\d+", str(address)):
            raise refuse(f"names {address!r}, which is no host:port")
        if addresses.count(address) > 1:
            raise refuse(f"names {address} twice: give every process a port of its own")
    before = sum(len(listed[job]) for job in order[: order.index(kind)])
    return Cluster(addresses, before + index)


def _from_slurm(environment: Mapping[str, str]) -> Cluster:
    """One worker a task; source: srun's manual, section OUTPUT ENVIRONMENT VARIABLES."""
    hosts = expand_hosts(environment["SLURM_STEP_NODELIST"])
    counts = _expand_counts(environment["SLURM_STEP_TASKS_PER_NODE"])
    first_port = _SLURM_FIRST_PORT + int(environment["SLURM_JOB_ID"]) % _SLURM_NUM_PORTS
    addresses = tuple(
        f"{host}:{first_port + task}" for host, count in zip(hosts, counts) for task in range(count)
    )
    if len(addresses) != int(environment["SLURM_STEP_NUM_TASKS"]):
        raise ValueError(
            f"Slurm tells of {environment['SLURM_STEP_NUM_TASKS']} tasks, but of "
            f"{len(addresses)} in SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE; use srun's "
            "block distribution, or set TF_CONFIG"
        )
    return Cluster(addresses, int(environment["SLURM_PROCID"]))


def expand_hosts(text: str) -> list[str]:
    """Slurm's short form of host names: "a[1-3,07],b" -> a1, a2, a3, a07, b."""
    hosts = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        prefix, bracket, rest = part.partition("[")
        inside, _, suffix = rest.partition("]")
        if not bracket:
            hosts.append(prefix)
            continue
        for item in inside.split(","):
            first, _, last = item.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            names = [f"{prefix}{number:0{len(first)}d}{suffix}" for number in numbers]
            hosts += [host for name in names for host in expand_hosts(name)]
    return hosts


def _expand_counts(text: str) -> list[int]:
    """Slurm's short form of counts: "2(x3),1" -> 2, 2, 2, 1."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in found for _ in range(int(times or 1))]
