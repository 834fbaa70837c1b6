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


@functools.lru_cache(maxsize=1)  # the questions of a context follow each other
def words_of(context: str) -> list[re.Match[str]]:
    """The words of a context, split at white space."""
    return list(_WORD.finditer(context))


def piece_of(context: str, start: int, end: int) -> str:
    """The characters from `start` to before `end`, white space between words as one space."""
    return _GAP.sub(" ", context[start:end])


def words_of_answer(context: str, answer: Answer) -> tuple[int, int] | None:
    """The first and the last word of an answer; None if it is not there.

    As in the field, an offset that is wrong by some characters is right if the answer is within
    the words that it leads to.
    """
    if answer.start >= len(context):
        return None
    words = words_of(context)
    last_character = min(answer.start + len(answer.text), len(context)) - 1
    first = bisect_right(words, answer.start, key=re.Match.start) - 1
    last = bisect_right(words, last_character, key=re.Match.start) - 1
    text = " ".join(answer.text.split())
    if first < 0 or not text or text not in " ".join(word[0] for word in words[first : last + 1]):
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
        words = [(word.start(), self._tokens_of_word(word[0])) for word in words_of(context)]
        rows = [
            (token, first + start, first + end)
            for first, tokens in words
            for token, start, end in tokens
        ]
        ids, starts, ends = np.array(rows, np.int32).reshape(-1, 3).T.copy()
        counts = [len(tokens) for _, tokens in words]
        firsts = [0, *itertools.accumulate(counts)]
        return Tokens(ids=ids, starts=starts, ends=ends, firsts_of_words=firsts)

    def _cut(self, word: str) -> list[tuple[int, int, int]]:
        """The tokens of a word, each with its start and its end in the word.

        A character becomes the same number of characters alone and within its word: only the
        form of a sigma and the order of marks depend on the neighbours.
        """
        origins = [
            number for number, char in enumerate(word) for _ in "".join(self._normalized(char))
        ]
        kept = set(origins)
        found = []
        begin = 0
        for piece in self._normalized(word):
            for token in self._normalizer.look_up(piece):
                length = len(piece) if token == self._unknown else self._lengths[token]
                end = origins[begin + length - 1] + 1
                # Accents that are characters of their own and were dropped go with their letter.
                while end < len(word) and end not in kept and word[end] in NONSPACING_MARKS:
                    end += 1
                found.append((token, origins[begin], end))
                begin += length
        return found

    def _normalized(self, text: str) -> list[str]:
        return self._normalizer.tokenize(text)  # type: ignore[return-value]
