"""The published files' MD5s, and the published figures of a data set, compared with one's own.

Sources: the benchmark's README and dataset.md, and the MD5s beside the lists that the README links
since 2025-11-05.
"""

from pathlib import Path

from mlperf_bert.data import provenance
from mlperf_bert.files import paths
from mlperf_bert.messages import Progress

MD5S = {
    path: md5
    for md5, path in map(str.split, Path(__file__).with_suffix(".md5").read_text().splitlines())
}
"""Path -> MD5, of md5sum's list: every published file as download_and_uncompress.sh stores it."""
CHECKPOINT_DATA_BYTES = {"tf1_ckpt": 4_034_713_312, "tf2_ckpt": 1_344_982_997}
"""Folder of a published initial checkpoint -> bytes of its data file."""

PUBLISHED_PARTS = {f"part-{number:05}-of-00500" for number in range(500)}
PUBLISHED_RECORD_BYTES = {
    "eval_intermediate": 843_343_183,
    "eval_10k": 25_382_591,
    "part-00000-of-00500": 514_241_279,
    "part-00499-of-00500": 898_392_312,
}
PUBLISHED_TOTAL_BYTES = 391_434_110_129
PUBLISHED_LENGTHS = {"max_seq_length": 512, "max_predictions_per_seq": 76}
"""Parameters of the records whose sizes are published."""
PUBLISHED_TEXT = {
    path.removeprefix("results/"): md5 for path, md5 in MD5S.items() if path.startswith("results/")
}
"""Text file -> MD5."""


def verify(folder: paths.Location) -> list[str]:
    """Compares all parts with their record, and all 500 with the published figures.

    Sizes of records are published for 512 tokens, and of some texts the MD5.

    Returns:
      Every disagreement as one line; none if all is well.

    Raises:
      ValueError: no record of parts.
    """
    made = provenance.of_step(folder, provenance.PARTS)
    if made is None:
        raise ValueError(f"{folder}: no {provenance.NAME} of parts; make them with --output_dir")
    with Progress(total=len(made.outputs), unit="files", description="verify") as progress:
        answers = paths.in_parallel(
            lambda file: provenance.difference(file, folder), made.outputs, progress.advance
        )
    issues = [f"{answer}; remove it and run again" for answer in answers if answer]
    parts, texts = map(provenance.by_name, (made.outputs, made.inputs))
    if not parts.keys() >= PUBLISHED_PARTS or made.parameters.get("examples_per_part"):
        return issues
    if made.parameters.items() >= PUBLISHED_LENGTHS.items():
        sizes = {name: part.bytes for name, part in parts.items()}
        total = "all parts"
        expected = PUBLISHED_RECORD_BYTES | {total: PUBLISHED_TOTAL_BYTES}
        sizes[total] = sum(sizes[name] for name in PUBLISHED_PARTS)
        # The evaluation files are no parts, and lie beside them.
        for name in expected.keys() - sizes.keys():
            if status := paths.status(folder / name):
                sizes[name] = status.size_bytes
        issues += [
            f"{name}: {sizes[name]} bytes, published are {size}"
            for name, size in expected.items()
            if sizes.get(name, size) != size
        ]
    return issues + [
        f"{name}: made from a text with {texts[name].digest}, published is md5:{md5}"
        for name, md5 in PUBLISHED_TEXT.items()
        if name in texts and texts[name].digest != f"md5:{md5}"
    ]
