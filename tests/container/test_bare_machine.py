"""The README's first commands where there is nothing: an ordinary user, Python, make, git.

No strace, ps, browser or pseudo-terminal, no writable /dev/shm, SIGINT ignored as for what a shell
starts in the background, and no folder `shared`. Of the tests those that ask for such things.
"""

import re

import pytest

from tests.container.conftest import run

pytestmark = pytest.mark.container

IMAGE = "bert-test-bare"
USER = 1000
DOCKERFILE = f"""
FROM bert-test-base
RUN apt-get -qq update && apt-get -qq install --yes --no-install-recommends git make \\
 && useradd --create-home --uid {USER} dev
COPY --chown={USER}:{USER} bert /home/dev/bert
"""
TESTS = "tests/tracing/test_trace.py tests/submission/test_campaign.py tests/test_launchers.py"
PYTEST = ".venv/bin/python -m pytest -n 2 --dist loadfile --color=no"


@pytest.fixture(scope="module")
def machine(docker, base_image, repository, tmp_path_factory):
    """The name of a container with a clone of this checkout, after `make setup`, and what it said.

    It has the network of this machine, for packages.
    """
    folder = tmp_path_factory.mktemp("bare")
    run("git", "clone", "--quiet", repository, folder / "bert")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    run("docker", "build", "--quiet", "--network=host", "--tag", IMAGE, folder, env=docker)
    words = ["docker", "run", "--detach", "--rm", "--name", IMAGE, "--network=host", "--init"]
    words += [f"--user={USER}:{USER}", "--workdir=/home/dev/bert", "--env=HOME=/home/dev"]
    words += ["--mount=type=tmpfs,destination=/dev/shm,tmpfs-mode=0755"]
    words += ["--mount=type=tmpfs,destination=/dev/pts,tmpfs-mode=0755"]
    run(*words, IMAGE, "sleep", "infinity", env=docker)
    try:
        yield lambda command: run(
            "docker", "exec", IMAGE, "sh", "-c", command, env=docker, check=False
        )
    finally:
        run("docker", "kill", IMAGE, env=docker, check=False)
        run("docker", "image", "rm", "--force", IMAGE, env=docker, check=False)


@pytest.fixture(scope="module")
def setup(machine):
    done = machine("make setup")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def test_the_machine_is_bare(machine):
    found = machine("id -u; command -v strace bpftrace ps docker chromium; ls ..; touch /dev/shm/x")
    assert found.stdout.split() == [str(USER), "bert"]
    assert "Permission denied" in found.stderr
    assert "No such" in machine("python3.11 -c 'import os; os.openpty()'").stderr


def test_setup_says_nothing_of_a_failure(setup):
    assert "Traceback" not in setup.stderr and "rror" not in setup.stderr, setup.stderr


def test_tests_pass_or_say_what_they_lack(machine, setup):
    done = machine(f"trap '' INT; {PYTEST} {TESTS}")
    assert done.returncode == 0, done.stdout[-5000:]
    assert re.search(r"^=+ \d+ passed, \d+ skipped in ", done.stdout, re.MULTILINE)
    for line in re.findall(r"^SKIPPED .*", done.stdout, re.MULTILINE):
        assert re.search(r"cannot|can be had|only root|no single calls", line), line


def test_in_ci_a_tool_that_is_missing_is_a_failure(machine, setup):
    done = machine(f"CI=true {PYTEST} {TESTS} -k 'no_tty or (ends_at_once and strace)'")
    assert done.returncode == 1
    assert re.search(r"^=+ 1 failed, 1 error in ", done.stdout, re.MULTILINE), done.stdout[-3000:]
    assert "strace is not installed; apt-get install strace; in CI this must not be" in done.stdout
    assert "no pseudo-terminal can be had here" in done.stdout
