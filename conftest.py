"""The tests of all three products have the same fixtures."""

pytest_plugins = ["tests.fixtures"]
