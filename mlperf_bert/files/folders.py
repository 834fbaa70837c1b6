"""Whole local folders: written so that they appear whole or not at all."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.files.whole import partial


@contextlib.contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Yields a hidden directory next to `path`, which becomes `path` once all is written.

    When anything fails, the hidden directory is removed, and so is what a killed process left.
    """
    beside = partial(path)
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        with paths.failures_named(path):
            yield beside
        beside.rename(path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
