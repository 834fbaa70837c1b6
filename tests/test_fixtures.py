"""Which skips are failures in CI."""

import os
import sys

import pytest

from tests.fixtures import REPOSITORY
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


@pytest.mark.parametrize("in_ci", [False, True])
def test_a_skip_that_is_not_listed_fails_in_ci(tmp_path, in_ci):
    (tmp_path / "test_skipped.py").write_text(TESTS)
    words = ["-c", "pyproject.toml", "-p", "tests.fixtures", "-p", "no:cacheprovider", "-n", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    environment |= {"CI": "true"} if in_ci else {}
    command = [sys.executable, "-m", "pytest", *words, str(tmp_path)]
    done = programs.run(*command, cwd=REPOSITORY, env=environment)
    assert done.returncode == int(in_ci), done.stdout
    assert "no gcloud here" in done.stdout
    for reason in ("no tool here", "no right here", "another machine"):
        assert reason in done.stdout
        assert (f"{reason}; in CI no test may be skipped for this" in done.stdout) == in_ci
    counts = "1 failed, 1 skipped, 1 xfailed, 2 errors" if in_ci else "4 skipped, 1 xfailed"
    assert counts in done.stdout
