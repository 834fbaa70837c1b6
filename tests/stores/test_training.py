"""Training into a bucket, from a bucket: the same numbers as on local disks.

Dropout and shuffling are on. The twin of each run is the same command with local paths.
"""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests import starts
from tests.training import generated_task
from tests.training.test_resume import NUM_STEPS, command

IN_BUCKET = "gs://bucket"


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "task"
    generated_task.write_task(folder, dropout=0.1)
    return folder


@pytest.fixture(scope="module")
def undisturbed(task, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    starts.run(command(task, output), check=True)
    return output


@pytest.fixture
def filled(store, bucket, task):
    """The bucket with the task in it."""
    for path in task.rglob("*"):
        if path.is_file():
            store.put(bucket, f"task/{path.relative_to(task)}", path.read_bytes())
    return store


def started(store, tmp_path, **changed) -> starts.Start:
    words = command(Path("BUCKET/task"), Path("BUCKET/run"), **changed)
    words = [word.replace('BUCKET', IN_BUCKET) for word in words]
    environment = {**os.environ, **store.environment, "TMPDIR": str(tmp_path)}
    return starts.Start(words, env=environment, errors_in_output=True)


def download(store, folder: Path, prefix: str = "run/") -> Path:
    for name, content in store.objects("bucket").items():
        if name.startswith(prefix) and not name.endswith("/"):
            path = folder / name.removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return folder
