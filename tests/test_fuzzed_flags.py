"""Flags of all kinds of wrong values: lines that name what is wrong, or a run that can begin."""

import json
import sys

import pytest

from tests.helpers import programs


@pytest.mark.all
@pytest.mark.parametrize("num_cases", [300, pytest.param(5000, marks=pytest.mark.soak)])
def test_any_flags_are_refused_in_lines_or_a_run_can_begin(tmp_path, num_cases):
    done = programs.run(
        sys.executable, "-m", "tests.helpers.fuzzed_flags", num_cases, tmp_path, check=True
    )
    ends = json.loads(done.stdout.splitlines()[-1])
    assert ends["refused"] > num_cases / 3 and ends["begins"] > num_cases / 50
