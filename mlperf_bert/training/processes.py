"""A run of several processes: how they are named, and how they meet.

The environment names them: by TF_CONFIG, which is TensorFlow's own format and Kubernetes' TFJob
sets too, or by Slurm's variables, which srun sets.

Before they are connected they see that they are equal, by files in the --output_dir that they
share: flags, sizes of data and the chief's decision go through these. TensorFlow and jax connect
processes too, and have a table of keys and values for them, but once connected only: neither names
a process that does not start.

What connects them then, and watches over them, is in tensorflow_processes.py and jax_processes.py.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path

import tensorflow as tf
from tensorflow.python.distribute.cluster_resolver import slurm_cluster_resolver as slurm

from mlperf_bert.files import json_text, paths
from mlperf_bert.files.whole import read_regular_file, write_whole
from mlperf_bert.input import pipeline
from mlperf_bert.training.config import Cluster, RunConfig

_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)
# An IPv6 address is in brackets.
_ADDRESS = re.compile(r"([^\s:\[\]]+|\[[0-9a-fA-F:.]+(%\w+)?\]):(?P<port>[0-9]{1,5})")
# Slurm assigns no ports; different jobs on one node need different ones.
_SLURM_FIRST_PORT, _SLURM_NUM_PORTS = 20000, 10000


def cluster_of(environment: Mapping[str, str]) -> Cluster:
    """The cluster of TF_CONFIG, without addresses if it names no job; or that of Slurm's variables.

    Raises:
      ValueError: TF_CONFIG, or Slurm's variables, are not as expected; the message says how.
    """
    # TF_CONFIG first: where Slurm's variables do not fit, their messages send the user to it.
    if "TF_CONFIG" in environment:
        return _from_tf_config(environment["TF_CONFIG"])
    return _from_slurm(environment)


def _from_tf_config(text: str) -> Cluster:
    try:
        described = json_text.parse_object(text)
        jobs, task = described.get("cluster") or {}, described.get("task") or {}
        jobs = {job: list(addresses) for job, addresses in jobs.items()}
        if not jobs:
            return Cluster((), 0)
        if foreign := sorted(jobs.keys() - {"chief", "master", "worker"}):
            raise ValueError(f"{foreign[0]!r:.80}: every process here is a chief or a worker")
        # A chief has the first address, so that its index is 0; the others are numbered after it.
        order = [job for job in ("chief", "master", "worker") if job in jobs]
        tasks = [(job, number) for job in order for number in range(len(jobs[job]))]
        own = (task.get("type"), int(task.get("index", 0)))
        if own not in tasks:
            raise ValueError(
                f"this process is {own[0]!r:.80} {own[1]}, which is not in its cluster"
            )
        addresses = tuple(jobs[job][number] for job, number in tasks)
        for address in addresses:
            if not _is_address(address):
                raise ValueError(f"{address!r:.80} is not host:port")
            if addresses.count(address) > 1:
                raise ValueError(f"{address} stands twice: give every process its own port")
    except (ValueError, AttributeError, TypeError, LookupError, OverflowError) as error:
        raise ValueError(
            f"TF_CONFIG is not as expected ({error}); it should look like {_EXAMPLE}"
        ) from error
    return Cluster(addresses, tasks.index(own))


def _is_address(text: object) -> bool:
    address = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    return address is not None and 0 < int(address["port"]) < 2**16


def _from_slurm(environment: Mapping[str, str]) -> Cluster:
    """One worker per task; source: srun's manual, section OUTPUT ENVIRONMENT VARIABLES."""
    # Not TensorFlow's whole resolver: it sorts the hosts by name, so that n10 comes before n2, and
    # the addresses are then those of other tasks.
    try:
        hosts = slurm.expand_hostlist(environment["SLURM_STEP_NODELIST"])
        counts = slurm.expand_tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"])
        job, task = int(environment["SLURM_JOB_ID"]), int(environment["SLURM_PROCID"])
        num_tasks = int(environment["SLURM_STEP_NUM_TASKS"])
        first_port = _SLURM_FIRST_PORT + job % _SLURM_NUM_PORTS
        # In blocks, the tasks of one host after those of the one before; each has its own port.
        addresses = tuple(
            f"{host}:{first_port + number}"
            for host, count in zip(hosts, counts)
            for number in range(count)
        )
        if len(addresses) != num_tasks or not 0 <= task < num_tasks:
            raise ValueError(
                f"this is task {task} of {num_tasks} in SLURM_STEP_NUM_TASKS, {len(addresses)} are "
                "in SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE"
            )
    except (KeyError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(
            f"Slurm's variables are not as expected ({reason}); start the processes with srun and "
            "its block distribution, or set TF_CONFIG"
        ) from error
    return Cluster(addresses, task)


MEETING_SECONDS = 300.0
_LOOK_SECONDS = 0.5
_ANSWER_SECONDS = 60.0


def compared(config: RunConfig) -> dict:
    """Everything that must be equal on all processes, by flag."""
    flags = dataclasses.asdict(config)
    del flags["cluster"]  # it has the index of the process
    # Not only the flags: the same path may lead to other files on another host.
    versions = {"TensorFlow": tf.__version__}
    if config.runtime == "jax":
        versions["jax"] = importlib.metadata.version("jax")
    return {
        **flags,
        **versions,
        "sources of mlperf_bert": _digest_of_sources(),
        "data of --input_file": _sizes(config.input_file, "input_file"),
        "data of --eval_input_file": _sizes(config.eval_input_file, "eval_input_file"),
        "content of --bert_config_file": _content(config.bert_config_file),
    }


def _digest_of_sources() -> str:
    package = Path(__file__).parents[1]
    files = [file for file in package.rglob("*") if file.suffix in (".py", ".mlir")]
    named = sorted((str(file.relative_to(package)), file.read_bytes()) for file in files)
    return hashlib.sha256(repr(named).encode()).hexdigest()[:16]


def _sizes(patterns: str | None, flag: str) -> dict[str, int] | str:
    try:
        files = pipeline.expand_input(patterns, flag=flag) if patterns else []
        return dict(zip(files, paths.in_parallel(paths.size_bytes, files)))
    except (ValueError, OSError, tf.errors.OpError) as error:
        return str(error)


def _content(path: str) -> str:
    try:
        return " ".join(read_regular_file(path).decode(errors="replace").split())
    except FileNotFoundError:
        return "no such file"
    except (ValueError, OSError) as error:
        return str(error)


def leave_out_proxies(environment: MutableMapping[str, str], cluster: Cluster) -> None:
    """Sees to it that gRPC connects the processes directly: a proxy of the web is none for them."""
    # gRPC compares the ends of names. Without this both runtimes would wait in vain.
    hosts = [address.rpartition(":")[0].strip("[]") for address in cluster.addresses]
    environment.setdefault("no_grpc_proxy", ",".join([*dict.fromkeys(hosts), "127.0.0.1"]))


def require_free_port(cluster: Cluster) -> None:
    """Checks that this process can listen at its address.

    Raises:
      ValueError: it cannot.
    """
    port = int(cluster.addresses[cluster.index].rpartition(":")[2])
    # Only a look: another program can still take the port before TensorFlow does.
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise ValueError(
            f"cannot listen on port {port} ({os.strerror(error.errno or 0)}); end the program that "
            "uses it, or give this process another port"
        ) from error


def end_of(cluster: Cluster, error: BaseException) -> str:
    """What the other processes are told of the error that ends this one."""
    silent = "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__
    reason = next(iter(str(error).splitlines()), "") or silent
    return f"{cluster.name(cluster.index)} has ended: {reason}"


class Meeting:
    """The files by which processes find each other, `.worker-N.json` for each, in a shared folder.

    A file may be left over from a process that was killed. So each process draws a token for this
    start: the others write down the chief's, and the chief answers to theirs.
    """

    def __init__(
        self, cluster: Cluster, folder: paths.Location, *, seconds: float = MEETING_SECONDS
    ):
        """Waits so many seconds for the others; reads and writes nothing yet."""
        self._cluster = cluster
        self._folder = folder
        self._files = [folder / f".worker-{n}.json" for n in range(len(cluster.addresses))]
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._token = secrets.token_hex(8)
        self.made: list[Path] = []
        """The folders that were absent, the innermost first; for who wants to remove them again."""

    def hold(self, parameters: dict, obstacle: str | None, decide: Callable[[], dict]) -> dict:
        """Waits for all processes, and returns the chief's decision; leaves no file.

        Args:
          parameters: what must be equal on all processes, name -> JSON value.
          obstacle: why this process cannot run; None if it can.
          decide: called on the chief once all are known to be equal.

        Raises:
          ValueError: something differs, is in the way, or the chief cannot decide; the message is
            the same on all processes.
          OSError: the chief is missing, or the folder cannot be written.
        """
        own = {"token": self._token, "parameters": parameters, "obstacle": obstacle}
        own = json.loads(json.dumps(own))  # as the others read it
        is_chief = self._cluster.is_chief
        try:
            answer = self._lead(own, decide) if is_chief else self._join(own)
        finally:
            # The chief is the last one, and removes what killed processes have left.
            for file in self._files if is_chief else [self._files[self._cluster.index]]:
                with contextlib.suppress(OSError), paths.failures_named(file):
                    file.unlink(missing_ok=True)
        if answer["problem"]:
            raise ValueError(answer["problem"])
        return answer["decision"]

    def _lead(self, own: dict, decide: Callable[[], dict]) -> dict:
        self._write({"token": self._token})
        members: dict[int, dict] = {}
        for _ in self._looks():
            read = {index: self._read(index) for index in range(1, len(self._files))}
            # Only who answers to this start's token: other files are of processes that were killed.
            members = {n: said for n, said in read.items() if said.get("chief") == self._token}
            if len(members) == len(read):
                break
        problem, decision = self._problem({0: own, **members}), None
        # Last: it locks the directory, which is not done for a run that cannot begin.
        if not problem:
            try:
                decision = decide()
            except (ValueError, OSError) as error:
                problem = str(error)
        answer = {"problem": problem, "decision": decision}
        # Each token stands in the answer: a process that was started twice is not taken for two.
        self._write({member["token"]: index for index, member in members.items()} | answer)
        deadline = time.monotonic() + _ANSWER_SECONDS
        # A process removes its file once it has read the answer.
        while unread := [index for index in members if paths.is_file(self._files[index])]:
            if time.monotonic() > deadline:
                return {"problem": problem or f"{self._names(unread)} has not read the answer"}
            time.sleep(_LOOK_SECONDS)
        return answer

    def _join(self, own: dict) -> dict:
        heard = None
        for _ in self._looks():
            said = self._read(0)
            if self._token in said:
                return said
            # Each new token is answered to: the first may be that of a chief that was killed.
            token = said.get("token")
            if token and token != heard:
                heard = token
                self._write(own | {"chief": token})
            elif heard and not paths.is_file(self._files[0]):  # it is replaced as a whole
                raise OSError(f"{self._cluster.name(0)}, the chief, has ended; start all again")
        raise OSError(
            f"{self._cluster.name(0)}, the chief, has not answered in --output_dir={self._folder} "
            f"within {self._seconds:.0f} s; check that it was started, with a directory that all "
            "processes share"
        )

    def _looks(self) -> Iterator[None]:
        while time.monotonic() < self._deadline:
            yield
            time.sleep(_LOOK_SECONDS)

    def _read(self, index: int) -> dict:
        """What a process has left; nothing if it has not, or is writing it."""
        try:
            return json_text.read_object(self._files[index])
        except (ValueError, OSError):
            return {}

    def _write(self, content: dict) -> None:
        try:
            self.made += paths.make_folder(self._folder)
            write_whole(self._files[self._cluster.index], json.dumps(content))
        except paths.StoreUnavailable:
            raise
        except OSError as error:
            raise OSError(
                f"--output_dir={self._folder}: {error.strerror or error}; give a directory that "
                "all processes share, and run them as one user"
            ) from error

    def _names(self, indices: list[int]) -> str:
        return ", ".join(self._cluster.name(index) for index in indices)

    def _problem(self, everyone: dict[int, dict]) -> str | None:
        """Why the run cannot begin: who is missing, was started differently, or cannot run."""
        indices = range(len(self._files))
        if absent := [index for index in indices if index not in everyone]:
            return (
                f"{self._names(absent)} left no sign in --output_dir={self._folder} within "
                f"{self._seconds:.0f} s; check that every process was started, with a directory "
                "that all processes share"
            )
        here = everyone[0]["parameters"]
        for index in indices:
            there = everyone[index]["parameters"]
            names = sorted(here.keys() | there.keys())
            if details := "; ".join(
                f"{name}: {_short(here.get(name), there.get(name))} on the chief, "
                f"{_short(there.get(name), here.get(name))} there"
                for name in names
                if here.get(name) != there.get(name)
            ):
                return (
                    f"{self._cluster.name(index)} was started differently ({details}); give all "
                    "processes the same flags, data and software"
                )
        for index in indices:
            if obstacle := everyone[index]["obstacle"]:
                return f"{self._cluster.name(index)}: {obstacle}"
        return None


def _short(value, other) -> str:
    """A value as text; of a dict only the entries that differ from the other's."""
    if isinstance(value, dict) and isinstance(other, dict):
        names = [name for name in value if value[name] != other.get(name)]
        shown = ", ".join(f"{name}={value[name]}" for name in names[:3])
        return (shown + (", ..." if len(names) > 3 else "")) or "nothing more"
    return str(value)
