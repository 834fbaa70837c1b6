"""Processes that meet over loopback sockets: equal, different, missing, lost."""

import socket
import subprocess
import sys
import threading
import time

import pytest

from mlperf_bert.training import peers
from mlperf_bert.training.cluster import Cluster


def free_addresses(count: int) -> tuple[str, ...]:
    """Loopback addresses whose ports were free just now."""
    servers = [socket.create_server(("localhost", 0)) for _ in range(count)]
    addresses = [f"localhost:{server.getsockname()[1]}" for server in servers]
    for server in servers:
        server.close()
    return tuple(addresses)


def meet_all(told: list[dict], *, decide=lambda: {"seed": 7}, seconds=10.0, absent=()) -> list:
    """What every process gets: the decision, or the error's text. One thread stands for each."""
    addresses, found = free_addresses(len(told)), [None] * len(told)

    def join(index):
        cluster = Cluster(addresses, index)
        try:
            found[index] = peers.meet(cluster, told[index], decide, seconds=seconds)[1]
        except (ValueError, OSError) as error:
            found[index] = str(error)

    threads = [
        threading.Thread(target=join, args=(n,)) for n in range(len(told)) if n not in absent
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 20)
        assert not thread.is_alive()
    return found


def test_equal_processes_get_the_decision_of_the_chief():
    asked = []
    found = meet_all([{"a": 1}] * 3, decide=lambda: asked.append(1) or {"seed": 7})
    assert found == [{"seed": 7}] * 3 and asked == [1]


def test_a_difference_is_named_on_every_process():
    found = meet_all([{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1, "b": 3}])
    assert len(set(found)) == 1
    assert "worker 2 (localhost:" in found[0]
    assert "was started differently (b: 2 on the chief, 3 there)" in found[0]


def test_of_a_table_only_the_difference_is_told():
    tables = [{"data": {f"part-{n}": 9 for n in range(500)}} for _ in range(2)]
    tables[1]["data"]["part-7"] = 8
    [line, _] = meet_all(tables)
    assert "data: part-7=9 on the chief, part-7=8 there" in line


def test_a_problem_of_the_chief_ends_all():
    def refuse():
        raise ValueError("--output_dir holds another run")

    assert meet_all([{}] * 3, decide=refuse) == ["--output_dir holds another run"] * 3


def test_a_missing_process_is_named_in_time():
    began = time.monotonic()
    found = meet_all([{}] * 3, seconds=2.0, absent=[2])
    assert time.monotonic() - began < 8
    assert "worker 2 (localhost:" in found[0] and "did not come within 2 s" in found[0]
    assert found[1] == found[0]


def test_a_missing_chief_is_named_in_time():
    found = meet_all([{}] * 2, seconds=1.0, absent=[0])
    assert "the chief, cannot be reached" in found[1] and "its port is open" in found[1]


def test_a_port_in_use_is_named():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on port {port} .*another port"):
            peers.meet(Cluster((f"localhost:{port}", "localhost:1"), 0), {}, dict, seconds=1)


MEMBER = """
import json, sys, threading, time
from mlperf_bert.training import peers
from mlperf_bert.training.cluster import Cluster
addresses, index, silence = json.loads(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
peers.SILENCE_SECONDS, peers._BEAT_SECONDS = silence, silence / 5
team, _ = peers.meet(Cluster(tuple(addresses), index), {}, dict, seconds=60)
team.watch(on_loss=lambda: print("on_loss", flush=True))
print("met", flush=True)
line = sys.stdin.readline().strip()
team.leave(line or None)
"""


def start_members(repository, count: int, *, silence: float = 60.0) -> list[subprocess.Popen]:
    """So many processes that have met, and leave with the reason that they read."""
    addresses = '["' + '","'.join(free_addresses(count)) + '"]'
    members = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, addresses, str(index), str(silence)],
            cwd=repository,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    for member in members:
        assert member.stdout.readline() == "met\n", member.communicate()
    return members


def ends(members: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each, which must end within five seconds."""
    outputs = []
    for member in members:
        code = member.wait(timeout=5)  # communicate() would close what the others read
        outputs.append((code, member.stdout.read(), member.stderr.read()))
    return outputs


@pytest.mark.parametrize("lost", [0, 2])
def test_a_killed_process_ends_the_others_at_once(repository, lost):
    members = start_members(repository, 3)
    members[lost].kill()
    for index, (code, output, errors) in enumerate(ends(members)):
        if index != lost:
            assert code == 1 and output == "on_loss\n"
            [line] = errors.strip().splitlines()
            assert f"worker {lost} (localhost:" in line and "is gone" in line


def test_a_silent_process_ends_the_others(repository):
    members = start_members(repository, 2, silence=1.0)
    members[1].send_signal(19)  # SIGSTOP: as a cut network, it closes nothing
    [(code, _, errors)] = ends(members[:1])
    members[1].kill()
    members[1].communicate()
    assert code == 1 and "has been silent for 1 s" in errors


def test_a_failure_is_told_and_a_proper_end_is_none(repository):
    members = start_members(repository, 2)
    members[1].communicate("disk is full\n", timeout=5)
    [(code, _, errors)] = ends(members[:1])
    assert code == 1 and "has ended: disk is full" in errors

    members = start_members(repository, 2)
    members[1].communicate("\n", timeout=5)
    members[0].communicate("\n", timeout=5)
    assert [member.returncode for member in members] == [0, 0]
