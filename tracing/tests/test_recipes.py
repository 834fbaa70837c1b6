"""What docs/record.md does with a trace: its loop as it stands there, and the scripts it names."""

import json
import os
import random
import re
import runpy
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.fixtures import lacking
from tests.helpers import programs
from tracing import tables
from tracing.clocks import Alignment
from tracing.tests import by_hand
from tracing.tests.conftest import TRACE

PAGE = (TRACE.parent / "docs" / "record.md").read_text(encoding="utf-8")
[LOOP] = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FOLDER = "traces/..."


def run_script(name: str, monkeypatch) -> dict:
    """What a script of the sample's folder leaves in its variables."""
    assert f"python tracing/sample/{name} traces/" in PAGE
    monkeypatch.setattr(sys, "argv", [name, FOLDER])
    return runpy.run_path(str(TRACE.parent / "sample" / name))


def test_the_loop_over_memory_starts_a_container_with_each_limit(tmp_path):
    """With the real launcher, which prints its command; the trace's own words are left out."""
    programs.stand_in(tmp_path / "tracing/trace.sh", 'echo "$1"; shift 2; exec "$@"')
    launcher = f'"{TRACE.parent.parent}/start_training.sh" --dry-run "$@"; exit 137'
    programs.stand_in(tmp_path / "start_training.sh", launcher)
    programs.stand_in(tmp_path / "bin/docker", "exit 1")
    for name in ("tfrecords/part-0", "wiki/bert_config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(8192))
    bare = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = programs.run("bash", "-euc", LOOP, cwd=tmp_path, env=bare, check=True)
    shown = done.stdout.replace("\\", "").replace(" \n", "\n")
    for memory, told in zip(("2g", "4g", "8g"), shown.split("--output=")[1:], strict=True):
        assert told.startswith(f"sweep/{memory}/trace\n")
        assert f"--memory {memory} --memory-swap {memory} " in told
        assert f"source={tmp_path}/sweep/{memory}/run,target=/output" in told
        flags = "--emulate_step_seconds=0.1 --num_train_steps=2000"
        assert told.endswith(f" {flags}\n{memory}: exit code 137\n")


@pytest.fixture
def reads(tmp_path, monkeypatch) -> pd.DataFrame:
    """Reads of two threads, in 50 ms, by a trace in traces/...; beside them what moves nothing."""
    monkeypatch.chdir(tmp_path)
    folder, chosen = tmp_path / FOLDER, random.Random(5)
    folder.mkdir(parents=True)
    paths = [tmp_path / f"part-{n}.tfrecord" for n in range(3)]
    for path in paths:
        path.write_bytes(bytes(200_000))
    found = [
        {"monotonic_ns": 1000 * by_hand.SECOND + 10**6 * n, "tid": 7 + n % 2, "kind": "read",
         "path": str(chosen.choice(paths)), "file_class": "tfrecords" if n % 9 else "other",
         "offset_bytes": 512 * chosen.randrange(100), "size_bytes": chosen.choice([512, 9000])}
        for n in range(50)
    ]  # fmt: skip
    others = [found[0] | other for other in ({"kind": "write"}, {"offset_bytes": None})]
    others.append(found[0] | {"size_bytes": 0, "error": "EIO"})
    rows = [*reversed(found), *others]  # as they ended, not as they began
    tables.write_table(folder, "file_ops", rows, Alignment(by_hand.pairs(1)))
    return pd.DataFrame(found)


def test_fio_replays_the_reads_of_each_thread(reads, monkeypatch):
    if not shutil.which("fio"):
        lacking("fio is not installed: apt-get install fio")
    run_script("fio_replay.py", monkeypatch)
    reads = reads[reads["file_class"] == "tfrecords"]
    done = programs.run("fio", "replay.fio", "--output-format=json", cwd=Path.cwd(), check=True)
    jobs = {int(job["jobname"]): job for job in json.loads(done.stdout)["jobs"]}
    assert jobs.keys() == {7, 8}
    for tid, of_thread in reads.groupby("tid"):
        job, log = jobs[tid], Path(f"{tid}.log").read_text().splitlines()
        assert (job["error"], job["read"]["total_ios"]) == (0, len(of_thread))
        assert job["read"]["io_bytes"] == of_thread["size_bytes"].sum()
        assert job["job_runtime"] >= 40  # ms
        columns = zip(of_thread["path"], of_thread["offset_bytes"], of_thread["size_bytes"])
        told = [f"{path} read {offset} {size}" for path, offset, size in columns]
        assert [line.partition(" ")[2] for line in log[-len(told) :]] == told


def test_reuse_distances_are_those_counted_by_sets(reads, capsys, monkeypatch):
    found = run_script("reuse_distances.py", monkeypatch)
    blocks, last, expected, ended = [], {}, [], {}
    for read in reads.itertuples():
        first, end = read.offset_bytes // 4096, (read.offset_bytes + read.size_bytes - 1) // 4096
        shared = ended.get(read.path) == first
        blocks += [(read.path, block) for block in range(first + shared, end + 1)]
        ended[read.path] = end
    for at, block in enumerate(blocks):
        if block in last:
            expected.append(4096 * len({*blocks[last[block] + 1 : at]}))
        last[block] = at
    assert list(found["blocks"]["distance"]) == expected and len(set(expected)) > 10
    assert f"count {len(expected):.6f}" in re.sub(" +", " ", capsys.readouterr().out)


@pytest.mark.parametrize("name", ["fio_replay.py", "reuse_distances.py"])
@pytest.mark.parametrize("words", [[], ["/none"]])
def test_without_a_trace_a_script_asks_for_one(name, words, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, *words])
    with pytest.raises(SystemExit, match=f"^{name}: give the folder of a trace, which holds file"):
        runpy.run_path(str(TRACE.parent / "sample" / name))
