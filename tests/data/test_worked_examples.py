"""The worked examples in docstrings are true."""

import doctest

import pytest

from mlperf_bert.data import instances, mersenne


@pytest.mark.parametrize("module", [instances, mersenne], ids=lambda module: module.__name__)
def test_worked_examples(module):
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted >= 5 and not found.failed
