"""Whether data and model have one vocabulary, in one casing, as far as their records say.

Of data the record in their folder says it; of a model vocab.txt in a folder of its files, and
run.json in the folder of a run.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from mlperf_bert.data import parts, tokenizer_files, vocabulary
from mlperf_bert.files import paths
from mlperf_bert.messages import Problems
from mlperf_bert.mlperf.logs import RECORD_NAME, read_own_record


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a vocabulary; None: nothing."""

    of: str
    """Whose it is, in words."""
    md5: str | None
    do_lower_case: str | None
    """True or False, in words."""

    @classmethod
    def recorded(cls, of: str, values: object) -> "Known":
        """What the parameters of a record say."""
        found = values if isinstance(values, Mapping) else {}
        md5, casing = (found.get(name) for name in vocabulary.RECORDED)
        return cls(
            of=of, md5=md5 and str(md5), do_lower_case=None if casing is None else str(casing)
        )

    @classmethod
    def in_file(cls, path: str, *, do_lower_case: bool | None = None) -> "Known":
        """What a vocab.txt and the files beside it say; raises ValueError if they are damaged."""
        if do_lower_case is None:
            do_lower_case = tokenizer_files.stated_lower_casing(path)
        md5 = vocabulary.md5_of(vocabulary.read_vocabulary(path))
        return cls.recorded(path, dict(zip(vocabulary.RECORDED, (md5, do_lower_case))))

    def parameters(self) -> dict[str, str]:
        """What is known, as `recorded` reads it."""
        values = (self.md5, self.do_lower_case)
        return {
            name: value for name, value in zip(vocabulary.RECORDED, values) if value is not None
        }


def known_of(*, files: Sequence[str] = (), folders: Iterable[paths.Location] = ()) -> list[Known]:
    """All that is known.

    Args:
      files: of data.
      folders: of a model's files and of runs.
    """
    found = [
        Known.recorded(f"the data in {folder}", made.parameters)
        for folder, data_sets in parts.of_files(files).items()
        for made in data_sets
    ]
    for folder in dict.fromkeys(folders):
        if paths.is_file(folder / vocabulary.NAME):
            found.append(Known.in_file(str(folder / vocabulary.NAME)))
        run = read_own_record(folder / RECORD_NAME).get("vocabulary")
        found.append(Known.recorded(f"the run in {folder}", run))
    return list(dict.fromkeys(found))


def require_one(known: Sequence[Known]) -> Known:
    """What all of them say, together."""
    problems, joined = [], []
    for field, what, remedy in (
        ("md5", "different vocabularies, by MD5", "with the vocab.txt of the model"),
        ("do_lower_case", "different casings, by --do_lower_case", "with one --do_lower_case"),
    ):
        owners: dict[str, list[str]] = {}
        for each in known:
            if (value := getattr(each, field)) is not None:
                owners.setdefault(value, []).append(each.of)
        joined.append(next(iter(owners), None))
        if len(owners) > 1:
            listed = "; ".join(f"{value} of {', '.join(of)}" for value, of in owners.items())
            problems.append(
                f"{what}: {listed}; give files that belong together, or make data again {remedy}"
            )
    if problems:
        raise Problems(problems)
    return Known(of="all", md5=joined[0], do_lower_case=joined[1])
