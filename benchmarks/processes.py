"""Processes that measure: one of its own, or those of a cluster on loopback."""

import json
import multiprocessing
import os
import socket
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def in_a_process(function: Callable, *arguments: Any) -> Any:
    """What a function of a module returns in a new process, which then ends."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def free_addresses(count: int) -> list[str]:
    """Loopback addresses whose ports were free just now."""
    servers = [socket.create_server(("localhost", 0)) for _ in range(count)]
    addresses = [f"localhost:{server.getsockname()[1]}" for server in servers]
    for server in servers:
        server.close()
    return addresses


def environment_of(addresses: list[str], index: int) -> dict[str, str]:
    """The environment of one worker; without addresses, of a single process."""
    if not addresses:
        return dict(os.environ)
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return {**os.environ, "TF_CONFIG": json.dumps(cluster)}
