"""The same articles give the same text, and so the same parts, through every door. CPU, seconds.

Of text that the project wraps for the clean-up itself nothing is lost.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from mlperf_bert.data import articles, documents, segmentation, wiki
from mlperf_bert.messages import as_lines
from tests.data import doors
from tests.data.generated_wiki import sentences
from tests.data.making import clean_up

ODD_TEXTS = [
    "",
    "One.",
    "a\r\nb\rc",
    "Ünï 東京\n",
]


def generated(seed: int) -> list[dict[str, str]]:
    """Articles with odd texts and names."""
    texts = [*ODD_TEXTS, *sentences(seed, 40).split("\n\n")]
    names = ({"id": str(n), "url": f"u?{n}", "title": f'Title "{n}" é'} for n in range(len(texts)))
    return [name | {"text": text} for name, text in zip(names, texts)]


def written(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("wiki_??????"))]


@pytest.mark.parametrize("door", documents.SUFFIXES)
def test_documents_become_what_wikiextractor_writes(tmp_path, door):
    given = generated(1)
    path = doors.write(tmp_path / f"a{door}", given)
    articles.write_articles(str(path), tmp_path / "a", "text")
    assert written(tmp_path / "a") == [doors.as_text(given).encode()]


def test_a_file_holds_whole_articles_up_to_its_last_byte(tmp_path, monkeypatch):
    given = [b"abc", b"d", b"ef", b"ghijk", b"l", b"m"]
    files = [[b"abc", b"d"], [b"ef"], [b"ghijk"], [b"l", b"m"]]
    monkeypatch.setattr(articles, "FILE_BYTES", 4)
    assert list(articles.in_files(given)) == files

    path = doors.write(tmp_path / "a.parquet", generated(2))
    monkeypatch.setattr(articles, "FILE_BYTES", 3000)
    articles.write_articles(str(path), tmp_path / "a", "text")
    assert b"".join(written(tmp_path / "a")) == doors.as_text(generated(2)).encode()
    doors.write(path, generated(2)[:3])
    with pytest.raises(ValueError, match=r"wiki_000001: this run does not make it; remove "):
        articles.write_articles(str(path), tmp_path / "a", "text")


def test_names_of_other_kinds_and_none_at_all(tmp_path):
    pq.write_table(
        pa.table(
            {
                "title": ["a\nb", None],
                "id": pa.array([7, 8], pa.int64()),
                "url": pa.array([1.5, 2.5]),
                "body": pa.array(["x", "y"], pa.large_string()).dictionary_encode(),
                "text": pa.array([[1], [2]]),
            }
        ),
        tmp_path / "a.parquet",
    )
    articles.write_articles(str(tmp_path / "a.parquet"), tmp_path / "a", "body")
    assert written(tmp_path / "a") == [
        b'<doc id="7" url="" title="a b">\na b\n\nx\n\n</doc>\n'
        b'<doc id="8" url="" title="">\n\n\ny\n\n</doc>\n'
    ]
    line = json.dumps({"body": "x", "id": 7, "url": [1], "title": None})
    (tmp_path / "b.jsonl").write_text(line)
    found = list(documents.read_documents(str(tmp_path / "b.jsonl"), text_column="body"))
    assert found == [{"text": "x", "id": "7", "url": "", "title": ""}]


def results_in(folder: Path) -> dict[str, bytes]:
    """The clean-up's results."""
    return {path.name: path.read_bytes() for path in (folder / "results").iterdir()}


def process_wiki(folder, punkt, pattern, **environment):
    given = {"PUNKT": str(punkt), "NUM_TEST_ARTICLES": "9", "BLOCK_SIZE": "0.04"} | environment
    done = clean_up("process_wiki.sh", pattern, folder=folder, **given)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    assert f"note: {punkt}: not the published tables (abbrev_types.txt, " in done.stderr
    return results_in(folder)


def parquet(path: Path, **columns) -> None:
    pq.write_table(pa.table(columns), path)


