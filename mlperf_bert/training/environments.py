"""The processes of a run as the environment names them: by TF_CONFIG, or by Slurm's variables.

TensorFlow's own format is TF_CONFIG, which Kubernetes' TFJob sets too; srun sets those of Slurm.
"""

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


def cluster_of(environment: Mapping[str, str]) -> Cluster:
    """The cluster of TF_CONFIG, without addresses if it names no job; or that of Slurm's variables.

    Raises:
      ValueError: TF_CONFIG is malformed, or names a host twice; or Slurm's variables are not as
        its manual says, or disagree.
    """
    # TF_CONFIG first: where Slurm's variables do not fit, their messages send the user to it.
    if "TF_CONFIG" in environment:
        return _from_tf_config(environment["TF_CONFIG"])
    return _from_slurm(environment)


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
