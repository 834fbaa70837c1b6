"""Requires the harness in the folder above, which no index has; TensorFlow is not installed."""

from pathlib import Path

from setuptools import setup

HARNESS = Path(__file__).resolve().parents[1]

setup(
    install_requires=[
        f"mlperf-bert @ {HARNESS.as_uri()}",
        "numpy",
        "pyarrow",
        "scipy",
    ]
)
