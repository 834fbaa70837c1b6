"""The examples on disk: the one feature schema, its encoding as tf.Example, and TFRecord files.

S = max_seq_length, P = max_predictions_per_seq. Nothing here needs TensorFlow.

A TFRecord is: its length in bytes (uint64), the masked CRC-32C of these 8 bytes (uint32), the
data, the masked CRC-32C of the data (uint32); all little-endian. An Example is a protobuf map
from feature names to lists. The order of a protobuf map is free: here it is that of
`FEATURE_DTYPES`, so that equal examples are equal bytes, and files of the reference, whose order
changes from one run to the next, have the same size and content but other bytes.

Source: tensorflow/core/lib/io/record_writer.h, tensorflow/core/example/example.proto.
"""

import hashlib
import itertools
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

import numpy as np

from mlperf_bert.data.jit import kernel
from mlperf_bert.writing import written_beside

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

_HEADER_BYTES = 12
_FOOTER_BYTES = 4


def feature_lengths(max_seq_length: int, max_predictions_per_seq: int) -> dict[str, int]:
    """Returns how many values each feature of an example holds."""
    per_token = ("input_ids", "input_mask", "segment_ids")
    lengths = dict.fromkeys(FEATURE_DTYPES, max_predictions_per_seq)
    lengths.update(dict.fromkeys(per_token, max_seq_length))
    lengths["next_sentence_labels"] = 1
    return lengths


# --- CRC-32C -------------------------------------------------------------------------------


def _crc_tables() -> np.ndarray:
    """Returns the eight tables of the slicing-by-8 CRC-32C, [8, 256] uint32."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, byte] = crc
    for i in range(1, 8):
        tables[i] = (tables[i - 1] >> np.uint32(8)) ^ tables[0, tables[i - 1] & np.uint32(255)]
    return tables


_CRC_TABLES = _crc_tables()


@kernel
def _masked_crc(data, start, stop, tables):
    """The masked CRC-32C of data[start:stop], as an int64 below 2**32."""
    crc = np.uint32(0xFFFFFFFF)
    i = start
    while i + 8 <= stop:
        crc = (
            tables[7, (crc ^ data[i]) & 255]
            ^ tables[6, ((crc >> 8) ^ data[i + 1]) & 255]
            ^ tables[5, ((crc >> 16) ^ data[i + 2]) & 255]
            ^ tables[4, ((crc >> 24) ^ data[i + 3]) & 255]
            ^ tables[3, data[i + 4]]
            ^ tables[2, data[i + 5]]
            ^ tables[1, data[i + 6]]
            ^ tables[0, data[i + 7]]
        )
        i += 8
    while i < stop:
        crc = tables[0, (crc ^ data[i]) & 255] ^ (crc >> np.uint32(8))
        i += 1
    crc ^= np.uint32(0xFFFFFFFF)
    plain = np.int64(crc)
    rotated = (plain >> 15) | ((plain & 0x7FFF) << 17)
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Returns the checksum that TFRecord files carry."""
    return int(_masked_crc(np.frombuffer(data, np.uint8), 0, len(data), _CRC_TABLES))


# --- Encoding ------------------------------------------------------------------------------


def _names() -> tuple[np.ndarray, np.ndarray]:
    """Returns the names as rows [7, 32] uint8, and their lengths [7]."""
    rows = np.zeros((len(FEATURE_DTYPES), 32), np.uint8)
    for row, name in zip(rows, FEATURE_DTYPES):
        row[: len(name)] = np.frombuffer(name.encode(), np.uint8)
    return rows, np.array([len(name) for name in FEATURE_DTYPES])


_NAMES, _NAME_LENGTHS = _names()


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
def _put_uint32(out, at, value):
    for i in range(4):
        out[at + i] = (value >> (8 * i)) & 255
    return at + 4


