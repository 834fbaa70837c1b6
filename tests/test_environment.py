"""environment/: pip's settings for uv, and what a machine without the right Python is told.

The stand-ins say that they are another Python, or uv, and write down what they are asked for. Whole
installations are in tests/container/test_bare_machine.py.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

from environment import uv
from tests.fixtures import REPOSITORY
from tests.helpers import programs

SETUP = REPOSITORY / "environment" / "setup.sh"
LOCK = "environment/requirements.lock"
TOOLS = ["sh", "dirname", "mktemp", "rm", "grep", "cp", "mkdir", "ls", "tr"]
# Answers as a Python of another version would, and so do its environments. pip finds nothing, and
# writes down what it uninstalls.
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv "*)
    for folder; do :; done
    rm -rf "$folder" && mkdir -p "$folder/bin" && cp "$0" "$folder/bin/python"
    echo > "$folder/pyvenv.cfg"
    exit ;;
  *"/uv.py "*) script=$1; shift; exec {real} -c 'import runpy, sys
sys.executable, sys.argv = sys.argv[1], sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")' "$0" "$script" "$@" ;;
  "-m pip config list") echo "global.extra-index-url='/mirror'"; exit ;;
  "-m pip --version") exit ;;
  "-m pip uninstall "*) echo "$*" >> {folder}/asked; exit ;;
  "-m pip "*) echo "pip: $*" >&2; exit 1 ;;
esac
shift 2
exec {real} -I -c 'import sys; sys.version_info = {version}; {before}; exec(sys.argv[1])' "$1"
"""
# Has a Python of 3.13 only after it was told to fetch one.
UV = """#!/bin/sh
echo "$UV_INDEX $*" >> {folder}/asked
case "$*" in
  "python install "*) cp "{fetched}" {folder}/managed || exit 2 ;;
  "python find "*"--managed"*) echo {folder}/managed ;;
  "python find "*) exit 2 ;;
esac
"""


TOLD = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
INSTALL = ["pip", "install", "x"]


@pytest.mark.parametrize(
    "listed, environment, told, more",
    [
        ("global.index-url='https://user:word@mirror/simple'\n", {},
         {"UV_DEFAULT_INDEX": "https://user:word@mirror/simple"}, []),
        ("global.index-url='https://mirror'\n", {"UV_DEFAULT_INDEX": "https://other"},
         {"UV_DEFAULT_INDEX": "https://other"}, []),
        ("global.extra-index-url='file:///one\\nhttps://two'\nglobal.find-links='/a\\n/b'\n", {},
         {"UV_INDEX": "file:///one https://two", "UV_FIND_LINKS": "/a,/b"}, []),
        (":env:.cert='/e'\ninstall.cert='/i'\nglobal.cert='/g'\n", {}, {"SSL_CERT_FILE": "/e"}, []),
        ("install.cert='/i'\nglobal.cert='/g'\n", {"REQUESTS_CA_BUNDLE": "/r"},
         {"REQUESTS_CA_BUNDLE": "/r", "SSL_CERT_FILE": "/i"}, []),
        ("", {"REQUESTS_CA_BUNDLE": "/r"}, {"REQUESTS_CA_BUNDLE": "/r", "SSL_CERT_FILE": "/r"}, []),
        ("download.cert='/d'\nglobal.proxy=''\n:env:.no-index='0'\n", {}, {}, []),
        ("global.no-index='Off'\n", {}, {}, []),
        (":env:.no-index='true'\n:env:.no-cache-dir='off'\n", {}, {"UV_NO_CACHE": "off"},
         ["--no-index"]),
    ],
)  # fmt: skip
def test_uv_is_told_what_pip_is(monkeypatch, listed, environment, told, more):
    """As pip ranks its settings, and after what uv itself was told."""
    monkeypatch.setattr(uv, "BUNDLES", [])
    found, arguments = uv.as_uv(listed, environment, INSTALL)
    assert found == TOLD | told and arguments == ["pip", "install", *more, "x"]
    assert uv.as_uv(listed, environment, ["python", "find"])[1] == ["python", "find"]
    monkeypatch.setattr(uv, "BUNDLES", [__file__])
    assert uv.as_uv(listed, {}, [])[0]["UV_SYSTEM_CERTS"] == "true"


