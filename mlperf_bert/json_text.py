"""JSON that somebody else wrote: parsed, or refused with a ValueError, whatever it holds."""

import json
import os
import re

from mlperf_bert.reading import require_regular_file

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def parse(text: str | bytes) -> object:
    """The value that a JSON text stands for.

    Raises:
      ValueError: it is no JSON, or nested too deeply, or has a key twice, or a string that is no
        Unicode text.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        value = json.loads(text, object_pairs_hook=_without_repeated_keys)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("not JSON (nested too deeply)") from error
    except UnicodeEncodeError as error:
        raise ValueError("not JSON (a string holds half a character)") from error
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from error
    return value


def parse_object(text: str | bytes) -> dict:
    """The dictionary that a JSON object stands for.

    Raises:
      ValueError: as `parse`, or the text is another JSON value.
    """
    value = parse(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value


def read_object(path: str | os.PathLike) -> dict:
    """The dictionary that a file holds.

    Raises:
      ValueError: it is no file, or holds no JSON object; the message names it.
      OSError: there is no such file, or it cannot be read.
    """
    text = require_regular_file(path).read_bytes()
    try:
        return parse_object(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _without_repeated_keys(pairs: list[tuple[str, object]]) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated[:80]!r} stands there twice")
    return found
