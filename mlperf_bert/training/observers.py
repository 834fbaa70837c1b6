"""The door for other packages: an event that looks on, as `--observer` names it.

A file of its own, because it is all that another package imports; it loads no TensorFlow.
"""

import importlib
import shlex
from typing import TYPE_CHECKING

from mlperf_bert.training.loop import Event

if TYPE_CHECKING:
    from mlperf_bert.model.metrics import Evaluation
    from mlperf_bert.training.config import RunConfig


class Observer(Event):
    """An event that is also told of every evaluation; the same on all processes of a run."""

    def evaluated(self, step: int, evaluation: "Evaluation") -> str | None:
        """Acts after an evaluation, before its own `at`; what it returns is said of it."""


def observer_of(text: str, config: "RunConfig") -> Observer:
    """Makes an observer before the processes of a run meet.

    Args:
      text: MODULE:FUNCTION and, after a space, the observer's own arguments, as on a command line.
        So a run knows none of them, and an observer reads them as its command does. FUNCTION is
        called with the configuration and the list of these words.
      config: of the run.

    Raises:
      ValueError: there is no such function, or it refuses its arguments or the run.
    """
    try:
        name, *words = shlex.split(text) or [""]
        module, _, function = name.partition(":")
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"--observer={text}: {error}; give MODULE:FUNCTION of a package that can be imported"
        ) from error
    try:
        return make(config, words)
    except ValueError as error:
        raise ValueError(f"--observer={text}: {error}") from error
