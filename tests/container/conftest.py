"""An engine, a base image and our image, made here: nothing is taken from an image registry.

Needs root on Debian: docker.io, podman and mmdebstrap are installed if they are missing. The
engine started here has folders of its own and is stopped at the end.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.fixtures import lacking

BASE_IMAGE = "bert-test-base"
IMAGE = "mlperf-bert:test"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def run(*words, check=True, **options) -> subprocess.CompletedProcess:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    if check and done.returncode:
        pytest.fail(f"{' '.join(map(str, words))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done


def install(*packages: str) -> None:
    if os.geteuid():
        pytest.fail(
            f"no container engine can be had: {' '.join(packages)} missing, and only root may "
            "install; SKIP_CONTAINER_TEST=1 leaves these tests out"
        )
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-qq")
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages, env=quiet)


def of_pyenv(version: str) -> Path:
    """The folder of one of this machine's Pythons."""
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*"))
    if not found:
        lacking(f"no Python {version} to put into the machine: pyenv install {version}")
    return found[-1]


@pytest.fixture(scope="session")
def workplace(tmp_path_factory):
    if os.environ.get("SKIP_CONTAINER_TEST"):
        pytest.skip("SKIP_CONTAINER_TEST is set")
    return tmp_path_factory.mktemp("container")


@pytest.fixture(scope="session")
def storage(workplace):
    """A folder for images and containers, where it can be had on a disk of its own.

    Else the end would take minutes: that disk goes as one file, not as a hundred thousand.
    """
    disk, folder = workplace / "disk", workplace / "storage"
    folder.mkdir()
    with disk.open("wb") as file:
        file.truncate(64 << 30)  # nothing is written yet
    run("mkfs.ext4", "-q", "-O", "^has_journal", disk)
    run("mount", "-o", "loop,noatime", disk, folder, check=False)
    try:
        yield folder
    finally:
        run("umount", "--lazy", folder, check=False)
        disk.unlink()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def docker(workplace, storage):
    """The environment in which `docker` answers."""
    if shutil.which("docker") and not run("docker", "info", check=False).returncode:
        yield dict(os.environ)
        return
    if not shutil.which("dockerd"):
        install("docker.io")
    socket = f"unix://{workplace}/docker.sock"
    environment = {**os.environ, "DOCKER_HOST": socket}
    words = ["dockerd", f"--data-root={storage}/docker", f"--exec-root={workplace}/exec"]
    words += [f"--pidfile={workplace}/dockerd.pid", f"--host={socket}"]
    with (workplace / "dockerd.log").open("w") as log:
        daemon = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 300
        while run("docker", "info", check=False, env=environment).returncode:
            if daemon.poll() is not None or time.monotonic() > deadline:
                text = (workplace / "dockerd.log").read_text()[-2000:]
                pytest.fail(f"no container engine can be had: dockerd does not start\n{text}")
            time.sleep(0.2)
        yield environment
    finally:
        daemon.terminate()
        daemon.wait(timeout=300)
        mounts = [*storage.glob("docker/overlay2/*/merged"), *workplace.glob("exec/netns/*")]
        run("umount", *mounts, check=False)


@pytest.fixture(scope="session")
def podman(workplace, storage):
    """The variables with which `podman` keeps its images and containers here."""
    if not shutil.which("podman"):
        install("podman", "runc")
    images, settings = workplace / "podman.conf", workplace / "containers.conf"
    images.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{storage}/podman"\n'
        f'runroot = "{workplace}/podman-run"\n'
    )
    settings.write_text('[engine]\nruntime = "runc"\n')  # crun refuses hosts with both cgroups
    return {"CONTAINERS_STORAGE_CONF": str(images), "CONTAINERS_CONF": str(settings)}


def debian(docker: dict[str, str], workplace: Path, suite: str, image: str) -> str:
    """Imports an image: Debian with its own Python, and this machine's certificates."""
    if not shutil.which("mmdebstrap"):
        install("mmdebstrap", "gpg")
    archive = workplace / "root.tar"
    words = ["mmdebstrap", "--variant=minbase", "--include=ca-certificates,python3,python3-venv"]
    words += [f"--customize-hook=upload {CERTIFICATES} {CERTIFICATES}"]
    run(*words, suite, archive)
    run("docker", "import", f"--change=ENV PIP_CERT={CERTIFICATES}", archive, image, env=docker)
    archive.unlink()
    return image


@pytest.fixture(scope="session")
def base_image(docker, workplace):
    """Debian 13, which is trixie, with Python 3.13."""
    return debian(docker, workplace, "trixie", BASE_IMAGE)


@pytest.fixture(scope="session")
def image(docker, base_image, repository, capfd_disabled):
    """The image as the README says to build it; prints its size and the time it took."""
    began = time.monotonic()
    words = ["docker", "build", "--network=host", "--tag", IMAGE]
    words += ["--build-arg", f"BASE_IMAGE={base_image}", "--build-arg", "COMMIT=0123abc"]
    run(*words, repository, env=docker)
    seconds = time.monotonic() - began
    size = run("docker", "image", "inspect", "--format={{.Size}}", IMAGE, env=docker).stdout
    with capfd_disabled():
        print(f"\nimage: {int(size) / 1e9:.2f} GB, built in {seconds:.0f} s")
    return IMAGE


@pytest.fixture(scope="session")
def capfd_disabled(request):
    """Lets a session's fixture print past pytest's capture."""
    return request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled
