"""Checks the files beside a vocabulary for its tokenizer's kind, its casing and added tokens.

They are those of Hugging Face's layout. Text is cut here by BERT's own tokenizer alone: whatever
says that another one, or more words, belong to the vocabulary would give other ids, and is refused.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mlperf_bert.files import errors, json_text, paths

TOKENIZER = "tokenizer.json"
"""This file holds the words too."""
TOKENIZER_CONFIG = "tokenizer_config.json"
"""This file says whether text is lower-cased; an import writes one."""
_ADDED, _SPECIAL = "added_tokens.json", "special_tokens_map.json"
FILES = (TOKENIZER, TOKENIZER_CONFIG, _ADDED, _SPECIAL)
_MODEL_CONFIG = "config.json"

# Classes of transformers that cut text as BertTokenizer does, or as tokenizer.json says.
_CLASSES = re.compile(
    r"(Bert|DistilBert|Electra|MobileBert)Tokenizer(Fast)?|PreTrainedTokenizerFast|TokenizersBackend"
)
# Key, with a dot for one inside another -> value of BERT's own tokenizer, also without the key.
_OF_BERT: Mapping[str, Mapping[str, object]] = {
    TOKENIZER_CONFIG: {
        "word_tokenizer_type": "basic",
        "subword_tokenizer_type": "wordpiece",
        "do_basic_tokenize": True,
        "do_word_tokenize": True,
        "do_subword_tokenize": True,
        "tokenize_chinese_chars": True,
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    },
    TOKENIZER: {
        "model.type": "WordPiece",
        "model.continuing_subword_prefix": "##",
        "model.unk_token": "[UNK]",
        "normalizer.type": "BertNormalizer",
        "normalizer.handle_chinese_chars": True,
        "pre_tokenizer.type": "BertPreTokenizer",
    },
}
_MOST_NAMED = 10


def require_kind(path: str) -> dict[str, dict]:
    """Checks that the files beside a vocabulary are of BERT's tokenizer; returns their content."""
    files = _read(path)
    for name, key, value, expected in _differences(files):
        raise ValueError(
            f"{paths.location(path).with_name(name)}: {key} is {value!r:.80}, and text is cut here "
            f"by BERT's own tokenizer alone ({expected}), which would give other ids; give a model "
            "with that one"
        )
    return files


def require_no_more(path: str, words: Mapping[str, int], files: Mapping[str, dict]) -> None:
    """Checks that the `files` beside a vocabulary add no token to its words."""
    with errors.named(f"{', '.join(files)} beside {path}", damaged="fetch the files again"):
        added = dict(_added(files))
    lacking = {w: at for w, at in added.items() if w not in words or at not in (None, words[w])}
    if lacking:
        named = [f"{w!r:.80}{'' if at is None else f' ({at})'}" for w, at in lacking.items()]
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        # Others, such as "covid-19", would be cut into pieces nevertheless.
        are_words = all(word.isalnum() and word.islower() for word in lacking)
        place = ", or a vocab.txt with them at its end, in the order of their ids"
        raise ValueError(
            f"{path}: lacks {len(named)} tokens that were added to its tokenizer: "
            f"{', '.join(named[:_MOST_NAMED])}{more}; give a model without them"
            f"{place if are_words else ''}"
        )


def stated_lower_casing(path: str) -> bool | None:
    """Whether the files beside a vocabulary say that text is lower-cased; None: they do not say."""
    files = _read(path)
    normalizer = files.get(TOKENIZER, {}).get("normalizer")
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        normalizer = {}
    # The second decides where the first is silent.
    values = (files.get(TOKENIZER_CONFIG, {}).get("do_lower_case"), normalizer.get("lowercase"))
    stated = next((value for value in values if value is not None), None)
    if not isinstance(stated, bool | None):
        raise ValueError(
            f"{paths.location(path).parent}: whether text is lower-cased is {stated!r:.80} in "
            f"{TOKENIZER_CONFIG} or {TOKENIZER}; correct it to true or false"
        )
    return stated


def require_casing(path: str, *, do_lower_case: bool) -> None:
    """Raises ValueError as `stated_lower_casing`, or if that is something else."""
    if (stated := stated_lower_casing(path)) not in (None, do_lower_case):
        raise ValueError(
            f"--do_lower_case={do_lower_case}, but {TOKENIZER_CONFIG} or {TOKENIZER} beside {path} "
            f"says {stated}; give --do_lower_case={stated}, or correct the file"
        )


def _read(path: str) -> dict[str, dict]:
    """Name -> content of each of `FILES` that lies beside a vocabulary."""
    folder = paths.location(path).parent
    there = [name for name in FILES if paths.is_file(folder / name)]
    files = {name: json_text.read_object(folder / name) for name in there}
    # A config.json beside it may belong to something else than a model.
    with contextlib.suppress(ValueError, OSError):
        files[_MODEL_CONFIG] = json_text.read_object(folder / _MODEL_CONFIG)
    return files


def _differences(files: Mapping[str, dict]) -> Iterator[tuple[str, str, object, object]]:
    """Yields file, key, value, and what BERT's tokenizer has in its place."""
    config, model = files.get(TOKENIZER_CONFIG, {}), files.get(_MODEL_CONFIG, {})
    for name, values in ((TOKENIZER_CONFIG, config), (_MODEL_CONFIG, model)):
        kind = values.get("tokenizer_class")
        if kind is not None and not _CLASSES.fullmatch(str(kind)):
            yield name, "tokenizer_class", kind, "BertTokenizer"
    for name, of_bert in _OF_BERT.items():
        for key, expected in of_bert.items():
            value = _content(_value(files.get(name, {}), key))
            if value not in (None, expected):
                yield name, key, value, repr(expected)
    lowercase = _value(files.get(TOKENIZER, {}), "normalizer.lowercase")
    for name, key, casing in (
        (TOKENIZER_CONFIG, "strip_accents", config.get("do_lower_case", lowercase)),
        (TOKENIZER, "normalizer.strip_accents", lowercase),
    ):
        # Accents go from text that is lower-cased, and from no other.
        expected = casing is not False
        if (value := _value(files.get(name, {}), key)) not in (None, expected):
            yield name, key, value, expected
    if whole := [word for word in config.get("never_split") or [] if word[:1] != "["]:
        yield TOKENIZER_CONFIG, "never_split", whole, "none"


def _value(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _content(token: Any) -> Any:
    """The text of a token, which a file gives as a text or as an object."""
    return token.get("content", token) if isinstance(token, dict) else token


def _added(files: Mapping[str, dict]) -> Iterator[tuple[str, int | None]]:
    """Yields the tokens that files add to a vocabulary, with their ids where a file has them."""
    config, tokenizer = files.get(TOKENIZER_CONFIG, {}), files.get(TOKENIZER, {})
    for values in (config, files.get(_SPECIAL, {})):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            listed = values.get(key) or []
            for token in listed.values() if isinstance(listed, dict) else listed:
                yield _content(token), None
    # These have ids: for a token in several places the last id counts.
    for token in tokenizer.get("added_tokens") or []:
        yield token["content"], token["id"]
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        yield token["content"], int(number)
    yield from files.get(_ADDED, {}).items()
