"""Compiled loops find a place for their cache, or do without one. Seconds."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import open_to_all

PROGRAM = """
import numba
from mlperf_bert.data import jit, loops
print(loops.one_more(1), jit._CACHE, numba.config.CACHE_DIR)
"""
LOOPS = """
from mlperf_bert.data.jit import kernel
from mlperf_bert.data.steps import step

@kernel
def one_more(x):
    return step(x)
"""
STEPS = """
from mlperf_bert.data.jit import kernel

@kernel
def step(x):
    return x + 1
"""


@pytest.fixture
def source(repository, tmp_path):
    """A copy of the modules, with a loop that calls one of another file."""
    folder = tmp_path / "source" / "mlperf_bert" / "data"
    folder.mkdir(parents=True)
    for name in ("__init__.py", "data/__init__.py", "data/jit.py"):
        shutil.copy(repository / "mlperf_bert" / name, folder.parent / name)
    (folder / "loops.py").write_text(LOOPS)
    (folder / "steps.py").write_text(STEPS)
    return folder.parent.parent


@pytest.fixture
def read_only_source(source):
    """The same, not writable, as an installed package's."""
    (source / "mlperf_bert" / "data").chmod(0o555)
    yield source
    (source / "mlperf_bert" / "data").chmod(0o755)


@pytest.fixture
def temporary(tmp_path):
    """A folder in which everybody may write."""
    open_to_all(tmp_path)
    (tmp_path / "temporary").mkdir()
    (tmp_path / "temporary").chmod(0o777)
    return tmp_path / "temporary"


def run(source, temporary) -> list[str]:
    command = [sys.executable, "-c", PROGRAM]
    if os.geteuid() == 0:  # root may write anywhere: become nobody
        nobody = ["setpriv", "--reuid=65534", "--clear-groups"]
        # Of an environment that it may not read Python takes the one below.
        is_ours = f"import sys; sys.exit(sys.prefix != {sys.prefix!r})"
        probe = subprocess.run([*nobody, sys.executable, "-c", is_ours], capture_output=True)
        if probe.returncode:
            pytest.skip("this interpreter is not readable for others")
        command = nobody + command
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(source), "TMPDIR": str(temporary)}
    output = subprocess.check_output(command, env=environment, cwd=source, text=True)
    return output.strip().split()


def test_beside_a_read_only_source_the_cache_goes_to_the_temporary_folder(
    read_only_source, temporary
):
    uid = 65534 if os.geteuid() == 0 else os.getuid()
    found = run(read_only_source, temporary)
    assert found[:2] == ["2", "True"]
    assert Path(found[2]).parent == temporary / f"mlperf-bert-numba-{uid}"
    assert (temporary / f"mlperf-bert-numba-{uid}").stat().st_mode & 0o777 == 0o700


@pytest.mark.gate
def test_a_loop_is_compiled_again_where_one_that_it_calls_has_changed(source, temporary):
    open_to_all(source)
    for folder in (source / "mlperf_bert", source / "mlperf_bert" / "data"):
        folder.chmod(0o777)
    assert run(source, temporary)[0] == "2"
    changed = STEPS.replace("x + 1", "x + 20")
    (source / "mlperf_bert" / "data" / "steps.py").write_text(changed)
    assert run(source, temporary)[0] == "21"


@pytest.mark.gate
def test_a_cache_of_another_user_is_not_trusted(read_only_source, temporary):
    if os.geteuid():
        pytest.skip("needs root, to own the folder as another user")
    (temporary / "mlperf-bert-numba-65534").mkdir()  # root's
    assert run(read_only_source, temporary)[:2] == ["2", "False"]
