"""What is no regular file, compressed, a pointer, JSON or no text is named by every reader."""

import bz2
import gzip
from pathlib import Path

import numpy as np
import pytest

from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.convert import saving, stored_model
from mlperf_bert.data import (
    parts,
    punkt,
    segmentation,
    sentences,
    stages,
    tfrecord,
    vocabulary,
    wiki,
)
from mlperf_bert.data.documents import read_documents
from mlperf_bert.files import json_text
from mlperf_bert.finetuning import glue
from mlperf_bert.mlperf import convergence, log_reader
from mlperf_bert.model.config import BertConfig

TEXT = b"The river rises.\n" * 99
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n"


PACKED = {
    "gzip": (gzip.compress(TEXT), r"is compressed by gzip; unpack it first \(gzip -dc "),
    "bzip2": (bz2.compress(TEXT), r"is compressed by bzip2; unpack it first \(bzip2 -dc "),
    "pointer": (POINTER, "is a Git LFS pointer, not the file itself; fetch it with git lfs pull"),
}


READERS = {
    "text": stages.read_text,
    "stage 1": lambda path: wiki.write_stage_1(path, f"{path}.1"),
    "vocabulary": vocabulary.read_vocabulary,
    "text to records": lambda path: sentences.read_documents([path], None),
    "documents": lambda path: list(read_documents(path)),
    "JSON": json_text.read_object,
    "table": lambda path: glue._lines(Path(path)),
    "records": tfrecord.count_records,
    "every record": lambda path: list(tfrecord.read_frames(path)),
    "checkpoint": StoredCheckpoint,
    "model": lambda path: stored_model.read(Path(path)),
}
LOOK_FOR_OTHER_NAMES = ("checkpoint", "model")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", PACKED)
def test_what_is_packed_is_named_by_every_reader(tmp_path, reader, kind):
    packed, message = PACKED[kind]
    (tmp_path / "input").write_bytes(packed)
    with pytest.raises(ValueError, match=message) as error:
        READERS[reader](str(tmp_path / "input"))
    assert str(tmp_path) in str(error.value) and len(str(error.value).splitlines()) == 1
    assert "iconv" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["input"]


OTHER_READERS = {
    "model's configuration": BertConfig.from_json_file,
    "record of data": lambda path: parts.read(Path(path).parent),
    "tables of sentences": lambda path: punkt.not_published(Path(path).parent),
    "splitter": lambda path: segmentation.load_splitter(Path(path).parent),
    "log": lambda path: log_reader.read_records(Path(path)),
    "reference points": lambda path: convergence.reference_points(custom_rcps=Path(path)),
}


@pytest.mark.parametrize(
    "reader", [name for name in READERS | OTHER_READERS if name not in LOOK_FOR_OTHER_NAMES]
)
def test_every_reader_asks_for_a_regular_file(tmp_path, reader):
    """A device that ends at once: a reader that does not ask fails here and does not hang."""
    for name in ("input", parts.NAME, *punkt.PUBLISHED_SHA256):
        (tmp_path / name).symlink_to("/dev/null")
    with pytest.raises(ValueError, match="is not a regular file; give one"):
        (READERS | OTHER_READERS)[reader](str(tmp_path / "input"))


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
def test_a_pointer_in_place_of_a_checkpoints_file(tmp_path, suffix):
    saving.write_name_based(str(tmp_path / "model"), {"bert/a": np.zeros(3, np.float32)})
    (tmp_path / f"model.{suffix}").write_bytes(POINTER)
    with pytest.raises(ValueError, match=rf"model\.{suffix}: is a Git LFS pointer"):
        checkpoint = StoredCheckpoint(str(tmp_path / "model"))
        checkpoint.tensor(next(iter(checkpoint.shapes)))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (b'{"text": "a"}\n' * 9, "input: is text, not TFRecords; give files of create_pre"),
        (b"caf\xe9\n" * 9, "input: is text, not TFRecords"),
        (b"\0\xfe" * 30, "input: record 0 at byte 0 is damaged"),
    ],
)
def test_what_is_no_record_is_named(tmp_path, found, message):
    (tmp_path / "input").write_bytes(found)
    with pytest.raises(ValueError, match=message):
        tfrecord.count_records(tmp_path / "input")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (TEXT.decode().encode("utf-16"), "byte 0 is not UTF-8; give a text file, and convert"),
        (tfrecord.frame(b"\xff\xfe\xfd" * 50), "byte [0-9]+ is not UTF-8; give a text file"),
        (b"[PAD]\ncaf\xe9\n", "byte 9 is not UTF-8; give a text file, and convert another enc"),
        (b'{"a": 1}\n\n{"b": 2}\n', "is JSON, not text; give documents the suffix"),
        (b'\xef\xbb\xbf[{"text": "a"},\n {"text": "b"}]\n', "is JSON, not text"),
    ],
)
@pytest.mark.parametrize("reader", ["text", "text to records"])
def test_what_is_no_text_is_named(tmp_path, reader, found, message):
    (tmp_path / "input").write_bytes(found)
    with pytest.raises(ValueError, match=f"input: {message}"):
        READERS[reader](str(tmp_path / "input"))


@pytest.mark.parametrize(
    "text",
    ["", "{\n", "[1] See the list.\n", '{"a"} is a set.\n', "[[Category:X]]\n"],
)
def test_text_about_json_is_text(text):
    stages.require_sentences(text, "input")


def test_a_byte_order_mark(tmp_path):
    path = tmp_path / "input"
    path.write_bytes(b'\xef\xbb\xbf{"text": "The river."}\n{"text": "The lake."}\n')
    assert [each["text"] for each in read_documents(f"{path}")] == ["The river.", "The lake."]
    path.write_bytes("\ufeff[UNK]\n[CLS]\n[SEP]\n[MASK]\n".encode())
    with pytest.raises(ValueError, match=r"input: begins with a byte order mark.*remove it"):
        vocabulary.read_vocabulary(str(path))
