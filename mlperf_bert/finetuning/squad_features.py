"""Questions and their contexts as rows of tokens; long contexts become several windows.

Legend: F=windows, S=sequence length, T=tokens of a context.
Source: Devlin et al., arXiv 1810.04805, section 4.2, and the code published with it.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.finetuning.squad_reading import SquadExample
from mlperf_bert.finetuning.squad_tokens import OffsetTokenizer, Tokens, words_of_answer

NUM_SPECIAL_TOKENS = 3  # [CLS] question [SEP] context [SEP]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """How many tokens a row has, and what becomes of longer texts; the defaults are the field's."""

    max_seq_length: int = 384
    doc_stride: int = 128
    """From the start of a window to that of the next."""
    max_query_length: int = 64
    """Of a question; the rest is cut off."""


def encode(
    examples: Sequence[SquadExample], tokenizer: Tokenizer, *, sizes: Sizes, is_training: bool
) -> dict[str, np.ndarray]:
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
    length = sizes.max_seq_length
    questions = [
        tokenizer.tokenize(example.question)[: sizes.max_query_length] for example in examples
    ]
    least = max(map(len, questions), default=0) + NUM_SPECIAL_TOKENS + 1
    if length < least:
        raise ValueError(
            f"--max_seq_length={length} leaves no room for the context next to the longest "
            f"question; give at least {least}, better some hundreds"
        )
    with_offsets = OffsetTokenizer(tokenizer)
    contexts = [with_offsets.tokenize(example.context) for example in examples]
    windows = [
        (index, *window)
        for index, (question, tokens) in enumerate(zip(questions, contexts))
        for window in _windows(
            len(tokens.ids), length - len(question) - NUM_SPECIAL_TOKENS, sizes.doc_stride
        )
    ]
    answers = [
        _tokens_of_answer(example, tokens, tokenizer) if is_training else None
        for example, tokens in zip(examples, contexts)
    ]
    features = _blank(len(windows), length, is_training=is_training)
    classify, separate = (tokenizer.vocabulary[token] for token in ("[CLS]", "[SEP]"))
    for row, (index, shown, is_max_context) in enumerate(windows):
        tokens, before = contexts[index], [classify, *questions[index], separate]
        at = slice(len(before), len(before) + shown.stop - shown.start)
        features["example_index"][row] = index
        features["input_ids"][row, : at.stop + 1] = [*before, *tokens.ids[shown], separate]
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


def _blank(num_windows: int, length: int, *, is_training: bool) -> dict[str, np.ndarray]:
    """All features: padding, answers at [CLS], and no character of a context."""
    shape = num_windows, length
    inputs = ("input_ids", "input_mask", "segment_ids")
    features = {name: np.zeros(shape, np.int32) for name in inputs}
    of_windows = ("example_index", *(("start_positions", "end_positions") if is_training else ()))
    features |= {name: np.zeros(num_windows, np.int32) for name in of_windows}
    if not is_training:
        features |= {name: np.full(shape, -1, np.int32) for name in ("char_starts", "char_ends")}
        features["is_max_context"] = np.zeros(shape, bool)
    return features


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
