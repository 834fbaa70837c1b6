"""Every record that is read again: damaged in the same ways, refused in the same words."""

from pathlib import Path

import pytest

from mlperf_bert.data import provenance
from mlperf_bert.files.json_text import read_record, write_record
from mlperf_bert.finetuning import sweep
from mlperf_bert.mlperf import logs
from mlperf_bert.submission import campaign
from mlperf_bert.training import output

AGAIN = "copy it here again"


def finished_run(folder: Path) -> None:
    (folder / logs.LOG_NAME).touch()
    logs.finished_run(folder)


def claim(folder: Path) -> None:
    given = {"org": "o", "system": "s", "status": "onprem", "num_runs": 1, "flags": ("--x=1",)}
    with campaign.claimed(campaign.Campaign(**given, folder=folder)):
        pass


# Who reads a record from its folder -> its name, texts whose fields are wrong, and what to do.
READERS = {
    provenance.read: (provenance.NAME, ['{"records": [{"inputs": [{}]}]}'], AGAIN),
    output.read_record: (logs.RECORD_NAME, ['{"status": "running"}'], f"{AGAIN}, or choose"),
    finished_run: (logs.RECORD_NAME, [], f"{AGAIN}, or choose another --output_dir"),
    claim: (logs.CAMPAIGN_RECORD, [], f"{AGAIN}, or choose another --output_dir"),
    (lambda folder: sweep._read(folder / sweep.RESULTS_NAME)): (
        sweep.RESULTS_NAME, ['{"tasks": [1]}'],
        "remove it: the results of",
    ),
}  # fmt: skip

# What is wrong with a file -> its bytes, and what is said about it.
DAMAGED = {
    "empty": (b"", "not JSON"),
    "cut": (b'{"status": "runn', "not JSON"),
    "no object": (b"[1, 2]", "expected a JSON object, got list"),
    "nested": (b"[" * 100_000, "nested too deeply"),
    "not UTF-8": (b"\xff\xfe{", "not JSON"),
    "packed": (b"\x1f\x8b\x08", "is compressed by gzip"),
    "its fields": (None, ""),
}


@pytest.mark.parametrize(
    "read, damage",
    [
        pytest.param(read, damage, id=f"{read.__module__}: {name} {damage}")
        for read, (name, fields, _) in READERS.items()
        for damage, (content, _) in DAMAGED.items()
        if content is not None or fields  # two look at no field themselves
    ],
)
def test_a_damaged_record_is_refused_in_the_same_words(tmp_path, read, damage):
    name, fields, remedy = READERS[read]
    content, reason = DAMAGED[damage]
    message = rf"^{tmp_path}/{name}: damaged \(.*{reason}.*\).*{remedy}"
    for each in [text.encode() for text in fields] if content is None else [content]:
        (tmp_path / name).write_bytes(each)
        with pytest.raises(ValueError, match=message):
            read(tmp_path)


def test_a_folder_is_not_a_record(tmp_path):
    with pytest.raises(ValueError, match=r"damaged \(is not a regular file; give one"):
        read_record(tmp_path, dict, remedy="")


def test_a_record_that_is_not_there_is_none_and_a_written_one_is_read(tmp_path):
    assert read_record(tmp_path / "run.json", dict, remedy="") is None
    write_record(tmp_path / "run.json", {"seed": 1})
    assert read_record(tmp_path / "run.json", dict, remedy="") == {"seed": 1}
    with pytest.raises(ValueError, match=r"run.json: damaged \(lacks 'status'\); copy it"):
        read_record(tmp_path / "run.json", lambda content: content["status"], remedy="copy it")
