"""Manifests that were damaged, on their own and through --verify."""

import json
import sys

import pytest

from mlperf_bert.data import manifest
from tests.helpers import starts

PART = {"input_bytes": 9, "input_md5": "0" * 32, "examples": 2, "bytes": 5, "sha256": "0" * 64}
PART |= {"length_histogram": [1] * 16, "predictions_histogram": [0] * 16}
PARAMETERS = {"examples_per_part": 0}


def content(parts=None, **changed) -> str:
    given = {"parameters": PARAMETERS, "versions": {}, "parts": parts or {"part-0": PART}}
    return json.dumps(given | changed)


# What is wrong with its fields -> the text, and what is said about it; what is no record at all,
# tests/test_records.py refuses.
DAMAGED = {
    "no parts": ('{"parameters": {}, "versions": {}}', "'parts'"),
    "parts as a list": (content(parts=[PART]), "has no attribute 'items'"),
    "a part of null": (content({"part-0": None}), "must be a mapping, not NoneType"),
    "another folder": (content({"../part-0": PART}), "is not the name of a file in its folder"),
    "a negative size": (content({"part-0": PART | {"bytes": -1}}), "part-0: bytes is -1"),
    "a size as text": (content({"part-0": PART | {"bytes": "5"}}), "part-0: bytes is '5'"),
    "a sum as number": (content({"part-0": PART | {"sha256": 5}}), "part-0: sha256 is 5"),
    "a short histogram": (
        content({"part-0": PART | {"length_histogram": [1]}}),
        "part-0: a histogram of 1 ranges",
    ),
    "parameters as a list": (content(parameters=[]), "list indices must be integers"),
    "no number of examples": (
        content(parameters={"examples_per_part": None}),
        "examples_per_part is not a number",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_manifest_is_refused(case, tmp_path):
    text, reason = DAMAGED[case]
    (tmp_path / manifest.NAME).write_text(text)
    with pytest.raises(ValueError, match=f"manifest.json: damaged .*{reason}.*remove it") as e:
        manifest.load(tmp_path)
    assert len(str(e.value).splitlines()) == 1


def test_a_whole_one_is_read(tmp_path):
    (tmp_path / manifest.NAME).write_text(content())
    assert manifest.load(tmp_path).parts == {"part-0": manifest.Part(**PART)}


def test_verify_says_so_in_one_line(tmp_path):
    (tmp_path / manifest.NAME).write_text(DAMAGED["a negative size"][0])
    command = [sys.executable, "create_pretraining_data.py", "--verify", f"--output_dir={tmp_path}"]
    done = starts.run(command)
    assert done.returncode == 1 and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"create_pretraining_data.py: {tmp_path}/manifest.json: damaged")
    assert [path.name for path in tmp_path.iterdir()] == [manifest.NAME]
