"""Writes lines of an MLLOG with mllog, but with plain JSON values and separate handlers."""

import inspect
import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from mlperf_logging.mllog import constants
from mlperf_logging.mllog.mllog import MLLogger

Metadata = Mapping[str, object] | None
_PROJECT_ROOT = Path(__file__).resolve().parents[2]
# mllog asks for the caller of every line, whose module Python would look for among thousands.
inspect.modulesbyfile[__file__] = __name__


class MllogWriter:
    """Writes lines to logging handlers, such as a file and stdout.

    Attributes:
      time_ms: the time of the lines to come, in milliseconds since 1970; None: that of the call.
    """

    def __init__(self, handlers: list[logging.Handler]) -> None:
        self.time_ms: float | None = None
        # mllog's default logger is global and gets another handler at each call: two runs in one
        # process would write into each other's files, and every line twice.
        logger = logging.Logger(constants.DEFAULT_LOGGER_NAME, level=logging.INFO)
        # MLLogger uses root_dir as a regular expression.
        self._mllog = MLLogger(logger, root_dir=re.escape(str(_PROJECT_ROOT)))
        for handler in handlers:
            self._add_handler(handler)

    def event(self, key: str, value: object = None, metadata: Metadata = None) -> None:
        """Log a point in time. NumPy values and non-finite numbers become plain JSON.

        Raises:
          TypeError: a value that JSON cannot hold.
        """
        self._mllog.event(key, json_safe(value), json_safe(metadata or {}), time_ms=self.time_ms)

    def start(self, key: str, metadata: Metadata = None) -> None:
        """Log the start of an interval."""
        self._mllog.start(key, None, json_safe(metadata or {}), time_ms=self.time_ms)

    def end(self, key: str, metadata: Metadata = None) -> None:
        """Log the end of an interval."""
        self._mllog.end(key, None, json_safe(metadata or {}), time_ms=self.time_ms)

    def copy_line(self, line: str) -> None:
        """Write a line of another log unchanged."""
        self._mllog.logger.info(line)

    def _add_handler(self, handler: logging.Handler) -> None:
        handler.setFormatter(logging.Formatter("%(message)s"))
        self._mllog.logger.addHandler(handler)

    def _remove_handler(self, handler: logging.Handler) -> None:
        self._mllog.logger.removeHandler(handler)
        handler.close()


def json_safe(value: object) -> object:
    """Return `value` as plain JSON: no NumPy types, NaN and the infinities as strings."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(entry) for entry in value]
    raise TypeError(f"{value!r} ({type(value).__name__}) cannot be written as JSON to the log")
