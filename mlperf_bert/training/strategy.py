"""Where to compute: makes a tf.distribute strategy from the flags and the cluster.

No other module chooses devices.
"""

import tensorflow as tf

from mlperf_bert.training.config import Cluster, DeviceConfig


def create_strategy(config: DeviceConfig, cluster: Cluster | None = None) -> tf.distribute.Strategy:
    """Picks the strategy: TPU, several processes, several GPUs of one host, one device.

    With several processes this waits for all of them; call `peers.meet` first, which reports a
    missing one by name.

    Raises:
      ValueError: more GPUs are requested than there are, a TPU does not answer, or both GPUs and a
        TPU are requested.
    """
    if config.use_tpu and config.num_gpus:
        raise ValueError("--use_tpu and --num_gpus exclude each other; give one of them")
    if config.use_tpu:
        return _tpu_strategy(config)
    gpus = tf.config.list_physical_devices("GPU")
    if config.num_gpus > len(gpus):
        raise ValueError(
            f"--num_gpus={config.num_gpus}, but TensorFlow sees {len(gpus)} GPUs; lower it, or "
            "check the driver and that the container was given the GPUs"
        )
    if cluster:
        return _workers_strategy(cluster, config.num_gpus)
    if config.num_gpus > 1:
        return tf.distribute.MirroredStrategy([f"GPU:{n}" for n in range(config.num_gpus)])
    return tf.distribute.OneDeviceStrategy("GPU:0" if config.num_gpus else "CPU:0")


def one_cpu(strategy: tf.distribute.Strategy) -> bool:
    """Whether the strategy computes on one CPU, where batches need not be distributed."""
    one_device = isinstance(strategy, tf.distribute.OneDeviceStrategy)
    return one_device and "CPU" in strategy.extended.worker_devices[0]


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


def _workers_strategy(cluster: Cluster, num_gpus: int) -> tf.distribute.Strategy:
    """One replica for each GPU of each process, or one on each process's CPU."""
    tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[:num_gpus], "GPU")
    kinds = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.MultiWorkerMirroredStrategy(
        cluster_resolver=tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
            task_type="worker",
            task_id=cluster.index,
            num_accelerators={"GPU": num_gpus},
            rpc_layer="grpc",
        ),
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=kinds.NCCL if num_gpus else kinds.RING
        ),
    )


def _tpu_strategy(config: DeviceConfig) -> tf.distribute.TPUStrategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            config.tpu_name or "local", zone=config.tpu_zone, project=config.gcp_project
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
