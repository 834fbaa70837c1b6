"""WordPiece vocabularies: vocab.txt or tokenizer.json.

The line of a word is its id, the row of the model's word embeddings: a vocabulary in which a word
appears twice, or a line is blank, would shift the ids against the model's, and is refused.
"""

import hashlib
from collections.abc import Iterable

from mlperf_bert.data import tokenizer_files
from mlperf_bert.files import errors, json_text, whole
from mlperf_bert.files.whole import read_regular_file

NAME = "vocab.txt"
SPECIAL_TOKENS = ("[UNK]", "[CLS]", "[SEP]", "[MASK]")

_WORD_PIECE = {"type": "WordPiece", "continuing_subword_prefix": "##"}


def read_vocabulary(path: str) -> dict[str, int]:
    """Token -> id, of a vocab.txt (the number of its line, from 0) or a tokenizer.json."""
    words = _words_of_json(path) if path.endswith(".json") else _words(path)
    files = tokenizer_files.require_kind(path)
    if missing := [token for token in SPECIAL_TOKENS if token not in words]:
        raise ValueError(f"{path}: {', '.join(missing)} missing; this is not a BERT vocabulary")
    tokenizer_files.require_no_more(path, words, files)
    return words


def read_fitting(path: str, vocab_size: int, *, of: str) -> dict[str, int]:
    """Reads the vocabulary of a model of `vocab_size` rows, which `of` says.

    A model may have more rows than words: vocabularies are padded to a multiple of 8 or 64.
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


def md5_of(words: Iterable[str]) -> str:
    """The MD5 of the words as a vocab.txt: whatever its line ends, it names the vocabulary."""
    return hashlib.md5(as_text(words)).hexdigest()


def text_of(path: str) -> str:
    r"""A file's text without \r."""
    # Quirk: TensorFlow's line reader, by which the reference reads, drops every one.
    return whole.decode(read_regular_file(path), path).replace("\r", "")


def _words(path: str) -> dict[str, int]:
    text = text_of(path)
    if text.startswith(whole.BYTE_ORDER_MARK):
        raise ValueError(
            f"{path}: begins with a byte order mark, which would be part of the first token; "
            "remove it (sed -i '1s/^\\xEF\\xBB\\xBF//' FILE)"
        )
    words: dict[str, int] = {}
    for number, line in enumerate(text.split("\n")[: -1 if text.endswith("\n") else None]):
        # Published Chinese vocabularies hold U+2028 as a word, which str.strip takes for blank.
        word = line.strip() or line.strip(" \t")
        if not word or word in words:
            what = f"has {word!r} again" if word else "is blank"
            raise ValueError(
                f"{path}: line {number + 1} {what}; a word's line is its id, so that ids would be "
                "shifted: take the file that the model was trained with, or put a new word such as "
                "[unused_1] on the line"
            )
        words[word] = number
    return words


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
    with errors.named(path, damaged="fetch it again"):
        # `require_no_more` looks at the other added tokens.
        of_bert = [token for token in added if token["content"] in (*SPECIAL_TOKENS, "[PAD]")]
        words = words | {token["content"]: token["id"] for token in of_bert}
        by_id = {int(number): word for word, number in words.items()}
    if by_id.keys() != set(range(len(words))):
        lacking = min(set(range(len(words) + 1)) - by_id.keys())
        raise ValueError(
            f"{path}: {len(words)} words have ids up to {max(by_id)}, and none has {lacking}, or "
            "two have the same; fetch it again, or give a vocab.txt"
        )
    return {by_id[number]: number for number in range(len(words))}
