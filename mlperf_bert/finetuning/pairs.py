"""One or two sentences to features: [CLS] a [SEP] b [SEP].

Shapes: F=features, S=sequence.
"""

from collections.abc import Iterable

import numpy as np

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.finetuning.task import Features


def encode(
    pairs: Iterable[tuple[str, str | None]], *, tokenizer: Tokenizer, max_seq_length: int
) -> Features:
    """Input_ids, input_mask and segment_ids, int32 [F, S].

    The longer of two sentences is cut first, by a token at a time, from its end. The second
    sentence and its [SEP] are segment 1; no second sentence (None) has no second [SEP].
    """
    rows = [_tokens(a, b, tokenizer, max_seq_length) for a, b in pairs]
    shape = len(rows), max_seq_length
    names = ("input_ids", "input_mask", "segment_ids")
    features = {name: np.zeros(shape, np.int32) for name in names}
    for number, (ids, num_first) in enumerate(rows):
        features["input_ids"][number, : len(ids)] = ids
        features["input_mask"][number, : len(ids)] = 1
        features["segment_ids"][number, num_first : len(ids)] = 1
    return features


def _tokens(
    a: str, b: str | None, tokenizer: Tokenizer, max_seq_length: int
) -> tuple[list[int], int]:
    """Token ids, and how many of them are in segment 0."""
    begin, end = (tokenizer.vocabulary[token] for token in ("[CLS]", "[SEP]"))
    first = tokenizer.tokenize(a)
    if b is None:
        ids = [begin, *first[: max_seq_length - 2], end]
        return ids, len(ids)
    second = tokenizer.tokenize(b)
    first, second = cut(first, second, at_most=max_seq_length - 3)
    return [begin, *first, end, *second, end], len(first) + 2


def cut(first: list[int], second: list[int], *, at_most: int) -> tuple[list[int], list[int]]:
    """Cuts the longer one until both have `at_most` tokens; of two equally long, the second."""
    num_first, num_second = len(first), len(second)
    while num_first + num_second > at_most:
        if num_first > num_second:
            num_first -= 1
        else:
            num_second -= 1
    return first[:num_first], second[:num_second]
