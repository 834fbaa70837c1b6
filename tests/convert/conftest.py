"""The checkpoints of tests/checkpoints."""

from tests.checkpoints.conftest import generated, start  # noqa: F401 - fixtures
