"""The table of published results, and what it lets expect."""

import pytest

from mlperf_results import published
from mlperf_results.expect import Published


@pytest.fixture(scope="session")
def shipped():
    return published.load()


@pytest.fixture(scope="session")
def known(shipped):
    return Published(shipped)
