"""Tokens of a context, each with the characters of the original text that it stands for.

The tokenizer lower-cases, strips accents and drops characters. The field predicts tokens, and then
aligns their text with that of the words, which fails for unknown words and for accents that are
characters of their own. Here each token knows its characters, so that an answer is a piece of the
context as it is written.
"""

import dataclasses
import functools
import itertools
import re
from bisect import bisect_right

import numpy as np

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.data.unicode11 import NONSPACING_MARKS
from mlperf_bert.finetuning.squad_reading import Answer

# Quirk of the field: of all white space, these five separate the words of a context.
_SPACES = " \t\r\n\u202f"
_WORD = re.compile(f"[^{_SPACES}]+")
_GAP = re.compile(f"[{_SPACES}]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Words:
    """The words of a context."""

    texts: tuple[str, ...]
    starts: tuple[int, ...]
    """The first character of each."""


@functools.lru_cache(maxsize=1)  # the questions of a context follow each other
def words_of(context: str) -> Words:
    """Splits a context at white space."""
    found = list(_WORD.finditer(context))
    return Words(texts=tuple(m[0] for m in found), starts=tuple(m.start() for m in found))


def piece_of(context: str, start: int, end: int) -> str:
    """The characters from `start` to before `end`, white space between words as one space."""
    return _GAP.sub(" ", context[start:end])


def words_of_answer(context: str, answer: Answer) -> tuple[int, int] | None:
    """The first and the last word of an answer; None if it is not there.

    As in the field, an offset that is wrong by some characters is right if the answer is within
    the words that it leads to.
    """
    words = words_of(context)
    if answer.start >= len(context):
        return None
    last_character = min(answer.start + len(answer.text), len(context)) - 1
    first = bisect_right(words.starts, answer.start) - 1
    last = bisect_right(words.starts, last_character) - 1
    text = " ".join(answer.text.split())
    if first < 0 or not text or text not in " ".join(words.texts[first : last + 1]):
        return None
    return first, last


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens of a context, T of them."""

    ids: np.ndarray
    """[T] int32."""
    starts: np.ndarray
    """[T] int32: the first character."""
    ends: np.ndarray
    """[T] int32: the character after the last."""
    firsts_of_words: list[int]
    """The first token of each word, and T."""


@dataclasses.dataclass(frozen=True)
class _TokensOfWord:
    ids: list[int]
    starts: list[int]
    ends: list[int]


class _Normalizer(Tokenizer):
    """Stops before pieces of words are looked up in the vocabulary."""

    def __init__(self, tokenizer: Tokenizer):
        vars(self).update(vars(tokenizer), preserve_unused_tokens=False)
        self._forget_words()

    def _wordpiece(self, piece: str) -> list:
        return [piece]

    def look_up(self, piece: str) -> list[int]:
        return super()._wordpiece(piece)


class OffsetTokenizer:
    """Cuts contexts as a tokenizer does; every distinct word and context is computed once.

    Attributes:
      tokenize: the tokens of a context.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._normalizer = _Normalizer(tokenizer)
        self._unknown = tokenizer.vocabulary["[UNK]"]
        self._lengths = {
            number: len(token.removeprefix("##")) for token, number in tokenizer.vocabulary.items()
        }
        self._tokens_of_word = functools.cache(self._cut)
        self.tokenize = functools.cache(self._tokenize)

    def _tokenize(self, context: str) -> Tokens:
        words = words_of(context)
        found = [self._tokens_of_word(text) for text in words.texts]
        counts = [len(word.ids) for word in found]
        starts = np.repeat(np.array(words.starts, np.int32), counts)

        def joined(lists) -> np.ndarray:
            return np.fromiter(itertools.chain.from_iterable(lists), np.int32, len(starts))

        return Tokens(
            ids=joined(word.ids for word in found),
            starts=starts + joined(word.starts for word in found),
            ends=starts + joined(word.ends for word in found),
            firsts_of_words=[0, *itertools.accumulate(counts)],
        )

    def _cut(self, word: str) -> _TokensOfWord:
        """Offsets count from the word's first character.

        A character becomes the same number of characters alone and within its word: only the
        form of a sigma and the order of marks depend on the neighbours.
        """
        origins = [
            number for number, char in enumerate(word) for _ in "".join(self._normalized(char))
        ]
        kept = set(origins)
        found = _TokensOfWord([], [], [])
        begin = 0
        for piece in self._normalized(word):
            for token in self._normalizer.look_up(piece):
                length = len(piece) if token == self._unknown else self._lengths[token]
                found.ids.append(token)
                found.starts.append(origins[begin])
                end = origins[begin + length - 1] + 1
                # Accents that are characters of their own and were dropped go with their letter.
                while end < len(word) and end not in kept and word[end] in NONSPACING_MARKS:
                    end += 1
                found.ends.append(end)
                begin += length
        return found

    def _normalized(self, text: str) -> list[str]:
        return self._normalizer.tokenize(text)  # type: ignore[return-value]
