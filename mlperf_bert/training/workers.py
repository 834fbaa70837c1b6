"""The processes of a run: finds them, makes them agree before it starts, and ends all of them.

TF_CONFIG, Slurm or Open MPI name them; those of a TPU jax knows. `jax.distributed` connects them
and watches them: the loss of a process ends the others, by an error of jax or by abort().
"""

import atexit
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from mlperf_bert import messages
from mlperf_bert.checkpoints.state import newest_checkpoint
from mlperf_bert.files import json_text, paths
from mlperf_bert.files.whole import read_regular_file
from mlperf_bert.input import pipeline
from mlperf_bert.signals import Interrupted
from mlperf_bert.tensorflow_import import lines_left_out
from mlperf_bert.training import devices
from mlperf_bert.training.config import Cluster, RunConfig
from mlperf_bert.training.devices import Devices
from mlperf_bert.training.output import OutputDirectory

HEARTBEAT_SECONDS = 20
"""A process that has not answered for so long is lost: jax ends the others."""
# The states by which jax tells that a collective operation has failed; a ValueError at times.
_LOST = re.compile("(UNKNOWN|UNAVAILABLE|ABORTED|CANCELLED|INTERNAL|DEADLINE_EXCEEDED): ")
GLOO = re.compile(rb"\[Gloo\] Rank|^Expected number of connected peer ranks")
"""What the library that connects CPUs prints of each of its connections."""
_AGREED_ENDS = (Interrupted, FloatingPointError)
"""All processes raise these at the same step."""
_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)
# An IPv6 address is in brackets.
_ADDRESS = re.compile(r"(?:[^\s:\[\]]+|\[[0-9a-fA-F:.]+(?:%\w+)?\]):([0-9]{1,5})")
# Launcher: number of processes and of this one; number of hosts, or of processes on this one; the
# number of this one on its host. Sources: the manuals of srun (in a batch script none of the
# variables of a step is there) and of Open MPI's mpirun.
_SLURM = ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_NODES", "SLURM_LOCALID")
_OPEN_MPI = tuple(
    f"OMPI_COMM_WORLD_{name}" for name in ("SIZE", "RANK", "LOCAL_SIZE", "LOCAL_RANK")
)


