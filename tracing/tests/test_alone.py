"""As a person takes it: installed alone into an empty environment, without the checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import programs
from tracing.tests.conftest import TRACE, environment

UV = Path(sys.executable).with_name("uv")  # installs in a sixth of pip's time
ALL_MODULES = """
import importlib, pathlib, sys, tracing
root = pathlib.Path(tracing.__file__).parent
for path in [*root.glob("*.py"), *root.glob("exports/*.py")]:
    importlib.import_module(".".join(("tracing", *path.relative_to(root).with_suffix("").parts)))
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """The interpreter of a new environment in which nothing but tracing/ was installed."""
    folder = tmp_path_factory.mktemp("alone")
    left = shutil.ignore_patterns("tests", "sample", ".build", "*.egg-info", "__pycache__")
    shutil.copytree(TRACE.parent, folder / "tracing", ignore=left)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    python = folder / "env/bin/python"
    words = [UV, "pip", "install", "--quiet", f"--python={python}", "./tracing"]
    subprocess.run(words, cwd=folder, check=True)
    return python


@pytest.mark.gate
def test_it_traces_from_any_folder_and_from_the_checkout(python, tmp_path):
    """The commands of its README."""
    words = ["-m", "tracing", "--backend=proc", "--output=trace", "--", "sleep", "1"]
    done = programs.run(python, *words, cwd=tmp_path, check=True)
    assert "trace: look at trace/summary.html" in done.stderr
    assert "Read from the page cache" in (tmp_path / "trace/summary.html").read_text()
    programs.run(python.with_name("mlperf-trace"), "--help", cwd=tmp_path, check=True)
    given = environment(PYTHON=str(python))
    done = programs.run(TRACE, "--backend=proc", "--", "ls", cwd=tmp_path, env=given, check=True)
    assert done.stdout == "trace\ntraces\n"


@pytest.mark.gate
def test_every_module_is_installed_and_none_needs_the_benchmark(python, tmp_path):
    loaded = set(programs.run(python, "-c", ALL_MODULES, cwd=tmp_path, check=True).stdout.split())
    assert {"pyarrow", "perfetto", "google"} < loaded
    assert not loaded & {"tensorflow", "mlperf_bert", "pages", "tests"}
    site = next(python.parent.parent.glob("lib/python*/site-packages"))
    assert not list(site.glob("tensorflow*"))
    files = {path.name for path in (site / "tracing").rglob("*") if path.is_file()}
    assert {
        "files.bt",
        "tables.csv",
        "trace.html",
        "style.css",
    } < files and "conftest.py" not in files


def test_the_script_says_what_to_install(tmp_path):
    lacking = programs.stand_in(tmp_path / "python", "exit 1")
    done = programs.run(TRACE, "--", "ls", env={**os.environ, "PYTHON": str(lacking)})
    assert done.returncode == 1 and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.endswith(f"run make setup, or pip install {TRACE.parent}")