@kernel
def _put_feature_head(out, at, names, name_lengths, feature, payload_bytes, tag):
    """Writes everything of one map entry up to its packed values."""
    list_bytes = 1 + _varint_bytes(payload_bytes) + payload_bytes
    feature_bytes = 1 + _varint_bytes(list_bytes) + list_bytes
    name_bytes = name_lengths[feature]
    entry_bytes = 2 + name_bytes + 1 + _varint_bytes(feature_bytes) + feature_bytes
    out[at] = 0x0A  # Features.feature, one map entry
    at = _put_varint(out, at + 1, entry_bytes)
    out[at] = 0x0A  # the entry's key
    at = _put_varint(out, at + 1, name_bytes)
    out[at : at + name_bytes] = names[feature, :name_bytes]
    at += name_bytes
    out[at] = 0x12  # the entry's value, a Feature
    at = _put_varint(out, at + 1, feature_bytes)
    out[at] = tag  # Feature.float_list (2) or int64_list (3)
    at = _put_varint(out, at + 1, list_bytes)
    out[at] = 0x0A  # value, packed
    return _put_varint(out, at + 1, payload_bytes)


@kernel
def _put_ints(out, at, names, name_lengths, feature, values):
    payload_bytes = 0
    for value in values:
        payload_bytes += _varint_bytes(value)
    at = _put_feature_head(out, at, names, name_lengths, feature, payload_bytes, 0x1A)
    for value in values:
        at = _put_varint(out, at, value)
    return at


@kernel
def _put_weights(out, at, names, name_lengths, feature, weights):
    at = _put_feature_head(out, at, names, name_lengths, feature, 4 * len(weights), 0x12)
    raw = weights.view(np.uint8)
    out[at : at + len(raw)] = raw
    return at + len(raw)


@kernel
def _encode_records(tokens, predictions, weights, next_sentence, names, name_lengths, tables, out):
    """Writes whole TFRecords into `out`; returns the number of bytes."""
    at = 0
    # The two lengths around the map are written last, and moved to their place: both need
    # at most 5 bytes.
    for example in range(tokens.shape[1]):
        record = at
        body = record + _HEADER_BYTES + 8
        end = body
        for feature in range(3):
            end = _put_ints(out, end, names, name_lengths, feature, tokens[feature, example])
        for feature in range(2):
            end = _put_ints(
                out, end, names, name_lengths, 3 + feature, predictions[feature, example]
            )
        end = _put_weights(out, end, names, name_lengths, 5, weights[example])
        end = _put_ints(out, end, names, name_lengths, 6, next_sentence[example : example + 1])
        map_bytes = end - body
        out[record + _HEADER_BYTES] = 0x0A  # Example.features
        data = _put_varint(out, record + _HEADER_BYTES + 1, map_bytes)
        for i in range(map_bytes):
            out[data + i] = out[body + i]
        end = data + map_bytes
        data_bytes = end - record - _HEADER_BYTES
        _put_uint32(out, record, data_bytes)
        _put_uint32(out, record + 4, 0)
        _put_uint32(out, record + 8, _masked_crc(out, record, record + 8, tables))
        crc = _masked_crc(out, record + _HEADER_BYTES, end, tables)
        at = _put_uint32(out, end, crc)
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


def encode_records(batch: Batch, scratch: np.ndarray | None = None) -> memoryview:
    """Encodes examples as consecutive TFRecords, ready to be written to a file.

    `scratch` [at least `scratch_bytes(...)`] uint8 is overwritten and backs the result.
    """
    if scratch is None:
        scratch = np.empty(scratch_bytes(batch), np.uint8)
    used = _encode_records(*batch, _NAMES, _NAME_LENGTHS, _CRC_TABLES, scratch)
    return memoryview(scratch)[:used]


def scratch_bytes(batch: Batch) -> int:
    """Returns an upper bound of the encoded size of the examples (ids below 2**35)."""
    num_values = batch.tokens.size + batch.predictions.size + batch.weights.size
    return 5 * num_values + 512 * len(batch.next_sentence)


def encode(example: Mapping[str, np.ndarray]) -> bytes:
    """Encodes one example (feature name -> values) as tf.Example bytes."""
    values = [np.asarray(example[name], dtype) for name, dtype in FEATURE_DTYPES.items()]
    batch = Batch(
        tokens=np.stack(values[0:3])[:, None],
        predictions=np.stack(values[3:5])[:, None],
        weights=values[5][None],
        next_sentence=values[6],
    )
    return bytes(encode_records(batch))[_HEADER_BYTES:-_FOOTER_BYTES]


