"""What is wrong with a record, anywhere in a file, is one line; nothing of it is used. CPU.

Also of mutated files, which are the same every time.
"""

import collections
import faulthandler
import functools
import re
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlperf_bert.data import parts, tfrecord
from mlperf_bert.input import checked, pipeline
from tests.data.hostile_records import (
    LIMITS,
    NUM_RECORDS,
    READERS,
    Readers,
    entry,
    features_of,
    field,
    floats,
    framed_examples,
    integers,
    serialize,
    valid_examples,
    varint,
)
from tests.helpers.fuzzing import changed_bytes, seeded


@pytest.fixture(scope="module")
def readers(tmp_path_factory) -> Readers:
    return Readers(tmp_path_factory.mktemp("readers"))


def changed(**features) -> bytes:
    """The second-last example with other Features; None: without it."""
    kept = features_of(valid_examples()[-2]) | features
    return serialize({name: feature for name, feature in kept.items() if feature is not None})


def ints(name: str, value: int, at: int = 0) -> bytes:
    """The second-last example with one other value."""
    values = valid_examples()[-2][name]
    return changed(**{name: integers([*values[:at], value, *values[at + 1 :]])})


def weight(value: float) -> bytes:
    """The second-last example with another first weight."""
    return changed(masked_lm_weights=floats([value, 0, 0]))


def packed(data: bytes) -> bytes:
    """The second-last example with other bytes for the eight integers of input_ids."""
    return changed(input_ids=field(3, field(1, data)))


CHECKS = {check: check for check in READERS.values()}
TRAINING = CHECKS.keys() - {"pick"}
MAKE = "make the file again with create_pretraining_data.py"
OTHER_MODEL = "give the --bert_config_file that belongs to these data, or make the file again"

# What stands in the record, what is said of it, and which checks refuse it if not all do.
BAD_RECORDS = {
    **{
        f"{name} of {value}": (
            ints(name, value, at),
            f"holds {value} in {name}, at {at}; allowed is 0 to {greatest}: {remedy}",
        )
        for name, at, greatest, remedy in (
            ("input_ids", 5, r"\d+", OTHER_MODEL),
            ("input_mask", 1, 1, MAKE),
            ("segment_ids", 7, 1, OTHER_MODEL),
            ("masked_lm_positions", 2, 7, MAKE),
            ("masked_lm_ids", 0, r"\d+", OTHER_MODEL),
            ("next_sentence_labels", 0, 1, MAKE),
        )
        for value in (-1, 2**32 + 5)
    },
    "a position behind the sequence": (
        ints("masked_lm_positions", 8),
        "holds 8 in masked_lm_positions, at 0; allowed is 0 to 7: ",
    ),
    "an id behind the vocabulary": (
        ints("input_ids", 60),
        f"holds 60 in input_ids, at 0; allowed is 0 to 59: {OTHER_MODEL}",
        TRAINING,
    ),
    "a label behind the vocabulary": (
        ints("masked_lm_ids", 60, 2),
        "holds 60 in masked_lm_ids, at 2; allowed is 0 to 59: ",
        TRAINING,
    ),
    **{
        f"a weight of {value}": (
            weight(value),
            f"holds {re.escape(str(np.float32(value)))} in masked_lm_weights, at 0; "
            f"allowed is 0 to 1.0: {MAKE}",
        )
        for value in (float("nan"), 1.0000001, -1e-40)
    },
    **{
        f"no {name}": (changed(**{name: None}), f"lacks the features {name}; {MAKE}")
        for name in ("input_ids", "next_sentence_labels")
    },
    "no features": (b"", r"is not a tf.Example of integers and floats: fields \[\] where \[1\]"),
    "a token less": (
        changed(input_ids=integers(range(7))),
        "holds 7 values in input_ids, but the run has --max_seq_length=8; give --max_seq_length=7",
    ),
    "a prediction more": (
        changed(masked_lm_weights=floats([0] * 4)),
        "holds 4 values in masked_lm_weights, but the run has --max_predictions_per_seq=3; give ",
    ),
    "two labels": (
        changed(next_sentence_labels=integers([0, 1])),
        f"holds 2 values in next_sentence_labels, but 1 is expected; {MAKE}",
    ),
    "floats for integers": (
        changed(input_ids=floats(range(8))),
        f"holds floats in input_ids, where integers belong; {MAKE}",
    ),
    "integers for floats": (
        changed(masked_lm_weights=integers([1, 0, 0])),
        f"holds integers in masked_lm_weights, where floats belong; {MAKE}",
    ),
    "bytes for integers": (
        changed(input_ids=field(1, field(1, b"12345678"))),
        r": a feature that is not one list of integers or floats; ",
    ),
    "a number of 70 bits": (packed(b"\xff" * 9 + b"\x7f" + bytes(7)), "64 bits; "),
    "a number without end": (packed(bytes(7) + b"\x80"), "a number without end; "),
    "a field that is too long": (
        field(1, entry("input_ids", b""))[:-1] + b"\x7f",
        "a field ends beyond its message; ",
    ),
    "a length near 2**64": (b"\x0a" + varint(2**64 - 1), "a field ends beyond its message; "),
    # TensorFlow takes the last, others the first: only what all read alike is copied.
    "a feature twice": (
        field(
            1,
            b"".join(entry(n, f) for n, f in features_of(valid_examples()[-2]).items())
            + entry("input_ids", integers(range(8))),
        ),
        "a feature comes twice; ",
        {"pick"},
    ),
    "numbers that are not packed": (
        changed(input_ids=field(3, b"".join(b"\x08" + varint(value) for value in range(8)))),
        "wire type 0 where only 2 belongs; ",
        {"pick"},
    ),
    **{
        name: (record, "cannot be used: .*packing needs the padding of tokens ", {"check_packed"})
        for name, record in (
            ("a hole in the mask", ints("input_mask", 0, 1)),
            ("a hole in the predictions", changed(masked_lm_weights=floats([0, 1, 0]))),
            (
                "no token",
                changed(input_mask=integers([0] * 8), masked_lm_weights=floats([0] * 3)),
            ),
            (
                "a prediction of padding",
                changed(
                    input_mask=integers([1] * 4 + [0] * 4),
                    masked_lm_positions=integers([4, 0, 0]),
                ),
            ),
        )
    },
}


