"""Records: JSON files in which data, runs, exports and campaigns say what they were made from.

manifest.json, provenance.json, run.json, campaign.json, unpacked.json, extraction.json, result.json
and results.json of fine-tuning, and signature.json of an exported step. All are written, read and
refused here; what their fields mean is known to the modules that own them.
"""

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

from mlperf_bert.files import json_text, paths
from mlperf_bert.files.reading import read_regular_file
from mlperf_bert.files.writing import write_whole

_T = TypeVar("_T")


def write_record(path: paths.Location, content: Mapping) -> None:
    """Replaces a record, whole or not at all; raises as `writing.written_beside`."""
    write_whole(path, json.dumps(content, indent=1) + "\n")


def read_record(path: paths.Location, parse: Callable[[dict], _T], *, remedy: str) -> _T | None:
    """What `parse` makes of the fields of a record; None if there is no such file.

    Args:
      path: of the record.
      parse: raises ValueError, TypeError, AttributeError or LookupError for fields that are wrong.
      remedy: what to do about a damaged record, for the message.

    Raises:
      ValueError: it is damaged.
      OSError: it cannot be read.
    """
    try:
        return parse(json_text.parse_object(read_regular_file(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        reason = reason.removeprefix(f"{path}: ")[:300]
        message = f"{path}: damaged ({reason}); {remedy}".removesuffix("; ")
        raise ValueError(message) from error
