"""The processes of a run, from the environment: TF_CONFIG, or the variables of Slurm's srun.

Kubernetes' TFJob sets TF_CONFIG too. run_pretraining.py reads it once; no other module of the
package reads the environment. Nothing here needs TensorFlow.
"""

import os
import re
from collections.abc import Mapping

from mlperf_bert.files import json_text
from mlperf_bert.training.config import Cluster

_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)
# An IPv6 address is in brackets.
_ADDRESS = re.compile(r"([^\s:\[\]]+|\[[0-9a-fA-F:.]+(%\w+)?\]):(?P<port>[0-9]{1,5})")
_MAX_PROCESSES = 100_000
# Slurm assigns no ports; different jobs on one node need different ones.
_SLURM_FIRST_PORT, _SLURM_NUM_PORTS = 20000, 10000


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


def _from_tf_config(text: str) -> Cluster:
    def refuse(reason: str) -> ValueError:
        return ValueError(f"TF_CONFIG {reason}; it should look like {_EXAMPLE}")

    try:
        given = json_text.parse_object(text)
        jobs, task = given.get("cluster") or {}, given.get("task") or {}
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


def _is_address(given: object) -> bool:
    found = _ADDRESS.fullmatch(given) if isinstance(given, str) else None
    return found is not None and 0 < int(found["port"]) < 2**16


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
    addresses = tuple(
        f"{host}:{first_port + task}" for host, count in zip(hosts, counts) for task in range(count)
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
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        prefix, bracket, rest = part.partition("[")
        inside, _, suffix = rest.partition("]")
        if not bracket:
            hosts.append(prefix)
            continue
        for item in inside.split(","):
            first, _, last = item.partition("-")
            for number in range(int(first), int(last or first) + 1):
                hosts += expand_hosts(f"{prefix}{number:0{len(first)}d}{suffix}")
                if len(hosts) > _MAX_PROCESSES:
                    raise ValueError(f"{text!r} names more than {_MAX_PROCESSES} hosts")
    return hosts


def _expand_counts(text: str) -> list[int]:
    """Slurm's short form of counts: "2(x3),1" -> 2, 2, 2, 1."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    if sum(int(count) * int(times or 1) for count, times in found) > _MAX_PROCESSES:
        raise ValueError(f"{text!r} counts more than {_MAX_PROCESSES} processes")
    return [int(count) for count, times in found for _ in range(int(times or 1))]
