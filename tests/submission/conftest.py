"""The table of published results, what it lets expect, and a browser."""

import shutil

import pytest

from mlperf_bert.submission import published
from mlperf_bert.submission.expectation import Published
from tests.fixtures import lacking

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def shipped():
    return published.load()


@pytest.fixture(scope="session")
def known(shipped):
    return Published(shipped)


@pytest.fixture(scope="session")
def browser():
    """The path of a Chromium."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        lacking("no Chromium here: apt-get install chromium")
    return found
