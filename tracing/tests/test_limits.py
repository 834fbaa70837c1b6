"""Limits of memory and reading around a command, by real cgroups."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import programs
from tracing import limits
from tracing.tests.conftest import require_limits

HOLDING = "import time; held = b'x' * ({} << 20); time.sleep(0.5)"


def limited(*options: str, program: str) -> subprocess.CompletedProcess:
    words = ["-m", "tracing.limits", *options, "--", sys.executable, "-c", program]
    return programs.run(sys.executable, *words)


def test_a_group_limits_what_joins_it():
    require_limits()
    with limits.memory_group("mlperf-bert-test") as group:
        group.limit(64 << 20)
        holds = [sys.executable, "-c", "b'x' * (200 << 20)"]
        done = subprocess.run(group.joined(holds), capture_output=True)
        assert done.returncode == -signal.SIGKILL
        assert group.num_kills == 1
        folder = group._folder
    assert not folder.exists()


def test_the_commands_code_is_returned_and_what_its_programs_held():
    require_limits()
    done = limited("--memory=300m", program=HOLDING.format(100) + "; raise SystemExit(7)")
    assert done.returncode == 7
    words = r"the programs held ([\d,]+) bytes of memory at most, ([\d,]+) bytes half of the time"
    [found] = re.findall(words, done.stderr)
    most, median = (int(each.replace(",", "")) for each in found)
    assert median <= most and 100 << 20 < most < 200 << 20
    done = limited("--memory=64m", program=HOLDING.format(200))
    assert done.returncode == 128 + signal.SIGKILL
    assert "limits: processes killed for want of memory: 1" in done.stderr


def test_a_disk_is_read_no_faster_than_allowed(tmp_path):
    require_limits()
    try:
        limits.disk_of(tmp_path)
    except OSError as error:
        pytest.skip(f"{tmp_path} has no block device: {error.strerror}")
    data = tmp_path / "data"
    data.write_bytes(os.urandom(3 << 20))
    limits.drop_from_cache([data])
    reading = f"import time; b = time.monotonic(); open({str(data)!r}, 'rb').read(); "
    reading += "print(time.monotonic() - b)"
    options = ("--read_speed=2m", f"--disk={tmp_path}")
    from_disk, cached = (float(limited(*options, program=reading).stdout) for _ in range(2))
    # The kernel lets the first slice of time through: less than 3 MB at 2 MB/s are 1.5 s.
    assert from_disk > 1
    assert cached < from_disk / 2  # the page cache is not slowed


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--memory=much", "--memory: 'much' is not a size; give 512m, 1g, bytes, or none"),
        ("--read_speed=0", "--read_speed: '0' is not a size; give 512m, 1g, bytes, or none"),
    ],
)
def test_a_wrong_size_is_one_line(option, message):
    done = limited(option, program="")
    assert (done.returncode, done.stderr) == (1, f"limits: {message}\n")


def test_a_place_without_a_disk_and_a_missing_command_are_one_line():
    require_limits()
    done = limited("--read_speed=1m", "--disk=/proc", program="")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "limits: /proc: it is on no disk whose speed can be limited\n"
    roots = [root for root in (limits.CGROUPS, limits.CGROUPS / "memory") if root.exists()]
    left = [group for root in roots for group in root.glob("mlperf-bert-limits*")]
    assert left == []


def test_a_user_without_the_right_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(limits, "CGROUPS", tmp_path / "none")
    monkeypatch.setattr(limits, "_V1", limits._V1.__class__(**{
        **vars(limits._V1), "root": Path("/proc")}))  # fmt: skip
    with pytest.raises(SystemExit, match=r"^limits: .*/proc/mlperf-bert-limits"):
        limits.main(["--", "true"])
