"""Whether a vocabulary is cased: what the files beside it say, and what speaks against them."""

import re
from collections.abc import Iterable

from mlperf_bert.data import unicode11, vocabulary
from mlperf_bert.files import json_text, paths

_TOKENIZER, _NORMALIZER = vocabulary.TOKENIZER, "BertNormalizer"
_MARK = re.compile(r"\[.*\]|<.*>")  # [CLS], [unused7], <S>: no words of a text


def stated_lower_casing(path: str) -> bool | None:
    """Whether the files beside a vocabulary say that text is lower-cased; None: they do not say.

    Raises:
      ValueError: they say something else than true or false, or cannot be read.
    """
    return _stated(path)[0]


def _stated(path: str) -> tuple[bool | None, paths.Location]:
    """As `stated_lower_casing`, and which file says so."""
    folder = paths.location(path).parent
    # The second decides where the first is silent.
    for name, key in ((vocabulary.TOKENIZER_CONFIG, "do_lower_case"), (_TOKENIZER, "lowercase")):
        if not paths.is_file(file := folder / name):
            continue
        values = json_text.read_object(file)
        if name == _TOKENIZER:
            normalizer = values.get("normalizer")
            is_known = isinstance(normalizer, dict) and normalizer.get("type") == _NORMALIZER
            values = dict(normalizer or {}) if is_known else {}
        if (value := values.get(key)) is not None:
            if not isinstance(value, bool):
                raise ValueError(f"{file}: {key} must be true or false; correct it")
            return value, file
    return None, folder


def lower_casing(path: str, given: bool | None) -> bool:
    """Whether text is lower-cased: as the vocabulary's folder states, else as given, else true.

    Raises:
      ValueError: as `stated_lower_casing`, or the two are not the same.
    """
    stated, file = _stated(path)
    if None not in (given, stated) and given != stated:
        raise ValueError(
            f"--do_lower_case={given}, but {file} says {stated}; leave the flag out, or correct it"
        )
    return next((value for value in (stated, given) if value is not None), True)


def doubts(path: str, words: Iterable[str], *, do_lower_case: bool) -> list[str]:
    """What in the words of a vocabulary speaks against lower-casing text, or against not doing so.

    A line for each, which names the vocabulary's path.
    """
    capital = [
        word for word in words if unicode11.lower(word) != word and not _MARK.fullmatch(word)
    ]
    # Some uncased vocabularies hold the letters; a cased one holds words with capitals too.
    longer = [word for word in capital if len(word.removeprefix("##")) > 1]
    config = f"or correct {vocabulary.TOKENIZER_CONFIG} beside it"
    if do_lower_case and longer:
        return [
            f"{path}: text is lower-cased, but {len(longer):,} words of the vocabulary have "
            f"capitals, such as {longer[0]!r}, and are never met; if the model is cased, give "
            f"--do_lower_case=false, {config}"
        ]
    if not do_lower_case and not capital:
        return [
            f"{path}: text is not lower-cased, but no word of the vocabulary has a capital, so "
            "that words with one are unknown; if the model is uncased, give "
            f"--do_lower_case=true, {config}"
        ]
    return []
