"""Flags of all kinds of wrong values: lines that name what is wrong, or a run that can begin."""

import json
import subprocess
import sys

import pytest


@pytest.mark.all
@pytest.mark.parametrize("num_cases", [300, pytest.param(5000, marks=pytest.mark.soak)])
def test_any_flags_are_refused_in_lines_or_a_run_can_begin(repository, tmp_path, num_cases):
    command = [sys.executable, "-m", "tests.helpers.fuzzed_flags", str(num_cases), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository)
    assert done.returncode == 0, done.stderr[-4000:]
    ends = json.loads(done.stdout.splitlines()[-1])
    assert ends["refused"] > num_cases / 3 and ends["begins"] > num_cases / 50
