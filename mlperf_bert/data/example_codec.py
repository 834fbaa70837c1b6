"""The examples on disk: the one feature schema, and how a tf.Example of it is decoded.

S = max_seq_length, P = max_predictions_per_seq. Decoding is written here, not left to protobuf: it
is strict, and needs no TensorFlow. example_encoder.py writes what is read here.

Source: tensorflow/core/example/example.proto.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np

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

MAKE_AGAIN = "make the file again with create_pretraining_data.py"
_LONGEST_VARINT_BYTES = 10


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
      ValueError: not such a tf.Example, or a list is neither of integers nor of floats; to be put
        after "record N".
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
        raise ValueError(
            f"is not a tf.Example of integers and floats: {error}; {MAKE_AGAIN}"
        ) from error
    return example
