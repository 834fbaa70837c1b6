"""The table of published results, and what it lets expect."""

import pytest

from mlperf_results import compare, published
from mlperf_results.expect import Published


@pytest.fixture(scope="session")
def shipped():
    return published.load()


@pytest.fixture(scope="session")
def known(shipped):
    return Published(shipped)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Returns a function that gives `compare` in tmp_path, and returns code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = compare.main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call
