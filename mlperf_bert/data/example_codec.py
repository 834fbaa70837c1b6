"""The examples on disk: the one feature schema, and its encoding as tf.Example in TFRecords.

S = max_seq_length, P = max_predictions_per_seq. Encoding and decoding are written here, not left to
protobuf: compiled loops are far faster, and need no TensorFlow.

A tf.Example is a protobuf map from feature names to lists. The order of a protobuf map is free:
here it is that of `FEATURE_DTYPES`, so that equal examples are equal bytes. Files of the reference,
whose order changes from one run to the next, have the same size and content but other bytes.

Source: tensorflow/core/example/example.proto.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from mlperf_bert.data.jit import kernel
from mlperf_bert.data.tfrecord import CRC_TABLES, FOOTER_BYTES, HEADER_BYTES, close_frame

FEATURE_DTYPES: Mapping[str, np.dtype] = MappingProxyType(
    {
        "input_ids": np.dtype(np.int64),
        "input_mask": np.dtype(np.int64),
        "segment_ids": np.dtype(np.int64),
        "masked_lm_positions": np.dtype(np.int64),
        "masked_lm_ids": np.dtype(np.int64),
        "masked_lm_weights": np.dtype(np.float32),
        "next_sentence_labels": np.dtype(np.int64),
    }
)
"""Every feature and the type of its values, in the order of writing."""

_LONGEST_VARINT_BYTES = 10
# The buffer has five bytes for each value, and a varint of five bytes holds 35 bits.
_ENCODABLE_VALUES = 2**35


def feature_lengths(max_seq_length: int, max_predictions_per_seq: int) -> dict[str, int]:
    """Returns how many values each feature of an example holds."""
    per_token = ("input_ids", "input_mask", "segment_ids")
    lengths = dict.fromkeys(FEATURE_DTYPES, max_predictions_per_seq)
    lengths.update(dict.fromkeys(per_token, max_seq_length))
    lengths["next_sentence_labels"] = 1
    return lengths


# --- Encoding ------------------------------------------------------------------------------


# Feature names [7, 32], padded, and their lengths [7].
_NAMES = np.array([list(name.encode().ljust(32)) for name in FEATURE_DTYPES], np.uint8)
_NAME_LENGTHS = np.array([len(name) for name in FEATURE_DTYPES])


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
    if packed_bytes == len(values):  # a byte each
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
def _encode_records(tokens, predictions, weights, next_sentence, names, name_lengths, tables, out):
    """Writes whole TFRecords into `out`; returns the number of bytes."""
    at = 0
    sizes = np.empty(len(name_lengths), np.int64)
    for example in range(tokens.shape[1]):
        last = next_sentence[example : example + 1]
        for n in range(3):
            sizes[n] = _packed_bytes(tokens[n, example])
        for n in range(2):
            sizes[3 + n] = _packed_bytes(predictions[n, example])
        sizes[5] = 4 * weights.shape[1]
        sizes[6] = _packed_bytes(last)
        # The map's length stands before it.
        map_bytes = 0
        for feature in range(len(sizes)):
            map_bytes += _with_head(_entry_bytes(name_lengths[feature], sizes[feature]))
        record = at
        at += HEADER_BYTES
        out[at] = 0x0A  # Example.features
        at = _put_varint(out, at + 1, map_bytes)
        for feature in range(len(sizes)):
            tag = 0x12 if feature == 5 else 0x1A
            at = _put_feature_head(out, at, names, name_lengths, feature, sizes[feature], tag)
            if feature < 3:
                at = _put_values(out, at, tokens[feature, example], sizes[feature])
            elif feature < 5:
                at = _put_values(out, at, predictions[feature - 3, example], sizes[feature])
            elif feature == 5:
                raw = weights[example].view(np.uint8)
                for n in range(len(raw)):
                    out[at + n] = raw[n]
                at += len(raw)
            else:
                at = _put_values(out, at, last, sizes[feature])
        at = close_frame(out, record, at, tables)
    return at


class Batch(NamedTuple):
    """Examples before encoding; E examples."""

    tokens: np.ndarray
    """[3, E, S] int64: input_ids, input_mask, segment_ids."""
    predictions: np.ndarray
    """[2, E, P] int64: masked_lm_positions, masked_lm_ids."""
    weights: np.ndarray
    """[E, P] float32: masked_lm_weights."""
    next_sentence: np.ndarray
    """[E] int64: next_sentence_labels, 1 where the second segment is a random one."""


def encode_records(batch: Batch) -> memoryview:
    """Encodes examples as consecutive TFRecords, ready to be written to a file.

    Raises:
      ValueError: an integer is below 0 or not below 2**35.
    """
    for integers in (batch.tokens, batch.predictions, batch.next_sentence):
        # Read as unsigned, negative numbers are very large: one comparison finds all that is wrong.
        if (unsigned := integers.view(np.uint64)).max(initial=0) >= _ENCODABLE_VALUES:
            wrong = integers[unsigned >= _ENCODABLE_VALUES][0]
            raise ValueError(f"cannot encode {wrong}: integers must be in [0, 2**35)")
    out = np.empty(bytes_at_most(batch), np.uint8)
    used = _encode_records(*batch, _NAMES, _NAME_LENGTHS, CRC_TABLES, out)
    return out.data[:used]


def bytes_at_most(batch: Batch) -> int:
    """Returns an upper bound of the encoded size of the examples: 5 bytes for each value."""
    num_values = batch.tokens.size + batch.predictions.size + batch.weights.size
    return 5 * num_values + 512 * len(batch.next_sentence)


def encode(example: Mapping[str, np.ndarray]) -> bytes:
    """Encodes one example (feature name -> values) as tf.Example bytes.

    Raises:
      ValueError: an integer cannot be encoded, or there are floats where integers belong.
    """
    for name, dtype in FEATURE_DTYPES.items():
        found = np.asarray(example[name]).dtype
        if dtype.kind == "i" and found.kind not in "iub":
            raise ValueError(f"cannot encode {name}: {found} values where integers belong")
    values = [np.asarray(example[name], dtype) for name, dtype in FEATURE_DTYPES.items()]
    batch = Batch(
        tokens=np.stack(values[0:3])[:, None],
        predictions=np.stack(values[3:5])[:, None],
        weights=values[5][None],
        next_sentence=values[6],
    )
    return bytes(encode_records(batch))[HEADER_BYTES:-FOOTER_BYTES]


# --- Decoding ------------------------------------------------------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[at : at + _LONGEST_VARINT_BYTES]):
        value |= (byte & 127) << (7 * count)
        if byte < 128:
            return value, at + count + 1
    raise ValueError("a number without end")


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields (field number, bytes) of a protobuf message with length-delimited fields only."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 != 2:
            raise ValueError(f"wire type {key & 7} where only 2 belongs")
        length, at = _varint(data, at)
        if at + length > len(data):
            raise ValueError("a field ends beyond its message")
        yield key >> 3, data[at : at + length]
        at += length


def _require_numbers(message: bytes, *expected: int) -> list[bytes]:
    """The bytes of the fields of a message, which are exactly those expected, in this order."""
    fields = list(_fields(message))
    if (found := [number for number, _ in fields]) != [*expected]:
        raise ValueError(f"fields {found[:9]} where {[*expected]} belong")
    return [data for _, data in fields]


def _unpack_varints(data: bytes) -> np.ndarray:
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 128)
    if len(ends) == len(raw):
        return raw.astype(np.int64)
    if raw[-1] >= 128:
        raise ValueError("a number without end")
    starts = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends - starts + 1
    longest = sizes == _LONGEST_VARINT_BYTES
    # Nine bytes hold 63 bits: the tenth may hold only one more.
    if sizes.max() > _LONGEST_VARINT_BYTES or (raw[ends[longest]] > 1).any():
        raise ValueError("a number of more than 64 bits")
    place = np.arange(len(raw)) - np.repeat(starts, sizes)
    parts = (raw & 127).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64)


def _decode_feature(feature: bytes) -> np.ndarray:
    lists = list(_fields(feature))
    if len(lists) != 1 or lists[0][0] not in (2, 3):
        raise ValueError("a feature that is not one list of integers or floats")
    [(kind, values)] = lists
    packed = _require_numbers(values, 1)[0] if values else b""
    return np.frombuffer(packed, "<f4") if kind == 2 else _unpack_varints(packed)


def decode(record: bytes) -> dict[str, np.ndarray]:
    """Decodes tf.Example bytes: feature name -> [length] int64 or float32 values.

    Strict: takes only what all readers of protobuf read alike, and all writers of TFRecords write:
    each name once, its key before its value, all values of a list in one packed field.

    Raises:
      ValueError: not such a tf.Example, or a list is neither of integers nor of floats.
    """
    example = {}
    try:
        [features] = _require_numbers(record, 1)
        for _, entry in _fields(features):
            key, feature = _require_numbers(entry, 1, 2)
            if (name := key.decode()) in example:
                raise ValueError("a feature comes twice")
            example[name] = _decode_feature(feature)
    except ValueError as error:
        raise ValueError(f"not a tf.Example of integers and floats: {error}") from error
    return example
