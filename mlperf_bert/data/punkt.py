"""Punkt's tables: what the sentence splitter has learnt of a language."""

import dataclasses
import hashlib
import importlib
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from mlperf_bert.files import errors
from mlperf_bert.files.whole import read_regular_file

# nltk's package punkt_tab, folder english: the same tables as the reference's english.pickle.
PUBLISHED_SHA256 = {
    "abbrev_types.txt": "ae74df7220c09ecedff75f33e3fcc09dbd038e39ddf554b6ebc8f07ff5bdee7f",
    "collocations.tab": "987336cd468bf07bbab45a3a92276cbebff56e6686b29567dbbaf16060492d62",
    "ortho_context.tab": "4bbcca25ed3d3f06c02402abf8419b9f033b8adc06e7b482eca4e45f81a5dc4c",
    "sent_starters.txt": "568b989cf4818ad9cb50efaf76bd0685ef20b83a1cbce49023bad45dcd8aceb9",
}


@dataclasses.dataclass(frozen=True)
class PunktTables:
    """What Punkt learnt from a language."""

    abbrev_types: frozenset[str]
    """Lower-case abbreviations without their last period."""
    collocations: frozenset[tuple[str, str]]
    """Pairs of types that belong together over a period: no boundary between them."""
    sent_starters: frozenset[str]
    """Types that often begin a sentence."""
    ortho_context: Mapping[str, int]
    """Type -> bits that say how it was seen in training: segmentation.py."""


def find_or_fetch(folder: str = "") -> Path:
    """The folder with Punkt's four tables: the given one, else that of nltk's punkt_tab."""
    path = Path(folder) if folder else _in_nltk_data()
    if missing := [name for name in PUBLISHED_SHA256 if not (path / name).is_file()]:
        raise ValueError(f"{path}: {', '.join(missing)} missing; --punkt names a folder with them")
    return path


def _in_nltk_data() -> Path:
    # nltk.data.find would pass over folders that others own or may write to, as mounted ones often
    # are. The tables' checksums say whether they are the published ones.
    roots = _nltk("data").path  # $NLTK_DATA, ~/nltk_data, /usr/share/nltk_data...
    places = [Path(root, "tokenizers/punkt_tab/english") for root in roots]
    if there := next((folder for folder in places if folder.is_dir()), None):
        return there
    print(f"fetching nltk's punkt_tab into {roots[0]}", file=sys.stderr)
    Path(roots[0]).mkdir(parents=True, exist_ok=True)
    if not _nltk("downloader").download("punkt_tab", download_dir=roots[0], quiet=True):
        raise ValueError(
            "the sentence splitter's tables are missing: run `python -m nltk.downloader punkt_tab`,"
            " or name their folder with --punkt (PUNKT=... for process_wiki.sh)"
        )
    return places[0]


def _nltk(module: str) -> ModuleType:
    """A module of nltk; slow to import, and not needed where a folder of tables is given."""
    with warnings.catch_warnings():
        # joblib, which nltk imports and nobody here uses, warns where /dev/shm is not writable.
        warnings.simplefilter("ignore", UserWarning)
        return importlib.import_module(f"nltk.{module}")


def not_published(folder: Path) -> list[str]:
    """The names of the tables that are not the published ones."""
    return [
        name
        for name, expected in PUBLISHED_SHA256.items()
        if hashlib.sha256(read_regular_file(folder / name)).hexdigest() != expected
    ]


def read_tables(folder: Path) -> PunktTables:
    """The tables of a folder; raises ValueError if one is not what nltk's punkt_tab holds."""
    with errors.named(folder, damaged="fetch the tables of punkt_tab again"):
        rows = {name: _rows(folder / name) for name in PUBLISHED_SHA256}
        return PunktTables(
            abbrev_types=frozenset(word for (word,) in rows["abbrev_types.txt"]),
            collocations=frozenset((first, second) for first, second in rows["collocations.tab"]),
            sent_starters=frozenset(word for (word,) in rows["sent_starters.txt"]),
            ortho_context={kind: int(bits) for kind, bits in rows["ortho_context.tab"]},
        )


def _rows(path: Path) -> list[list[str]]:
    lines = read_regular_file(path).decode().split("\n")
    return [line.split("\t") for line in lines if line]
