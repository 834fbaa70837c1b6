"""The README's first commands where there is nothing: an ordinary user, Python, make, git.

No strace, ps, browser or pseudo-terminal, no writable /dev/shm, SIGINT ignored as for what a shell
starts in the background, and no folder `shared`. With Debian 13's own Python 3.13 the tests run
that ask for what is missing.

`make test-soak TESTS=tests/container` does more: the README's two commands as a whole, also with
Python 3.12, which Debian has not and which is copied from this machine, where pyenv has it, on
Debian 12 with its Python 3.11, and on a Debian whose Python is too new, where uv fetches one.
"""

import functools
import hashlib
import http.server
import io
import json
import re
import shutil
import tarfile
import threading
from pathlib import Path

import pytest

from tests.container.conftest import BASE_IMAGE, debian, run
from tests.fixtures import lacking

pytestmark = pytest.mark.gate

NAME = "bert-test-bare"
USER = 1000
DOCKERFILE = f"""
FROM {{base}}
# A mirror may be weeks behind, and then what it says of Debian testing has expired.
RUN apt-get -qq -o Acquire::Check-Valid-Until=false update \\
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


SUITES = {"3.11": "bookworm", "3.12": "trixie", "3.13": "trixie", "too new": "testing"}
SLOW_ONES = [pytest.param(name, marks=pytest.mark.soak) for name in ("3.11", "3.12", "too new")]


def of_pyenv(version: str) -> Path:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*"))
    if not found:
        lacking(f"no Python {version} to put into the machine: pyenv install {version}")
    return found[-1]


def python312(folder: Path) -> str:
    """Copies this machine's Python 3.12 to the folder; returns the lines that install it."""
    ignored = shutil.ignore_patterns("test", "__pycache__", "site-packages", "*.a")
    shutil.copytree(of_pyenv("3.12"), folder / "python", ignore=ignored, symlinks=True)
    return PYTHON312


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    """The address of a list of Pythons for uv, on loopback: it has this machine's 3.13."""
    folder = tmp_path_factory.mktemp("downloads")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        pack(of_pyenv("3.13"), folder, address)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{address}/{LIST}"
        server.shutdown()


@pytest.fixture(scope="module", params=["3.13", *SLOW_ONES])
def version(request) -> str:
    return request.param


def only_with(version: str):
    """Runs a test on one of the machines."""
    return pytest.mark.parametrize("version", [version], indirect=True, scope="module")


@pytest.fixture(scope="module")
def machine(docker, base_image, workplace, repository, tmp_path_factory, version, request):
    """Runs a command in a container with a clone of this checkout.

    It has the network of this machine, for packages.
    """
    folder = tmp_path_factory.mktemp("bare")
    run("git", "clone", "--quiet", repository, folder / "bert")
    python = python312(folder) if version == "3.12" else ""
    base, told = base_image, []
    if SUITES[version] != "trixie":
        base = debian(docker, workplace, SUITES[version], f"{BASE_IMAGE}-{SUITES[version]}")
    if version == "too new":
        address = request.getfixturevalue("downloads")
        told = [f"--env=UV_PYTHON_DOWNLOADS_JSON_URL={address}"]
    (folder / "Dockerfile").write_text(DOCKERFILE.format(base=base, python=python))
    run("docker", "build", "--quiet", "--network=host", "--tag", NAME, folder, env=docker)
    words = ["docker", "run", "--detach", "--name", NAME, "--network=host", "--init", *told]
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
    found = machine("id -u; command -v strace bpftrace ps docker chromium; ls ..; touch /dev/shm/x")
    assert found.stdout.split() == [str(USER), "bert"]
    assert "Permission denied" in found.stderr
    assert "No such" in machine("python3 -c 'import os; os.openpty()'").stderr
    known = ("3.11", "3.12", "3.13")
    found = [v for v in known if machine(f"command -v python{v}").returncode == 0]
    assert found == ([version] if version in known else [])


