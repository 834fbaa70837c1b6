"""The table of published results, what it lets expect, a browser, and one-line refusals."""

import shutil

import pytest

from mlperf_bert.submission import published
from mlperf_bert.submission.expectation import Published
from tests.conftest import lacking

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


@pytest.fixture
def refusal(capsys):
    """Gives words to a command, which must refuse them; returns its one line."""

    def refusal(command, *words):
        assert command.main([str(word) for word in words]) == 1
        printed = capsys.readouterr()
        [line] = printed.err.splitlines()
        assert printed.out == ""
        return line

    return refusal
