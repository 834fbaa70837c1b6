"""Documents to training instances: pairs of segments, masked.

One generator, seeded once, serves all of a file in this order: shuffle the documents; for each copy
and each document, cut instances (target length, end of A, is B random, which document, where,
truncation) and mask each at once; shuffle the instances. The order of the random calls is part of
the format. Everything runs on flat arrays in compiled code; a pair of segments is stored as two
ranges of the text, so a part with all its copies stays small.

A worked example, of two documents of token ids; 1, 2 and 3 are [CLS], [SEP] and [MASK]:

    >>> text = Text(
    ...     tokens=np.array([10, 11, 12, 13, 14, 15, 16, 20, 21, 22, 23, 24], np.int32),
    ...     sentence_starts=np.array([0, 3, 5, 7, 9, 12]),
    ...     document_starts=np.array([0, 3, 5]),
    ... )
    >>> tokens = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(4, 30))]
    >>> vocabulary = {token: number for number, token in enumerate(tokens)}
    >>> config = InstanceConfig(max_seq_length=12, max_predictions_per_seq=3, dupe_factor=1,
    ...                         masked_lm_prob=0.2, short_seq_prob=0.1, random_seed=5)
    >>> made = make_instances(text, vocabulary, config)
    >>> made.tokens.tolist()
    [10, 11, 12, 13, 14, 15, 16, 20, 21, 22, 23, 24]
    >>> made.segments.tolist()  # start and length of A, start and length of B, is B random
    [[0, 3, 3, 4, 0], [7, 2, 3, 4, 1], [9, 3, 1, 6, 1]]

Sentences are collected up to the target, here 9 tokens (12 without [CLS] and twice [SEP]), or the
end of the document. Instance 0 has the first document: A is its first sentence, B the other two.
Instance 1 begins with the second document: A is 20 21, and as B shall be random, it is 13 14 15 16.
So 22 23 24, collected for B, is put back, and is A of instance 2. A sentence alone always has a
random B, here 10 to 16; A and B have one token too many, and B, the longer one, loses its first.

    >>> [batch] = batches(made, vocabulary, config)
    >>> batch.input_ids.tolist()  # in the order of the last shuffle: 1, 2, 0
    [[1, 20, 21, 2, 13, 14, 3, 3, 2, 0, 0, 0],
     [1, 22, 23, 3, 2, 11, 12, 13, 14, 15, 21, 2],
     [1, 10, 11, 3, 2, 3, 14, 15, 16, 2, 0, 0]]
    >>> batch.masked_lm_positions[1].tolist(), batch.masked_lm_ids[1].tolist()  # of instance 2
    ([3, 10, 0], [24, 16, 0])

In instance 2, token 24 became [MASK] and token 16 another word of the vocabulary, 21.

Shapes: T=tokens of the text, D=documents, I=instances, M=masked tokens of all instances, S, P.
Source: the reference's create_pretraining_data.
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mlperf_bert.data import mersenne
from mlperf_bert.data.example_encoder import Batch
from mlperf_bert.data.jit import kernel
from mlperf_bert.data.sentences import Text
from mlperf_bert.data.validity import FEATURE_DTYPES, ExampleShape
from mlperf_bert.options import MAX_SEED, option

_EXAMPLES_AT_ONCE = 64  # arrays of so many examples stay in the cache


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceConfig(ExampleShape):
    """How instances are made; the defaults of the flags are the reference's."""

    max_seq_length: int = option(128, "Tokens per example.", at_least=5)
    max_predictions_per_seq: int = option(20, "Masked tokens per example at most.", at_least=1)
    dupe_factor: int = option(10, "Copies of the text, each masked differently.", at_least=1)
    masked_lm_prob: float = option(0.15, "Share of masked tokens.", above=0, at_most=1)
    short_seq_prob: float = option(
        0.1, "Share of documents cut to shorter examples.", at_least=0, at_most=1
    )
    random_seed: int = option(
        12345, "Seed; the benchmark's data have 12345.", at_least=0, at_most=MAX_SEED
    )


class Instances(NamedTuple):
    """All instances of a file."""

    tokens: np.ndarray
    """[T] int32: those of the text."""
    segments: np.ndarray
    """[I, 5] int64: start and length of A and of B in the text, 1 if B is random."""
    mask_starts: np.ndarray
    """[I + 1] int64: where an instance's masked tokens begin."""
    mask_positions: np.ndarray
    """[M] int16: position in the sequence."""
    mask_tokens: np.ndarray
    """[M] int32: what replaces the token there."""
    order: np.ndarray
    """[I] int64: of writing."""


