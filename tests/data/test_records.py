"""TFRecords and tf.Examples: damage is named, what is written is read back. CPU, seconds."""

import numpy as np
import pytest

from mlperf_bert.data import records

RECORD_BYTES = 12 + 4


def example(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(0, 2**20, length).astype(records.FEATURE_DTYPES[name])
        for name, length in records.feature_lengths(8, 3).items()
    }


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"".join(records.frame(records.encode(example(seed))) for seed in range(3)))
    return path


def test_masked_crc_of_the_published_check_value():
    """CRC-32C of "123456789" is e3069283. Source: RFC 3720, B.4; the mask: record_writer.h."""
    crc = 0xE3069283
    assert records.masked_crc32c(b"123456789") == (
        ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    )


def test_round_trip(path):
    found = [records.decode(record) for record in records.read_records(path)]
    assert len(found) == records.count_records(path) == 3
    for seed, decoded in enumerate(found):
        for name, values in example(seed).items():
            np.testing.assert_array_equal(decoded[name], values)
            assert decoded[name].dtype == values.dtype
    assert records.find_corruption([path]) is None


def test_damage_is_named_with_its_byte(path):
    data = path.read_bytes()
    second = RECORD_BYTES + len(next(records.read_records(path)))
    flipped = bytearray(data)
    flipped[second + 40] ^= 1
    length = bytearray(data)
    length[second] ^= 1
    for spoilt, reason in (
        (flipped, "the checksum of the data is wrong"),
        (length, "the checksum of the length is wrong"),
        (data[: second + 5], "the file ends within the header"),
        (data[: second + 50], "the file ends within the data"),
    ):
        path.write_bytes(spoilt)
        assert records.find_corruption([path]) == (str(path), second, reason)
        with pytest.raises(ValueError, match=f"file: record at byte {second} is damaged"):
            list(records.read_records(path))


def test_other_lengths_name_feature_and_flag(path):
    records.check_lengths(path, 8, 3)
    with pytest.raises(ValueError, match=r"input_ids holds 8 values, but --max_seq_length=9"):
        records.check_lengths(path, 9, 3)
    with pytest.raises(ValueError, match=r"holds 3 values, but --max_predictions_per_seq=4"):
        records.check_lengths(path, 8, 4)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="holds no examples"):
        records.check_lengths(path, 8, 3)


def test_bytes_that_are_no_example():
    with pytest.raises(ValueError, match=r"not a tf\.Example"):
        records.decode(b"\x08\x01")