def read_cluster(environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """The processes that the environment describes; None for a single one.

    Those of a TPU are known once they are connected, by `agree`.
    """
    cluster = None
    if "TF_CONFIG" in environment:
        cluster = _of_tf_config(environment["TF_CONFIG"])
    elif _SLURM[0] in environment or _OPEN_MPI[0] in environment:
        cluster = _of_launcher(environment)
    return cluster if cluster and cluster.size > 1 else None


def _of_tf_config(text: str) -> Cluster | None:
    """TensorFlow's own format, which Kubernetes' TFJob sets too; the chief has the first place."""
    try:
        described = json_text.parse_object(text)
        jobs, task = described.get("cluster") or {}, described.get("task") or {}
        if foreign := sorted(jobs.keys() - {"chief", "master", "worker"}):
            raise ValueError(f"{foreign[0]!r:.80}: every process here is a chief or a worker")
        named = {
            (job, number): address
            for job in ("chief", "master", "worker")
            for number, address in enumerate(jobs.get(job, ()))
        }
        own: tuple = (task.get("type"), int(task.get("index", 0)))
        tasks, addresses = [*named], [*named.values()]
        if jobs and own not in tasks:
            raise ValueError(
                f"this process is {own[0]!r:.80} {own[1]}, which is not in its cluster"
            )
        for address in addresses:
            match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
            if not match or not 0 < int(match[1]) < 2**16:
                raise ValueError(f"{address!r:.80} is not host:port")
            if addresses.count(address) > 1:
                raise ValueError(f"{address} appears twice: give every process its own port")
    except (ValueError, AttributeError, TypeError, LookupError, OverflowError) as error:
        raise ValueError(
            f"TF_CONFIG is not as expected ({error}); it should look like {_EXAMPLE}"
        ) from error
    if not jobs:
        return None
    hosts = [address.rpartition(":")[0] for address in addresses]
    index = tasks.index(own)
    here = hosts.count(hosts[index])
    local_index = hosts[:index].count(hosts[index])
    return Cluster(len(hosts), index, len(set(hosts)), here, local_index, tuple(addresses))


def _of_launcher(environment: Mapping[str, str]) -> Cluster:
    names = _SLURM if _SLURM[0] in environment else _OPEN_MPI
    try:
        size, index, third, local_index = (int(environment[name]) for name in names)
        # All hosts have the same number, because a launcher names only one of the two.
        other = -(-size // third)
        num_hosts, here = (third, other) if names is _SLURM else (other, third)
        if not 0 <= index < size or not 0 <= local_index < here:
            raise ValueError(f"{names[1]}={index} of {names[0]}={size}")
    except (KeyError, ValueError, ZeroDivisionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(
            f"the variables of the launcher are not as expected ({reason}); start the processes "
            "with srun or Open MPI's mpirun, the same number on each host, or set TF_CONFIG"
        ) from error
    return Cluster(size, index, num_hosts, here, local_index)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Team:
    """The processes of a run, seen from one of them."""

    cluster: Cluster | None
    """None: only this one."""
    devices: Devices | None = None
    """The devices of several processes; None for one process, whose checks choose them."""
    output: OutputDirectory
    """Locked by the chief until the end."""
    seed: int
    was_started_before: bool
    """Whether the output directory holds an earlier start of this run."""
    latest_step: int | None
    """The step of the chief's newest checkpoint at the start; None without one."""
    spent_seconds: float = 0.0
    """The seconds of its time budget that the run has used before."""
    samples_at_target: float | None = None
    """After how many samples an earlier start reached the target: the run then only has to end."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes log, checkpoints and results."""
        return self.cluster is None or self.cluster.is_chief

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.was_started_before and self.latest_step is not None

    def log_path(self) -> Path | None:
        """The path of this process's MLPerf log; None if it writes none."""
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
    def ending_together(self) -> Iterator[None]:
        """Ends this part of the run on all processes together, or on all if one fails.

        Raises:
          OSError: another process is lost or has failed.
        """
        try:
            yield
        except _AGREED_ENDS:
            self.output.release()
            _disconnect(self.cluster)
            raise
        except BaseException as error:
            self.output.release()
            if self.cluster:
                raise _prepare_exit(error) from error
            raise
        _disconnect(self.cluster)


def _disconnect(cluster: Cluster | None) -> None:
    """Waits until all processes have come to the end of their work."""
    if cluster:
        import jax

        jax.distributed.shutdown()


def _prepare_exit(error: BaseException) -> BaseException:
    """Returns the error that ends this process; its exit will not wait for the other processes."""
    import jax

    # Registered last, so called first: jax's own would wait for lost processes.
    atexit.register(_end_at_once)
    text = str(error)
    if not isinstance(error, (jax.errors.JaxRuntimeError, ValueError)) or not _LOST.match(text):
        return error
    return OSError(f"another process was lost ({text.splitlines()[0]:.200}); start all again")


def _end_at_once() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader may have gone
            stream.flush()
    os._exit(messages.exit_code)


def agree(config: RunConfig) -> tuple[RunConfig, Team]:
    """Connects the processes, if there are several; the chief locks the output directory.

    Returns: the configuration, with the processes of a TPU, and the team.

    Raises:
      ValueError: flags, data or versions differ, or one process cannot start (the message names the
        process and the reason), or the output directory cannot be used.
      OSError: a process is missing or lost.
    """
    cluster = _connect(config)
    config = dataclasses.replace(config, cluster=cluster)
    output = OutputDirectory.of(config)
    chosen = None
    try:
        if cluster:
            with lines_left_out(GLOO, of=1):
                chosen, decision = _join(config, cluster, output)
        else:
            decision = _claim(output, config.seed)
    except BaseException as error:
        output.release()
        if cluster:
            raise _prepare_exit(error) from error
        raise
    return config, Team(cluster=cluster, devices=chosen, output=output, **decision)


def _claim(output: OutputDirectory, seed: int | None) -> dict:
    # Locked before looking, so that no other process begins in between. Locking also fetches a
    # bucket's files of the run, which the lines below read.
    output.claim()
    latest_step, _ = newest_checkpoint(str(output.location))
    return output.beginning(seed, latest_step=latest_step)


def _connect(config: RunConfig) -> Cluster | None:
    """Connects the processes with jax; returns them as they are then, None if there is only one."""
    cluster = config.cluster
    if not cluster and not config.device.use_tpu:
        return None
    import jax

    settings: dict = {}
    if cluster:
        settings = {"num_processes": cluster.size, "process_id": cluster.index}
    if cluster and cluster.addresses:
        leave_out_proxies(os.environ, cluster)
        settings["coordinator_address"] = cluster.addresses[0]
    if cluster and config.device.num_gpus:
        settings["local_device_ids"] = own_gpus(config, cluster)
    # jax's handler would replace Python's for SIGTERM. Its warning of proxies is needless here.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_check_proxy_envs", False)
    seconds = config.connect_timeout_seconds
    who, at = "the other hosts of the TPU", ""
    if cluster:
        others = cluster.size - 1
        who = f"{others} other process{'es' * (others > 1)}"
        at = f" at {cluster.addresses[0]}" if cluster.addresses else ""
    print(f"waiting up to {seconds} s for {who}{at}", flush=True)
    try:
        jax.distributed.initialize(
            **settings,
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (ValueError, RuntimeError, OSError) as error:
        if not cluster and "coordinator_address" in str(error):  # no TPU of several hosts
            return None
        reason = str(error).splitlines()[0]
        raise _prepare_exit(OSError(f"the processes are not connected: {reason:.200}")) from error
    if cluster:
        return cluster
    size = jax.process_count()
    return Cluster(size, jax.process_index(), size, 1, 0) if size > 1 else None


def own_gpus(config: RunConfig, cluster: Cluster) -> list[int]:
    """The numbers of this process's GPUs among the GPUs that it sees."""
    number = config.device.num_gpus
    visible = config.cuda_visible_devices
    # Slurm may show each process only its own GPUs.
    sees_its_own = bool(visible) and len(visible.split(",")) == number
    first = 0 if sees_its_own else cluster.local_index * number
    return [*range(first, first + number)]


def leave_out_proxies(environment: MutableMapping[str, str], cluster: Cluster) -> None:
    """Makes gRPC connect the processes directly: a web proxy cannot connect them."""
    # gRPC compares only the ends of names.
    hosts = [address.rpartition(":")[0].strip("[]") for address in cluster.addresses]
    environment.setdefault("no_grpc_proxy", ",".join([*dict.fromkeys(hosts), "127.0.0.1"]))


def _join(config: RunConfig, cluster: Cluster, output: OutputDirectory) -> tuple[Devices, dict]:
    """The devices of all processes, and the chief's decision about the output directory."""
    chosen, obstacle = None, None
    try:
        chosen = devices.jax_devices(config)
    except ValueError as error:
        obstacle = str(error)
    own = {
        "host": socket.gethostname(),
        "obstacle": obstacle,
        "compared": to_compare(config),
    }
    problem, decision = why_not(exchange(own)), {}
    # Last, because it locks the directory: a run that cannot begin must not do that.
    if cluster.is_chief and not problem:
        try:
            decision = _claim(output, config.seed)
        except (ValueError, OSError) as error:
            problem = str(error)
    problem, decision = exchange([problem, decision])[0]
    if problem or not chosen:
        raise ValueError(problem)
    return chosen, decision


def exchange(own: object) -> list:
    """The JSON values of every process, the chief's first."""
    from jax.experimental import multihost_utils

    text = np.frombuffer(json.dumps(own).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.array([len(text)])).ravel()
    padded = np.pad(text, (0, lengths.max() - len(text)))
    every = multihost_utils.process_allgather(padded).reshape(len(lengths), -1)
    return [json.loads(row[:n].tobytes()) for row, n in zip(every, lengths)]


def to_compare(config: RunConfig) -> dict:
    """Everything that must be equal on all processes, by flag."""
    import jax

    flags = dataclasses.asdict(config)
    del flags["cluster"]  # it has the index of the process
    return {
        **flags,
        "TensorFlow": tf.__version__,
        "jax": jax.__version__,
        "sources of mlperf_bert": digest_of_sources(),
        "number of devices": jax.local_device_count(),
        "kind of devices": jax.local_devices()[0].device_kind,
        # Files are compared too: the same path may lead to other files on another host.
        "data of --input_file": _sizes(config.input_file, "input_file"),
        "data of --eval_input_file": _sizes(config.eval_input_file, "eval_input_file"),
        "content of --bert_config_file": _content(config.bert_config_file),
    }


def digest_of_sources() -> str:
    """A digest of the package's sources, which tells checkouts apart."""
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


def why_not(everyone: list[dict]) -> str | None:
    """Why a run cannot begin: a process was started differently, or cannot run."""
    here = everyone[0]["compared"]
    for index, one in enumerate(everyone):
        name, there = f"process {index} ({one['host']})", one["compared"]
        if details := "; ".join(
            f"{key}: {_short(here[key], there[key])} on the chief, "
            f"{_short(there[key], here[key])} there"
            for key in here
            if here[key] != there[key]
        ):
            return (
                f"{name} was started differently ({details}); give all processes the same flags, "
                "data and software"
            )
        if one["obstacle"]:
            return f"{name}: {one['obstacle']}"
    return None


def _short(value, other) -> str:
    """A value as text; of a dict only the entries that differ from the other's."""
    if isinstance(value, dict) and isinstance(other, dict):
        names = [name for name in value if value[name] != other.get(name)]
        shown = ", ".join(f"{name}={value[name]}" for name in names[:3])
        return (shown + (", ..." if len(names) > 3 else "")) or "nothing more"
    return str(value)
