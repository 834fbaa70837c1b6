"""Configurations as the command line makes them, without a command line."""

from mlperf_bert import options
from mlperf_bert.training.config import RunConfig


def run_config(**flags) -> RunConfig:
    """What these flags describe; the others have their defaults, the environment is empty."""
    return RunConfig(**values(RunConfig, **flags), cluster=None)


def values(configuration: type, **flags) -> dict:
    """Field -> value, as these flags and the defaults of the others describe it."""
    defaults = {name: about.default for name, about in options.flags_of(configuration).items()}
    return options.values_of(configuration, defaults | flags, {})
