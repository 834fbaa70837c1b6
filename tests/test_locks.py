"""Every lock installs as it stands on each Python, and the training can be imported from it.

requirements-dev.lock is what runs these tests; requirements.lock is what the container's image is
made of, in which tests/container trains. Those for GPUs have 3 GB to download and 7 GB installed:
they are not installed here. Each must be requirements.lock and the packages of a maker, and the
index must still offer each file.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.fixtures import REPOSITORY
from tests.helpers import programs

ENVIRONMENT = REPOSITORY / "environment"
UV = Path(sys.executable).with_name("uv")  # installs in a sixth of pip's time
# What each has beside requirements.lock; patterns of names.
KINDS = {
    "gpu": r"jax-cuda12-(pjrt|plugin)|nvidia-\w+(-\w+)?-cu12",
    "gpu-cuda13": r"jax-cuda13-(pjrt|plugin)|nvidia-\w+(-\w+)?(-cu13)?",
    "tpu": "libtpu",
}
LOCKS = ["requirements.lock", *(f"requirements-{kind}.lock" for kind in ("dev", *KINDS))]
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


@pytest.mark.all
def test_the_lock_for_tpus_imports_the_training_and_its_jax_looks_for_a_tpu(tmp_path):
    """TensorFlow is that for CPUs, and jax loads the libtpu, which finds no TPU here."""
    python = tmp_path / "bin" / "python"
    programs.run(sys.executable, "-m", "venv", tmp_path, check=True)
    install = [UV, "pip", "install", "--quiet", f"--python={python}"]
    install += ["--no-cache", "--no-deps", "--require-hashes"]
    programs.run(*install, "-r", ENVIRONMENT / "requirements-tpu.lock", check=True)
    code = f"{TRAINING}, jax, tensorflow as tf\nprint(jax.devices(), tf.test.is_built_with_cuda())"
    given = {"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "1"}
    given["TPU_SKIP_MDS_QUERY"] = (
        "1"  # else libtpu asks the metadata server of a TPU VM for minutes
    )
    done = programs.run(python, "-c", code, env=given, timeout=300, check=True)
    shutil.rmtree(tmp_path)  # four gigabytes
    assert done.stdout == "[CpuDevice(id=0)] False\n"
    assert "libtpu_init_utils.cc" in done.stderr  # a file of the library names what it lacks


@pytest.mark.parametrize("lock", [lock for lock in LOCKS if "dev" not in lock])
def test_every_package_is_there_in_the_lock_of_the_tests(lock):
    ours, theirs = pins("requirements-dev.lock"), pins(lock)
    assert {package: theirs[package] for package in ours.keys() & theirs} == {
        package: ours[package] for package in ours.keys() & theirs
    }


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
        programs.run(*look, "-r", ENVIRONMENT / lock, check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_for_accelerators_is_the_tested_one_and_packages_of_their_makers(kind):
    cpu, other = pins("requirements.lock"), pins(f"requirements-{kind}.lock")
    theirs = other.keys() - cpu.keys()
    assert {package: other[package] for package in other.keys() - theirs} == cpu
    assert theirs and not [name for name in theirs if not re.fullmatch(KINDS[kind], name)]


def test_jax_and_its_plugin_have_one_version_and_beside_them_tensorflow_is_the_cpus():
    """jax takes no plugin of another version; the GPUs are jax's."""
    for lock in LOCKS:
        locked = pins(lock)
        jax = {name: version for name, (version, _) in locked.items() if re.match("jax", name)}
        assert len(jax) >= 2 and len({*jax.values()}) == 1, (lock, jax)
        builds = {"tensorflow", "tensorflow-cpu"} & locked.keys()
        assert builds == {"tensorflow" if "dev" in lock else "tensorflow-cpu"}, lock
        assert locked[builds.pop()][0] == pins("requirements-dev.lock")["tensorflow"][0]


@pytest.mark.parametrize("name", ["compilers", "compilers-gpu"])
def test_the_compilers_are_those_that_were_asked_for_and_of_the_jax_that_trains(name):
    text = (ENVIRONMENT / f"{name}.in").read_text()
    asked = dict(re.findall(r"^(\w+)(?:\[\w+\])?==(\S+)$", text, re.MULTILINE))
    assert asked == {package: pins(f"{name}.lock")[package][0] for package in ("jax", "libtpu")}
    assert asked["jax"] == pins("requirements.lock")["jax"][0]


@pytest.mark.all
@pytest.mark.parametrize("kind", ["gpu", "gpu-cuda13"])
def test_the_index_still_offers_every_file_of_a_lock_for_gpus(kind, tmp_path):
    """By the index's own list of files and hashes: nothing is downloaded."""
    locked = pins(f"requirements-{kind}.lock")
    (tmp_path / "pins.in").write_text("".join(f"{p}=={v}\n" for p, (v, _) in locked.items()))
    command = [UV, "pip", "compile", "--quiet", "--no-deps", "--no-header", "--no-annotate"]
    command += ["--generate-hashes", "--python-version", "3.11"]
    command += ["--output-file", tmp_path / "offered.lock", tmp_path / "pins.in"]
    programs.run(*command, check=True)
    offered = pins(tmp_path / "offered.lock")
    for package, (version, hashes) in locked.items():
        assert offered[package][0] == version
        assert hashes and hashes <= offered[package][1], package
