"""Processes that meet over loopback sockets: equal, different, missing, lost, and strangers."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.loopback import free_addresses
from mlperf_bert.training import listening, peers, run_key
from mlperf_bert.training.channel import Channel
from mlperf_bert.training.config import Cluster


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The folder that all processes share; it does not exist."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "a" / "run"


def meet_all(
    parameters: list[dict],
    *,
    decide=lambda: {"seed": 7},
    seconds=10.0,
    absent=(),
    before_the_others=lambda address: None,
) -> list:
    """What every process gets: the decision, or the error's text. One thread stands for each."""
    addresses, found = tuple(free_addresses(len(parameters))), [None] * len(parameters)
    shared = Path("a/run")

    def join(index):
        cluster = Cluster(addresses, index)
        try:
            found[index] = peers.meet(
                cluster, parameters[index], decide, folder=shared, seconds=seconds
            )[1]
        except (ValueError, OSError) as error:
            found[index] = str(error)

    threads = [
        threading.Thread(target=join, args=(n,)) for n in range(len(parameters)) if n not in absent
    ]
    threads[0].start()
    before_the_others(addresses[0])
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(seconds + 20)
        assert not thread.is_alive()
    assert not shared.parent.exists()  # as before
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


@pytest.mark.slow
def test_a_missing_process_is_named_in_time():
    began = time.monotonic()
    found = meet_all([{}] * 3, seconds=5.0, absent=[2])
    assert time.monotonic() - began < 30
    assert "worker 2 (localhost:" in found[0] and "did not connect within 5 s" in found[0]
    assert found[1] == found[0]


def test_a_missing_chief_is_named_in_time():
    found = meet_all([{}] * 2, seconds=1.0, absent=[0])
    assert "the chief, cannot be reached" in found[1] and "its port is open" in found[1]


def test_a_port_in_use_is_named():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on port {port} .*another port"):
            cluster = Cluster((f"localhost:{port}", "localhost:1"), 0)
            peers.meet(cluster, {}, dict, folder=Path("a/run"), seconds=1)
    assert not Path("a").exists()


def test_a_folder_that_cannot_be_written_is_named():
    Path("a").write_text("a file")
    with pytest.raises(OSError, match=r"--output_dir=.*/a/run: cannot be written .*share"):
        peers.meet(Cluster(tuple(free_addresses(2)), 0), {}, dict, folder=Path("a/run"), seconds=1)


