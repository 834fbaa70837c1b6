"""What inspect says of a container, which command lines start one, who belongs to the target."""

import json
import os
import subprocess
import sys
import types

import psutil
import pytest

from tests.helpers import programs, waiting
from tracing import containers, processes

INSPECTED = json.dumps(
    [
        {
            "Name": "/mlperf-bert-080000-7",
            "State": {"Pid": 4711},
            "Mounts": [
                {"Type": "bind", "Source": "/srv/tfrecords", "Destination": "/data"},
                {"Type": "bind", "Source": "/home/me/out", "Destination": "/data/out"},
                {"Type": "tmpfs", "Destination": "/tmp"},
            ],
        }
    ]
)


def test_process_and_mounts_of_a_container():
    found = containers.from_inspect("docker", INSPECTED)
    assert (found.engine, found.name, found.pid) == ("docker", "mlperf-bert-080000-7", 4711)
    assert found.host_path("/data/part-0") == "/srv/tfrecords/part-0"
    assert found.host_path("/data/out/bert.log") == "/home/me/out/bert.log"
    assert found.host_path("/database") == "/proc/4711/root/database"


def test_a_container_that_does_not_run_is_none():
    stopped = json.dumps([{"Name": "/x", "State": {"Pid": 0}, "Mounts": []}])
    assert containers.from_inspect("docker", stopped) is None


def test_an_engine_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch):
    programs.stand_in(tmp_path / "docker", "exec sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(containers, "ANSWERS_WITHIN_S", 0.1)
    with pytest.raises(ValueError, match=r"docker does not answer within 0\.1 s: restart it, or"):
        containers.inspect("docker", "name")
    containers.signal(containers.from_inspect("docker", INSPECTED), "SIGINT")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("docker run --rm --name mlperf-bert-1 --user 5:5 image ./train_model.sh", "mlperf-bert-1"),
        ("/usr/bin/podman run --name=b image train --name=c", "b"),
        ("docker run image", None),
        ("docker run --name= image", None),
        ("docker ps --name x", None),
        ("vim --name run", None),
        ("", None),
    ],
)
def test_command_lines_that_start_containers(line, expected):
    found = containers.started_by(line.split())
    assert (found and found[1]) == expected


def test_a_process_that_has_ended_runs_no_more_before_its_parent_notices():
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert processes.is_running(process.pid)
    process.stdin.close()
    waiting.until(lambda: not processes.is_running(process.pid))
    assert process.wait() == 0
    assert not processes.is_running(-1)


def test_a_container_belongs_to_the_target_by_tree_and_cgroup(monkeypatch):
    parents = {1: 0, 50: 1, 60: 50, 66: 50, 70: 1, 80: 1, 90: 1}
    cgroups = {1: "/", 50: "/docker/abc", 60: "/docker/abc/child", 70: "/docker/abc", 80: "/user"}
    cgroups |= {66: "/user", 90: "/docker/abcd"}

    def tree(root):
        return {root}.union(*(tree(pid) for pid, parent in parents.items() if parent == root))

    monkeypatch.setattr(psutil, "pids", lambda: list(parents))
    monkeypatch.setattr(processes, "tree", tree)
    monkeypatch.setattr(processes, "cgroup_of", cgroups.get)
    target = processes.Target()
    target.add_container(50)
    assert target.pids() == [50, 60, 66, 70]  # 70: started by exec, no child of 50
    del parents[50]
    parents[60] = parents[66] = 1
    assert target.pids() == [60, 66, 70]  # what once belonged stays


def test_every_container_is_found_once_whatever_the_engine_says_of_others(monkeypatch):
    lines = {5: "docker run --name a image", 6: "docker run --name b image", 7: "vim"}
    monkeypatch.setattr(processes, "arguments_of", lambda pid: lines[pid].split())
    answers: dict = {"a": [None, "A"], "b": [ValueError("no answer"), "B"]}

    def inspect(engine: str, name: str):
        answer = answers[name].pop(0)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    monkeypatch.setattr(containers, "inspect", inspect)
    found: list = []
    watcher = containers.Watcher(types.SimpleNamespace(pids=lambda: list(lines)), found.append)
    for expected in ([], ["A", "B"], ["A", "B"]):
        watcher.look()
        assert sorted(found) == expected


def test_a_tracers_fork_is_no_process_of_the_command_until_it_becomes_one():
    fork = """if True:
        import os, sys
        if not os.fork():
            sys.stdin.readline()
            os.execlp("cat", "cat")
        os.wait()
    """
    tracer = subprocess.Popen(
        [sys.executable, "-c", fork], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0
    )
    target = processes.Target()
    target.leave_out(tracer.pid)
    target.add_tree(tracer.pid)
    try:
        (child,) = waiting.until(lambda: processes.tree(tracer.pid) - {tracer.pid})
        assert target.pids() == []
        tracer.stdin.write(b"\n")
        assert waiting.until(target.pids) == [child]
    finally:
        tracer.communicate(timeout=300)
