"""Traces of what a training run does to storage, memory, processors and GPUs, on one clock."""

import os
from pathlib import Path


def path_with_home(path: str) -> Path:
    """A path of the command line, with the home folder in place of "~"."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - an unknown user's stays as it is
