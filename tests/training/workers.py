"""Starts the processes of a distributed run on loopback; for the tests of test_distributed.py."""

import json
import os

from benchmarks.lost_processes import free_addresses
from tests import starts


def environment_of(addresses: list[str], index: int) -> dict[str, str]:
    """The environment of one worker; without addresses, of a single process."""
    if not addresses:
        return dict(os.environ)
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return {**os.environ, "TF_CONFIG": json.dumps(cluster)}


def start(commands: list[list[str]]) -> list[starts.Start]:
    """Starts one worker for each command; a single command is no cluster."""
    addresses = free_addresses(len(commands)) if len(commands) > 1 else []
    return [
        starts.Start(command, env=environment_of(addresses, index))
        for index, command in enumerate(commands)
    ]


def finish(workers: list[starts.Start], *, seconds: float = 200) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each, in order; none may outlive the time."""
    try:
        ended = [(worker.communicate(timeout=seconds), worker.returncode) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    return [(code, *texts) for texts, code in ended]