def write(readers: Readers, *framed: bytes) -> list[bytes]:
    readers.path.write_bytes(b"".join(framed))
    return [*framed]


# Two that all refuse, and one that only a training, the pick or a packed training does.
IN_WHOLE_READERS = (
    "input_ids of -1", "no features", "an id behind the vocabulary", "a feature twice",
    "a hole in the mask",
)  # fmt: skip


@pytest.mark.parametrize(
    "case, readers_of_a_case",
    [*((case, CHECKS) for case in BAD_RECORDS),
     *((case, READERS) for case in IN_WHOLE_READERS)],
)  # fmt: skip
def test_a_bad_record_is_named_with_feature_value_and_remedy(readers, case, readers_of_a_case):
    record, said, *refusing = BAD_RECORDS[case]
    framed = framed_examples()
    place = sum(map(len, framed[:-2]))
    framed[-2] = tfrecord.frame(record)
    write(readers, *framed)
    for reader, check in readers_of_a_case.items():
        if check not in (refusing[0] if refusing else CHECKS):
            assert readers.refusal(reader) is None
            continue
        readers.picked.write_bytes(b"as it was")
        [line] = readers.refusal(reader).splitlines()
        where = rf"{readers.path}: record {NUM_RECORDS - 2} at byte {place} "
        assert re.match(where, line) and re.search(said, line), (reader, line)
        assert readers.picked.read_bytes() == b"as it was"
        left = {path.name for path in readers.path.parent.iterdir()} - {parts.NAME}
        assert left == {"part", "picked"}


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def of_length(length: int, _: bytes) -> bytes:
    """A record that is said to be so long: of some lengths TensorFlow's reader dies by a signal."""
    header = struct.pack("<Q", length)
    return header + struct.pack("<I", tfrecord.masked_crc32c(header)) + b"abc"


# What becomes of a record, and what is said of it; True: its length alone shows it.
DAMAGE = {
    **{
        f"a length of {length}": (
            functools.partial(of_length, length),
            "the file ends within the data",
            True,
        )
        for length in (2**63 - 1, 2**63, 2**64 - 4, 10**6)
    },
    "another length": (lambda r: flipped(r, 0), "the checksum of the length is wrong", True),
    "other data": (lambda r: flipped(r, 40), "the checksum of the data is wrong", False),
    "cut in its head": (lambda r: r[:5], "the file ends within the header", True),
    "cut in its data": (lambda r: r[:50], "the file ends within the data", True),
    "cut in its last checksum": (lambda r: r[:-1], "the file ends within the data", True),
    "without its last checksum": (lambda r: r[:-4], "the file ends within the data", True),
}


