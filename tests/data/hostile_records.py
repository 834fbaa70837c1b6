"""Small TFRecords that can be spoilt at every layer, and what reads TFRecords, driven to the end.

A record is here: feature name -> serialized Feature, so that each layer can be replaced alone.
"""

import itertools
import traceback
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf

from mlperf_bert.data import tfrecord, validity
from mlperf_bert.data.evaluation_shard import PickConfig, pick
from mlperf_bert.data.validity import ExampleLimits
from mlperf_bert.input import checked, packing, pipeline

LIMITS = ExampleLimits(
    max_seq_length=8, max_predictions_per_seq=3, vocab_size=60, type_vocab_size=2
)
NUM_RECORDS = 12
BATCH_SIZE = 4


def valid_example(
    random: np.random.Generator, limits: ExampleLimits = LIMITS, length: int = 0
) -> dict[str, np.ndarray]:
    """Real tokens and predictions first, padding behind them; by default of any length from 3."""
    most_tokens, most = limits.max_seq_length, limits.max_predictions_per_seq
    length = length or random.integers(3, most_tokens + 1)
    count = min(random.integers(1, most), length - 1)
    real, predicted = np.arange(most_tokens) < length, np.arange(most) < count
    positions = np.sort(random.choice(np.arange(1, length), count, replace=False))
    return {
        "input_ids": random.integers(0, limits.vocab_size, most_tokens) * real,
        "input_mask": real.astype(np.int64),
        "segment_ids": (real & (np.arange(most_tokens) > 2)).astype(np.int64),
        "masked_lm_positions": np.pad(positions, (0, most - count)),
        "masked_lm_ids": random.integers(0, limits.vocab_size, most) * predicted,
        "masked_lm_weights": predicted.astype(np.float32),
        "next_sentence_labels": random.integers(0, 2, 1),
    }


def valid_examples() -> list[dict[str, np.ndarray]]:
    """The same ones every time."""
    random = np.random.default_rng(3)
    return [valid_example(random) for _ in range(NUM_RECORDS)]


# --- Protobuf by hand ----------------------------------------------------------------------


def varint(value: int) -> bytes:
    """Base 128, lowest first; negative numbers as 64 bits."""
    value &= 2**64 - 1
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def field(number: int, data: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def integers(values) -> bytes:
    """A Feature."""
    packed = b"".join(varint(int(value)) for value in values)
    return field(3, field(1, packed))


def floats(values) -> bytes:
    """A Feature."""
    return field(2, field(1, np.asarray(values, "<f4").tobytes()))


def entry(name: str, feature: bytes) -> bytes:
    """One entry of the map of features."""
    return field(1, field(1, name.encode()) + field(2, feature))


def features_of(example: dict) -> dict[str, bytes]:
    """Feature name -> serialized Feature."""
    made = {name: integers(values) for name, values in example.items()}
    return made | {"masked_lm_weights": floats(example["masked_lm_weights"])}


def serialize(features: dict[str, bytes]) -> bytes:
    """A tf.Example."""
    return field(1, b"".join(entry(name, feature) for name, feature in features.items()))


def framed_examples() -> list[bytes]:
    """The valid examples as TFRecords."""
    return [tfrecord.frame(serialize(features_of(example))) for example in valid_examples()]


# --- Readers -------------------------------------------------------------------------------


def assert_in_range(features: dict[str, tf.Tensor]) -> None:
    for name, greatest in LIMITS.greatest_values().items():
        values = features[name].numpy()
        assert (values >= 0).all() and (values <= greatest).all(), name


def assert_read_alike(record: bytes) -> None:
    """TensorFlow reads the values that were checked."""
    lengths = LIMITS.lengths().items()
    found = tf.io.parse_single_example(
        record,
        {
            name: tf.io.FixedLenFeature([length], tf.as_dtype(validity.FEATURE_DTYPES[name]))
            for name, length in lengths
        },
    )
    ours = validity.decode(record)
    for name, value in found.items():
        np.testing.assert_array_equal(value, ours[name])


def forget_frames(error: BaseException | None) -> None:
    """Lets go of what a traceback holds: an iterator would read the file on while it changes."""
    while error:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


class Readers:
    """All that reads TFRecords, on one path: what a dataset is made of is traced only once."""

    def __init__(self, folder: Path):
        self.path, self.picked = folder / "part", folder / "picked"
        read = {"batch_size": BATCH_SIZE, "seed": 1}
        files = [str(self.path)]
        self._unpacked = pipeline.training_batches(files, LIMITS, **read)
        with mock.patch.object(packing, "_MIN_WINDOW_EXAMPLES", 32):  # else a second each
            self._packed = pipeline.training_batches(files, LIMITS, **read, pack_sequences=True)
        self._evaluation = pipeline.evaluation_batches(files, LIMITS, batch_size=5)

    def refusal(self, reader: str) -> str | None:
        """What a reader says of the file, None if it takes it; other errors are no answer."""
        try:
            getattr(self, reader)()
        except (ValueError, OSError) as error:
            forget_frames(error)
            return str(error)
        return None

    def pick(self) -> None:
        """Every second record, and that they are copies."""
        count = max(1, tfrecord.count_records(self.path) // 2)
        config = PickConfig(
            input_tfrecord=self.path,
            output_tfrecord=self.picked,
            num_examples_to_pick=count,
            max_seq_length=LIMITS.max_seq_length,
            max_predictions_per_seq=LIMITS.max_predictions_per_seq,
        )
        pick(config)
        given = [frame.framed for frame in tfrecord.read_frames(self.path)]
        copies = [frame.framed for frame in tfrecord.read_frames(self.picked)]
        assert copies == [given[int(i * (len(given) / count))] for i in range(count)]
        for frame in tfrecord.read_frames(self.picked):
            assert_read_alike(frame.record)

    def train(self) -> None:
        """An epoch and more."""
        self._draw(self._unpacked)

    def train_packed(self) -> None:
        """A window and more."""
        self._draw(self._packed, packs=True)

    def evaluate(self) -> None:
        """All examples, filled up."""
        self._draw(self._evaluation)

    def check(self) -> None:
        """The check of the pipeline by itself, which training and evaluation share."""
        checked._require_valid_files([str(self.path)], LIMITS, ())

    def check_packed(self) -> None:
        """The check of a packed training by itself."""
        checked._require_valid_files([str(self.path)], LIMITS, [str(self.path)])

    def _draw(self, dataset: tf.data.Dataset, **given) -> None:
        files = pipeline.expand_input(str(self.path), flag="input_file")
        with checked.checked_input(files, LIMITS, **given):
            for features in itertools.islice(dataset, NUM_RECORDS):
                if isinstance(features, tuple):
                    features, _ = features
                if "block_ids" not in features:
                    assert_in_range(features)


READERS = {"pick": "pick", "train": "check", "train_packed": "check_packed", "evaluate": "check"}
"""Reader -> by which check it refuses a record."""
