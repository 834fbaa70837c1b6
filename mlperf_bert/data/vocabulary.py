"""WordPiece vocabularies: vocab.txt or tokenizer.json, and whether they are cased.

The line of a word is its id, the row of the model's word embeddings: a vocabulary in which a word
stands twice, or a line is blank, would shift the ids against the model's, and is refused.
"""

import re
from collections import defaultdict
from collections.abc import Iterable

from mlperf_bert.data import stages, unicode11
from mlperf_bert.files import json_text, paths, whole
from mlperf_bert.files.whole import read_regular_file

NAME = "vocab.txt"
TOKENIZER = "tokenizer.json"
"""The file of Hugging Face's layout that holds the words too."""
TOKENIZER_CONFIG = "tokenizer_config.json"
"""The file of Hugging Face's layout, also of an import, that says whether text is lower-cased."""
SPECIAL_TOKENS = ("[UNK]", "[CLS]", "[SEP]", "[MASK]")

_WORD_PIECE = {"type": "WordPiece", "continuing_subword_prefix": "##"}
_MARK = re.compile(r"\[.*\]|<.*>")  # [CLS], [unused7], <S>: no words of a text
_CASED_NAME = re.compile(r"(?<![a-z])(un)?cased(?![a-z])")
_MOST_LINES = 4


def read_vocabulary(path: str) -> dict[str, int]:
    """Token -> id, of a vocab.txt (the number of its line, from 0) or a tokenizer.json.

    Raises:
      ValueError: no such file, no regular one, not UTF-8, a blank line, a word that stands twice,
        or a special token is missing; of a tokenizer.json also no WordPiece.
    """
    try:
        words = _words_of_json(path) if path.endswith(".json") else _words(path)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file; --vocab_file takes a vocab.txt") from error
    if missing := [token for token in SPECIAL_TOKENS if token not in words]:
        raise ValueError(f"{path}: {', '.join(missing)} missing; this is not a BERT vocabulary")
    return words


def read_fitting(path: str, vocab_size: int, *, of: str) -> dict[str, int]:
    """As `read_vocabulary`, for a model of `vocab_size` rows, which `of` says.

    A model may have more rows than words: vocabularies are padded to a multiple of 8 or 64.

    Raises:
      ValueError: also if there are more words than rows.
    """
    words = read_vocabulary(path)
    if len(words) > vocab_size:
        raise ValueError(
            f"{path} has {len(words)} words, but {of} says vocab_size={vocab_size}; give the two "
            "files that belong together"
        )
    return words


def as_text(words: Iterable[str]) -> bytes:
    """A vocab.txt."""
    return "".join(f"{word}\n" for word in words).encode()


def text_of(path: str) -> str:
    r"""A file's text. Quirk: TensorFlow's line reader, which the reference uses, drops every \r."""
    return stages.decode(read_regular_file(path), path).replace("\r", "")


def _words(path: str) -> dict[str, int]:
    text = text_of(path)
    if text.startswith(whole.BYTE_ORDER_MARK):
        raise ValueError(
            f"{path}: begins with a byte order mark, which would be part of the first token; "
            "remove it (sed -i '1s/^\\xEF\\xBB\\xBF//' FILE)"
        )
    lines_of = defaultdict(list)
    for number, line in enumerate(text.split("\n")[: -1 if text.endswith("\n") else None], 1):
        # Published Chinese vocabularies hold U+2028 as a word, which str.strip takes for blank.
        lines_of[line.strip() or line.strip(" \t")].append(number)
    repeated = {word: lines for word, lines in lines_of.items() if len(lines) > 1 or not word}
    if repeated:
        word, lines = next(iter(repeated.items()))
        listed = ", ".join(map(str, lines[:_MOST_LINES])) + (", ..." if lines[_MOST_LINES:] else "")
        what = f"{word!r} stands on the lines {listed}" if word else f"blank: line {listed}"
        more = f", and {len(repeated) - 1} more words stand twice" if len(repeated) > 1 else ""
        raise ValueError(
            f"{path}: {what}{more}; a word's line is its id, so that ids would be shifted: take "
            "the file that the model was trained with, or put a new word such as [unused_1] on "
            "each such line"
        )
    return {word: lines[0] - 1 for word, lines in lines_of.items()}


def _words_of_json(path: str) -> dict[str, int]:
    values = json_text.read_object(path)
    model = values.get("model")
    model = model if isinstance(model, dict) else {}
    words = model.get("vocab")
    if not isinstance(words, dict) or any(model.get(k, v) != v for k, v in _WORD_PIECE.items()):
        raise ValueError(
            f"{path}: holds no WordPiece vocabulary with '##', as BERT has; give a vocab.txt"
        )
    added = values.get("added_tokens") or []
    try:
        words = words | {token["content"]: token["id"] for token in added}
        by_id = {int(number): word for word, number in words.items()}
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{path}: damaged ({error!r:.80}); fetch it again") from error
    if by_id.keys() != set(range(len(words))):
        lacking = min(set(range(len(words) + 1)) - by_id.keys())
        raise ValueError(
            f"{path}: {len(words)} words have ids up to {max(by_id)}, and none has {lacking}, or "
            "two have the same; fetch it again, or give a vocab.txt"
        )
    return {by_id[number]: number for number in range(len(words))}


def stated_lower_casing(path: str) -> bool | None:
    """Whether the files beside a vocabulary say that text is lower-cased; None: they do not say.

    Raises:
      ValueError: they say something else than true or false, or cannot be read.
    """
    return _stated(path).get("do_lower_case")


def _stated(path: str) -> dict:
    """What is known of the tokenizer: tokenizer_config.json, else tokenizer.json's normalizer."""
    config = paths.location(path).with_name(TOKENIZER_CONFIG)
    values = json_text.read_object(config) if paths.is_file(config) else {}
    stated = {name: values[name] for name in _NORMALIZER if values.get(name) is not None}
    tokenizer = paths.location(path).with_name(TOKENIZER)
    if "do_lower_case" not in stated and paths.is_file(tokenizer):
        normalizer = json_text.read_object(tokenizer).get("normalizer")
        if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
            found = {name: normalizer.get(theirs) for name, theirs in _NORMALIZER.items()}
            stated = {name: value for name, value in found.items() if value is not None} | stated
    for name, value in stated.items():
        if not isinstance(value, bool):
            raise ValueError(f"{config}: {name} must be true or false; correct it")
    return stated


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
    stated = stated_lower_casing(path)
    if None not in (given, stated) and given != stated:
        raise ValueError(
            f"--do_lower_case={given}, but {paths.location(path).with_name(TOKENIZER_CONFIG)} says "
            f"{stated}; leave the flag out, or correct the file"
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
    give = f"give --do_lower_case={other}, or correct {TOKENIZER_CONFIG} beside it"
    found = []
    capital = [word for word in words if is_capital(word)]
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
    stated = _stated(path)
    ours = {"strip_accents": do_lower_case, "tokenize_chinese_chars": True}
    return [
        f"{path}: its tokenizer has {name}={stated[name]}, here it is {value}; such words become "
        "other tokens"
        for name, value in ours.items()
        if stated.get(name, value) != value
    ]


def is_capital(word: str) -> bool:
    """Whether lower-casing would change a word of a text."""
    return unicode11.lower(word) != word and not _MARK.fullmatch(word)
