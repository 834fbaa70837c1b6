"""Reads JSON from outside, or refuses it with a ValueError, whatever it holds; reads records.

Records, such as run.json, are files in which data, runs, exports and campaigns say what they were
made from. All are written, read and refused here; the modules that own them know what their fields
mean.
"""

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from mlperf_bert.files import errors, paths
from mlperf_bert.files.whole import read_regular_file, write_whole

_T = TypeVar("_T")


def parse(text: str | bytes) -> object:
    """The value of a JSON text; bytes may begin with a byte order mark. Raises ValueError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({errors.reason(error)})") from error


def parse_object(text: str | bytes) -> dict:
    """The value of a JSON text; any other is refused."""
    value = parse(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value


def parse_object_at(text: str, start: int) -> tuple[dict, int]:
    """The JSON object that begins at `start`, and where it ends."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except RecursionError as error:
        raise ValueError(f"not JSON ({errors.reason(error)})") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value, end


def read_object(path: str | os.PathLike) -> dict:
    """The JSON object of a file."""
    with errors.named(path):
        return parse_object(read_regular_file(path))


def write_record(path: paths.Location, content: Mapping) -> None:
    """Replaces a record, whole or not at all."""
    write_whole(path, json.dumps(content, indent=1) + "\n")


def read_record(path: paths.Location, parse: Callable[[dict], _T], *, remedy: str) -> _T | None:
    """What `parse` makes of the fields of a record; None if there is no such file.

    Args:
      path: of the record.
      parse: raises ValueError, TypeError, AttributeError or LookupError for fields that are wrong.
      remedy: what to do about a damaged record, for the message.
    """
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        errors.named(path, damaged=remedy),
    ):
        return parse(read_object(path))
    return None
