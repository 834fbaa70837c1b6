"""Questions and their contexts as rows of tokens; long contexts become several windows.

The tokenizer lower-cases, strips accents and drops characters. The field predicts tokens, and then
aligns their text with that of the words, which fails for unknown words and for accents that are
characters of their own. Here each token knows its characters, so that an answer is a piece of the
context as it is written.

Legend: F=windows, S=sequence length, T=tokens of a context.
Source: Devlin et al., arXiv 1810.04805, section 4.2, and the code published with it.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.data.unicode11 import NONSPACING_MARKS
from mlperf_bert.finetuning.splits import Features
from mlperf_bert.finetuning.squad_reading import SquadExample, place_of_answer, words_of

NUM_SPECIAL_TOKENS = 3  # [CLS] question [SEP] context [SEP]


def encode(
    examples: Sequence[SquadExample],
    tokenizer: Tokenizer,
    *,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
) -> Features:
    """Rows for the model, those of an example one after the other.

    A context without tokens has no window.

    Returns:
      int32 [F, S] input_ids, input_mask, segment_ids; int32 [F] example_index. For training also
      int32 [F] start_positions, end_positions, those of [CLS] if the answer is not in the window;
      else what predictions need: int32 [F, S] char_starts, char_ends, the characters of the
      context that a token stands for, -1 outside of the context; bool [F, S] is_max_context: this
      window shows more around the token than others that have it.

    Raises:
      ValueError: max_seq_length leaves no room for the context next to the longest question.
    """
    questions = _questions(examples, tokenizer, max_query_length)
    least = max(map(len, questions), default=0) + 2
    if max_seq_length < least:
        raise ValueError(
            f"--max_seq_length={max_seq_length} leaves no room for the context next to the longest "
            f"question; give at least {least}, better some hundreds"
        )
    with_offsets = OffsetTokenizer(tokenizer)
    contexts = [with_offsets.tokenize(example.context) for example in examples]
    windows = [
        (index, *window)
        for index, (question, tokens) in enumerate(zip(questions, contexts))
        for window in _windows(len(tokens.ids), max_seq_length - len(question) - 1, doc_stride)
    ]
    answers = [
        _tokens_of_answer(example, tokens) if is_training else None
        for example, tokens in zip(examples, contexts)
    ]
    features = _blank(len(windows), max_seq_length, is_training=is_training)
    for row, (index, shown, is_max_context) in enumerate(windows):
        tokens, question = contexts[index], questions[index]
        at = slice(len(question), len(question) + shown.stop - shown.start)
        features["example_index"][row] = index
        features["input_ids"][row, : at.stop + 1] = [*question, *tokens.ids[shown], question[-1]]
        features["input_mask"][row, : at.stop + 1] = 1
        features["segment_ids"][row, at.start : at.stop + 1] = 1
        if not is_training:
            features["char_starts"][row, at] = tokens.starts[shown]
            features["char_ends"][row, at] = tokens.ends[shown]
            features["is_max_context"][row, at] = is_max_context
        elif answer := answers[index]:
            first, last = (place - shown.start + at.start for place in answer)
            if at.start <= first and last < at.stop:
                features["start_positions"][row] = first
                features["end_positions"][row] = last
    return features


def _questions(
    examples: Sequence[SquadExample], tokenizer: Tokenizer, max_query_length: int
) -> list[list[int]]:
    """What stands before the context: [CLS], the question, [SEP]."""
    begin, end = (tokenizer.vocabulary[token] for token in ("[CLS]", "[SEP]"))
    return [
        [begin, *tokenizer.tokenize(example.question)[:max_query_length], end]
        for example in examples
    ]


def _blank(num_windows: int, length: int, *, is_training: bool) -> Features:
    """All features: padding, answers at [CLS], and no character of a context."""
    shape = num_windows, length
    inputs = ("input_ids", "input_mask", "segment_ids")
    features: Features = {name: np.zeros(shape, np.int32) for name in inputs}
    features["example_index"] = np.zeros(num_windows, np.int32)
    if is_training:
        for name in ("start_positions", "end_positions"):
            features[name] = np.zeros(num_windows, np.int32)
        return features
    for name in ("char_starts", "char_ends"):
        features[name] = np.full(shape, -1, np.int32)
    return {**features, "is_max_context": np.zeros(shape, bool)}


@functools.lru_cache(maxsize=1000)
def _windows(num_tokens: int, room: int, stride: int) -> list[tuple[slice, np.ndarray]]:
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens of a context, T of them."""

    ids: np.ndarray
    """[T] int32."""
    starts: np.ndarray
    """[T] int32: the first character."""
    ends: np.ndarray
    """[T] int32: the character after the last."""


def _tokens_of_answer(example: SquadExample, tokens: Tokens) -> tuple[int, int] | None:
    """The first and the last token that have characters of the first answer.

    The field takes the whole words of an answer whose own tokens are not among theirs, and of
    equal ones the first: in a text without spaces all of it is one word.
    """
    if (place := place_of_answer(example)) is None:
        return None
    [within] = np.nonzero((tokens.ends > place[0]) & (tokens.starts < place[1]))
    return (int(within[0]), int(within[-1])) if len(within) else None


class _Normalizer(Tokenizer):
    """Cuts a text into pieces of words, before they are looked up in the vocabulary."""

    def __init__(self, tokenizer: Tokenizer):
        vars(self).update(vars(tokenizer), preserve_unused_tokens=False)
        self._forget_words()

    def _wordpiece(self, piece: str) -> list:
        return [piece]

    def pieces(self, text: str) -> list[str]:
        return self.tokenize(text)  # type: ignore[return-value]

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
        return Tokens(ids=ids, starts=starts, ends=ends)

    def _cut(self, word: str) -> list[tuple[int, int, int]]:
        """The tokens of a word, each with its start and its end in the word.

        A character becomes the same number of characters alone and within its word: only the
        form of a sigma and the order of marks depend on the neighbours.
        """
        pieces = self._normalizer.pieces
        origins = [number for number, char in enumerate(word) for _ in "".join(pieces(char))]
        kept = set(origins)
        tokens = []
        begin = 0
        for piece in pieces(word):
            for token in self._normalizer.look_up(piece):
                length = len(piece) if token == self._unknown else self._lengths[token]
                end = origins[begin + length - 1] + 1
                # Accents that are characters of their own and were dropped go with their letter.
                while end < len(word) and end not in kept and word[end] in NONSPACING_MARKS:
                    end += 1
                tokens.append((token, origins[begin], end))
                begin += length
        return tokens