def connected(address: str, *, seconds: float = 30) -> socket.socket:
    """A connection, as soon as a process listens there."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((host, int(port)))
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def introduction(**changed) -> bytes:
    said = {"index": 1, "challenge": "0" * 32, "proof": "0" * 64} | changed
    return json.dumps(said).encode() + b"\n"


# What a stranger says to the chief -> why it is ignored.
STRANGERS = {
    b"[]\n": "expected a JSON object, got list",
    b"null\n": "expected a JSON object, got NoneType",
    b"{}\n": "does not know the key of this run",
    b"GET / HTTP/1.1\r\n\r\n": "not JSON (Expecting value: line 1 column 1 (char 0))",
    b"\xff\xfe\xff\n": "not JSON (UTF-16",
    b"[" * 4000 + b"\n": "not JSON (nested too deeply)",
    b"x" * 100_000: "sent more than 4096 bytes in one message",
    b'{"index": 1, "parameters": {}}\n': "does not know the key of this run",
    introduction(): "does not know the key of this run",
    introduction(proof="é" * 64): "does not know the key of this run",
    introduction(proof=[]): "does not know the key of this run",
    introduction(index=[[1]], challenge=None): "does not know the key of this run",
    introduction(proof="\ud800"): "a string holds half a character",
    b'{"index": 1, "index": 1}\n': "the key 'index' stands there twice",
}


@pytest.mark.parametrize("said", STRANGERS, ids=lambda said: repr(said[:30]))
def test_a_stranger_is_ignored_with_one_line(said, capfd):
    def come(address):
        for _ in range(3):
            stranger = connected(address)
            stranger.sendall(said)
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(1000):
                    pass
            stranger.close()

    assert meet_all([{"a": 1}] * 2, before_the_others=come) == [{"seed": 7}] * 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("run_pretraining.py: ignored a connection from ")
    assert STRANGERS[said] in line


def test_strangers_that_say_nothing_or_little_hold_up_nobody(monkeypatch):
    monkeypatch.setattr(peers, "_INTRODUCTION_SECONDS", 100.0)
    connections, stop = [], threading.Event()

    def come(address):
        connections.extend(connected(address) for _ in range(30))

    def drip():
        while not stop.wait(0.05):
            for connection in connections[15:]:
                with contextlib.suppress(OSError):
                    connection.send(b" ")

    dripping = threading.Thread(target=drip, daemon=True)
    dripping.start()
    began = time.monotonic()
    assert meet_all([{}] * 3, before_the_others=come, seconds=60.0) == [{"seed": 7}] * 3
    assert time.monotonic() - began < 60  # a stranger is waited for 100 s
    stop.set()
    dripping.join()
    for connection in connections:
        connection.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1000):
                pass
        connection.close()


def test_too_many_strangers_are_turned_away_and_members_still_come(monkeypatch):
    monkeypatch.setattr(peers, "_MAX_UNKNOWN", 3)
    monkeypatch.setattr(peers, "_INTRODUCTION_SECONDS", 1.0)
    connections = []

    def come(address):
        connections.extend(connected(address) for _ in range(30))

    assert meet_all([{}] * 2, before_the_others=come) == [{"seed": 7}] * 2
    for connection in connections:
        connection.close()


def test_only_the_user_can_read_the_key_and_it_is_another_one_each_time(folder):
    found = set()
    for _ in range(2):
        with run_key.temporary_key(folder) as (path, key):
            assert Path(path).stat().st_mode & 0o777 == 0o600 and Path(path).parent == folder
            assert run_key.read(path, folder=folder) == key
        found |= {path, key}
        assert not folder.exists()
    assert len(found) == 4


def test_what_others_put_into_the_folder_stays(folder):
    with run_key.temporary_key(folder):
        (folder / "theirs").write_text("")
    assert [path.name for path in folder.iterdir()] == ["theirs"]


def key_file(content: bytes) -> str:
    path = Path(".meeting-0123456789abcdef.key").absolute()
    path.write_bytes(content)
    return str(path)


def fifo() -> str:
    os.mkfifo(".meeting-0123456789abcdef.key")
    return str(Path(".meeting-0123456789abcdef.key").absolute())


# What a program in the chief's place sends -> why a worker refuses it.
POSING_CHIEFS = {
    "no object": (lambda: [], "expected a JSON object, got list"),
    "no file": (lambda: {}, "sent no path of a key file"),
    "a list of files": (lambda: {"key_file": ["/etc/passwd"]}, "sent no path of a key file"),
    "another file": (lambda: {"key_file": "/etc/passwd"}, "sent no path of a key file"),
    "a key not there": (
        lambda: {"key_file": "/nowhere/.meeting-0123456789abcdef.key"},
        r"cannot be read here \(No such file or directory\); give a directory that all processes",
    ),
    "an empty key": (lambda: {"key_file": key_file(b"")}, "which holds no key"),
    "a longer key": (lambda: {"key_file": key_file(b"k" * 33)}, "which holds no key"),
    "a FIFO": (lambda: {"key_file": fifo()}, "which holds no key"),
    "a key it cannot read itself": (
        lambda: {"key_file": key_file(b"k" * 32), "challenge": "0"},
        "does not know the key of this run",
    ),
}


@pytest.mark.parametrize("case", POSING_CHIEFS)
def test_a_worker_tells_nothing_to_somebody_in_the_chiefs_place(case):
    greeting, reason = POSING_CHIEFS[case]
    said, heard = json.dumps(greeting()).encode() + b"\n" + b'{"proof": "00"}\n', []
    with socket.create_server(("localhost", 0)) as server:
        server.settimeout(5)

        def pose():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with contextlib.suppress(ConnectionError):
                        connection.sendall(said)
                        while piece := connection.recv(1000):
                            heard.append(piece)

        posing = threading.Thread(target=pose, daemon=True)
        posing.start()
        cluster = Cluster((f"localhost:{server.getsockname()[1]}", "localhost:1"), 1)
        with pytest.raises(OSError, match=f"the chief, cannot be reached .*{reason}"):
            peers.meet(cluster, {"secret": 1}, dict, folder=Path(), seconds=0.5)
    assert b"secret" not in b"".join(heard)


def test_a_process_that_comes_again_takes_its_own_place():
    """As after a connection that broke: the later one counts."""
    channels = []

    def come(address):
        connected(address).close()
        for value in (2, 1):
            cluster = Cluster((address, "localhost:1", "localhost:2"), 1)
            channels.append(peers._introduce(cluster, {"a": value}, Path()))
            time.sleep(1)  # for the chief to accept the first before the second

    found = meet_all([{"a": 1}] * 3, before_the_others=come, absent=[1])
    assert found == [{"seed": 7}, None, {"seed": 7}]
    with pytest.raises(ConnectionError, match="closed the connection"):
        channels[0].receive(max_bytes=1000)
    assert channels[1].receive(max_bytes=1000)["decision"] == {"seed": 7}


def resolve_as(monkeypatch, table: dict[str, list[str]]) -> None:
    """Names stand for these addresses; no name server is asked."""

    def getaddrinfo(host, port, **_):
        if host not in table:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET6, 1, 6, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, 1, 6, "", (address, port))
            for address in table[host]
        ]

    monkeypatch.setattr(listening.socket, "getaddrinfo", getaddrinfo)
    # 127.0.0.2 and others play the addresses of a network.
    loopback = {"127.0.0.1", "127.0.1.1", "::1"}
    monkeypatch.setattr(listening, "_is_loopback", lambda address: address[0] in loopback)


NAMES = {
    "local": ["127.0.0.1"],
    "debian": ["127.0.1.1"],
    "two": ["127.0.0.2", "127.0.0.3", "192.0.2.1"],
    "service": ["192.0.2.1"],  # of nobody: kept free for documentation
    "other": ["192.0.2.2"],
    "::1": ["::1"],
}
# The hosts of a cluster, the first is the chief's -> where it listens; None: on all interfaces.
LISTENING = {
    ("local", "local"): ["127.0.0.1"],
    ("local", "debian"): ["127.0.0.1"],
    ("two", "two"): ["127.0.0.2", "127.0.0.3"],
    ("[::1]", "[::1]"): ["::1"],
    ("debian", "other"): None,
    ("debian", "unknown"): None,
    ("service", "other"): None,
    ("unknown", "other"): None,
}


@pytest.mark.parametrize("hosts", LISTENING, ids=" ".join)
def test_the_chief_listens_on_its_own_addresses(hosts, monkeypatch, capfd):
    if "[::1]" in hosts and not has_ipv6():
        pytest.skip("no IPv6 here")
    [address, *_] = free_addresses(1)
    port = address.rpartition(":")[2]
    resolve_as(monkeypatch, NAMES)
    found = listening.listeners(Cluster(tuple(f"{host}:{port}" for host in hosts), 0))
    names = [listener.getsockname()[0] for listener in found]
    for listener in found:
        listener.close()
    said = capfd.readouterr().err
    if LISTENING[hosts]:
        assert names == LISTENING[hosts] and said == ""
    else:
        assert names in (["::"], ["0.0.0.0"])
        assert f"{hosts[0]}, the chief's host, is not an address of this machine" in said
        assert f"listening on port {port} of all interfaces" in said


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


def test_nobody_can_connect_to_another_address_than_the_chiefs():
    refused = []

    def come(address):
        connected(address).close()
        port = int(address.rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))
        refused.append(port)

    assert meet_all([{}] * 2, before_the_others=come) == [{"seed": 7}] * 2
    assert refused


def test_a_host_that_is_gone_is_noticed_by_the_kernel():
    with socket.create_server(("localhost", 0)) as server:
        connection = socket.create_connection(server.getsockname())
        Channel(connection)
        idle, interval, count = (
            connection.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert idle + interval * count == 60
        connection.close()


# Of TensorFlow 2.20, as benchmarks/lost_processes.py saw them.
ERRORS = {
    "killed": (
        "Graph execution error:\n\nCollective ops is aborted by: recvmsg:Connection reset by peer\n"
        "Additional GRPC error information from remote target /job:worker/replica:0/task:1 while "
        "calling /tensorflow.WorkerService/RecvBuf:\n",
        "worker 1 (b:1) does not answer (recvmsg:Connection reset by peer); run the same command",
    ),
    "silent": (
        "Collective ops is aborted by: Error reported from /job:worker/task:1: The following tasks "
        "are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:1\n",
        "worker 1 (b:1) does not answer (Error reported from /job:worker/task:1: The",
    ),
    "a silent chief": (
        "Graph execution error:\n\nCollective ops is aborted by: Deadline Exceeded\n"
        "RPC: /tensorflow.CoordinationService/Heartbeat\n",
        "worker 0 (a:1) does not answer (Deadline Exceeded); run the same command on all",
    ),
    "of its own": ("Graph execution error:\n\nOOM when allocating tensor", None),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_of_tensorflow_names_who_is_lost(case):
    error, expected = ERRORS[case]
    line = peers.Peers(Cluster(("a:1", "b:1"), 1), {}).loss(error)
    assert line is None if expected is None else line.startswith(expected) and "\n" not in line


MEMBER = """
import json, pathlib, sys
from mlperf_bert.training import peers
from mlperf_bert.training.config import Cluster
addresses, index, folder = json.loads(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
team, _ = peers.meet(Cluster(tuple(addresses), index), {}, dict, folder=folder, seconds=60)
team.watch(on_loss=lambda: print("on_loss", flush=True))
print("met", flush=True)
line = sys.stdin.readline().strip()
if line == "nonsense":
    team._channels[0].send([])
    sys.stdin.readline()
team.leave(line or None)
"""


def start_members(repository, folder: Path, count: int) -> list[subprocess.Popen]:
    """Processes that have met; each leaves with the reason that it reads."""
    addresses = '["' + '","'.join(free_addresses(count)) + '"]'
    members = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, addresses, str(index), str(folder)],
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
    """Exit code, output and errors of each, which must end at once.

    That is in half of the minute which the kernel would take.
    """
    outputs = []
    for member in members:
        code = member.wait(timeout=30)  # communicate() would close what the others read
        outputs.append((code, member.stdout.read(), member.stderr.read()))
    return outputs


@pytest.mark.parametrize("lost", [0, 2])
def test_a_killed_process_ends_the_others_at_once(repository, folder, lost):
    members = start_members(repository, folder, 3)
    members[lost].kill()
    for index, (code, output, errors) in enumerate(ends(members)):
        if index != lost:
            assert code == 1 and output == "on_loss\n"
            [line] = errors.strip().splitlines()
            assert f"worker {lost} (localhost:" in line and "is gone" in line


def test_a_process_that_talks_nonsense_is_gone(repository, folder):
    members = start_members(repository, folder, 2)
    members[1].stdin.write("nonsense\n")
    members[1].stdin.flush()
    [(code, _, errors), (other_code, _, other_errors)] = ends(members)
    assert code == 1 and "worker 1 (localhost:" in errors and "is gone" in errors
    assert other_code == 1 and "has ended: worker 1 " in other_errors


def test_a_failure_is_told_and_a_proper_end_is_none(repository, folder):
    members = start_members(repository, folder, 2)
    members[1].communicate("disk is full\n", timeout=300)
    [(code, _, errors)] = ends(members[:1])
    assert code == 1 and "has ended: disk is full" in errors

    members = start_members(repository, folder, 2)
    members[1].communicate("\n", timeout=300)
    members[0].communicate("\n", timeout=300)
    assert [member.returncode for member in members] == [0, 0]
