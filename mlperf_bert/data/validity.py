"""Checks that a model can take an example: that it is a tf.Example, its types, lengths, values.

S = max_seq_length, P = max_predictions_per_seq. Decoding is written here, not left to protobuf: it
is strict, so that what is read here is read alike by every reader. Nothing here needs TensorFlow;
input/pipeline.py checks the same in batches. example_encoder.py writes what is read here.

Source of the format: tensorflow/core/example/example.proto.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np

from mlperf_bert.data import tfrecord

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
_OTHER_MODEL = "give the --bert_config_file that belongs to these data, or make the file again"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExampleShape:
    """How long the features of an example are."""

    max_seq_length: int
    max_predictions_per_seq: int

    def lengths(self) -> dict[str, int]:
        """How many values each feature holds."""
        per_token = ("input_ids", "input_mask", "segment_ids")
        lengths = dict.fromkeys(FEATURE_DTYPES, self.max_predictions_per_seq)
        lengths.update(dict.fromkeys(per_token, self.max_seq_length))
        lengths["next_sentence_labels"] = 1
        return lengths

    def for_model(self, config) -> "ExampleLimits":
        """The limits of such examples for a model; `config` has the sizes of its vocabularies."""
        return ExampleLimits(
            max_seq_length=self.max_seq_length,
            max_predictions_per_seq=self.max_predictions_per_seq,
            vocab_size=config.vocab_size,
            type_vocab_size=config.type_vocab_size,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExampleLimits(ExampleShape):
    """How long the features of an example are, and how great their values may be."""

    vocab_size: int
    type_vocab_size: int

    def greatest_values(self) -> dict[str, np.generic]:
        """The greatest value of each feature, in its type; the least is 0.

        A weight is any share of 1: loss and accuracy are weighted means. The published data have
        only 0 and 1.
        """
        greatest = {
            "input_ids": self.vocab_size - 1,
            "input_mask": 1,
            "segment_ids": self.type_vocab_size - 1,
            "masked_lm_positions": self.max_seq_length - 1,
            "masked_lm_ids": self.vocab_size - 1,
            "masked_lm_weights": 1,
            "next_sentence_labels": 1,
        }
        return {name: FEATURE_DTYPES[name].type(value) for name, value in greatest.items()}


_LENGTH_FLAGS = {
    name: "--max_seq_length" if length == 1 else "--max_predictions_per_seq"
    for name, length in ExampleShape(max_seq_length=1, max_predictions_per_seq=2).lengths().items()
    if name != "next_sentence_labels"
}
_MODEL_FEATURES = ("input_ids", "segment_ids", "masked_lm_ids")


def as_unsigned(values: np.ndarray | np.generic) -> np.ndarray:
    """The same bits as unsigned integers, in the same order from 0 on.

    Negative values and NaN become the largest: one comparison finds everything that is wrong.
    """
    return values.view(f"u{values.dtype.itemsize}")


def require_valid(example: Mapping[str, np.ndarray], limits: ExampleLimits) -> None:
    """Checks a decoded example.

    Raises:
      ValueError: says what it lacks, or which feature holds what, to follow "record N".
    """
    if missing := sorted(FEATURE_DTYPES.keys() - example.keys()):
        raise ValueError(f"lacks the features {', '.join(missing)}; {MAKE_AGAIN}")
    lengths, greatest = limits.lengths(), limits.greatest_values()
    kinds = {"i": "integers", "f": "floats"}
    for name, dtype in FEATURE_DTYPES.items():
        values, length = example[name], lengths[name]
        if values.dtype != dtype:
            raise ValueError(
                f"holds {kinds[values.dtype.kind]} in {name}, where {kinds[dtype.kind]} belong; "
                f"{MAKE_AGAIN}"
            )
        if len(values) != length:
            remedy = f"1 is expected; {MAKE_AGAIN}"
            if flag := _LENGTH_FLAGS.get(name):
                remedy = f"the run has {flag}={length}; give {flag}={len(values)} or {MAKE_AGAIN}"
            raise ValueError(f"holds {len(values)} values in {name}, but {remedy}")
        wrong = np.flatnonzero(as_unsigned(values) > as_unsigned(greatest[name]))
        if wrong.size:
            remedy = _OTHER_MODEL if name in _MODEL_FEATURES else MAKE_AGAIN
            raise ValueError(
                f"holds {values[wrong[0]]!s} in {name}, at {wrong[0]}; allowed is 0 to "
                f"{greatest[name]}: {remedy}"
            )


def require_valid_record(frame: tfrecord.Frame, limits: ExampleLimits) -> None:
    """Checks a record of a file: that it is a valid example.

    Raises:
      BadRecord: it is not a tf.Example, or not a valid one.
    """
    try:
        require_valid(decode(frame.record), limits)
    except ValueError as error:
        raise frame.bad(str(error)) from error


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
    if (numbers := [number for number, _ in fields]) != [*expected]:
        raise ValueError(f"fields {numbers[:9]} where {[*expected]} belong")
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
    column = np.arange(len(raw)) - np.repeat(starts, sizes)
    parts = (raw & 127).astype(np.uint64) << (7 * column).astype(np.uint64)
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
