"""Starts the processes of a distributed run on loopback; for the tests of test_distributed.py."""

from benchmarks.loopback import environment_of, free_addresses
from tests import starts


def start(commands: list[list[str]]) -> list[starts.Start]:
    """Starts one worker for each command; a single command is no cluster."""
    addresses = free_addresses(len(commands)) if len(commands) > 1 else []
    return [
        starts.Start(command, env=environment_of(addresses, index))
        for index, command in enumerate(commands)
    ]


def finish(workers: list[starts.Start], *, seconds: float = 600) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each, in order; none may outlive the time."""
    try:
        ended = [(worker.communicate(timeout=seconds), worker.returncode) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    return [(code, *texts) for texts, code in ended]