@pytest.mark.parametrize("case", DAMAGE)
@pytest.mark.parametrize("place", [0, NUM_RECORDS - 1])
def test_damage_is_named_with_its_byte(readers, case, place):
    damage, reason, shows = DAMAGE[case]
    framed = framed_examples()[: place + 1]
    framed[place] = damage(framed[place])
    write(readers, *framed)
    at = sum(map(len, framed[:place]))
    said = rf"part: record {place} at byte {at} is damaged \({reason}\); copy or make"
    for reader in READERS:
        assert re.search(said, readers.refusal(reader))
    if shows:
        with pytest.raises(tfrecord.BadRecord, match=said):
            tfrecord.count_records(readers.path)


@pytest.mark.parametrize("reader", READERS)
def test_files_that_hold_nothing(readers, reader):
    write(readers)
    assert re.search(r"holds no examples|is empty; give TFRecord files", readers.refusal(reader))


def test_files_of_an_evaluation_are_looked_at_counted_and_named_too(readers, tmp_path):
    write(readers, *framed_examples())
    for name, records in (("eval-0", framed_examples()), ("eval-1", framed_examples()[:5])):
        (tmp_path / name).write_bytes(b"".join(records))
    files, evaluation = [str(readers.path)], [f"{tmp_path}/eval-0", f"{tmp_path}/eval-1"]
    with checked.checked_input(files, LIMITS, eval_files=evaluation) as num_examples:
        assert num_examples == 17
    spoilt = framed_examples()
    spoilt[-1] = tfrecord.frame(ints("input_ids", 77))
    (tmp_path / "eval-0").write_bytes(b"".join(spoilt))
    with (
        pytest.raises(tfrecord.BadRecord, match=r"eval-0: record 11 at byte .* holds 77 in inp"),
        checked.checked_input(files, LIMITS, eval_files=evaluation),
    ):
        list(pipeline.evaluation_batches(evaluation, LIMITS, batch_size=4))
    # The first record is looked at before all else, as the lengths, which are damaged too.
    (tmp_path / "eval-0").write_bytes(spoilt[-1] + spoilt[0][:-1])
    refusal = pytest.raises(tfrecord.BadRecord, match="eval-0: record 0 at byte 0 holds 77 in inp")
    for first, second in ((files, evaluation), (evaluation, ())):
        with refusal, checked.checked_input(first, LIMITS, eval_files=second):
            pytest.fail("batches would be drawn")


RECORDS = [serialize(features_of(example)) for example in valid_examples()]
# Words with which an error says how to go on.
REMEDIES = (
    "make it again",
    "make the file again",
    "copy or make",
    "pass --",
    "give ",
    "leave out ",
)


@st.composite
def files(draw) -> bytes:
    """Some records, one of them perhaps of other bytes, in a file that is perhaps damaged."""
    framed = framed_examples()[: draw(st.integers(1, NUM_RECORDS))]
    at = draw(st.integers(0, len(framed) - 1))
    framed[at] = draw(st.just(framed[at]) | changed_bytes(RECORDS[at]).map(tfrecord.frame))
    whole = b"".join(framed)
    return draw(st.just(whole) | changed_bytes(whole))


@pytest.mark.all
def test_mutated_files_are_taken_or_refused(tmp_path):
    readers, ends = Readers(tmp_path), collections.Counter()

    @seeded(100)
    @given(files())
    def run(data):
        readers.path.write_bytes(data)
        for reader in READERS:
            readers.picked.write_bytes(b"as it was")
            faulthandler.dump_traceback_later(120, exit=True)
            said = readers.refusal(reader)
            faulthandler.cancel_dump_traceback_later()
            ends[reader, "taken" if said is None else "refused"] += 1
            left = {path.name for path in tmp_path.iterdir()} - {parts.NAME}
            assert left == {"part", "picked"}
            if said is not None:
                assert readers.picked.read_bytes() == b"as it was"
                assert str(readers.path) in said and len(said.splitlines()) == 1, said
                assert said.isprintable() and any(words in said for words in REMEDIES), said

    run()
    assert min(ends[reader, end] for reader in READERS for end in ("taken", "refused")) > 10
