"""The manifest of a data set: every part with its size and checksum, and how it was made.

Source of the published figures: the benchmark's README.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mlperf_bert.data import tfrecord
from mlperf_bert.files import paths
from mlperf_bert.files.json_text import read_record, write_record
from mlperf_bert.files.whole import digest

NAME = "manifest.json"
_NUM_RANGES = 16

PUBLISHED_TEXT = {
    "eval.md5": (330_000, "71a58382a68947e93e88aa0d42431b6c"),
    "eval.txt": (32_851_144, "2a220f790517261547b1b45ed3ada07a"),
    "part-00000-of-00500": (27_150_902, "a64a7c31eff5cd38ae6d94f7a6229dab"),
    "part-00001-of-00500": (27_198_569, "549a9ed4f805257245bec936563abfd0"),
    "part-00002-of-00500": (27_395_616, "1a1366ddfc03aef9d41ce552ee247abf"),
    "part-00497-of-00500": (24_775_043, "66835aa75d4855f2e678e8f3d73812e9"),
    "part-00498-of-00500": (24_575_505, "e6d68a7632e9f4aa1a94128cce556dc9"),
    "part-00499-of-00500": (21_873_644, "b3b087ad24e3770d879a351664cebc5a"),
}
"""Text file -> bytes, MD5."""

PUBLISHED_RECORD_BYTES = {
    "eval_intermediate": 843_343_183,
    "eval_10k": 25_382_591,
    "part-00000-of-00500": 514_241_279,
    "part-00499-of-00500": 898_392_312,
}
PUBLISHED_TOTAL_BYTES = 391_434_110_129
PUBLISHED_LENGTHS = {"max_seq_length": 512, "max_predictions_per_seq": 76}
"""Parameters of the records whose sizes are published."""
PUBLISHED_PARTS = {f"part-{number:05}-of-00500" for number in range(500)}


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

    parameters: dict[str, object]
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
    if not _is_count(found.parameters["examples_per_part"]):
        raise TypeError("examples_per_part is not a number")
    return found


def _part(name: str, content: Mapping[str, Any]) -> Part:
    part = Part(**content)
    if Path(name).name != name or "\0" in name:
        raise ValueError(f"{name!r:.80} is not the name of a file in its folder")
    for field in dataclasses.fields(Part):
        if not _FITS[field.type](value := getattr(part, field.name)):
            raise TypeError(f"{name}: {field.name} is {value!r:.80}")
    return part


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


_FITS: dict[Any, Callable[[Any], bool]] = {
    str: lambda value: isinstance(value, str),
    int: _is_count,
    list[int]: lambda value: (
        isinstance(value, list) and len(value) == _NUM_RANGES and all(map(_is_count, value))
    ),
}


def raise_failures(reasons: Mapping[str, str], num_parts: int) -> None:
    """Raises ValueError, which names each failed part with its reason, if any part failed."""
    if reasons:
        listed = "; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()))
        raise ValueError(f"{len(reasons)} of {num_parts} parts failed, run again: {listed}")


def verify(folder: paths.Location, text_files: Iterable[paths.Location] = ()) -> list[str]:
    """Checks all parts against the manifest, and all against the published figures.

    The published figures hold for the official 500 parts, sizes of records for 512 tokens, and for
    the text files of which they are published.

    Returns:
      Every disagreement as one line; none if all is well.

    Raises:
      ValueError: no manifest.
    """
    manifest = load(folder)
    if manifest is None:
        raise ValueError(f"{folder}: no {NAME}; make the data with --output_dir")

    def check(name: str) -> list[str]:
        return _check(folder, name, manifest.parts[name])

    found = paths.in_parallel(check, list(manifest.parts), reads_all_of=folder)
    issues = [issue for of_a_part in found for issue in of_a_part]
    if manifest.is_whole and set(manifest.parts) >= PUBLISHED_PARTS:
        if manifest.parameters.items() >= PUBLISHED_LENGTHS.items():
            issues += _check_published_sizes(manifest, folder)
        issues += _check_md5s_of_texts(manifest)
    text_files = list(text_files)
    if {path.name for path in text_files} >= PUBLISHED_PARTS:
        issues += [issue for path in text_files for issue in _check_published_text(path)]
    return issues


def _check(folder: paths.Location, name: str, part: Part) -> list[str]:
    path = folder / name
    if (status := paths.status(path)) is None:
        return [f"{name}: missing; run again without --verify"]
    if status.size_bytes != part.bytes:
        return [f"{name}: {status.size_bytes} bytes instead of {part.bytes}; make it again"]
    if digest(path, "sha256") != part.sha256:
        return [f"{name}: the SHA-256 differs; remove it and run again"]
    if (examples := tfrecord.count_records(path)) != part.examples:
        return [f"{name}: {examples} examples instead of {part.examples}; make it again"]
    return []


def _check_md5s_of_texts(manifest: Manifest) -> list[str]:
    return [
        f"{name}: made from a text with MD5 {manifest.parts[name].input_md5}, published is {md5}"
        for name, (_, md5) in PUBLISHED_TEXT.items()
        if name in manifest.parts and manifest.parts[name].input_md5 != md5
    ]


def _check_published_sizes(manifest: Manifest, folder: paths.Location) -> list[str]:
    """What differs in size from the published data: parts, and evaluation files beside them."""
    found = {name: part.bytes for name, part in manifest.parts.items()}
    beside = (name for name in PUBLISHED_RECORD_BYTES if name not in found)
    statuses = {name: paths.status(folder / name) for name in beside}
    found |= {name: status.size_bytes for name, status in statuses.items() if status}
    issues = [
        f"{name}: {found[name]} bytes, published are {expected}"
        for name, expected in PUBLISHED_RECORD_BYTES.items()
        if name in found and found[name] != expected
    ]
    total_bytes = sum(found[name] for name in PUBLISHED_PARTS)
    if total_bytes != PUBLISHED_TOTAL_BYTES:
        issues.append(f"all parts: {total_bytes} bytes, published are {PUBLISHED_TOTAL_BYTES}")
    return issues


def _check_published_text(path: paths.Location) -> list[str]:
    if path.name not in PUBLISHED_TEXT:
        return []
    expected_bytes, expected_md5 = PUBLISHED_TEXT[path.name]
    if (num_bytes := paths.size_bytes(path)) != expected_bytes:
        return [f"{path}: {num_bytes} bytes, published are {expected_bytes}"]
    if (md5 := digest(path, "md5")) != expected_md5:
        return [f"{path}: MD5 {md5}, published is {expected_md5}"]
    return []
