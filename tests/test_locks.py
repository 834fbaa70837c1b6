"""Every lock installs as it stands on each Python, and the training can be imported from it.

requirements-dev.lock is what runs these tests; requirements.lock is what the container's image is
made of, in which tests/container trains. requirements-gpu.lock has 3 GB to download and 7 GB
installed: it is not installed here. It must be requirements.lock, which is, and NVIDIA's packages,
and the index must still offer each of its files.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import REPOSITORY
from tests.helpers import programs

ENVIRONMENT = REPOSITORY / "environment"
UV = Path(sys.executable).with_name("uv")  # installs in a sixth of pip's time
LOCKS = [f"requirements{kind}.lock" for kind in ("", "-dev", "-gpu", "-tpu")]
# What training imports, TensorFlow included.
TRAINING = "import mlperf_bert.training.run"


def pins(lock: str) -> dict[str, tuple[str, set[str]]]:
    """Package -> version, hashes of its files."""
    found, package = {}, ""
    for line in (ENVIRONMENT / lock).read_text().splitlines():
        if match := re.match(r"([a-z0-9._-]+)==(\S+)", line):
            package, version = match.groups()
            found[package] = version, set()
        elif match := re.search(r"--hash=(sha256:[0-9a-f]{64})", line):
            found[package][1].add(match[1])
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a fresh environment with requirements-tpu.lock."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    install = [UV, "pip", "install", "--quiet", f"--python={python}"]
    install += ["--no-cache", "--no-deps", "--require-hashes"]
    subprocess.run([*install, "-r", ENVIRONMENT / "requirements-tpu.lock"], check=True)
    yield python
    subprocess.run(["rm", "-rf", environment], check=True)  # two gigabytes


def run(python: Path, code: str, **environment: str) -> subprocess.CompletedProcess:
    # without the bytecode of installed packages the first import takes half a minute
    given = {"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "1", **environment}
    return programs.run(python, "-c", code, env=given, timeout=300, check=True)


@pytest.mark.all
def test_the_training_is_imported_with_the_lock_for_tpus(python):
    run(python, TRAINING, TPU_LOAD_LIBRARY="0")  # as cloud/gcp_tpu.sh sets it on a pod


@pytest.mark.all
def test_the_library_of_the_tpu_is_loaded(python):
    """A libtpu that does not fit aborts here; one that does finds no TPU, and says so."""
    # else libtpu asks the metadata server of a TPU VM for minutes
    done = run(python, TRAINING, TPU_SKIP_MDS_QUERY="1", TF_CPP_MIN_LOG_LEVEL="0")
    assert "libtpu.so" in done.stderr


@pytest.mark.parametrize("lock", [lock for lock in LOCKS if "dev" not in lock])
def test_every_package_is_there_in_the_lock_of_the_tests(lock):
    ours, theirs = pins("requirements-dev.lock"), pins(lock)
    others = {package for package in ours.keys() & theirs if ours[package] != theirs[package]}
    # TensorFlow for TPUs is one version behind, and what belongs to it.
    behind = (
        {"tensorboard", "tensorflow-text", "tf-keras"} if lock == "requirements-tpu.lock" else {}
    )
    assert others == set(behind)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_place_and_no_other_python(lock):
    """The user chooses the index; a package has one version for every supported Python."""
    text = (ENVIRONMENT / lock).read_text()
    assert not re.search(r"://|^\s*-(?!-hash=sha256:[0-9a-f]{64}\b)", text, re.MULTILINE)
    assert not re.search(r"python_(full_)?version|sys_platform|platform_machine", text)
    named = re.findall(r"^([a-z0-9._-]+)==", text, re.MULTILINE)
    assert len(named) == len(set(named)) and all(hashes for _, hashes in pins(lock).values())


@pytest.mark.all
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_lock_has_a_wheel_of_each_package_for_every_python(version, tmp_path):
    """By the index's list of files: nothing is installed."""
    look = [UV, "pip", "install", "--quiet", "--dry-run", f"--target={tmp_path}"]
    look += [f"--python-version={version}", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    for lock in LOCKS:
        subprocess.run([*look, "-r", ENVIRONMENT / lock], check=True)


def test_the_gpu_lock_is_the_tested_one_and_packages_of_nvidia():
    cpu, gpu = pins("requirements.lock"), pins("requirements-gpu.lock")
    nvidia = {package for package in gpu.keys() - cpu.keys() if package.startswith("nvidia-")}
    assert {package: gpu[package] for package in gpu.keys() - nvidia} == cpu
    assert nvidia >= {"nvidia-cudnn-cu12", "nvidia-nccl-cu12", "nvidia-cublas-cu12"}


@pytest.mark.all
def test_the_index_still_offers_every_file_of_the_gpu_lock(tmp_path):
    """By the index's own list of files and hashes: nothing is downloaded."""
    locked = pins("requirements-gpu.lock")
    (tmp_path / "pins.in").write_text("".join(f"{p}=={v}\n" for p, (v, _) in locked.items()))
    command = [UV, "pip", "compile", "--quiet", "--no-deps", "--no-header", "--no-annotate"]
    command += ["--generate-hashes", "--python-version", "3.11"]
    command += ["--output-file", tmp_path / "offered.lock", tmp_path / "pins.in"]
    subprocess.run(command, check=True)
    offered = pins(tmp_path / "offered.lock")
    for package, (version, hashes) in locked.items():
        assert offered[package][0] == version
        assert hashes and hashes <= offered[package][1], package
