"""Fixtures that every test may use."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = REPOSITORY.parent / "shared"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and recorded reference results, beside the checkout in CI.

    Elsewhere the test is skipped: each oracle has a twin that needs nothing from outside.
    """
    if not SHARED.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"{SHARED} is missing: in CI the oracles must run")
        pytest.skip(f"{SHARED} is absent: the recorded reference results are not at hand")
    return SHARED
