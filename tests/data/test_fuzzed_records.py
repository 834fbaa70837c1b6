"""Mutated TFRecords through picking, training and evaluation: taken, or refused in one line. CPU.

Seeded: the same files every time.
"""

import collections
import faulthandler

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlperf_bert.data import provenance, tfrecord
from tests.data.hostile_records import (
    READERS,
    Readers,
    features_of,
    framed_examples,
    serialize,
    valid_examples,
)
from tests.helpers.fuzzing import seeded

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

few_bytes = st.binary(min_size=1, max_size=12)


@st.composite
def other_bytes(draw, data: bytes) -> bytes:
    """Flipped, cut, grown, repeated or replaced."""
    at = draw(st.integers(0, max(len(data) - 1, 0)))
    end = draw(st.integers(at, len(data)))
    kind = draw(st.sampled_from(["flip", "cut", "insert", "remove", "repeat", "garbage"]))
    if kind == "flip" and data:
        bit = draw(st.integers(0, 7))
        return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    made = {
        "cut": data[:at],
        "insert": data[:at] + draw(few_bytes) + data[at:],
        "remove": data[:at] + data[end:],
        "repeat": data[:end] + data[at:],
    }
    return made.get(kind, draw(st.binary(max_size=80)))


@st.composite
def files(draw) -> bytes:
    """Some records, most of them valid, and perhaps a damaged file of them."""
    valid = framed_examples()
    framed = valid[: draw(st.integers(0, len(valid)))]
    for _ in range(draw(st.integers(0, 1))):
        record = draw(other_bytes(draw(st.sampled_from(RECORDS))))
        framed.insert(draw(st.integers(0, len(framed))), tfrecord.frame(record))
    data = b"".join(framed)
    return draw(other_bytes(data)) if draw(st.integers(0, 3)) == 0 else data


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
            left = {path.name for path in tmp_path.iterdir()} - {provenance.NAME}
            assert left == {"part", "picked"}
            if said is not None:
                assert readers.picked.read_bytes() == b"as it was"
                assert str(readers.path) in said and len(said.splitlines()) == 1, said
                assert said.isprintable() and any(words in said for words in REMEDIES), said

    run()
    assert min(ends[reader, end] for reader in READERS for end in ("taken", "refused")) > 10
