"""The tokens of a context and their characters; a long context becomes several windows.

The tokenizer lower-cases, strips accents and drops characters. The published code predicts tokens,
then aligns their text with the words, which fails for unknown words and for accents that are
characters of their own. Here each token knows its characters, so that an answer is a piece of the
context as it is written.

Legend: T=tokens of a context.
Source: Devlin et al., arXiv 1810.04805, section 4.2, and the code published with it.
"""

import functools
from collections.abc import Callable

import numpy as np

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.data.unicode11 import NONSPACING_MARKS
from mlperf_bert.finetuning.squad_reading import SquadExample, place_of_answer, words_of


@functools.lru_cache(maxsize=1000)
def windows_of(num_tokens: int, room: int, stride: int) -> list[tuple[slice, np.ndarray]]:
    """The tokens of each window, and which of them have more context there than in any other.

    Together they hold all tokens. The lesser of the numbers of tokens on both sides decides, then
    the window's length, then the order.
    """
    step = min(room, stride)
    starts = range(0, max(num_tokens - room, 0) + step, step) if num_tokens else ()
    spans = [slice(start, min(start + room, num_tokens)) for start in starts]
    scores = np.full((len(spans), num_tokens), -1.0)
    for row, shown in zip(scores, spans):
        left = np.arange(shown.stop - shown.start)
        row[shown] = np.minimum(left, left[::-1]) + 0.01 * len(left)
    return [
        (shown, scores[:, shown].argmax(axis=0) == number) for number, shown in enumerate(spans)
    ]


def tokens_of_answer(example: SquadExample, tokens: np.ndarray) -> tuple[int, int] | None:
    """The first and the last token that have characters of the first answer.

    If the answer's tokens are not among those of its words, the published code takes the whole
    words; if they occur there twice, the first place. A text without spaces is one word.
    """
    if (span := place_of_answer(example)) is None:
        return None
    _, starts, ends = tokens.T
    [within] = np.nonzero((ends > span[0]) & (starts < span[1]))
    return (int(within[0]), int(within[-1])) if len(within) else None


class _Pieces(Tokenizer):
    """Cuts a text into pieces of words, as they are looked up in the vocabulary."""

    def __init__(self, tokenizer: Tokenizer):
        vars(self).update(vars(tokenizer), preserve_unused_tokens=False)
        self._forget_words()
        self.look_up = super()._wordpiece

    def _wordpiece(self, piece: str) -> list:
        return [piece]

    def of(self, text: str) -> list[str]:
        return self.tokenize(text)  # type: ignore[return-value]


def cut_with_characters(tokenizer: Tokenizer) -> Callable[[str], np.ndarray]:
    """Cuts contexts as a tokenizer does; every distinct word and context is computed once.

    The result is a function of a context. It returns int32 [T, 3]: of each token the id, the first
    character and the character after the last.
    """
    pieces = _Pieces(tokenizer)
    names = list(tokenizer.vocabulary)  # a token's number is its place

    @functools.cache
    def tokens_of(word: str) -> list[tuple[int, int, int]]:
        # A character becomes the same number of characters alone and within its word: only the
        # form of a sigma and the order of marks depend on the neighbours.
        origins = [n for n, char in enumerate(word) for _ in "".join(pieces.of(char))]
        tokens, begin = [], 0
        for piece in pieces.of(word):
            for token in pieces.look_up(piece):
                is_unknown = names[token] == "[UNK]"
                length = len(piece if is_unknown else names[token].removeprefix("##"))
                end = origins[begin + length - 1] + 1
                # Accents that are characters of their own and were dropped go with their letter.
                while end < len(word) and end not in origins and word[end] in NONSPACING_MARKS:
                    end += 1
                tokens.append((token, origins[begin], end))
                begin += length
        return tokens

    @functools.cache
    def cut(context: str) -> np.ndarray:
        rows = [
            (token, word.start() + start, word.start() + end)
            for word in words_of(context)
            for token, start, end in tokens_of(word[0])
        ]
        return np.array(rows, np.int32).reshape(-1, 3)

    return cut