def make_instances(text: Text, vocabulary: dict[str, int], config: InstanceConfig) -> Instances:
    """Makes the instances of the documents of one file."""
    # Every random call from here on is part of the format, and so is its place among the others.
    state = mersenne.state_from_seed(config.random_seed)
    order = np.arange(text.num_documents)
    mersenne.shuffle(state, order)
    text = text.in_order(order)
    special = np.array([vocabulary[token] for token in ("[CLS]", "[SEP]", "[MASK]")])
    num_to_predict = np.array(
        [
            # Quirk: round() goes to the even neighbour.
            min(config.max_predictions_per_seq, max(1, round(num_tokens * config.masked_lm_prob)))
            for num_tokens in range(config.max_seq_length + 1)
        ]
    )
    segments, mask_starts, mask_positions, mask_tokens = _make(
        text, special, len(vocabulary), num_to_predict,
        config.dupe_factor, config.max_seq_length, config.short_seq_prob, state,
    )  # fmt: skip
    # The last calls: what is left out of the order afterwards changes no other example.
    order = np.arange(len(segments))
    mersenne.shuffle(state, order)
    return Instances(text.tokens, segments, mask_starts, mask_positions, mask_tokens, order)


def batches(
    instances: Instances, vocabulary: dict[str, int], config: InstanceConfig
) -> Iterator[Batch]:
    """The instances as arrays ready for encoding, some at a time, in order."""
    special = np.array([vocabulary[token] for token in ("[CLS]", "[SEP]")])
    lengths = config.lengths()
    for start in range(0, len(instances.order), _EXAMPLES_AT_ONCE):
        chosen = instances.order[start : start + _EXAMPLES_AT_ONCE]
        zeros = (np.zeros((len(chosen), lengths[n]), dtype) for n, dtype in FEATURE_DTYPES.items())
        batch = Batch(*zeros)
        _fill(instances, chosen, special, batch)
        yield batch


@kernel
def _fill(instances, chosen, special, batch):
    """Writes the chosen instances into zeroed arrays: [CLS] A [SEP] B [SEP], then the masking."""
    text = instances.tokens
    for row in range(len(chosen)):
        a_start, a_length, b_start, b_length, is_random = instances.segments[chosen[row]]
        ids = batch.input_ids[row]
        b_at = a_length + 2
        end = b_at + b_length + 1
        ids[0] = special[0]
        ids[1 : b_at - 1] = text[a_start : a_start + a_length]
        ids[b_at - 1] = special[1]
        ids[b_at : end - 1] = text[b_start : b_start + b_length]
        ids[end - 1] = special[1]
        batch.input_mask[row, :end] = 1
        batch.segment_ids[row, b_at:end] = 1
        batch.next_sentence_labels[row, 0] = is_random
        first = instances.mask_starts[chosen[row]]
        for n in range(instances.mask_starts[chosen[row] + 1] - first):
            position = instances.mask_positions[first + n]
            batch.masked_lm_positions[row, n] = position
            batch.masked_lm_ids[row, n] = ids[position]
            batch.masked_lm_weights[row, n] = 1.0
            ids[position] = instances.mask_tokens[first + n]


@kernel
def _grow(values, size):
    bigger = np.empty(2 * size, values.dtype)
    bigger[: len(values)] = values
    return bigger


@kernel
def _make(
    text, special, num_words, num_to_predict, dupe_factor, max_seq_length, short_seq_prob, state
):
    """Cuts and masks all instances; returns segments, mask_starts, mask_positions, mask_tokens."""
    max_tokens = max_seq_length - 3
    # An instance uses up a sentence at least.
    segments = np.empty((dupe_factor * (len(text.sentence_starts) - 1), 5), np.int64)
    starts = np.zeros(len(segments) + 1, np.int64)
    positions = np.empty(1 << 16, np.int16)
    replacements = np.empty(1 << 16, np.int32)
    candidates = np.empty(max_seq_length, np.int64)
    masked = np.full(max_seq_length, -1, np.int32)
    count = 0
    for _ in range(dupe_factor):
        for document in range(len(text.document_starts) - 1):
            # Drawn for every document, also for one that is a single short sentence.
            target = max_tokens
            if mersenne.uniform(state) < short_seq_prob:
                target = 2 + mersenne.below(state, max_tokens - 1)
            first, end = text.document_starts[document], text.document_starts[document + 1]
            last = first  # sentences first to last are collected
            while last < end:
                length = text.sentence_starts[last + 1] - text.sentence_starts[first]
                if last == end - 1 or length >= target:
                    first += _cut(
                        text, document, first, last + 1, target, max_tokens, state, segments[count]
                    )
                    last = first - 1  # what was collected but not used is put back
                    at = starts[count]
                    if at + max_seq_length > len(positions):
                        positions = _grow(positions, at + max_seq_length)
                        replacements = _grow(replacements, at + max_seq_length)
                    starts[count + 1] = at + _mask(
                        text.tokens, segments[count], special, num_words, num_to_predict,
                        candidates, masked, state, positions[at:], replacements[at:],
                    )  # fmt: skip
                    count += 1
                last += 1
    used = starts[count]
    return (
        segments[:count].copy(),
        starts[: count + 1].copy(),
        positions[:used].copy(),
        replacements[:used].copy(),
    )


