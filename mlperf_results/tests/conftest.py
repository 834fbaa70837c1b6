"""The table of published results, and a caller of commands."""

import pytest

from mlperf_results import compare, published


@pytest.fixture(scope="session")
def shipped():
    return published.load()


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Returns a function that gives `compare` in tmp_path, and returns code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = compare.main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call
