"""JSON lines, plain and compressed, become what stage .3 makes of extracted articles."""

import json
import re

import pytest
import zstandard

from mlperf_bert.data import documents, stages

TEXTS = [
    "It rains. He stays in.\nDr. No left.",
    "",
    "  \n ",
    "“So.” Then\r\ngo on!",
    "Ünï—end",
]
EXPECTED = "\nIt rains.\nHe stays in.\nDr. No left.\n\n“So.” Then\ngo on!\n\nÜnï—end\n\n"


def json_lines(texts=TEXTS) -> bytes:
    return b"".join(json.dumps({"text": text, "id": 1}).encode() + b"\n" for text in texts)


def test_documents_give_the_lines_of_stage_3(tmp_path, punkt):
    (tmp_path / "a.jsonl").write_bytes(json_lines())
    documents.write_stage_3(f"{tmp_path}/a.jsonl", f"{tmp_path}/a.3", punkt)
    assert (tmp_path / "a.3").read_text(encoding="utf-8") == EXPECTED


def test_articles_of_two_files_stay_apart_in_a_part(tmp_path, punkt):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(json_lines([f"This is {name[0]}."]))
        documents.write_stage_3(str(tmp_path / name), str(tmp_path / f"{name}.3"), punkt)
    joined = "".join(stages.read_text(str(tmp_path / f"{n}.jsonl.3"))[:-1] for n in "ab")
    assert joined == "\nThis is a.\n\nThis is b.\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"text": \n', "line 2: not JSON"),
        (b'{"text": "a"}\n\n[1]\n', "line 3: holds no text in 'text'; fix or remove it, or"),
        (b'{"text": "\xff"}\n', "line 1: not JSON"),
    ],
)
def test_bad_lines_are_named(tmp_path, punkt, content, message):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {message}")):
        documents.write_stage_3(str(path), f"{path}.3", punkt)
    assert {path.name for path in tmp_path.iterdir()} == {"bad.jsonl", "punkt"}


@pytest.mark.parametrize("kept_bytes", [0.5, 0.99])
def test_a_compressed_file_cut_off_is_damaged_not_short(tmp_path, kept_bytes):
    content = zstandard.compress(json_lines([f"Text {n}, {n * n}." for n in range(2000)]))
    path = tmp_path / "cut.jsonl.zst"
    path.write_bytes(content[: int(kept_bytes * len(content))])
    with pytest.raises(ValueError, match=r"cut\.jsonl\.zst: damaged behind line .*fetch the file"):
        list(documents.read_documents(str(path)))
    path.write_bytes(b"no zstd at all")
    with pytest.raises(ValueError, match="damaged behind line 0"):
        list(documents.read_documents(str(path)))
    with pytest.raises(ValueError, match="no such file"):
        list(documents.read_documents(str(tmp_path / "absent.jsonl")))
