"""Which skips are failures in CI."""

import os
import sys

from tests.helpers import programs

TESTS = """
import pytest

def test_listed():
    pytest.skip("no gcloud here")

def test_by_hand():
    pytest.skip("no tool here")

@pytest.fixture
def tool():
    pytest.skip("no right here")

def test_in_a_fixture(tool):
    pass

@pytest.mark.skipif(True, reason="another machine")
def test_by_a_mark():
    pass

@pytest.mark.xfail
def test_that_is_known_to_fail():
    raise ValueError
"""


def test_a_skip_that_is_not_listed_fails_in_ci(tmp_path):
    (tmp_path / "test_skipped.py").write_text(TESTS)
    words = ["-c", "pyproject.toml", "-p", "tests.fixtures", "-p", "no:cacheprovider", "-n", "0"]
    command = [sys.executable, "-m", "pytest", *words, tmp_path]
    done = programs.run(*command, env=os.environ | {"CI": "true"})
    assert done.returncode == 1 and "no gcloud here" in done.stdout
    for reason in ("no tool here", "no right here", "another machine"):
        assert f"{reason}; in CI no test may be skipped for this" in done.stdout
    assert "1 failed, 1 skipped, 1 xfailed, 2 errors" in done.stdout