def frame(record: bytes) -> bytes:
    """Wraps the bytes of one example as a TFRecord: length, checksums."""
    length = struct.pack("<Q", len(record))
    return b"".join(
        (
            length,
            struct.pack("<I", masked_crc32c(length)),
            record,
            struct.pack("<I", masked_crc32c(record)),
        )
    )


# --- Decoding ------------------------------------------------------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields (field number, bytes) of a protobuf message with length-delimited fields only."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 != 2:
            raise ValueError(f"wire type {key & 7} where a tf.Example has only type 2")
        length, at = _varint(data, at)
        if at + length > len(data):
            raise ValueError("a field ends beyond its message")
        yield key >> 3, data[at : at + length]
        at += length


def _unpack_varints(data: bytes) -> np.ndarray:
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 128)
    if len(ends) == len(raw):
        return raw.astype(np.int64)
    starts = np.concatenate(([0], ends[:-1] + 1))
    place = np.arange(ends[-1] + 1) - np.repeat(starts, ends - starts + 1)
    parts = (raw[: ends[-1] + 1] & 127).astype(np.int64) << (7 * place)
    return np.add.reduceat(parts, starts)


def decode(record: bytes) -> dict[str, np.ndarray]:
    """Decodes tf.Example bytes: feature name -> [length] int64 or float32 values.

    Raises:
      ValueError: the bytes are no tf.Example, or a list is neither of integers nor of floats.
    """
    example = {}
    try:
        for _, features in _fields(record):
            for _, entry in _fields(features):
                fields = dict(_fields(entry))
                ((kind, values),) = _fields(fields[2])
                if kind not in (2, 3):
                    raise ValueError("a list of byte strings")
                packed = b"".join(part for _, part in _fields(values))
                example[fields[1].decode()] = (
                    np.frombuffer(packed, "<f4") if kind == 2 else _unpack_varints(packed)
                )
    except (IndexError, KeyError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"not a tf.Example of integers and floats: {error}") from error
    return example


# --- Files ---------------------------------------------------------------------------------


class _Corrupt(ValueError):
    """A damaged record: the byte offset where it starts, and what is wrong."""

    def __init__(self, path: str | os.PathLike, offset_bytes: int, reason: str):
        super().__init__(
            f"{os.fspath(path)}: record at byte {offset_bytes} is damaged ({reason}); "
            "copy or make the file again"
        )
        self.offset_bytes = offset_bytes
        self.reason = reason


def _read_length(file: BinaryIO, path: str | os.PathLike, offset: int) -> int | None:
    header = file.read(_HEADER_BYTES)
    if not header:
        return None
    if len(header) < _HEADER_BYTES:
        raise _Corrupt(path, offset, "the file ends within the header")
    length, crc = struct.unpack("<QI", header)
    if crc != masked_crc32c(header[:8]):
        raise _Corrupt(path, offset, "the checksum of the length is wrong")
    return length


def read_records(path: str | os.PathLike) -> Iterator[bytes]:
    """Yields the bytes of every example of a TFRecord file, verifying all checksums.

    Raises:
      ValueError: a truncated or corrupt record, with the file and the byte where it starts.
    """
    offset = 0
    with open(path, "rb") as file:  # noqa: PTH123 - the path may be a string
        while (length := _read_length(file, path, offset)) is not None:
            data = file.read(length + _FOOTER_BYTES)
            if len(data) < length + _FOOTER_BYTES:
                raise _Corrupt(path, offset, "the file ends within the data")
            record = data[:length]
            if struct.unpack("<I", data[length:])[0] != masked_crc32c(record):
                raise _Corrupt(path, offset, "the checksum of the data is wrong")
            yield record
            offset += _HEADER_BYTES + length + _FOOTER_BYTES


def find_corruption(paths) -> tuple[str, int, str] | None:
    """Returns (path, byte offset, reason) of the first damaged record of the files, or None."""
    for path in paths:
        try:
            for _ in read_records(path):
                pass
        except _Corrupt as error:
            return os.fspath(path), error.offset_bytes, error.reason
    return None


