"""The manifest of a data set: every part with its size and checksum, and how it was made."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlperf_bert.data import provenance
from mlperf_bert.files import paths
from mlperf_bert.files.json_text import read_record, write_record

NAME = "manifest.json"
_NUM_RANGES = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One TFRecord of a data set; the histograms count examples in 16 equal ranges from 0."""

    input_bytes: int
    input_md5: str
    examples: int
    bytes: int
    sha256: str
    length_histogram: list[int]
    predictions_histogram: list[int]


@dataclasses.dataclass
class Manifest:
    """The content of manifest.json."""

    parameters: dict[str, Any]
    """Everything that determines the bytes; examples_per_part is 0 for whole parts."""
    versions: dict[str, str]
    """Versions of the software that made it, for information."""
    parts: dict[str, Part] = dataclasses.field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """False for data of which only the first examples of each part were made."""
        return not self.parameters["examples_per_part"]

    def save(self, folder: paths.Location) -> None:
        """Replaces the manifest of a folder."""
        write_record(folder / NAME, self.content())

    def content(self) -> dict[str, object]:
        """What the file holds, as JSON takes it."""
        content = dataclasses.asdict(self)
        content["parts"] = dict(sorted(content["parts"].items()))
        content["whole_parts_fit_for_submission"] = self.is_whole
        return content


def load(folder: paths.Location) -> Manifest | None:
    """Returns the manifest of a folder, None if it has none; raises as `read_record`."""
    return read_record(folder / NAME, _parsed, remedy="remove it and its parts")


def _parsed(content: dict) -> Manifest:
    parts = {name: _part(name, part) for name, part in content["parts"].items()}
    found = Manifest(content["parameters"], content["versions"], parts)
    if not provenance.is_count(found.parameters["examples_per_part"]):
        raise TypeError("examples_per_part is not a number")
    return found


def _part(name: str, content: Mapping[str, Any]) -> Part:
    try:
        part = provenance.fitting(Part, content)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from error
    if Path(name).name != name or "\0" in name:
        raise ValueError(f"{name!r:.80} is not the name of a file in its folder")
    for histogram in (part.length_histogram, part.predictions_histogram):
        if len(histogram) != _NUM_RANGES:
            raise ValueError(f"{name}: a histogram of {len(histogram)} ranges")
    return part
