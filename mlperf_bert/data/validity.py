"""What an example must be so that a model can take it: features, types, lengths, values.

Nothing here needs TensorFlow; input/pipeline.py and input/packing.py check the same in batches.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping

import numpy as np

from mlperf_bert.data import example_codec, tfrecord
from mlperf_bert.data.example_codec import FEATURE_DTYPES, MAKE_AGAIN

_OTHER_MODEL = "give the --bert_config_file that belongs to these data, or make the file again"
_UNPACKED = f"leave out --pack_sequences, or {MAKE_AGAIN}"


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
        """With the limits of a model, whose `config` has vocab_size and type_vocab_size."""
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
      ValueError: what it lacks, or which feature holds what; to be put after "record N".
    """
    if missing := sorted(FEATURE_DTYPES.keys() - example.keys()):
        raise ValueError(f"lacks the features {', '.join(missing)}; {MAKE_AGAIN}")
    lengths, greatest = limits.lengths(), limits.greatest_values()
    for name in FEATURE_DTYPES:
        _require_type(name, example[name])
        _require_length(name, len(example[name]), lengths[name])
        _require_values(name, example[name], greatest[name])


def require_packable(example: Mapping[str, np.ndarray]) -> None:
    """Checks that real tokens and real predictions come first, which packing builds on.

    Raises:
      ValueError: they do not; to be put after "record N".
    """
    num_tokens = example["input_mask"].sum()
    for name in ("input_mask", "masked_lm_weights"):
        is_real = example[name] > 0
        if is_real[is_real.sum() :].any():
            raise ValueError(
                f"has a 0 in {name} before something else; packing needs what is real first: "
                f"{_UNPACKED}"
            )
    if not num_tokens:
        raise ValueError(f"has no token, input_mask is 0; packing needs one: {_UNPACKED}")
    positions = example["masked_lm_positions"][example["masked_lm_weights"] > 0]
    if (wrong := positions[positions >= num_tokens]).size:
        raise ValueError(
            f"holds {wrong[0]} in masked_lm_positions, but has only {num_tokens} tokens; packing "
            f"needs predictions of real tokens: {_UNPACKED}"
        )


def require_valid_record(
    frame: tfrecord.Frame,
    limits: ExampleLimits,
    *also: Callable[[Mapping[str, np.ndarray]], None],
) -> None:
    """Checks a record of a file: that it is a valid example, and passes the checks in `also`.

    Raises:
      BadRecord: it is not a tf.Example, or not a valid one.
    """
    try:
        example = example_codec.decode(frame.record)
        require_valid(example, limits)
        for check in also:
            check(example)
    except ValueError as error:
        raise frame.bad(str(error)) from error


def check_first_record(path: str | os.PathLike, limits: ExampleLimits) -> None:
    """Raises ValueError if a file has no record, or the first is damaged or not valid."""
    for frame in tfrecord.read_frames(path):
        return require_valid_record(frame, limits)
    raise ValueError(f"{os.fspath(path)}: holds no examples; make the file again")


def _require_type(name: str, values: np.ndarray) -> None:
    if values.dtype != FEATURE_DTYPES[name]:
        kinds = {"i": "integers", "f": "floats"}
        found, expected = kinds[values.dtype.kind], kinds[FEATURE_DTYPES[name].kind]
        raise ValueError(f"holds {found} in {name}, where {expected} belong; {MAKE_AGAIN}")


def _require_length(name: str, found: int, expected: int) -> None:
    if found != expected:
        remedy = f"1 is expected; {MAKE_AGAIN}"
        if flag := _LENGTH_FLAGS.get(name):
            remedy = f"{flag}={expected} was given; pass {flag}={found} or {MAKE_AGAIN}"
        raise ValueError(f"holds {found} values in {name}, but {remedy}")


def _require_values(name: str, values: np.ndarray, greatest: np.generic) -> None:
    wrong = np.flatnonzero(as_unsigned(values) > as_unsigned(greatest))
    if wrong.size:
        remedy = _OTHER_MODEL if name in _MODEL_FEATURES else MAKE_AGAIN
        raise ValueError(
            f"holds {values[wrong[0]]!s} in {name}, at {wrong[0]}; allowed is 0 to {greatest}: "
            f"{remedy}"
        )