@kernel
def _cut(text, document, first, stop, target, max_tokens, state, segment):
    """Cuts one pair from the sentences [first, stop) of a document; returns how many it used."""
    sentence_starts, document_starts = text.sentence_starts, text.document_starts
    num_used = stop - first
    a_end = first + 1
    if num_used >= 2:
        a_end += mersenne.below(state, num_used - 1)
    a_start = sentence_starts[first]
    a_length = sentence_starts[a_end] - a_start
    # Quirk: a sentence alone costs no draw.
    is_random = num_used == 1 or mersenne.uniform(state) < 0.5
    if is_random:
        # Quirk: after ten draws of the document itself, the document itself it is.
        other = document
        for _ in range(10):
            other = mersenne.below(state, len(document_starts) - 1)
            if other != document:
                break
        b_first, other_end = document_starts[other], document_starts[other + 1]
        b_first += mersenne.below(state, other_end - b_first)
        b_start = sentence_starts[b_first]
        b_end = b_first + 1
        while b_end < other_end and sentence_starts[b_end] - b_start < target - a_length:
            b_end += 1
        num_used = a_end - first  # what was collected for B is not used
    else:
        b_start = sentence_starts[a_end]
        b_end = stop
    b_length = sentence_starts[b_end] - b_start
    # The longer one loses a token at its front or its end, until both fit.
    while a_length + b_length > max_tokens:
        from_front = mersenne.uniform(state) < 0.5
        if a_length > b_length:
            a_length -= 1
            a_start += from_front
        else:
            b_length -= 1
            b_start += from_front
    segment[0], segment[1], segment[2], segment[3] = a_start, a_length, b_start, b_length
    segment[4] = is_random
    return num_used


@kernel
def _collect(tokens, start, length, special, position, candidates, count):
    """Appends the positions of a segment's tokens to `candidates`; returns how many there are."""
    for n in range(length):
        token = tokens[start + n]
        candidates[count] = position + n
        # Quirk: "[CLS]" and "[SEP]" that stand in the text are not candidates either.
        count += (token != special[0]) & (token != special[1])
    return count


@kernel
def _mask(
    tokens, segment, special, num_words, num_to_predict, candidates, masked, state,
    positions, replacements,
):  # fmt: skip
    """Masks one instance; returns how many tokens it masked. `masked` is -1 everywhere."""
    a_start, a_length, b_start, b_length, _ = segment
    b_position = a_length + 2
    num_candidates = _collect(tokens, a_start, a_length, special, 1, candidates, 0)
    num_candidates = _collect(
        tokens, b_start, b_length, special, b_position, candidates, num_candidates
    )
    # All are shuffled, also those behind the few that are masked.
    mersenne.shuffle(state, candidates[:num_candidates])
    num_masked = min(num_to_predict[b_position + b_length + 1], num_candidates)
    for position in candidates[:num_masked]:
        if mersenne.uniform(state) < 0.8:
            token = special[2]
        elif mersenne.uniform(state) < 0.5:
            is_in_a = position < b_position
            token = tokens[a_start + position - 1 if is_in_a else b_start + position - b_position]
        else:
            token = mersenne.below(state, num_words)
        masked[position] = token
    # A pass over all positions sorts the masked ones: each is written, and the next one takes its
    # place unless it is masked.
    count = 0
    for position in range(1, b_position + b_length):
        positions[count], replacements[count] = position, masked[position]
        count += masked[position] >= 0
        masked[position] = -1
    return num_masked
