"""Whether the parts of a data set are what their record says, and what is published.

Source of the published figures: the benchmark's README.
"""

from collections.abc import Iterable

from mlperf_bert.data import provenance
from mlperf_bert.data.published import (
    PUBLISHED_LENGTHS,
    PUBLISHED_PARTS,
    PUBLISHED_RECORD_BYTES,
    PUBLISHED_TEXT,
    PUBLISHED_TOTAL_BYTES,
)
from mlperf_bert.files import paths


def verify(folder: paths.Location, text_files: Iterable[paths.Location] = ()) -> list[str]:
    """Compares all parts with their record, and all 500 with the published figures.

    Sizes of records are published for 512 tokens, and of some text files size and MD5.

    Returns:
      Every disagreement as one line; none if all is well.

    Raises:
      ValueError: no record of parts.
    """
    made = provenance.of_step(folder, provenance.PARTS)
    if made is None:
        raise ValueError(f"{folder}: no {provenance.NAME} of parts; make them with --output_dir")

    def compared(file: provenance.File) -> str | None:
        return provenance.difference(file, folder)

    answers = paths.in_parallel(compared, made.outputs)
    issues = [f"{answer}; remove it and run again" for answer in answers if answer]
    parts, texts = map(provenance.by_name, (made.outputs, made.inputs))
    if parts.keys() >= PUBLISHED_PARTS and not made.parameters.get("examples_per_part"):
        if made.parameters.items() >= PUBLISHED_LENGTHS.items():
            issues += _unlike_published({name: part.bytes for name, part in parts.items()}, folder)
        issues += [
            f"{name}: made from a text with {texts[name].digest}, published is md5:{md5}"
            for name, (_, md5) in PUBLISHED_TEXT.items()
            if name in texts and texts[name].digest != f"md5:{md5}"
        ]
    named = {path.name: path for path in text_files}
    if named.keys() >= PUBLISHED_PARTS:
        for name in named.keys() & PUBLISHED_TEXT.keys():
            num_bytes, md5 = PUBLISHED_TEXT[name]
            text = provenance.File(path=name, bytes=num_bytes, digest=f"md5:{md5}")
            if problem := provenance.difference(text, named[name].parent):
                issues.append(f"not as published: {problem}")
    return issues


def _unlike_published(sizes: dict[str, int], folder: paths.Location) -> list[str]:
    """What differs in size from the published data: parts, and evaluation files beside them."""
    total_bytes = sum(sizes[name] for name in PUBLISHED_PARTS)
    for name in PUBLISHED_RECORD_BYTES.keys() - sizes.keys():
        if status := paths.status(folder / name):
            sizes[name] = status.size_bytes
    issues = [
        f"{name}: {sizes[name]} bytes, published are {expected}"
        for name, expected in PUBLISHED_RECORD_BYTES.items()
        if sizes.get(name, expected) != expected
    ]
    if total_bytes != PUBLISHED_TOTAL_BYTES:
        issues.append(f"all parts: {total_bytes} bytes, published are {PUBLISHED_TOTAL_BYTES}")
    return issues
