"""An object store for each test."""

from collections.abc import Iterator

import pytest

from tests.stores.rig import Store


@pytest.fixture
def store() -> Iterator[Store]:
    """A store with an empty bucket, `gs://bucket`."""
    with Store() as served:
        yield served
