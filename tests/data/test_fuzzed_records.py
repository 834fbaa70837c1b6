"""Mutated TFRecords through picking, training and evaluation: taken, or refused in one line. CPU.

Seeded: the same files every time. More of them under the marker `soak`.
"""

import collections
import faulthandler

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlperf_bert.data import provenance, tfrecord
from tests.data.hostile_records import (
    READERS,
    Readers,
    entry,
    features_of,
    field,
    floats,
    framed_examples,
    integers,
    valid_examples,
    varint,
)
from tests.helpers.fuzzing import seeded

EXAMPLES = valid_examples()
SECONDS_UNTIL_IT_HANGS = 120
# Words with which an error says how to go on.
REMEDIES = (
    "make it again",
    "make the file again",
    "copy or make",
    "pass --",
    "give ",
    "leave out ",
)

INTEGERS = [0, 1, 2, 7, 8, 59, 60, 127, 128, -1, 2**31 - 1, 2**31, 2**32 + 5, 2**35, 2**62]
INTEGERS += [2**63 - 1, -(2**63), -(2**31)]
FLOATS = [0, 1, 0.5, -0.0, -1, 2, 1e-40, 1e30, float("nan"), float("inf"), -float("inf")]

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
def other_feature(draw, name: str, values: np.ndarray) -> bytes:
    """A Feature of other values, another length, another type, or written otherwise."""
    is_float = name == "masked_lm_weights"
    hostile = st.sampled_from(FLOATS if is_float else INTEGERS)
    changed = [*values.tolist()]
    changed[draw(st.integers(0, len(changed) - 1))] = draw(hostile)
    unpacked = b"".join(varint(1 << 3) + varint(int(value)) for value in values)
    longer = [*values.tolist(), *draw(st.lists(hostile, max_size=3))]
    return draw(
        st.sampled_from(
            [
                (floats if is_float else integers)(changed),
                (floats if is_float else integers)(longer),
                (floats if is_float else integers)(changed[:-1]),
                (integers if is_float else floats)(np.nan_to_num(np.clip(changed, -1e9, 1e9))),
                field(1, b"".join(field(1, b"text") for _ in values)),
                field(3, unpacked),
                field(3, field(1, varint(int(values[0]))) * 2),
                field(3, field(1, bytes(len(values) - 1) + b"\xff" * 10)),
                b"",
            ]
        )
    )


@st.composite
def other_record(draw, example: dict) -> bytes:
    """An example whose features are changed, dropped, doubled, renamed or shuffled."""
    features = list(features_of(example).items())
    at = draw(st.integers(0, len(features) - 1))
    name, feature = features[at]
    kind = draw(st.sampled_from(["change"] * 6 + ["drop", "double", "rename", "order", "bytes"]))
    if kind == "change":
        features[at] = name, draw(other_feature(name, example[name]))
    elif kind == "drop":
        del features[at]
    elif kind == "double":
        features.append((name, draw(other_feature(name, example[name]))))
    elif kind == "rename":
        features[at] = draw(st.text(max_size=20)), feature
    elif kind == "order":
        features = draw(st.permutations(features))
    record = field(1, b"".join(entry(*pair) for pair in features))
    return draw(other_bytes(record)) if kind == "bytes" else record


@st.composite
def files(draw) -> bytes:
    """Some records, most of them valid, and perhaps a damaged file of them."""
    valid = framed_examples()
    framed = valid[: draw(st.integers(0, len(valid)))]
    for _ in range(draw(st.integers(0, 2))):
        record = draw(other_record(draw(st.sampled_from(EXAMPLES))))
        framed.insert(draw(st.integers(0, len(framed))), tfrecord.frame(record))
    data = b"".join(framed)
    return draw(other_bytes(data)) if draw(st.integers(0, 3)) == 0 else data


def check(readers: Readers, data: bytes, ends: collections.Counter) -> None:
    """What must hold of every file."""
    readers.path.write_bytes(data)
    for reader in READERS:
        readers.picked.write_bytes(b"as it was")
        faulthandler.dump_traceback_later(SECONDS_UNTIL_IT_HANGS, exit=True)
        said = readers.refusal(reader)
        faulthandler.cancel_dump_traceback_later()
        ends[reader, "taken" if said is None else "refused"] += 1
        left = {path.name for path in readers.path.parent.iterdir()} - {provenance.NAME}
        assert left == {"part", "picked"}
        if said is not None:
            assert readers.picked.read_bytes() == b"as it was"
            assert str(readers.path) in said and len(said.splitlines()) == 1, said
            assert said.isprintable() and any(words in said for words in REMEDIES), said


def fuzz(readers: Readers, num_files: int) -> collections.Counter:
    """Checks so many files; (reader, taken or refused) -> how often."""
    ends = collections.Counter()

    @seeded(num_files)
    @given(files())
    def run(data):
        check(readers, data, ends)

    run()
    print(num_files, "files:", dict(ends))
    return ends


@pytest.mark.all
def test_mutated_files_are_taken_or_refused(tmp_path):
    ends = fuzz(Readers(tmp_path), 100)
    assert min(ends[reader, end] for reader in READERS for end in ("taken", "refused")) > 10
