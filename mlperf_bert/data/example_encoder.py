"""Examples as tf.Example in TFRecords, as the data pipeline writes them; a run only reads.

E = examples, S = max_seq_length, P = max_predictions_per_seq. Encoding is written here, not left to
protobuf: compiled loops are far faster, and need no TensorFlow.

A tf.Example is a protobuf map from feature names to lists. The order of a protobuf map is free:
here it is that of `FEATURE_DTYPES`, so that equal examples are equal bytes. Files of the reference,
whose order changes from one run to the next, have the same size and content but other bytes.

Source: tensorflow/core/example/example.proto.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from mlperf_bert.data import tfrecord
from mlperf_bert.data.jit import kernel
from mlperf_bert.data.validity import FEATURE_DTYPES

# The buffer has five bytes for each value, and a varint of five bytes holds 35 bits.
_ENCODABLE_VALUES = 2**35

# Feature names [7, 32], padded, and their lengths [7].
_NAMES = np.array([list(name.encode().ljust(32)) for name in FEATURE_DTYPES], np.uint8)
_NAME_LENGTHS = np.array([len(name) for name in FEATURE_DTYPES])
_ARE_FLOATS = np.array([dtype.kind == "f" for dtype in FEATURE_DTYPES.values()])


@kernel
def _varint_bytes(value):
    size = 1
    while value >= 128:
        value >>= 7
        size += 1
    return size


@kernel
def _put_varint(out, at, value):
    while value >= 128:
        out[at] = (value & 127) | 128
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@kernel
def _with_head(num_bytes):
    """The bytes of a message of so many, with its tag and its length before it."""
    return 1 + _varint_bytes(num_bytes) + num_bytes


@kernel
def _entry_bytes(name_bytes, payload_bytes):
    """The bytes of a map entry without its head: key and value, a Feature of one packed list."""
    return 2 + name_bytes + _with_head(_with_head(_with_head(payload_bytes)))


@kernel
def _put_feature_head(out, at, names, name_lengths, feature, payload_bytes, tag):
    """Writes one map entry up to its packed values."""
    list_bytes = _with_head(payload_bytes)
    name_bytes = name_lengths[feature]
    out[at] = 0x0A  # Features.feature, one map entry
    at = _put_varint(out, at + 1, _entry_bytes(name_bytes, payload_bytes))
    out[at] = 0x0A  # the entry's key
    at = _put_varint(out, at + 1, name_bytes)
    for n in range(name_bytes):
        out[at + n] = names[feature, n]
    at += name_bytes
    out[at] = 0x12  # the entry's value, a Feature
    at = _put_varint(out, at + 1, _with_head(list_bytes))
    out[at] = tag  # Feature.float_list (2) or int64_list (3)
    at = _put_varint(out, at + 1, list_bytes)
    out[at] = 0x0A  # value, packed
    return _put_varint(out, at + 1, payload_bytes)


@kernel
def _packed_bytes(values):
    """The bytes of values below 2**35 as varints."""
    # Sums of comparisons, which become vector instructions.
    size = len(values)
    for shift in (7, 14, 21, 28):
        for n in range(len(values)):
            size += values[n] >> shift != 0
    return size


@kernel
def _put_values(out, at, values, packed_bytes):
    """Writes values below 2**35 as varints; may write a byte behind them."""
    if packed_bytes == len(values):  # each value takes one byte
        for n in range(len(values)):
            out[at + n] = values[n]
        return at + packed_bytes
    for value in values:
        if value < 1 << 14:  # nearly all: without a branch on how many bytes it takes
            is_long = value >= 128
            out[at] = (value & 127) | (is_long << 7)
            out[at + 1] = value >> 7
            at += 1 + is_long
        else:
            at = _put_varint(out, at, value)
    return at


@kernel
def _encode_records(values, is_float, names, name_lengths, out, ends):
    """Writes the records into `out`, one after the other, and where each ends into `ends` [E].

    `values` are those of each feature, [E, values] int64: of floats their bytes.
    """
    at = 0
    sizes = np.empty(len(values), np.int64)
    for example in range(len(ends)):
        # The map's length stands before it.
        map_bytes = 0
        for feature in range(len(values)):
            row = values[feature][example]
            sizes[feature] = len(row) if is_float[feature] else _packed_bytes(row)
            map_bytes += _with_head(_entry_bytes(name_lengths[feature], sizes[feature]))
        out[at] = 0x0A  # Example.features
        at = _put_varint(out, at + 1, map_bytes)
        for feature in range(len(values)):
            tag = 0x12 if is_float[feature] else 0x1A
            at = _put_feature_head(out, at, names, name_lengths, feature, sizes[feature], tag)
            at = _put_values(out, at, values[feature][example], sizes[feature])
        ends[example] = at


class Batch(NamedTuple):
    """Features of E examples before encoding, in the order and the types of `FEATURE_DTYPES`."""

    input_ids: np.ndarray
    """[E, S], as the next two."""
    input_mask: np.ndarray
    segment_ids: np.ndarray
    masked_lm_positions: np.ndarray
    """[E, P], as the next two."""
    masked_lm_ids: np.ndarray
    masked_lm_weights: np.ndarray
    next_sentence_labels: np.ndarray
    """[E, 1]: 1 where the second segment is a random one."""


def _records_of(batch: Batch) -> Iterator[bytes]:
    values = []
    for array in map(np.ascontiguousarray, batch):
        if array.dtype.kind == "f":
            values.append(array.view(np.uint8).astype(np.int64))
            continue
        values.append(array)
        # Read as unsigned, negative numbers are very large: one comparison finds all that is wrong.
        if (unsigned := array.view(np.uint64)).max(initial=0) >= _ENCODABLE_VALUES:
            wrong = array[unsigned >= _ENCODABLE_VALUES][0]
            raise ValueError(f"cannot encode {wrong}: integers must be in [0, 2**35)")
    num_examples = len(batch.input_ids)
    # 5 bytes at most for each value, and names and lengths for each example.
    out = np.empty(5 * sum(array.size for array in batch) + 512 * num_examples, np.uint8)
    ends = np.empty(num_examples, np.int64)
    _encode_records(tuple(values), _ARE_FLOATS, _NAMES, _NAME_LENGTHS, out, ends)
    for begin, end in itertools.pairwise([0, *ends.tolist()]):
        yield out[begin:end].tobytes()


def encode_records(batch: Batch) -> bytes:
    """Encodes examples as consecutive TFRecords, ready to be written to a file.

    Raises:
      ValueError: an integer is below 0 or not below 2**35.
    """
    return b"".join(map(tfrecord.frame, _records_of(batch)))


def encode(example: Mapping[str, np.ndarray]) -> bytes:
    """Encodes one example (feature name -> values) as tf.Example bytes."""
    values = (np.asarray(example[name], dtype)[None] for name, dtype in FEATURE_DTYPES.items())
    return next(_records_of(Batch(*values)))