def test_setup_says_nothing_of_a_failure(machine, setup, version):
    wanted = "3.13" if version == "too new" else version
    assert f"Python {wanted}." in machine(".venv/bin/python --version").stdout
    assert "Traceback" not in setup.stderr and "rror" not in setup.stderr, setup.stderr
    told = "setup: no Python of 3.11 to 3.13 here: uv fetches 3.13\n"
    assert (told in setup.stderr) == (version == "too new")


@pytest.mark.soak
@only_with("3.12")
def test_make_quick(machine, setup):
    done = machine("make quick")
    assert done.returncode == 0, done.stdout[-5000:]
    assert re.search(r"^=+ \d+ passed", done.stdout, re.MULTILINE)


@pytest.mark.soak
@pytest.mark.parametrize("target", ["demo SEED=1", "test"])
def test_the_readmes_two_commands(machine, setup, target, capfd_disabled):
    done = machine(f"make {target}")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    wanted = r"RESULT,bert,.*,success,.*|=+ \d+ passed.*"
    [told] = re.findall(rf"^(?:{wanted})$", done.stdout, re.MULTILINE)
    with capfd_disabled():
        print(f"\nmake {target}: {told}")


@only_with("3.13")
def test_tests_pass_or_say_what_they_lack(machine, setup):
    done = machine(f"trap '' INT; {PYTEST} -m 'not gate and not all and not soak' {TESTS}")
    assert done.returncode == 0, done.stdout[-5000:]
    assert re.search(r"^=+ \d+ passed, \d+ skipped in ", done.stdout, re.MULTILINE)
    for line in re.findall(r"^SKIPPED .*", done.stdout, re.MULTILINE):
        assert re.search(r"cannot|can be had|only root|no single calls", line), line


@only_with("3.13")
def test_in_ci_a_tool_that_is_missing_is_a_failure(machine, setup):
    done = machine(f"CI=true {PYTEST} {TESTS} -k 'no_tty or (ends_at_once and strace)'")
    assert done.returncode == 1
    assert re.search(r"^=+ 1 failed, 1 error in ", done.stdout, re.MULTILINE), done.stdout[-3000:]
    assert "strace is not installed; apt-get install strace; in CI this must not be" in done.stdout
    assert "no pseudo-terminal can be had here" in done.stdout


ARCHIVE, LIST = "python.tar.gz", "downloads.json"


def pack(prefix: Path, folder: Path, address: str) -> None:
    """Writes the archive, and the list that UV_PYTHON_DOWNLOADS_JSON_URL names.

    Args:
      prefix: of a Python that pyenv built, such as ~/.pyenv/versions/3.13.0.
      folder: for both files, which the address serves.
    """
    major, minor, patch = map(int, prefix.name.split("."))
    program = f"python{major}.{minor}"

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        left_out = {"site-packages", "test", "__pycache__"} & set(Path(member.name).parts)
        return None if left_out or member.name.endswith(".a") else member

    # It looks for its library where it was built: from now on beside itself.
    built, beside = f"{prefix}/lib\0".encode(), b"$ORIGIN/../lib\0"
    binary = (prefix / "bin" / program).read_bytes()
    binary = binary.replace(built, beside.ljust(len(built), b"\0"))
    with tarfile.open(folder / ARCHIVE, "w:gz", compresslevel=1) as archive:
        for name in ("lib", "include"):
            archive.add(prefix / name, f"python/{name}", filter=kept)
        member = tarfile.TarInfo(f"python/bin/{program}")
        member.size, member.mode = len(binary), 0o755
        archive.addfile(member, io.BytesIO(binary))
    download = {
        "name": "cpython", "arch": {"family": "x86_64", "variant": None}, "os": "linux",
        "libc": "gnu", "major": major, "minor": minor, "patch": patch, "prerelease": "",
        "url": f"{address}/{ARCHIVE}", "variant": None, "build": "20240101",
        "sha256": hashlib.sha256((folder / ARCHIVE).read_bytes()).hexdigest(),
    }  # fmt: skip
    listed = {f"cpython-{prefix.name}-linux-x86_64-gnu": download}
    (folder / LIST).write_text(json.dumps(listed))
