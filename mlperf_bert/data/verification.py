"""Whether the parts of a data set are what its manifest says, and what is published.

Source of the published figures: the benchmark's README.
"""

from collections.abc import Iterable

from mlperf_bert.data import manifest, tfrecord
from mlperf_bert.data.manifest import Manifest, Part
from mlperf_bert.data.published import (
    PUBLISHED_LENGTHS,
    PUBLISHED_PARTS,
    PUBLISHED_RECORD_BYTES,
    PUBLISHED_TEXT,
    PUBLISHED_TOTAL_BYTES,
)
from mlperf_bert.files import paths
from mlperf_bert.files.whole import digest


def verify(folder: paths.Location, text_files: Iterable[paths.Location] = ()) -> list[str]:
    """Checks all parts against the manifest, and all against the published figures.

    The published figures hold for the official 500 parts, sizes of records for 512 tokens, and for
    the text files of which they are published.

    Returns:
      Every disagreement as one line; none if all is well.

    Raises:
      ValueError: no manifest.
    """
    made = manifest.load(folder)
    if made is None:
        raise ValueError(f"{folder}: no {manifest.NAME}; make the data with --output_dir")

    answers = paths.in_parallel(
        lambda name: _check(folder, name, made.parts[name]), list(made.parts)
    )
    issues = list(filter(None, answers))
    if made.is_whole and set(made.parts) >= PUBLISHED_PARTS:
        if made.parameters.items() >= PUBLISHED_LENGTHS.items():
            issues += _check_published_sizes(made, folder)
        issues += [
            f"{name}: made from a text with MD5 {made.parts[name].input_md5}, published is {md5}"
            for name, (_, md5) in PUBLISHED_TEXT.items()
            if name in made.parts and made.parts[name].input_md5 != md5
        ]
    text_files = list(text_files)
    if {path.name for path in text_files} >= PUBLISHED_PARTS:
        issues += filter(None, map(_check_published_text, text_files))
    return issues


def _check(folder: paths.Location, name: str, part: Part) -> str | None:
    path = folder / name
    if (status := paths.status(path)) is None:
        return f"{name}: missing; run again without --verify"
    if status.size_bytes != part.bytes:
        return f"{name}: {status.size_bytes} bytes instead of {part.bytes}; make it again"
    if digest(path, "sha256") != part.sha256:
        return f"{name}: the SHA-256 differs; remove it and run again"
    if (examples := tfrecord.count_records(path)) != part.examples:
        return f"{name}: {examples} examples instead of {part.examples}; make it again"
    return None


def _check_published_sizes(made: Manifest, folder: paths.Location) -> list[str]:
    """What differs in size from the published data: parts, and evaluation files beside them."""
    found = {name: part.bytes for name, part in made.parts.items()}
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


def _check_published_text(path: paths.Location) -> str | None:
    expected_bytes, expected_md5 = PUBLISHED_TEXT.get(path.name, (None, None))
    if expected_md5 is None:
        return None
    if (num_bytes := paths.size_bytes(path)) != expected_bytes:
        return f"{path}: {num_bytes} bytes, published are {expected_bytes}"
    md5 = digest(path, "md5")
    return None if md5 == expected_md5 else f"{path}: MD5 {md5}, published is {expected_md5}"
