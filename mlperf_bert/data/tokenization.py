"""Text to WordPiece ids, as the reference tokenizes.

The quirks of the reference, at their lines, are kept because the data depend on them. Characters
are classified as by Python 3.7 (unicode11).
"""

import itertools
import re
import string
from collections.abc import Callable, Iterable

from mlperf_bert.data import unicode11
from mlperf_bert.data.vocabulary import read_vocabulary

MAX_CHARS_PER_WORD = 200

_CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
_UNUSED_TOKEN = re.compile(r"\[unused\d+\]$")
# For str.translate: accents go, every punctuation mark becomes a word of its own.
_ACCENTS = dict.fromkeys(map(ord, unicode11.NONSPACING_MARKS))
_PUNCTUATION = {ord(mark): f" {mark} " for mark in {*string.punctuation, *unicode11.PUNCTUATION}}
_SPACES = unicode11.SPACES | frozenset("\t\n\r")
# Quirk: these are white space to str.split, but are deleted before it as control characters, so
# that words on both sides of one become a single word.
_WHITE_SPACE_CONTROLS = re.compile("[\x0b\x0c\x1c-\x1f\x85]")


class _Cleaner(dict):
    """Character -> replacement, filled on demand for str.translate."""

    def __missing__(self, code: int) -> str:
        replacement = char = chr(code)
        if char in _SPACES:
            replacement = " "
        elif code in (0, 0xFFFD) or char in unicode11.CONTROLS:
            replacement = ""
        elif any(first <= code <= last for first, last in _CHINESE):
            replacement = f" {char} "
        self[code] = replacement
        return replacement


class _Memo(dict):
    """Word -> token ids, each computed once, on demand."""

    def __init__(self, ids_of: Callable[[str], Iterable[int]]):
        super().__init__()
        self._ids_of = ids_of

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = self[word] = tuple(self._ids_of(word))  # the garbage collector passes over these
        return ids


class Tokenizer:
    """Turns lines of text into token ids; every distinct word is computed once."""

    def __init__(
        self, vocab_file: str, *, do_lower_case: bool = True, preserve_unused_tokens: bool = False
    ):
        self.vocabulary = read_vocabulary(vocab_file)
        self.do_lower_case = do_lower_case
        self.preserve_unused_tokens = preserve_unused_tokens
        self._cleaner = _Cleaner()
        self._forget_words()

    def _forget_words(self) -> None:
        self._words = _Memo(self._ids_of_word)
        self._pieces = _Memo(self._wordpiece)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a line."""
        words = _WHITE_SPACE_CONTROLS.sub("", text).split()
        # `map` looks up nearly all words without a step of the interpreter.
        return list(itertools.chain.from_iterable(map(self._words.__getitem__, words)))

    def _ids_of_word(self, raw_word: str) -> Iterable[int]:
        if raw_word.isascii() and raw_word.isalnum():  # the rules below would change nothing else
            return self._pieces[raw_word.lower() if self.do_lower_case else raw_word]
        words = raw_word.translate(self._cleaner).split()
        return [token for word in words for token in self._word_ids(word)]

    def _word_ids(self, word: str) -> list[int]:
        # Quirk: "[unused7]" is one token on demand only, other brackets are punctuation.
        if self.preserve_unused_tokens and word in self.vocabulary and _UNUSED_TOKEN.match(word):
            return [self.vocabulary[word]]
        word = self._cased(word)
        # Split again at white space: lower-casing and decomposition can bring some in.
        pieces = word.translate(_PUNCTUATION).split()
        return [token for piece in pieces for token in self._pieces[piece]]

    def _cased(self, word: str) -> str:
        if self.do_lower_case:
            word = unicode11.lower(word)
            if not word.isascii():
                word = unicode11.decompose(word).translate(_ACCENTS)
        return word

    def num_lacking(self, text: str) -> int:
        """How many characters of a text are no piece of the vocabulary."""
        words = filter(str.strip, self._cased(text.translate(self._cleaner)))
        return sum(not self.vocabulary.keys() & {each, f"##{each}"} for each in words)

    def _wordpiece(self, piece: str) -> list[int]:
        if piece in self.vocabulary:
            return [self.vocabulary[piece]]
        unknown = [self.vocabulary["[UNK]"]]
        if len(piece) > MAX_CHARS_PER_WORD:  # quirk
            return unknown
        # Greedy: the longest match from the left, even where another cut would know all pieces.
        ids, start = [], 0
        while start < len(piece):
            prefix = "##" if start else ""
            for end in range(len(piece), start, -1):
                token = self.vocabulary.get(prefix + piece[start:end])
                if token is not None:
                    break
            else:
                return unknown
            ids.append(token)
            start = end
        return ids