@pytest.fixture
def setup(tmp_path):
    """Runs setup.sh on a machine with stand-ins: {"python3": ((3, 14), "")} is a Python 3.14."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in TOOLS:
        (tools / tool).symlink_to(shutil.which(tool))

    def make(path: Path, text: str, **values) -> None:
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", str(value))
        programs.stand_in(path, text)

    def setup(pythons, fetched="", has_uv=True, folder="", lock=LOCK, **environment):
        for name, (version, before) in pythons.items():
            values = {"real": sys.executable, "folder": tmp_path}
            make(tools / name, PYTHON, version=version, before=before or 0, **values)
        if fetched:
            values = {"real": sys.executable, "folder": tmp_path}
            make(tmp_path / "3.13", PYTHON, version=(3, 13), before=0, **values)
            fetched = tmp_path / "3.13"
        if has_uv:
            make(tools / "uv", UV, folder=tmp_path, fetched=fetched)
        given = {"PATH": str(tools), "HOME": str(tmp_path), **environment}
        done = programs.run(SETUP, folder or tmp_path / "made", lock, env=given)
        asked = tmp_path / "asked"
        return done, asked.read_text().splitlines() if asked.exists() else []

    return setup


INSTALLS = "pip install --quiet --python {} --no-deps --require-hashes {} -r " + LOCK
WITHOUT_VENV = 'sys.modules["ensurepip"] = None'


def version_of(tmp_path) -> str:
    python = tmp_path / "made" / "bin" / "python"
    return programs.run(python, "-I", "-c", "print(sys.version_info)", check=True).stdout.strip()


@pytest.mark.parametrize(
    "pythons, chosen",
    [
        ({"python3": (3, 12), "python3.13": (3, 13)}, "(3, 12)"),
        ({"python3": (3, 14), "python3.12": (3, 12), "python3.13": (3, 13)}, "(3, 13)"),
        ({"python3": (3, 9), "python3.11": (3, 11)}, "(3, 11)"),
    ],
)
def test_a_python_of_the_machine_is_taken_its_default_first(setup, tmp_path, pythons, chosen):
    done, asked = setup({name: (version, "") for name, version in pythons.items()})
    assert done.returncode == 0 and version_of(tmp_path) == chosen
    install = INSTALLS.format(tmp_path / "made/bin/python", "--compile-bytecode")
    assert asked == ["/mirror --version", f"/mirror {install}"]  # with pip's settings


def test_a_machine_with_a_newer_python_alone_gets_one_that_fits(setup, tmp_path):
    done, asked = setup({"python3": ((3, 14), "")}, fetched=True)
    assert done.returncode == 0 and version_of(tmp_path) == "(3, 13)"
    assert "setup: no Python of 3.11 to 3.13 here: uv fetches 3.13\n" in done.stderr
    assert "/mirror python install --quiet --no-bin 3.13" in asked
    assert asked[-1].startswith("/mirror pip install")


@pytest.mark.parametrize(
    "pythons, options, line",
    [
        ({}, {"has_uv": False}, "there is no Python of 3.11 to 3.13, and no python3 with the "
         "modules venv and ensurepip to fetch one: install one of them (apt-get install "),
        ({"python3": ((3, 13), WITHOUT_VENV)}, {"has_uv": False}, "python3 has no modules venv and "
         "ensurepip: apt-get install python3-venv, or name another "),
        ({"python3": ((3, 14), "")}, {}, "there is no Python of 3.11 to 3.13, and uv got none "
         "(above): install one, such as python3.13 "),
        ({"python3": ((3, 13), ""), "python3.14": ((3, 14), "")}, {"PYTHON": "python3.14"},
         "PYTHON=python3.14 is not a Python of 3.11 to 3.13 with the modules venv and ensurepip; "),
        ({"python3": ((3, 13), "")}, {"PYTHON": "/no/such"}, "PYTHON=/no/such is not a Python of "),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_said_in_a_line(setup, tmp_path, pythons, options, line):
    done, _ = setup(pythons, **options)
    assert done.returncode == 1 and not (tmp_path / "made").exists()
    assert done.stderr.splitlines()[-1].startswith(f"setup: {line}"), done.stderr
    assert done.stderr.count("setup: ") <= 2 and "Traceback" not in done.stderr


def test_pip_installs_where_uv_cannot_be_had(setup):
    done, _ = setup({"python3": ((3, 13), "")}, has_uv=False)
    wanted = "-m pip install --quiet --disable-pip-version-check --no-deps --require-hashes"
    assert done.stderr == f"pip: {wanted} -r {LOCK}\n"


def test_an_environment_of_another_python_is_made_again(setup, tmp_path):
    pythons = {"python3": ((3, 13), ""), "python3.11": ((3, 11), "")}
    assert setup(pythons)[0].returncode == 0
    kept = tmp_path / "made" / "kept"
    kept.touch()
    assert setup(pythons)[0].returncode == 0 and kept.exists()
    assert setup(pythons, PYTHON="python3.13")[0].returncode == 1  # there is none
    assert setup(pythons, PYTHON="python3.11")[0].returncode == 0
    assert version_of(tmp_path) == "(3, 11)" and not kept.exists()


@pytest.mark.parametrize(
    "kind, leave",
    [
        ("", "jax_cuda12_plugin libtpu tensorflow"),
        ("-gpu", "libtpu nvidia_cublas tensorflow"),
        ("-gpu-tensorflow", "jax_cuda12_plugin libtpu nvidia_cublas tensorflow_cpu"),
    ],
)
def test_what_would_lie_in_the_same_folders_leaves_first(setup, tmp_path, kind, leave):
    """Such as CUDA 13 for jax, where the lock has CUDA 12."""
    lock = f"environment/requirements{kind}.lock"
    setup({"python3": ((3, 13), "")})
    packages = tmp_path / "made" / "lib" / "python3.13" / "site-packages"
    installed = "jax jax_cuda12_plugin jaxlib libtpu nvidia_cublas nvidia_cudnn_cu12 nvidia_ml_py "
    for name in (installed + "tensorflow tensorflow_cpu tensorflow_text torch").split():
        (packages / f"{name}-1.2.3.dist-info").mkdir(parents=True)
    (tmp_path / "asked").unlink()
    done, asked = setup({}, lock=lock)
    names = leave.replace("_", "-")
    assert asked[0] == f"-m pip uninstall --quiet --yes {names}" and len(asked) == 3, asked
    assert f"setup: removing what is not in {lock}: {names}\n" in done.stdout


@pytest.mark.parametrize("name", ["mine", "mine/", "linked", "file", "nowhere"])
def test_a_folder_that_is_not_an_environment_keeps_what_is_in_it(setup, tmp_path, name):
    (tmp_path / "mine" / "bin").mkdir(parents=True)
    (tmp_path / "mine" / ".hidden").write_text("kept")
    (tmp_path / "linked").symlink_to("mine")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "nowhere").symlink_to("gone")
    done, asked = setup({"python3": ((3, 13), "")}, folder=f"{tmp_path}/{name}")
    assert done.returncode == 1 and not asked
    assert done.stderr.splitlines() == [
        f"setup: {tmp_path}/{name} is not an environment, and it is not empty: name another "
        "folder, or remove it yourself"
    ]
    assert (tmp_path / "mine" / ".hidden").read_text() == (tmp_path / "file").read_text() == "kept"
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("words", [[], ["made", "no.lock"]])
def test_setup_needs_a_folder_and_a_lock_file(words):
    done = programs.run(SETUP, *words, cwd=REPOSITORY)
    assert done.returncode == 1 and not done.stdout and not (REPOSITORY / "made").exists()
    assert done.stderr.endswith("': give a folder for the environment and a lock file\n")


def test_one_accelerator_takes_the_place_of_another_and_stays(tmp_path):
    """What `make setup` would run, in a checkout whose .venv has the lock of the tests."""
    shutil.copytree(REPOSITORY / "environment", tmp_path / "environment")
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    installed = tmp_path / ".venv" / ".installed"
    installed.parent.mkdir()
    installed.touch()

    def setup(*words):
        given = {"cwd": tmp_path, "env": {"PATH": os.environ["PATH"]}}
        return programs.run("make", "-n", "setup", *words, **given)

    assert "setup.sh" not in setup().stdout
    for kind in ("gpu", "gpu-cuda13", "gpu-tensorflow", "tpu", "rocm"):
        assert setup(f"ACCELERATOR={kind}").stdout.splitlines() == [
            "rm -f .venv/.installed-*",
            f"environment/setup.sh .venv environment/requirements-{kind}.lock",
            f"touch .venv/.installed-{kind}",
        ]
    of_tpu = installed.with_name(".installed-tpu")
    of_tpu.touch()
    assert "setup.sh" not in setup().stdout
    later = of_tpu.stat().st_mtime + 10
    os.utime(tmp_path / "environment" / "requirements-tpu.lock", (later, later))
    assert "requirements-tpu.lock" in setup().stdout
    refused = setup("ACCELERATOR=gpu2")
    assert refused.returncode == 2
    line = "ACCELERATOR=gpu2: give one of cpu gpu gpu-cuda13 gpu-tensorflow tpu rocm.  Stop."
    assert line in refused.stderr