def count_records(path: str | os.PathLike) -> int:
    """Returns the number of examples, from the headers alone.

    Raises:
      ValueError: a header is damaged or the file ends within a record.
    """
    size = Path(path).stat().st_size
    offset = count = 0
    with open(path, "rb") as file:  # noqa: PTH123 - the path may be a string
        while (length := _read_length(file, path, offset)) is not None:
            end = offset + _HEADER_BYTES + length + _FOOTER_BYTES
            if end > size:
                raise _Corrupt(path, offset, "the file ends within the data")
            file.seek(end)
            offset, count = end, count + 1
    return count


_LENGTH_FLAGS = {
    name: "--max_seq_length" if length == 1 else "--max_predictions_per_seq"
    for name, length in feature_lengths(1, 2).items()
    if name != "next_sentence_labels"
}


def _require_lengths(
    example: Mapping[str, np.ndarray],
    path: str | os.PathLike,
    max_seq_length: int,
    max_predictions_per_seq: int,
) -> None:
    if missing := sorted(FEATURE_DTYPES.keys() - example.keys()):
        raise ValueError(
            f"{os.fspath(path)}: an example lacks the features {', '.join(missing)}; "
            "make the file with create_pretraining_data.py"
        )
    for name, length in feature_lengths(max_seq_length, max_predictions_per_seq).items():
        if len(example[name]) == length:
            continue
        flag = _LENGTH_FLAGS.get(name)
        remedy = (
            f"{flag}={length} was given; pass {flag}={len(example[name])} or make the file anew"
            if flag
            else "1 was expected; make the file anew"
        )
        raise ValueError(
            f"{os.fspath(path)}: feature {name} holds {len(example[name])} values, but {remedy}"
        )


def check_lengths(
    path: str | os.PathLike, max_seq_length: int, max_predictions_per_seq: int
) -> None:
    """Checks the first example of a file against the flags.

    Raises:
      ValueError: the file has no or a damaged first example, or a feature has another length.
    """
    for record in itertools.islice(read_records(path), 1):
        _require_lengths(decode(record), path, max_seq_length, max_predictions_per_seq)
        return
    raise ValueError(f"{os.fspath(path)}: holds no examples; make the file anew")


def content_digest(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of the content, whatever the order of the features in the file.

    Over the examples in file order, over the feature names in sorted order: the name, then the
    values as little-endian int64 (float32 for the weights).
    """
    digest = hashlib.sha256()
    for record in read_records(path):
        for name, values in sorted(decode(record).items()):
            digest.update(name.encode())
            digest.update(values.tobytes())
    return digest.hexdigest()


def pick(
    input_path: str | os.PathLike,
    output_path: str | os.PathLike,
    *,
    num_examples_to_pick: int,
    max_seq_length: int,
    max_predictions_per_seq: int,
) -> int:
    """Writes evenly spaced examples of one file to another; returns how many there were.

    Example i of the output is example int(i * (N / num_examples_to_pick)) of N. The quirk: the
    ratio is a float, rounded once, so this differs from i * N // num_examples_to_pick. Asking
    for more examples than there are repeats some, as the reference does.

    Raises:
      ValueError: no examples, a damaged record, or lengths other than those given.
    """
    if num_examples_to_pick < 1:
        raise ValueError(f"num_examples_to_pick={num_examples_to_pick}: must be 1 or more")
    num_examples = count_records(input_path)
    if not num_examples:
        raise ValueError(f"{os.fspath(input_path)}: holds no examples to pick from")
    ratio = num_examples / num_examples_to_pick
    picks = [int(i * ratio) for i in range(num_examples_to_pick)]
    with written_beside(output_path) as file:
        position = 0
        for index, record in enumerate(read_records(input_path)):
            if position == len(picks):
                break
            if index != picks[position]:
                continue
            example = decode(record)
            _require_lengths(example, input_path, max_seq_length, max_predictions_per_seq)
            framed = frame(encode(example))
            while position < len(picks) and picks[position] == index:
                file.write(framed)
                position += 1
    return num_examples
