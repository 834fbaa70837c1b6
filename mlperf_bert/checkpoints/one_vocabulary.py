"""Checks that data and model have one vocabulary, in one casing, as far as their records say.

Sources: the record in a folder of data, vocab.txt in a folder of a model's files, and run.json in
the folder of a run.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from mlperf_bert.data import tokenizer_files, vocabulary
from mlperf_bert.data.parts import DataSet
from mlperf_bert.files import paths
from mlperf_bert.messages import Problems
from mlperf_bert.mlperf.log_reader import RECORD_NAME, read_own_record

Known: TypeAlias = tuple[str, dict[str, str]]
"""Whose vocabulary it is, in words, and what is known of it, by the names of `_WORDS`."""

# Parameter of data and runs that names their vocabulary -> its words, how data are made again.
_WORDS = {
    "vocab_md5": ("different vocabularies, by MD5", "with the vocab.txt of the model"),
    "do_lower_case": ("different casings, by --do_lower_case", "with one --do_lower_case"),
}


def recorded(of: str, values: object) -> Known:
    """The vocabulary that the parameters of a record name."""
    said = values if isinstance(values, Mapping) else {}
    return of, {name: str(said[name]) for name in _WORDS if said.get(name) is not None}


def in_file(path: str, *, do_lower_case: bool | None = None) -> Known:
    """What a vocab.txt and the files beside it say; raises ValueError if they are damaged."""
    if do_lower_case is None:
        do_lower_case = tokenizer_files.stated_lower_casing(path)
    md5 = vocabulary.md5_of(vocabulary.read_vocabulary(path))
    return recorded(path, {"vocab_md5": md5, "do_lower_case": do_lower_case})


def known_of(
    *,
    data: Mapping[paths.Location, Sequence[DataSet]] | None = None,
    folders: Iterable[paths.Location] = (),
) -> list[Known]:
    """All that is known.

    Args:
      data: folder -> data sets in it.
      folders: of a model's files and of runs.
    """
    known = [
        recorded(f"the data in {folder}", data_set.parameters)
        for folder, data_sets in (data or {}).items()
        for data_set in data_sets
    ]
    for folder in dict.fromkeys(folders):
        if paths.is_file(folder / vocabulary.NAME):
            known.append(in_file(str(folder / vocabulary.NAME)))
        run = read_own_record(folder / RECORD_NAME).get("vocabulary")
        known.append(recorded(f"the run in {folder}", run))
    return known


def require_one(known: Iterable[Known]) -> dict[str, str]:
    """The vocabulary that all of them agree on."""
    problems, joined = [], {}
    for name, (what, remedy) in _WORDS.items():
        owners: dict[str, dict[str, None]] = {}
        for of, said in known:
            if name in said:
                owners.setdefault(said[name], {})[of] = None
        if owners:
            joined[name] = next(iter(owners))
        if len(owners) > 1:
            listed = "; ".join(f"{value} of {', '.join(of)}" for value, of in owners.items())
            problems.append(
                f"{what}: {listed}; give files that belong together, or make data again {remedy}"
            )
    if problems:
        raise Problems(problems)
    return joined