def with_checksums(path: Path) -> None:
    plain = {"compression": "NONE", "use_dictionary": False}  # only the checksum tells
    text = "Words of an article. " * 9000
    pq.write_table(pa.table({"text": [text] * 9}), path, write_page_checksum=True, **plain)
    content = bytearray(path.read_bytes())
    content[3 * len(content) // 10] ^= 1
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    parquet(path, text=["a"] * 9)
    path.write_bytes(path.read_bytes()[:-50])


def packed(share: float) -> bytes:
    """Lines that are cut off within what is compressed."""
    lines = "".join(f'{{"text": "Text {n}, {n * n}."}}\n' for n in range(2000))
    whole = zstandard.compress(lines.encode())
    return whole[: int(share * len(whole))]


NOT_UTF_8 = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
)
BAD_PARQUET = {
    "no column": (
        lambda path: parquet(path, id=["1"], body=["a"]),
        "row 1: holds no text in 'text'; fix or remove it, or name another column or key with "
        "--text_column (TEXT_COLUMN=... for process_wiki.sh), of id, body",
    ),
    "no text": (lambda path: parquet(path, text=[b"a"]), "row 1: holds no text in 'text'"),
    "null": (lambda path: parquet(path, text=["a"] * 99 + [None]), "row 100: holds no text"),
    "not UTF-8": (lambda path: parquet(path, text=NOT_UTF_8), "damaged behind row 0 ('utf-8' "),
    "no rows": (lambda path: parquet(path, text=pa.array([], pa.string())), "holds no document"),
    "no bytes": (Path.touch, "damaged behind row 0"),
    "cut off": (cut_off, "damaged behind row 0"),
    "a changed byte": (with_checksums, "damaged behind row 0"),
    "no file": (lambda path: path.symlink_to("none"), "No such file"),
    "a FIFO": (os.mkfifo, "is not a regular file; give one"),
}
BAD_LINES = {
    "half a line.jsonl": (b'{"text": "a"}\n{"text": \n', "line 2: damaged (not JSON"),
    "a list.jsonl": (b'{"text": "a"}\n\n[1]\n', "line 3: holds no text in 'text'; fix or rem"),
    "other bytes.jsonl": (b'{"text": "\xff"}\n', "line 1: damaged (not JSON"),
    "half of zstd.jsonl.zst": (packed(0.5), "damaged behind line "),
    "nearly all of zstd.jsonl.zst": (packed(0.99), "damaged behind line "),
    "no zstd.jsonl.zst": (b"no zstd at all", "damaged behind line 0"),
}
BAD_FILES = {f"{name}.parquet": row for name, row in BAD_PARQUET.items()} | {
    name: (functools.partial(Path.write_bytes, data=content), message)
    for name, (content, message) in BAD_LINES.items()
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_one_line(tmp_path, name):
    make, message = BAD_FILES[name]
    make(path := tmp_path / name)
    with pytest.raises((ValueError, OSError)) as caught:
        articles.write_articles(str(path), tmp_path / "a", "text")
    told = as_lines(caught.value)
    assert told.startswith(f"{path}: ") and message in told and "\n" not in told
    assert not written(tmp_path / "a")


def test_scripts_say_the_same_in_one_line(tmp_path, punkt, stage):
    def extract(folder, *words) -> str:
        return stage("extract_documents.py", f"--out_dir={folder}/text", "--nworker=1", *words)

    parquet(tmp_path / "a.parquet", body=["a"])
    line = extract(tmp_path, f"--data={tmp_path}/*.parquet")
    assert line.startswith("extract_documents.py: ") and "for process_wiki.sh), of body" in line
    assert not extract(tmp_path, f"--data={tmp_path}/*.parquet", "--text_column=body")

    parquet(tmp_path / "b.parquet", body=["b"])
    line = extract(tmp_path, f"--data={tmp_path}/b*", "--text_column=body")
    assert f"{tmp_path}/text: holds a, which this run does not make (1 of this kind)" in line
    (tmp_path / "b.jsonl").write_text("\n")
    line = extract(tmp_path / "c", f"--data={tmp_path}/b.*")
    assert "c/text/b: is the same file as" in line
    line = extract(tmp_path, f"--data={tmp_path}/text/*/wiki*")
    assert "expected a name that ends with .jsonl, .json, .jsonl.zst," in line

    line = stage("cleanup_file.py", f"--data={tmp_path}/*.jsonl")
    assert "b.jsonl: documents, not text; run extract_documents.py first" in line
    words = (f"--punkt={punkt}", f"--data={tmp_path}/a.parquet")
    line = stage("do_sentence_segmentation.py", *words)
    assert "a.parquet: documents, not text; run extract_documents.py" in line
    for words in ("--test_output=gs://b/eval", "--data=gs://b/eval"):
        line = stage("seperate_test_set.py", words)
        assert f"{words}: give a local path, and copy it from or to" in line


PEAK_MIB = """
import resource, sys
from mlperf_bert.data.documents import read_documents
assert sum(len(document["text"]) for document in read_documents(sys.argv[1])) == int(sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@pytest.mark.all
def test_a_row_group_of_hundreds_of_megabytes_takes_little_memory(repository, tmp_path):
    def peak_mib(num_rows: int) -> float:
        path, row_bytes = tmp_path / f"{num_rows}.parquet", 20_000
        schema = pa.schema([("text", pa.string())])
        with pq.ParquetWriter(path, schema, use_dictionary=False) as file:
            rows = [os.urandom(row_bytes // 2).hex() for _ in range(num_rows)]
            file.write_table(pa.table({"text": rows}), row_group_size=num_rows)
        command = [sys.executable, "-c", PEAK_MIB, path, str(num_rows * row_bytes)]
        return float(subprocess.check_output(command, cwd=repository))

    assert peak_mib(10_000) < peak_mib(100) + 64


@pytest.mark.gate
def test_the_same_parts_through_every_door(tmp_path, punkt):
    results = {}
    for door in ("", ".parquet"):  # what the others give equals these files
        folder = tmp_path / f"work {door}"
        folder.mkdir()
        for number in range(5):
            doors.write(folder / f"wiki_0{number}{door}", generated(number))
        results[door] = process_wiki(folder, punkt, f"wiki_??{door}")
    assert len(results[""]) > 4
    assert results[".parquet"] == results[""]


OWN_TEXTS = [
    "Start it with <docker-name> on a host.\nThis follows it. So does this.",
    '<doc id="1" url="u" title="A title">\nA title\n\nA text.\n\n</doc>',
    "</doc>",
    "In a line </doc> and <doc . And <doc>\n\n</doc>\nA last line.",
    "<DOC>\nIt has < doc >, <  doc, </ doc>, <docs/>, <doc<doc and </doc</doc>.\n</DOC>",
    "It has\x0ba line\x0cwith\x1cmany\x85other\u2028ends\ufeff. And\r\none\rmore.",
    "\ufeffIt begins with a mark.\n \x85\n\u2028\nIt ends here.",
    "<doc",
]


@pytest.mark.parametrize("door", [".jsonl", ".parquet"])
def test_nothing_is_lost_of_what_a_documents_own_text_has(tmp_path, punkt, door):
    given = [{"id": "1", "title": "<doc> a\rtitle </doc>", "text": text} for text in OWN_TEXTS]
    path = doors.write(tmp_path / f"own{door}", given)
    articles.write_articles(str(path), tmp_path / "own", "text")
    name = f"{tmp_path}/own/wiki_000000"
    wiki.write_stage_1(name, f"{name}.1")
    wiki.write_stage_2(f"{name}.1", f"{name}.2")
    segmentation.write_stage_3(f"{name}.2", f"{name}.3", punkt)
    sentences = Path(f"{name}.3").read_text(encoding="utf-8")
    assert sentences.split() == " ".join(OWN_TEXTS).split()
    assert len(sentences.strip().split("\n\n")) == len(OWN_TEXTS)


def test_wikiextractors_own_text_keeps_the_quirk_of_its_tags():
    text = "<doc>\nTitle\n\nIt has <docks>.\nThis is lost.\nThis </doc> too.\nIt ends.\n</doc>\n"
    assert wiki.drop_tags_and_titles(text) == "\n\nIt ends.\n"
    assert wiki.apply_rules("<doc of a stage>\nOf </doc> a text.\n") == "Of \r a text.\n"


def test_a_nul_in_a_tag_of_ones_own_is_refused_as_any_other(tmp_path):
    doors.write(tmp_path / "own.jsonl", [{"text": "One.\nTwo <\0doc."}])
    articles.write_articles(f"{tmp_path}/own.jsonl", tmp_path / "own", "text")
    name = f"{tmp_path}/own/wiki_000000"
    wiki.write_stage_1(name, f"{name}.1")
    with pytest.raises(ValueError, match=r"wiki_000000\.1: a NUL character; remove it \(.*JSON"):
        wiki.write_stage_2(f"{name}.1", f"{name}.2")
