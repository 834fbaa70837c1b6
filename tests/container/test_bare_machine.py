"""The README's first commands where there is nothing: an ordinary user, Python, make, git.

No strace, ps or pseudo-terminal, no writable /dev/shm, SIGINT ignored as for what a shell
starts in the background, and no folder `shared`. With Debian 13's own Python 3.13 the tests run
that ask for what is missing.

`make test-all TESTS=tests/container` does more: the README's two commands as a whole, also with
Python 3.12, which Debian has not and which is copied from this machine, where pyenv has it, and on
Debian 12 with its Python 3.11.
"""

import re
import shutil
from pathlib import Path

import pytest

from tests.container.conftest import BASE_IMAGE, debian, of_pyenv, run

pytestmark = pytest.mark.gate

NAME = "bert-test-bare"
USER = 1000
DOCKERFILE = f"""
FROM {{base}}
RUN apt-get -qq update \\
 && apt-get -qq install --yes --no-install-recommends git make
{{python}}
RUN useradd --create-home --uid {USER} dev
COPY --chown={USER}:{USER} bert /home/dev/bert
"""
# What Python 3.12 from pyenv is linked with; Debian's own Python goes.
PYTHON312 = """
RUN apt-get -qq install --yes --no-install-recommends libssl3 libffi8 libbz2-1.0 liblzma5 \\
      libsqlite3-0 libreadline8 libncursesw6 zlib1g libexpat1 libuuid1 \\
 && apt-get -qq purge --yes "^python3" "^libpython3"
COPY python /opt/python
RUN echo /opt/python/lib > /etc/ld.so.conf.d/python.conf && ldconfig
ENV PATH=/opt/python/bin:$PATH
"""
TESTS = "tracing/tests/test_trace.py tests/submission/test_campaign.py tests/test_launchers.py"
PYTEST = ".venv/bin/python -m pytest -n 2 --dist loadfile --color=no"


SUITES = {"3.11": "bookworm", "3.12": "trixie", "3.13": "trixie"}
ONLY_WITH_313 = pytest.mark.parametrize("version", ["3.13"], indirect=True, scope="module")
SLOW_ONES = [pytest.param(name, marks=pytest.mark.all) for name in ("3.11", "3.12")]


def python312(folder: Path) -> str:
    """Copies this machine's Python 3.12 to the folder; returns the lines that install it."""
    ignored = shutil.ignore_patterns("test", "__pycache__", "site-packages", "*.a")
    shutil.copytree(of_pyenv("3.12"), folder / "python", ignore=ignored, symlinks=True)
    return PYTHON312


@pytest.fixture(scope="module", params=["3.13", *SLOW_ONES])
def version(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def machine(docker, base_image, workplace, repository, tmp_path_factory, version):
    """Runs a command in a container with a clone of this checkout.

    It has the network of this machine, for packages.
    """
    folder = tmp_path_factory.mktemp("bare")
    run("git", "clone", "--quiet", repository, folder / "bert")
    python = python312(folder) if version == "3.12" else ""
    base = base_image
    if SUITES[version] != "trixie":
        base = debian(docker, workplace, SUITES[version], f"{BASE_IMAGE}-{SUITES[version]}")
    (folder / "Dockerfile").write_text(DOCKERFILE.format(base=base, python=python))
    run("docker", "build", "--quiet", "--network=host", "--tag", NAME, folder, env=docker)
    words = ["docker", "run", "--detach", "--name", NAME, "--network=host", "--init"]
    words += [f"--user={USER}:{USER}", "--workdir=/home/dev/bert", "--env=HOME=/home/dev"]
    words += ["--mount=type=tmpfs,destination=/dev/shm,tmpfs-mode=0755"]
    words += ["--mount=type=tmpfs,destination=/dev/pts,tmpfs-mode=0755"]
    run(*words, NAME, "sleep", "infinity", env=docker)
    try:
        yield lambda command: run(
            "docker", "exec", NAME, "sh", "-c", command, env=docker, check=False
        )
    finally:
        # Not --rm and kill: that removes it some time later, and the next machine takes the name.
        run("docker", "rm", "--force", NAME, env=docker, check=False)
        run("docker", "image", "rm", "--force", NAME, env=docker, check=False)


@pytest.fixture(scope="module")
def setup(machine):
    done = machine("make setup")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def test_the_machine_is_bare(machine, version):
    found = machine("id -u; command -v strace bpftrace ps docker; ls ..; touch /dev/shm/x")
    assert found.stdout.split() == [str(USER), "bert"]
    assert "Permission denied" in found.stderr
    assert "No such" in machine("python3 -c 'import os; os.openpty()'").stderr
    assert [v for v in SUITES if machine(f"command -v python{v}").returncode == 0] == [version]


def test_setup_says_nothing_of_a_failure(machine, setup, version):
    assert f"Python {version}." in machine(".venv/bin/python --version").stdout
    assert "Traceback" not in setup.stderr and "rror" not in setup.stderr, setup.stderr


@pytest.mark.all
@pytest.mark.parametrize("target", ["demo SEED=1", "test"])
def test_the_readmes_two_commands(machine, setup, target, capfd_disabled):
    done = machine(f"make {target}")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    wanted = r"RESULT,bert,.*,success,.*|=+ \d+ passed.*"
    [told] = re.findall(rf"^(?:{wanted})$", done.stdout, re.MULTILINE)
    with capfd_disabled():
        print(f"\nmake {target}: {told}")


@ONLY_WITH_313
def test_tests_pass_or_say_what_they_lack(machine, setup):
    done = machine(f"trap '' INT; {PYTEST} -m 'not gate and not all' {TESTS}")
    assert done.returncode == 0, done.stdout[-5000:]
    assert re.search(r"^=+ \d+ passed, \d+ skipped in ", done.stdout, re.MULTILINE)
    for line in re.findall(r"^SKIPPED .*", done.stdout, re.MULTILINE):
        assert re.search(r"cannot|can be had|only root|no single calls", line), line


@ONLY_WITH_313
def test_in_ci_a_tool_that_is_missing_is_a_failure(machine, setup):
    done = machine(f"CI=true {PYTEST} {TESTS} -k 'no_tty or (ends_at_once and strace)'")
    assert done.returncode == 1
    assert re.search(r"^=+ 1 failed, 1 error in ", done.stdout, re.MULTILINE), done.stdout[-3000:]
    assert "strace is not installed; apt-get install strace; in CI this must not be" in done.stdout
    assert "no pseudo-terminal can be had here" in done.stdout
