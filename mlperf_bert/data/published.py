"""The published files: where each lies, its name there and here, its size and its MD5.

Beside them the published figures of a data set, and how one is compared with them.

Sources: the benchmark's dataset.md, the lists that its README links since 2025-11-05, and the MD5s
beside these lists.
"""

import dataclasses
import posixpath

from mlperf_bert.data import provenance
from mlperf_bert.files import paths

_STORAGE = "https://training.mlcommons-storage.org"
_DOWNLOADER = (
    "https://raw.githubusercontent.com/mlcommons/r2-downloader/refs/heads/main/mlc-r2-downloader.sh"
)
UNPUBLISHED_AT_MOST_BYTES = 16 << 30  # the 500 parts are 13 GB before they are packed


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder of MLCommons' storage, with the list by which the official downloader fetches it."""

    base_url: str
    list_url: str

    @property
    def folder_name(self) -> str:
        """The folder that the official downloader makes where it is started."""
        return posixpath.basename(self.base_url)

    @property
    def official_command(self) -> str:
        """Fetches everything that lies there."""
        return f"bash <(curl -s {_DOWNLOADER}) {self.list_url}"


INPUT_FILES = Place(
    f"{_STORAGE}/wikipedia_for_bert/input_files", f"{_STORAGE}/metadata/bert-input-files.uri"
)
PROCESSED = Place(
    f"{_STORAGE}/wikipedia_for_bert/processed_dataset",
    f"{_STORAGE}/metadata/bert-preprocessed-wikipedia-dataset.uri",
)


@dataclasses.dataclass(frozen=True)
class PublishedFile:
    """A file, by its path under the folder that it is fetched to."""

    path: str
    size_bytes: int | None
    """None: not published."""
    md5: str
    place: Place = INPUT_FILES
    other_path_there: str | None = None
    """Its path under the place, if that is another one."""

    @property
    def path_there(self) -> str:
        """Its path under the place."""
        return self.other_path_there or self.path

    @property
    def at_most_bytes(self) -> int:
        """More than this is not taken from a server."""
        return UNPUBLISHED_AT_MOST_BYTES if self.size_bytes is None else self.size_bytes


DUMP = "enwiki-20200101-pages-articles-multistream.xml"
UNCOMPRESSED_DUMP = PublishedFile(DUMP, 75_163_254_305, "1021bd606cba24ffc4b93239f5a09c02")
TEXT = PublishedFile("results_text.tar.gz", None, "6f71334b0458c6c85142f5b20962fcc6", PROCESSED)

GROUPS: dict[str, tuple[PublishedFile, ...]] = {
    "config": (
        PublishedFile("bert_config.json", 314, "7f59165e21b7d566db610ff6756c926b"),
        PublishedFile("vocab.txt", 231_508, "64800d5d8528ce344256daf115d4965e"),
    ),
    "tf1": (
        PublishedFile(
            "tf1_ckpt/model.ckpt-28252.index", 17_371, "f97de3ae180eb8d479555c939d50d048"
        ),
        PublishedFile(
            "tf1_ckpt/model.ckpt-28252.meta", 24_740_228, "dbd16c731e8a8113bc08eeed0326b8e7"
        ),
        PublishedFile(
            "tf1_ckpt/model.ckpt-28252.data-00000-of-00001",
            4_034_713_312,
            "50797acd537880bfb5a7ade80d976129",
            other_path_there="tf1_ckpt/model.ckpt-28252-003.data-00000-of-00001",
        ),
    ),
    "tf2": (
        PublishedFile("tf2_ckpt/model.ckpt-28252.index", 6_420, "fc34dd7a54afc07f2d8e9d64471dc672"),
        PublishedFile(
            "tf2_ckpt/model.ckpt-28252.data-00000-of-00001",
            1_344_982_997,
            "77d642b721cf590c740c762c7f476e04",
        ),
    ),
    "dump": (PublishedFile(f"{DUMP}.bz2", 17_751_214_669, "00d47075e0f583fb7c0791fac1c57cb3"),),
    "text": (TEXT,),
}
"""Argument of the script -> files."""

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
    "eval.md5": (330_000, "71a58382a68947e93e88aa0d42431b6c"),
    "eval.txt": (32_851_144, "2a220f790517261547b1b45ed3ada07a"),
    "part-00000-of-00500": (27_150_902, "a64a7c31eff5cd38ae6d94f7a6229dab"),
    "part-00001-of-00500": (27_198_569, "549a9ed4f805257245bec936563abfd0"),
    "part-00002-of-00500": (27_395_616, "1a1366ddfc03aef9d41ce552ee247abf"),
    "part-00497-of-00500": (24_775_043, "66835aa75d4855f2e678e8f3d73812e9"),
    "part-00498-of-00500": (24_575_505, "e6d68a7632e9f4aa1a94128cce556dc9"),
    "part-00499-of-00500": (21_873_644, "b3b087ad24e3770d879a351664cebc5a"),
}
"""Text file -> bytes, MD5; source: the benchmark's README."""


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
    answers = paths.in_parallel(lambda file: provenance.difference(file, folder), made.outputs)
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
        for name, (_, md5) in PUBLISHED_TEXT.items()
        if name in texts and texts[name].digest != f"md5:{md5}"
    ]
