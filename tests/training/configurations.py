"""Configurations as the command line makes them, without a command line."""

from mlperf_bert import options
from mlperf_bert.training.config import RunConfig


def run_config(**flags) -> RunConfig:
    """What these flags describe; the others have their defaults, the environment is empty."""
    defaults = {name: about.default for name, about in options.flags_of(RunConfig).items()}
    return RunConfig(**options.values_of(RunConfig, defaults | flags, {}), cluster=None)
