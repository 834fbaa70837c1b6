"""Whether a vocabulary is cased: what the files beside it say, and what speaks against them."""

import re
from collections.abc import Iterable, Mapping

from mlperf_bert.data import unicode11, vocabulary
from mlperf_bert.files import json_text, paths

_MARK = re.compile(r"\[.*\]|<.*>")  # [CLS], [unused7], <S>: no words of a text
# Key of tokenizer_config.json -> that of tokenizer.json.
_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
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
    folder = paths.location(path).parent
    stated = {}
    if paths.is_file(config := folder / vocabulary.TOKENIZER_CONFIG):
        names = {name: name for name in _NORMALIZER}
        stated = _truths(json_text.read_object(config), names, config)
    tokenizer = folder / vocabulary.TOKENIZER
    if "do_lower_case" not in stated and paths.is_file(tokenizer):
        normalizer = json_text.read_object(tokenizer).get("normalizer")
        if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
            stated = _truths(normalizer, _NORMALIZER, tokenizer) | stated
    return stated


def _truths(
    values: Mapping, keys: Mapping[str, str], path: paths.Location
) -> dict[str, tuple[bool, paths.Location]]:
    """The value of each name, by its key in `values`, and the file; ValueError if it is no bool."""
    truths = {}
    for name, key in keys.items():
        if values.get(key) is None:
            continue
        if not isinstance(values[key], bool):
            raise ValueError(f"{path}: {key} must be true or false; correct it")
        truths[name] = values[key], path
    return truths


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
    told = []
    capital = [
        word for word in words if unicode11.lower(word) != word and not _MARK.fullmatch(word)
    ]
    # Some uncased vocabularies hold the letters; a cased one holds words with capitals too.
    longer = [word for word in capital if len(word.removeprefix("##")) > 1]
    if do_lower_case and longer:
        told.append(
            f"{len(longer):,} words of the vocabulary have capitals, such as {longer[0]!r}, and "
            f"are never met; if the model is cased, {give}"
        )
    if not do_lower_case and not capital:
        told.append(
            "no word of the vocabulary has a capital, so that words with one are unknown; if the "
            f"model is uncased, {give}"
        )
    names = ((name, _CASED_NAME.findall(name.lower())) for name in (model, path))
    name, says = next(((name, says) for name, says in names if says), ("", []))
    if says and (says[-1] == "un") != do_lower_case:
        told.append(f"{name} says {says[-1]}cased; {give}")
    doubted = [f"{path}: text is {what}, but {reason}" for reason in told]
    return doubted + _unlike_ours(path, do_lower_case=do_lower_case)


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
