"""environment/: which Python makes an environment, and what a machine without one is told.

The stand-ins say that they are another Python, and write down what pip is asked for. Whole
installations are in tests/container/test_bare_machine.py.
"""

import os
import shutil
import sys

import pytest

from tests.fixtures import REPOSITORY
from tests.helpers import programs

SETUP = REPOSITORY / "environment" / "setup.sh"
LOCK = "environment/requirements.lock"
TOOLS = ["sh", "rm", "grep", "cp", "mkdir", "ls", "tr"]
# Answers as a Python of another version would, and so do its environments.
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv --clear "*)
    for folder; do :; done
    rm -rf "$folder" && mkdir -p "$folder/bin" && cp "$0" "$folder/bin/python"
    echo > "$folder/pyvenv.cfg"
    exit ;;
  "-m pip --version") exit ;;
  "-m pip "*|"-m compileall "*)
    echo "$*" >> {folder}/asked
    case "$NO_LOCKS $*" in 1*" -j "*) exit 1 ;; esac
    exit ;;
esac
shift 2
exec {real} -I -c 'import sys; sys.version_info = {version}; {before}; exec(sys.argv[1])' "$1"
"""


@pytest.fixture
def setup(tmp_path):
    """Runs setup.sh on a machine with stand-ins: python3="(3, 14)" is a Python 3.14."""
    tools, asked = tmp_path / "bin", tmp_path / "asked"
    tools.mkdir()
    for tool in TOOLS:
        (tools / tool).symlink_to(shutil.which(tool))

    def setup(pythons, folder="", lock=LOCK, **environment):
        for name, version in pythons.items():
            version, _, before = version.partition(" without ")
            values = {"real": sys.executable, "folder": str(tmp_path), "version": version}
            values["before"] = f"sys.modules[{before!r}] = None" if before else "0"
            text = PYTHON
            for word, value in values.items():
                text = text.replace(f"{{{word}}}", value)
            programs.stand_in(tools / name, text)
        asked.unlink(missing_ok=True)
        given = {"PATH": str(tools), "HOME": str(tmp_path), **environment}
        done = programs.run(SETUP, folder or tmp_path / "made", lock, env=given)
        return done, asked.read_text().splitlines() if asked.exists() else []

    return setup


INSTALL = (
    "-m pip install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes -r "
)
COMPILE = "-m compileall -qq -j 8 -x /site-packages/.*/tests/ "


def version_of(tmp_path) -> str:
    python = tmp_path / "made" / "bin" / "python"
    return programs.run(python, "-I", "-c", "print(sys.version_info)", check=True).stdout.strip()


@pytest.mark.parametrize(
    "pythons, chosen",
    [
        ({"python3": "(3, 12)", "python3.13": "(3, 13)"}, "(3, 12)"),  # the machine's default first
        ({"python3": "(3, 14)", "python3.12": "(3, 12)", "python3.13": "(3, 13)"}, "(3, 13)"),
        ({"python3": "(3, 9)", "python3.11": "(3, 11)"}, "(3, 11)"),
    ],
)
def test_a_python_of_the_machine_is_taken(setup, tmp_path, pythons, chosen):
    done, asked = setup(pythons)
    assert done.returncode == 0 and version_of(tmp_path) == chosen
    assert asked == [INSTALL + LOCK, f"{COMPILE}{tmp_path / 'made'}/lib"]


def test_one_process_compiles_where_several_can_have_no_locks(setup, tmp_path):
    done, asked = setup({"python3": "(3, 13)"}, NO_LOCKS="1")
    command = f"{COMPILE}{tmp_path / 'made'}/lib"
    assert done.returncode == 0 and asked[1:] == [command, command.replace("-j 8 ", "")]


NO_PYTHON = (
    "there is no Python of 3.11 to 3.13 with the modules venv and ensurepip: apt-get install "
    "python3 python3-venv; or pip install uv, uv python install 3.13, and name it with "
    'PYTHON="$(uv python find 3.13)"'
)


@pytest.mark.parametrize(
    "pythons, python, line",
    [
        ({}, "", NO_PYTHON),
        ({"python3": "(3, 13) without ensurepip"}, "", NO_PYTHON),
        ({"python3": "(3, 14)", "python3.10": "(3, 10)"}, "", NO_PYTHON),
        ({"python3": "(3, 13)", "python3.14": "(3, 14)"}, "python3.14",
         "PYTHON=python3.14 is not a Python of 3.11 to 3.13 with the modules venv and ensurepip; "
         "name another, or leave PYTHON out"),
        ({"python3": "(3, 13)"}, "/no/such", "PYTHON=/no/such is not a Python of "),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_said_in_a_line(setup, tmp_path, pythons, python, line):
    done, asked = setup(pythons, PYTHON=python)
    assert done.returncode == 1 and not asked and not (tmp_path / "made").exists()
    [said] = done.stderr.splitlines()
    assert said.startswith(f"setup: {line}")


def test_an_environment_of_another_python_is_made_again(setup, tmp_path):
    pythons = {"python3": "(3, 13)", "python3.11": "(3, 11)"}
    assert setup(pythons)[0].returncode == 0
    kept = tmp_path / "made" / "kept"
    kept.touch()
    assert setup(pythons)[0].returncode == 0 and kept.exists()
    assert setup(pythons, PYTHON="python3.13")[0].returncode == 1  # there is none
    assert setup(pythons, PYTHON="python3.11")[0].returncode == 0
    assert version_of(tmp_path) == "(3, 11)" and not kept.exists()


def test_an_environment_without_pip_is_made_again(setup, tmp_path):
    pythons = {"python3": "(3, 13)"}
    assert setup(pythons)[0].stderr == ""
    python, kept = tmp_path / "made" / "bin" / "python", tmp_path / "made" / "kept"
    kept.touch()
    programs.stand_in(python, python.read_text().replace('--version") exit', '--version") exit 1'))
    done, asked = setup(pythons)
    assert done.returncode == 0 and done.stderr == "" and not kept.exists()
    assert asked[0] == INSTALL + LOCK


@pytest.mark.parametrize(
    "kind, leave",
    [
        ("", "jax_cuda12_plugin libtpu tensorflow"),
        ("-gpu", "libtpu nvidia_cublas tensorflow"),
    ],
)
def test_what_would_lie_in_the_same_folders_leaves_first(setup, tmp_path, kind, leave):
    """Such as CUDA 13 for jax, where the lock has CUDA 12."""
    lock = f"environment/requirements{kind}.lock"
    setup({"python3": "(3, 13)"})
    packages = tmp_path / "made" / "lib" / "python3.13" / "site-packages"
    installed = "jax jax_cuda12_plugin jaxlib libtpu nvidia_cublas nvidia_cudnn_cu12 nvidia_ml_py "
    for name in (installed + "tensorflow tensorflow_cpu tensorflow_text torch").split():
        (packages / f"{name}-1.2.3.dist-info").mkdir(parents=True)
    done, asked = setup({}, lock=lock)
    names = leave.replace("_", "-")
    uninstall = f"-m pip uninstall --quiet --yes {names}"
    assert asked == [uninstall, INSTALL + lock, f"{COMPILE}{tmp_path / 'made'}/lib"]
    assert f"setup: removing what is not in {lock}: {names}\n" in done.stdout


@pytest.mark.parametrize("name", ["mine", "linked", "file", "nowhere"])
def test_a_folder_that_is_not_an_environment_keeps_what_is_in_it(setup, tmp_path, name):
    (tmp_path / "mine" / "bin").mkdir(parents=True)
    (tmp_path / "mine" / ".hidden").write_text("kept")
    (tmp_path / "linked").symlink_to("mine")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "nowhere").symlink_to("gone")
    done, asked = setup({"python3": "(3, 13)"}, folder=f"{tmp_path}/{name}")
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
    for kind in ("gpu", "gpu-cuda13", "tpu"):
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
    line = "ACCELERATOR=gpu2: give one of cpu gpu gpu-cuda13 tpu.  Stop."
    assert line in refused.stderr


@pytest.mark.parametrize(
    ("command", "lacks"),
    [
        ("run_pretraining.py --help", "tensorflow"),
        ("create_pretraining_data.py", "absl"),
        ("-m demo", "filelock"),
        ("-m mlperf_results.compare", "numpy"),
        ("-m tracing.export", "numpy"),
    ],
)
def test_a_python_without_the_packages_is_told_of_in_one_line(command, lacks):
    done = programs.run(sys.executable, "-S", *command.split())  # -S: without site-packages
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"{sys.executable} lacks {lacks}: run make setup, " in done.stderr
