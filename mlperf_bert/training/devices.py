"""The devices and the runtime of a process, and the folder that keeps what is compiled there.

Only this module chooses devices.
"""

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import tensorflow as tf

from mlperf_bert.options import expand_home
from mlperf_bert.programs import program_cache
from mlperf_bert.training.config import TWO_KINDS, DeviceConfig, RunConfig

if TYPE_CHECKING:  # only jax's runtime loads it
    import jax
    from jax.sharding import Mesh


@dataclasses.dataclass(frozen=True)
class Devices:
    """What computes, over all processes of a run."""

    mesh: "Mesh | None" = None
    """The devices of jax, if it computes; None: TensorFlow computes, on one CPU."""

    @property
    def num_replicas(self) -> int:
        """Devices that share a batch."""
        return self.mesh.size if self.mesh else 1

    def __str__(self) -> str:
        """Number and kind, runtime and its version: 8 x NVIDIA H100 by jax 0.10.2."""
        if not self.mesh:
            return f"1 x cpu by TensorFlow {tf.__version__}"
        import jax

        kinds = {device.device_kind for device in self.mesh.devices.flat}
        return f"{self.mesh.size} x {', '.join(sorted(kinds))} by jax {jax.__version__}"


def with_runtime(config: RunConfig) -> RunConfig:
    """The same run, with the runtime and the kernels that `auto` means here."""
    runtime = runtime_of(config.runtime, config.device, in_cluster=bool(config.cluster))
    cache_dir = config.compilation_cache_dir
    if runtime == "jax":
        cache_dir = cache_dir or expand_home(config.jax_compilation_cache_dir) or None
    # The kernels have not been measured on a GPU yet.
    kernels = "xla" if config.kernels == "auto" else config.kernels
    if kernels == "triton" and not (runtime == "jax" and config.device.kind == "GPU"):
        raise ValueError(
            f"--kernels=triton needs GPUs and jax, but this run computes by {runtime} on a "
            f"{config.device.kind}; give --num_gpus and --runtime=jax, or --kernels=xla"
        )
    return dataclasses.replace(
        config, runtime=runtime, kernels=kernels, compilation_cache_dir=cache_dir
    )


def runtime_of(asked: str, device: DeviceConfig, *, in_cluster: bool = False) -> str:
    """The runtime that --runtime means; auto: TensorFlow on one process's CPU, jax on all else."""
    if device.use_tpu and device.num_gpus:
        raise ValueError(TWO_KINDS)
    wants = (
        device.use_tpu and "--use_tpu",
        device.num_gpus and f"--num_gpus={device.num_gpus}",
        in_cluster and "a run of several processes",
    )
    needs_jax = next(filter(None, wants), None)
    if asked == "tensorflow" and needs_jax:
        raise ValueError(
            f"--runtime=tensorflow computes on the CPU of one process, but {needs_jax} needs jax; "
            "leave --runtime out"
        )
    return asked if asked != "auto" else "jax" if needs_jax else "tensorflow"


def create(config: RunConfig) -> Devices:
    """The devices of one process."""
    return jax_devices(config) if config.runtime == "jax" else Devices()


def jax_devices(run: RunConfig) -> Devices:
    """Jax's devices of all processes, which are connected; TensorFlow leaves them alone.

    What jax compiles for them is kept, if the run says where.
    """
    from mlperf_bert.programs import jax_step

    config, every = run.device, all_of_jax(run.device, cache_dir=run.compilation_cache_dir)
    of_process: dict[int, list] = {}
    for device in every:
        of_process.setdefault(device.process_index, []).append(device)
    if config.use_tpu and len(every) != config.num_tpu_cores:
        raise ValueError(
            f"--num_tpu_cores={config.num_tpu_cores}, but jax sees {len(every)}; give that number"
        )
    fewest = min(map(len, of_process.values()))
    if config.num_gpus > fewest:
        raise ValueError(
            f"--num_gpus={config.num_gpus}, but jax sees {fewest} GPUs; lower it, or check the "
            "driver and that the container was given the GPUs"
        )
    chosen = [device for own in of_process.values() for device in own[: config.num_gpus or None]]
    if run.kernels == "triton" and (why := jax_step.obstacle_to_kernels(chosen[0])):
        raise ValueError(f"--kernels=triton: {why}; give --kernels=xla")
    return Devices(jax_step.mesh_of(chosen))


