"""Where a process computes, and the folder that keeps what XLA compiles there.

No other module chooses devices, but that of several processes (processes.py).
"""

import hashlib
import re
from pathlib import Path

import tensorflow as tf

from mlperf_bert.training.config import DeviceConfig


def create_strategy(config: DeviceConfig) -> tf.distribute.Strategy:
    """Picks the strategy of one process: TPU, several GPUs of its host, one device.

    Raises:
      ValueError: a TPU does not answer, or as `require_devices`.
    """
    require_devices(config)
    if config.use_tpu:
        return _tpu_strategy(config)
    if config.num_gpus > 1:
        return tf.distribute.MirroredStrategy([f"GPU:{n}" for n in range(config.num_gpus)])
    return tf.distribute.OneDeviceStrategy("GPU:0" if config.num_gpus else "CPU:0")


def require_devices(config: DeviceConfig) -> None:
    """Checks that this host has the devices.

    Raises:
      ValueError: more GPUs are requested than there are, or both GPUs and a TPU.
    """
    if config.use_tpu and config.num_gpus:
        raise ValueError("--use_tpu and --num_gpus exclude each other; give one of them")
    gpus = [] if config.use_tpu else tf.config.list_physical_devices("GPU")
    if config.num_gpus > len(gpus):
        raise ValueError(
            f"--num_gpus={config.num_gpus}, but TensorFlow sees {len(gpus)} GPUs; lower it, or "
            "check the driver and that the container was given the GPUs"
        )


def replica_batch_size(batch_size: int, num_replicas: int, *, flag: str) -> int:
    """Examples per replica.

    Raises:
      ValueError: the batch cannot be shared equally; the message says which sizes could.
    """
    if batch_size < 1:
        raise ValueError(f"--{flag} must be at least 1, got {batch_size}")
    if remainder := batch_size % num_replicas:
        lower, upper = batch_size - remainder, batch_size - remainder + num_replicas
        fitting = f"{lower} or {upper}" if lower else str(upper)
        raise ValueError(
            f"--{flag}={batch_size} cannot be shared by {num_replicas} replicas; try {fitting}"
        )
    return batch_size // num_replicas


def _tpu_strategy(config: DeviceConfig) -> tf.distribute.TPUStrategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            # "local" is the TPU of the host itself, as on a TPU VM.
            config.tpu_name or "local",
            zone=config.tpu_zone,
            project=config.gcp_project,
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except tf.errors.OpError as error:
        where = f"--tpu_name={config.tpu_name}" if config.tpu_name else "this host"
        raise ValueError(
            f"--use_tpu: no TPU answers on {where} ({error.message.splitlines()[0][:80]}); check "
            "its name, or leave --use_tpu out"
        ) from error
    strategy = tf.distribute.TPUStrategy(resolver)
    if strategy.num_replicas_in_sync != config.num_tpu_cores:
        raise ValueError(
            f"--num_tpu_cores={config.num_tpu_cores}, but the TPU has "
            f"{strategy.num_replicas_in_sync}; give that number"
        )
    return strategy


def compilation_cache_flags(directory: str) -> str:
    """What TF_XLA_FLAGS needs to hold so that compiled programs are kept in a folder and reused.

    Each processor and each version of TensorFlow has a folder of its own in it: what was compiled
    for one may crash on another. TensorFlow reads the variable once, when it looks for its devices.

    Raises:
      ValueError: the path is not a local one, or has a quotation mark.
      OSError: the folder cannot be made.
    """
    if "://" in directory or '"' in directory:
        raise ValueError(
            f"--compilation_cache_dir={directory}: give a local folder without quotation marks"
        )
    # Model and features of the processor are part of the folder's name: a program for
    # instructions that another processor lacks ends the process.
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    processor = [line for line in lines if re.match(r"(model name|flags|Features)\s*:", line)]
    key = "\n".join([tf.__version__, *sorted(set(processor))])
    folder = Path(directory, hashlib.sha256(key.encode()).hexdigest()[:16]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return f'--tf_xla_persistent_cache_directory="{folder}"'
