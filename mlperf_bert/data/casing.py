"""Whether a vocabulary is cased: what the files beside it say, and what speaks against them."""

import re
from collections.abc import Iterable, Mapping

from mlperf_bert.data import unicode11, vocabulary
from mlperf_bert.files import json_text, paths

_MARK = re.compile(r"\[.*\]|<.*>")  # [CLS], [unused7], <S>: no words of a text
_CASED_NAME = re.compile(r"(?<![a-z])(un)?cased(?![a-z])")


def stated_lower_casing(path: str) -> bool | None:
    """Whether the files beside a vocabulary say that text is lower-cased; None: they do not say.

    Raises:
      ValueError: they say something else than true or false, or cannot be read.
    """
    return _stated(path).get("do_lower_case", (None, None))[0]


def _stated(path: str) -> dict[str, tuple[bool, paths.Location]]:
    """What is known of the tokenizer, and of which file.

    It is tokenizer_config.json, or tokenizer.json's normalizer if that does not say all.
    """
    config = paths.location(path).with_name(vocabulary.TOKENIZER_CONFIG)
    stated = {}
    if paths.is_file(config):
        stated = _truths(
            json_text.read_object(config), {name: name for name in _NORMALIZER}, config
        )
    tokenizer = paths.location(path).with_name(vocabulary.TOKENIZER)
    if "do_lower_case" not in stated and paths.is_file(tokenizer):
        normalizer = json_text.read_object(tokenizer).get("normalizer")
        if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
            stated = _truths(normalizer, _NORMALIZER, tokenizer) | stated
    return stated


def _truths(
    values: Mapping, keys: Mapping[str, str], path: paths.Location
) -> dict[str, tuple[bool, paths.Location]]:
    """The value of each name, by its key in `values`, and the file; ValueError if it is no bool."""
    found = {name: values[key] for name, key in keys.items() if values.get(key) is not None}
    for name, value in found.items():
        if not isinstance(value, bool):
            raise ValueError(f"{path}: {keys[name]} must be true or false; correct it")
    return {name: (value, path) for name, value in found.items()}


_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Key of tokenizer_config.json -> that of tokenizer.json."""


def lower_casing(path: str, given: bool | None) -> bool:
    """Whether text is lower-cased: as the vocabulary's folder states, else as given, else true.

    Raises:
      ValueError: as `stated_lower_casing`, or the two are not the same.
    """
    stated, file = _stated(path).get("do_lower_case", (None, None))
    if None not in (given, stated) and given != stated:
        raise ValueError(
            f"--do_lower_case={given}, but {file} says {stated}; leave the flag out, or correct it"
        )
    return next((value for value in (stated, given) if value is not None), True)


def doubts(path: str, words: Iterable[str], *, do_lower_case: bool, model: str = "") -> list[str]:
    """What speaks against lower-casing text, or against not doing so; a line for each.

    Args:
      path: the vocabulary.
      words: those in it.
      do_lower_case: what will be done.
      model: its name or path, which may say "cased" or "uncased", as that of the vocabulary may.
    """
    what = "lower-cased" if do_lower_case else "not lower-cased"
    other = "false" if do_lower_case else "true"
    give = f"give --do_lower_case={other}, or correct {vocabulary.TOKENIZER_CONFIG} beside it"
    found = []
    capital = [
        word for word in words if unicode11.lower(word) != word and not _MARK.fullmatch(word)
    ]
    # Some uncased vocabularies hold the letters; a cased one holds words with capitals too.
    longer = [word for word in capital if len(word.removeprefix("##")) > 1]
    if do_lower_case and longer:
        found.append(
            f"{path}: text is {what}, but {len(longer):,} words of the vocabulary have capitals, "
            f"such as {longer[0]!r}, and are never met; if the model is cased, {give}"
        )
    if not do_lower_case and not capital:
        found.append(
            f"{path}: text is {what}, but no word of the vocabulary has a capital, so that words "
            f"with one are unknown; if the model is uncased, {give}"
        )
    for name in (model, path):
        if says := _CASED_NAME.findall(name.lower()):
            if (says[-1] == "un") != do_lower_case:
                found.append(f"{path}: text is {what}, but {name} says {says[-1]}cased; {give}")
            break
    return found + _unlike_ours(path, do_lower_case=do_lower_case)


def _unlike_ours(path: str, *, do_lower_case: bool) -> list[str]:
    """What else the tokenizer's configuration says, and is not done here."""
    stated = {name: value for name, (value, _) in _stated(path).items()}
    ours = {"strip_accents": do_lower_case, "tokenize_chinese_chars": True}
    return [
        f"{path}: its tokenizer has {name}={stated[name]}, here it is {value}; such words become "
        "other tokens"
        for name, value in ours.items()
        if stated.get(name, value) != value
    ]
