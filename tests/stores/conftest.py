"""An object store for each test."""

from collections.abc import Iterator

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
