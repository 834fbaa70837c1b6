"""The published files' MD5s, and the published figures of a data set, compared with one's own.

Sources: the benchmark's README and dataset.md, and the MD5s beside the lists that the README links
since 2025-11-05.
"""

from pathlib import Path

from mlperf_bert.data import parts
from mlperf_bert.messages import Progress

MD5S = {
    path: md5
    for md5, path in map(str.split, Path(__file__).with_suffix(".md5").read_text().splitlines())
}
"""Path -> MD5 of every published file, in the folders of download_and_uncompress.sh."""
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


def verify(folder: Path) -> list[str]:
    """Compares a folder with its record, and all 500 parts with the published figures.

    Sizes of records are published for 512 tokens, and of some texts the MD5.

    Returns:
      Every disagreement as one line; none if all is well.
    """
    sets = parts.read(folder)
    if not sets:
        raise ValueError(f"{folder}: no {parts.NAME}; make the data with --output_dir")
    files = {name: file for data_set in sets.values() for name, file in data_set.files.items()}
    texts = {name: text for data_set in sets.values() for name, text in data_set.inputs.items()}
    issues = []
    with Progress(
        total=sum(file.bytes for file in files.values()), unit="B", description="verify"
    ) as progress:
        for name, file in files.items():
            if problem := parts.difference(folder / name, file):
                issues.append(f"{problem}; remove it and run again")
            progress.advance(file.bytes)
    parameters = sets[parts.PARTS].parameters if parts.PARTS in sets else {}
    if not files.keys() >= PUBLISHED_PARTS or parameters.get("examples_per_part"):
        return issues
    if parameters.items() >= PUBLISHED_LENGTHS.items():
        sizes = {name: file.bytes for name, file in files.items()}
        total = "all parts"
        expected = PUBLISHED_RECORD_BYTES | {total: PUBLISHED_TOTAL_BYTES}
        sizes[total] = sum(sizes[name] for name in PUBLISHED_PARTS)
        # The evaluation files may have come from elsewhere.
        for path in (folder / name for name in expected.keys() - sizes.keys()):
            if path.is_file():
                sizes[path.name] = path.stat().st_size
        issues += [
            f"{name}: {sizes[name]} bytes, published are {size}"
            for name, size in expected.items()
            if sizes.get(name, size) != size
        ]
    return issues + [
        f"{name}: made from a text with MD5 {texts[name].md5}, published is {md5}"
        for name, md5 in PUBLISHED_TEXT.items()
        if name in texts and texts[name].md5 != md5
    ]
