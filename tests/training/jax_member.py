"""One process of several that add up numbers by jax, again and again.

    TF_CONFIG=... python tests/training/jax_member.py OPTIONS.json

The options have, for every process, what it does: `devices`, its number; `fails_at`, a step; after
its last step `goes_on`, seconds before it leaves. For all: `steps`, and `limits`, in seconds, which
are attributes of jax_processes.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from mlperf_bert import messages
from mlperf_bert.training import jax_processes, workers
from tests.training.configurations import run_config


def sum_of_ones(mesh) -> Callable[[], np.ndarray]:
    """A step that adds one of every device, [1, 1], and returns the sum."""
    every = PartitionSpec(mesh.axis_names)
    own = np.ones([mesh.size, 1], np.float32)
    rows = jax.make_array_from_callback(own.shape, NamedSharding(mesh, every), own.__getitem__)
    add = jax.shard_map(
        lambda row: jax.lax.psum(row, mesh.axis_names),
        mesh=mesh,
        in_specs=every,
        out_specs=PartitionSpec(),
    )
    step = jax.jit(add)
    return lambda: np.array(step(rows).addressable_data(0))


def steps(connection: jax_processes.Connection, options: dict, own: dict) -> None:
    """Adds one of every device, in each step."""
    step = sum_of_ones(connection.devices.mesh)
    for number in range(options["steps"]):
        assert connection.train(step).sum() == connection.devices.num_replicas
        if number == 0:
            print("trains", flush=True)
        if number == own.get("fails_at"):
            raise OSError("disk is full")
        time.sleep(0.02)
    if seconds := own.get("goes_on"):
        print("goes on", flush=True)
        connection.call(time.sleep, seconds)


@messages.ends_in_one_line("jax_member.py")
def main() -> None:
    """Connects, adds, and leaves."""
    options = json.loads(Path(sys.argv[1]).read_text())
    for name, seconds in options.get("limits", {}).items():
        setattr(jax_processes, name, seconds)
    cluster = workers.read_cluster()
    assert cluster
    own = options.get(str(cluster.index), {})
    number = own.get("devices", 2)
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={number}"
    print("connects", flush=True)
    connection = jax_processes.Connection(run_config(runtime="jax"), cluster)
    team = workers.Team(
        cluster=cluster,
        connection=connection,
        output=None,
        release=lambda: None,
        seed=0,
        resumes=False,
        latest_step=None,
    )
    with team.failures_reported():
        steps(connection, options, own)


if __name__ == "__main__":
    sys.exit(main())
