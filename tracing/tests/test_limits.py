"""Limits of memory and reading around a command, by real cgroups."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tracing import limits
from tracing.tests.conftest import require_limits


def test_a_group_limits_what_joins_it():
    require_limits()
    with limits.memory_group("mlperf-bert-test") as group:
        group.limit(64 << 20)
        holds = [sys.executable, "-c", "b'x' * (200 << 20)"]
        done = subprocess.run(group.joined(holds), capture_output=True)
        assert done.returncode == -signal.SIGKILL
        assert group.num_kills == 1
        [folder] = group.folders
    assert not folder.exists()


def test_a_disk_is_read_no_faster_than_allowed(tmp_path):
    require_limits()
    data = tmp_path / "data"
    data.write_bytes(os.urandom(3 << 20))
    limits.drop_from_cache([data])
    with limits.memory_group("mlperf-bert-test") as group:
        try:
            group.limit_reading(2 << 20, tmp_path)
        except OSError as error:
            pytest.skip(f"{tmp_path}: {error}")
        took = []
        for _ in ("from the disk", "cached"):
            began = time.monotonic()
            subprocess.run(group.joined(["/bin/cat", str(data)]), stdout=subprocess.DEVNULL)
            took.append(time.monotonic() - began)
    # The kernel lets the first slice of time through: less than 3 MB at 2 MB/s are 1.5 s.
    assert took[0] > 1 > took[1]


def test_a_user_without_the_right_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(limits, "CGROUPS", tmp_path / "none")
    version = limits._V1._replace(root=tmp_path / "none")
    monkeypatch.setattr(limits, "_V1", version)
    assert "No such file or directory" in limits.missing()
