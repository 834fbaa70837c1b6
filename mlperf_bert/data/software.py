"""What the records of data, runs and exports name: commit, image and versions of this process."""

import contextlib
import functools
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]
# Name -> the packages that may hold it: TensorFlow without kernels for GPUs has another one.
_PACKAGES = {"numpy": ("numpy",), "numba": ("numba",), "jax": ("jax",)} | {
    "tensorflow": ("tensorflow", "tensorflow-cpu")
}


def made_with() -> dict[str, str]:
    """Commit, image (empty outside a container) and versions; "unknown" where nothing tells."""
    versions = {name: _version(packages) for name, packages in _PACKAGES.items()}
    image = os.environ.get("MLPERF_BERT_IMAGE", "")
    commit = os.environ.get("MLPERF_BERT_COMMIT") or _commit_of_checkout()
    return {"commit": commit, "image": image, "python": platform.python_version(), **versions}


# Computed once, because git takes up to a second.
@functools.cache
def _version(packages: tuple[str, ...]) -> str:
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return "unknown"


@functools.cache
def _commit_of_checkout() -> str:
    words = ["-C", str(_REPOSITORY), "describe", "--always", "--abbrev=40", "--dirty"]
    return printed_by("git", *words) or "unknown"


def printed_by(*command: str) -> str:
    """What a program prints; empty if there is none or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
