"""Questions and their contexts as rows of tokens; long contexts become several windows.

Legend: F=windows, S=sequence length, T=tokens of a context.
Source: Devlin et al., arXiv 1810.04805, section 4.2, and the code published with it.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.finetuning.squad_reading import SquadExample
from mlperf_bert.finetuning.squad_tokens import OffsetTokenizer, Tokens, words_of_answer

NUM_SPECIAL_TOKENS = 3  # [CLS] question [SEP] context [SEP]
_NO_ANSWER = 0  # the position of [CLS]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """A part of a context, with its question."""

    example_index: int
    question_ids: list[int]
    tokens: Tokens
    answer: tuple[int, int] | None
    """The first and the last token of the answer in the context."""
    shown: slice
    """The tokens of the context in this window."""
    is_max_context: np.ndarray
    """[shown] bool: this window shows more around the token than others that have it."""

    @property
    def places(self) -> slice:
        """Where the context stands in the row: after [CLS], the question and [SEP]."""
        offset = len(self.question_ids) + 2
        return slice(offset, offset + self.shown.stop - self.shown.start)

    def positions_of_answer(self) -> tuple[int, int]:
        """The positions of the answer in the row; those of [CLS] if it is not in this window."""
        first, last = self.answer or (-1, -1)
        if first < self.shown.start or last >= self.shown.stop:
            return _NO_ANSWER, _NO_ANSWER
        shift = self.places.start - self.shown.start
        return first + shift, last + shift


def encode(
    examples: Sequence[SquadExample],
    *,
    tokenizer: Tokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
) -> dict[str, np.ndarray]:
    """Rows for the model, those of an example one after the other.

    A context without tokens has no window.

    Returns:
      int32 [F, S] input_ids, input_mask, segment_ids; int32 [F] example_index. For training also
      int32 [F] start_positions, end_positions; else what predictions need: int32 [F, S]
      char_starts, char_ends, the characters of the context that a token stands for, -1 outside
      of the context; bool [F, S] is_max_context.

    Raises:
      ValueError: max_seq_length leaves no room for the context next to the longest question.
    """
    questions = [tokenizer.tokenize(example.question)[:max_query_length] for example in examples]
    least = max(map(len, questions), default=0) + NUM_SPECIAL_TOKENS + 1
    if max_seq_length < least:
        raise ValueError(
            f"--max_seq_length={max_seq_length} leaves no room for the context next to the longest "
            f"question; give at least {least}, better some hundreds"
        )
    with_offsets = OffsetTokenizer(tokenizer)
    windows = []
    for index, (example, question_ids) in enumerate(zip(examples, questions)):
        tokens = with_offsets.tokenize(example.context)
        answer = _tokens_of_answer(example, tokens, tokenizer) if is_training else None
        room = max_seq_length - len(question_ids) - NUM_SPECIAL_TOKENS
        spans = _spans(len(tokens.ids), room=room, stride=doc_stride)
        windows += [
            Window(
                example_index=index,
                question_ids=question_ids,
                tokens=tokens,
                answer=answer,
                shown=shown,
                is_max_context=is_max_context,
            )
            for shown, is_max_context in zip(spans, _max_context(spans))
        ]
    features = _inputs(windows, max_seq_length, tokenizer)
    if not is_training:
        return features | _map_to_context(windows, max_seq_length)
    positions = np.array([window.positions_of_answer() for window in windows], np.int32)
    starts, ends = positions.reshape(-1, 2).T.copy()  # of no windows too
    return features | {"start_positions": starts, "end_positions": ends}


def _spans(num_tokens: int, *, room: int, stride: int) -> list[slice]:
    """The tokens of each window; together they hold all."""
    step = min(room, stride)
    last = max(num_tokens - room, 0)
    starts = range(0, last + step, step) if num_tokens else ()
    return [slice(start, min(start + room, num_tokens)) for start in starts]


def _max_context(spans: list[slice]) -> list[np.ndarray]:
    """For each window, which of its tokens have more context there than in any other window.

    The lesser of the numbers of tokens on both sides decides, then the window's length, then the
    order.
    """
    scores = np.full((len(spans), spans[-1].stop if spans else 0), -1.0)
    for row, shown in zip(scores, spans):
        left = np.arange(shown.stop - shown.start)
        row[shown] = np.minimum(left, left[::-1]) + 0.01 * len(left)
    best = scores.argmax(axis=0) if spans else scores
    return [best[shown] == number for number, shown in enumerate(spans)]


def _tokens_of_answer(
    example: SquadExample, tokens: Tokens, tokenizer: Tokenizer
) -> tuple[int, int] | None:
    """The first and the last token of the first answer.

    Those of its words, or fewer where its own tokens are found among them: of "(1895-1943)." the
    answer 1895 is one token.
    """
    if not example.answers:
        return None
    answer = example.answers[0]
    words = words_of_answer(example.context, answer)
    assert words  # `SquadTask.read` leaves out the others
    first, end = tokens.firsts_of_words[words[0]], tokens.firsts_of_words[words[1] + 1]
    within = tokens.ids[first:end].tolist()
    wanted = tokenizer.tokenize(answer.text)
    for start in range(len(within) - len(wanted) + 1 if wanted else 0):
        if within[start : start + len(wanted)] == wanted:
            return first + start, first + start + len(wanted) - 1
    return (first, end - 1) if within else None


def _inputs(
    windows: Sequence[Window], max_seq_length: int, tokenizer: Tokenizer
) -> dict[str, np.ndarray]:
    shape = len(windows), max_seq_length
    ids, mask, segments = (np.zeros(shape, np.int32) for _ in range(3))
    classify, separate = (tokenizer.vocabulary[token] for token in ("[CLS]", "[SEP]"))
    for row, window in enumerate(windows):
        at = window.places
        ids[row, : at.start] = [classify, *window.question_ids, separate]
        ids[row, at] = window.tokens.ids[window.shown]
        ids[row, at.stop] = separate
        mask[row, : at.stop + 1] = 1
        segments[row, at.start : at.stop + 1] = 1
    indices = np.array([window.example_index for window in windows], np.int32)
    features = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
    return features | {"example_index": indices}


def _map_to_context(windows: Sequence[Window], max_seq_length: int) -> dict[str, np.ndarray]:
    shape = len(windows), max_seq_length
    starts, ends = np.full(shape, -1, np.int32), np.full(shape, -1, np.int32)
    is_max_context = np.zeros(shape, bool)
    for row, window in enumerate(windows):
        starts[row, window.places] = window.tokens.starts[window.shown]
        ends[row, window.places] = window.tokens.ends[window.shown]
        is_max_context[row, window.places] = window.is_max_context
    return {"char_starts": starts, "char_ends": ends, "is_max_context": is_max_context}
