"""An object store for each test, and two hosts that use it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.rig import Store


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as served:
        yield served


@pytest.fixture
def bucket(store) -> str:
    """The name of an empty bucket of the store: `gs://{bucket}/...`."""
    store.make_bucket("bucket")
    return "bucket"


@pytest.fixture
def hosts(tmp_path) -> list[Path]:
    """The temporary folders of two hosts."""
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder in folders:
        folder.mkdir()
    return folders
