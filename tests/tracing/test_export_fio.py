"""Debian's fio replays a trace and moves its bytes, in the time that the trace took."""

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.helpers import programs
from tests.tracing import generated_trace
from tests.tracing.generated_trace import moved_in
from tracing import tables
from tracing.exports import fio
from tracing.exports.finished import Finished


def moved_by(jobs: list[dict]) -> dict[str, tuple[int, int]]:
    """(calls, bytes) of reads and writes, by what fio itself reports of its jobs."""
    assert all(job["error"] == 0 for job in jobs)
    return {
        kind: tuple(sum(job[kind][name] for job in jobs) for name in ("total_ios", "io_bytes"))
        for kind in ("read", "write")
    }


def moved_by_the_trace(trace: Path) -> dict[str, tuple[int, int]]:
    sizes = moved_in(tables.read_table(trace, "file_ops")).groupby("kind")["size_bytes"]
    return {kind: (len(found), int(found.sum())) for kind, found in sizes}


@pytest.mark.parametrize("per", fio.GROUPS)
def test_a_replay_moves_the_bytes_of_the_trace(tmp_path, per):
    if not shutil.which("fio"):
        pytest.skip("fio is not installed: apt-get install fio")
    trace = generated_trace.write(tmp_path / "trace")
    fio.write(Finished(trace), tmp_path / "replay", per=per)
    began = time.monotonic()
    words = ["fio", "replay.fio", "--output-format=json"]
    done = programs.run(*words, cwd=tmp_path / "replay", check=True)
    seconds = time.monotonic() - began
    jobs = json.loads(done.stdout)["jobs"]
    assert moved_by(jobs) == moved_by_the_trace(trace)
    stamps = moved_in(tables.read_table(trace, "file_ops"))["monotonic_ns"]
    lasts = (stamps.max() - generated_trace.BEGIN_NS) / 1e9
    assert 0.95 * lasts < max(job["job_runtime"] for job in jobs) / 1000 < seconds
    assert (tmp_path / "replay" / "files").is_dir()
