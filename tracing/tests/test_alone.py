"""As a person takes it: installed alone into an empty environment, without the checkout."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.helpers import programs
from tracing.tests.conftest import TRACE, environment

UV = Path(sys.executable).with_name("uv")  # installs in a sixth of pip's time
PROJECT = tomllib.loads((TRACE.parent / "pyproject.toml").read_text())
ALL_MODULES = """
import importlib, pathlib, sys, tracing
root = pathlib.Path(tracing.__file__).parent
for path in [*root.glob("*.py"), *root.glob("exports/*.py")]:
    importlib.import_module(".".join(("tracing", *path.relative_to(root).with_suffix("").parts)))
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""


@pytest.mark.gate
def test_installed_alone_it_traces_from_any_folder_and_from_the_checkout(tmp_path):
    """The commands of its README; every module is installed, and none needs the benchmark."""
    left = shutil.ignore_patterns("tests", "sample", ".build", "*.egg-info", "__pycache__")
    shutil.copytree(TRACE.parent, tmp_path / "tracing", ignore=left)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env/bin/python"
    words = [UV, "pip", "install", "--quiet", f"--python={python}", "./tracing"]
    subprocess.run(words, cwd=tmp_path, check=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    words = ["-m", "tracing", "--backend=proc", "--output=trace", "--", "sleep", "1"]
    done = programs.run(python, *words, cwd=elsewhere, check=True)
    assert "trace: look at trace/summary.html" in done.stderr
    assert "Read from the page cache" in (elsewhere / "trace/summary.html").read_text()
    given = {"cwd": elsewhere, "env": environment(PYTHON=str(python)), "check": True}
    done = programs.run(python.with_name("mlperf-trace"), "--help", **given)
    assert done.stdout.startswith("usage: python -m tracing")
    done = programs.run(TRACE, "--backend=proc", "--", "ls", **given)
    assert done.stdout == "trace\ntraces\n"  # the second is the default folder
    loaded = set(programs.run(python, "-c", ALL_MODULES, **given).stdout.split())
    assert {"pyarrow", "perfetto", "google"} < loaded
    assert not loaded & {"tensorflow", "mlperf_bert", "pages", "tests"}
    [site] = python.parent.parent.glob("lib/python*/site-packages")
    assert not list(site.glob("tensorflow*"))
    files = {path.name for path in (site / "tracing").rglob("*") if path.is_file()}
    assert {"files.bt", "tables.csv", "trace.html", "style.css"} < files
    assert "conftest.py" not in files


def test_what_its_modules_read_is_installed_with_them():
    parts = ("programs", "templates", "exports")
    given, root = PROJECT["tool"]["setuptools"], TRACE.parent
    installed = {path for each in given["package-data"]["tracing"] for path in root.glob(each)}
    read = {each for part in parts for each in root.glob(f"{part}/*.*")}
    assert installed == {each for each in read if each.suffix != ".py"} | {root / "tables.csv"}
    assert given["packages"] == ["tracing", "tracing.exports"]
    assert PROJECT["project"]["scripts"] == {"mlperf-trace": "tracing.__main__:main"}


def test_an_exported_cdpath_leads_nowhere_else():
    words = {"cwd": TRACE.parent.parent, "env": {**os.environ, "CDPATH": "."}}
    done = programs.run("tracing/trace.sh", "--help", **words)
    assert done.stdout.startswith("usage: python -m tracing")


@pytest.mark.parametrize("python", [None, "python3.99"])
def test_without_make_setup_the_script_takes_a_python_of_the_path(tmp_path, python):
    """The command has the folder, the words and the environment that were given."""
    script, text = (
        tmp_path / "tracing/trace.sh",
        '[ "$1" = - ] || { shift 3; echo "$PWD" "$@"; env; }',
    )
    script.parent.mkdir()
    shutil.copy(TRACE, script)
    programs.stand_in(tmp_path / "bin" / (python or "python3"), text)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", **({"PYTHON": python} if python else {})}
    done = programs.run(script, "--", "ls", "a  b", env=env, cwd=script.parent)
    first, *others = done.stdout.splitlines()
    assert first == f"{script.parent} -- ls a  b" and "PYTHONPATH" not in "".join(others)


@pytest.mark.parametrize("lacks", ["jinja2", "psutil", "pynvml"])
def test_the_script_says_what_to_install(tmp_path, lacks):
    """It looks for what its pyproject.toml names; numpy and protobuf come with the others."""
    program = f"import sys; sys.modules['{lacks}'] = None; exec(sys.stdin.read())"
    text = f'shift; exec {sys.executable} -c "{program}" "$@"'
    lacking = programs.stand_in(tmp_path / "python", text)
    done = programs.run(TRACE, "--", "ls", env={**os.environ, "PYTHON": str(lacking)})
    assert done.returncode == 1 and done.stdout == ""
    names = {*PROJECT["project"]["dependencies"], "pynvml"} - {"nvidia-ml-py", "numpy", "protobuf"}
    assert done.stderr == (
        f"trace: {lacking} lacks one of the packages {' '.join(sorted(names))}; run make setup, "
        f"or pip install {TRACE.parent}\n"
    )