def all_of_jax(config: DeviceConfig, *, cache_dir: str | None) -> list["jax.Device"]:
    """All devices of this kind that jax knows; TensorFlow leaves them alone.

    What jax compiles is kept in a folder, if one is given.
    """
    import jax

    # Comes before TensorFlow's first operation, which would take the memory of all visible GPUs.
    tf.config.set_visible_devices([], "GPU")
    if getattr(jax.config, "jax_disable_jit"):  # noqa: B009 - mypy knows none
        raise ValueError("JAX_DISABLE_JIT: jax runs compiled programs only; leave the variable out")
    if config.kind == "CPU":
        # Without this jax also starts GPUs, and takes their memory.
        jax.config.update("jax_platforms", "cpu")
    # JAX_PLATFORM_NAME would send values without a device to another kind of device.
    jax.config.update("jax_platform_name", "")
    if cache_dir:
        folder = _cache_folder(cache_dir, f"jax {jax.__version__}")
        jax.config.update("jax_compilation_cache_dir", str(folder))
        program_cache.replace_jax_cache()
        # By default jax keeps only what took a second or more.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        return jax.devices(config.kind.lower())
    except RuntimeError as error:
        raise ValueError(_why_no_devices(config, " ".join(str(error).split())[:200])) from error


def _why_no_devices(config: DeviceConfig, reason: str) -> str:
    """The error for a user: what jax's error means, and how to fix it."""
    import jax

    asked = f"--num_gpus={config.num_gpus}" if config.num_gpus else "--use_tpu"
    kind = "gpu" if config.num_gpus else "tpu"
    if only := getattr(jax.config, "jax_platforms"):  # noqa: B009
        reason += f"; JAX_PLATFORMS={only}"
    if config.tpu_name:
        return (
            f"--tpu_name={config.tpu_name}: this machine has no TPU, and jax uses that of its own "
            "machine; run the command there, on every host of the TPU (cloud/gcp_tpu.sh)"
        )
    if re.search("RESOURCE_EXHAUSTED|out of memory", reason, re.IGNORECASE):
        return (
            f"{asked}: out of memory ({reason}); end other processes that hold memory of the "
            "devices (nvidia-smi names them)"
        )
    return (
        f"{asked}: jax finds none ({reason}); check the driver, that the container was given the "
        f"devices, and that jax's plugin for them is installed (the environment {kind} has it)"
    )


def replica_batch_size(batch_size: int, num_replicas: int, *, flag: str) -> int:
    """Examples per replica."""
    if batch_size < 1:
        raise ValueError(f"--{flag} must be at least 1, got {batch_size}")
    if remainder := batch_size % num_replicas:
        lower, upper = batch_size - remainder, batch_size - remainder + num_replicas
        fitting = f"{lower} or {upper}" if lower else str(upper)
        raise ValueError(
            f"--{flag}={batch_size} cannot be shared by {num_replicas} replicas; try {fitting}"
        )
    return batch_size // num_replicas


def _cache_folder(directory: str, compiler: str) -> Path:
    """Makes the folder for this processor and this version of a compiler; returns its path.

    Code that was compiled for one processor may crash on another.
    """
    if "://" in directory or '"' in directory:
        raise ValueError(
            f"--compilation_cache_dir={directory}, or JAX_COMPILATION_CACHE_DIR: give a local "
            "folder without quotation marks"
        )
    # Model and features of the processor are part of the folder's name: a program for
    # instructions that another processor lacks ends the process.
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    processor = [line for line in lines if re.match(r"(model name|flags|Features)\s*:", line)]
    key = "\n".join([compiler, *sorted(set(processor))])
    folder = Path(directory, hashlib.sha256(key.encode()).hexdigest()[:16]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
