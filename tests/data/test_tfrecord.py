"""TFRecords and tf.Examples: damage is named, what is written is read back. CPU, seconds."""

from pathlib import Path

import numpy as np
import pytest

from mlperf_bert.data import example_encoder, tfrecord, validity

SHAPE = validity.ExampleShape(max_seq_length=8, max_predictions_per_seq=3)


def example(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(0, 2**20, length).astype(validity.FEATURE_DTYPES[name])
        for name, length in SHAPE.lengths().items()
    }


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(
        b"".join(tfrecord.frame(example_encoder.encode(example(seed))) for seed in range(3))
    )
    return path


def test_records_are_counted_by_their_headers_alone(tmp_path):
    """Storage is not asked for what lies between them."""

    def read_bytes() -> int:  # by all calls of this process
        return int(Path("/proc/self/io").read_text().split()[1])

    path = tmp_path / "file"
    path.write_bytes(tfrecord.frame(bytes(100_000)) * 50)
    before = read_bytes()
    assert tfrecord.count_records(path) == 50
    assert read_bytes() - before < 100_000


def test_round_trip(path):
    found = [validity.decode(frame.record) for frame in tfrecord.read_frames(path)]
    assert len(found) == tfrecord.count_records(path) == 3
    for seed, decoded in enumerate(found):
        for name, values in example(seed).items():
            np.testing.assert_array_equal(decoded[name], values)
            assert decoded[name].dtype == values.dtype
    frames = list(tfrecord.read_frames(path))
    assert b"".join(frame.framed for frame in frames) == path.read_bytes()
    assert [frame.index for frame in frames] == [0, 1, 2]
    for frame in frames:
        assert path.read_bytes()[frame.offset_bytes :].startswith(frame.framed)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("input_ids", -1, r"cannot encode -1: integers must be in \[0, 2\*\*35\)"),
        ("masked_lm_ids", 2**62, r"cannot encode 4611686018427387904: "),
        ("next_sentence_labels", -(2**63), r"cannot encode -9223372036854775808: "),
        ("masked_lm_positions", 2**35, r"cannot encode 34359738368: "),
    ],
)
def test_values_that_cannot_be_encoded(name, values, message):
    good = example(1)
    with pytest.raises(ValueError, match=message):
        example_encoder.encode(good | {name: np.full(len(good[name]), values)})


def test_values_on_both_sides_of_each_length_are_encoded():
    """A varint has seven bits a byte; tokens up to two bytes are written by a way of their own."""
    around = [2**bits + step for bits in (0, 7, 14, 21, 28) for step in (-1, 0)]
    values = np.array([*around, *reversed(around)])
    given = example(1) | {"input_ids": values, "input_mask": values[::-1], "segment_ids": values}
    decoded = validity.decode(example_encoder.encode(given))
    assert all((decoded[name] == given[name]).all() for name in given)


def test_the_greatest_value_fits_in_the_buffer():
    great = {
        name: np.full(100 * length, 2**35 - 1, validity.FEATURE_DTYPES[name])
        for name, length in SHAPE.lengths().items()
    }
    decoded = validity.decode(example_encoder.encode(great))
    assert all((decoded[name] == great[name]).all() for name in great)
