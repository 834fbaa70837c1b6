"""Picking copies records byte for byte, evenly spaced, or writes nothing. Plain Python, seconds."""

import os
import re

import pytest

import pick_eval_samples
from mlperf_bert.data import parts, tfrecord
from mlperf_bert.data.evaluation_shard import PickConfig, pick
from mlperf_bert.messages import as_lines
from tests.data.hostile_records import features_of, framed_examples, serialize, valid_examples
from tests.helpers import called

LENGTHS = {"max_seq_length": 8, "max_predictions_per_seq": 3}


@pytest.fixture
def stored(tmp_path):
    (tmp_path / "stored").write_bytes(b"".join(framed_examples()))
    return tmp_path / "stored"


# 94: there the float picks another record than whole numbers would.
@pytest.mark.parametrize("count", [1, 5, 7, 12, 13, 40, 94])
def test_copies_are_evenly_spaced(stored, tmp_path, count):
    found = pick(PickConfig(**flags_of(stored, num_examples_to_pick=count)))
    given = [frame.framed for frame in tfrecord.read_frames(stored)]
    assert found == len(given) == 12
    expected = b"".join(given[int(i * (12 / count))] for i in range(count))
    assert (tmp_path / "picked").read_bytes() == expected
    picked, source = (parts.describe(path, examples=n) for path, n in
                      ((tmp_path / "picked", count), (stored, 12)))  # fmt: skip
    data_set = parts.read(tmp_path)["picked"]
    assert (data_set.inputs, data_set.files) == ({"stored": source}, {"picked": picked})
    assert data_set.parameters == {"picked": count}


def test_features_in_another_order_are_copied_as_they_stand(tmp_path):
    features = dict(reversed(features_of(valid_examples()[0]).items()))
    framed = tfrecord.frame(serialize(features))
    (tmp_path / "stored").write_bytes(framed)
    pick(PickConfig(**flags_of(tmp_path / "stored", num_examples_to_pick=1)))
    assert (tmp_path / "picked").read_bytes() == framed


@pytest.mark.parametrize(("count", "told"), [(40, ", some more than once"), (12, "")])
def test_the_script_says_if_some_are_repeated(stored, capsys, count, told):
    given = flags_of(stored, num_examples_to_pick=count)
    called.main_of(pick_eval_samples, PickConfig, **given)
    assert capsys.readouterr().out == f"picked {count} of 12 examples{told}\n"


def test_the_record_says_how_the_examples_were_made_that_were_picked_from(stored, tmp_path):
    for name, seed in (("other", 1), ("stored", 2)):
        file = parts.File(bytes=1, md5="")
        data_set = parts.DataSet(parameters={"random_seed": seed}, inputs={}, files={name: file})
        parts.write(tmp_path, name, data_set)
    pick(PickConfig(**flags_of(stored)))
    assert parts.read(tmp_path)["picked"].parameters == {"random_seed": 2, "picked": 5}


def flags_of(stored, **changed) -> dict:
    picked = stored.parent / "picked"
    given = {"input_tfrecord": stored, "output_tfrecord": picked, "num_examples_to_pick": 5}
    return given | LENGTHS | changed


def pipe(stored) -> dict:
    os.mkfifo(stored.parent / "pipe")
    return {"input_tfrecord": stored.parent / "pipe"}


def linked(stored):
    (stored.parent / "link").symlink_to(stored)
    return stored.parent / "link"


BAD_REQUESTS = {
    "a pipe": (pipe, "pipe: is not a regular file; give one"),
    "its own input": (
        lambda stored: {"output_tfrecord": linked(stored)},
        "link: is an input too; name",
    ),
    "no file": (lambda stored: {"input_tfrecord": stored.parent / "none"}, "none: No such file"),
    "no folder": (
        lambda stored: {"output_tfrecord": stored.parent / "none" / "picked"},
        "there is no folder .*none; make it",
    ),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_bad_request_is_one_line_at_once_and_writes_nothing(stored, case):
    change, message = BAD_REQUESTS[case]
    flags = flags_of(stored, **change(stored))
    before, content = set(stored.parent.iterdir()), stored.read_bytes()
    with pytest.raises((ValueError, OSError)) as refused:
        pick(PickConfig(**flags))
    [line] = as_lines(refused.value).splitlines()
    assert re.search(message, line)
    assert set(stored.parent.iterdir()) == before and stored.read_bytes() == content
