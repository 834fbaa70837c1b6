"""Archives that are whole or damaged, unpacked once and again."""

import bz2
import gzip
import hashlib

import pytest

from mlperf_bert.data import download, provenance
from mlperf_bert.data.published import DUMP, PublishedFile
from tests.data.making import packed

CONTENT = bytes(range(256)) * 2000
MD5 = hashlib.md5(CONTENT).hexdigest()


def test_the_dump_is_uncompressed_and_checked(tmp_path, monkeypatch):
    xml = PublishedFile(DUMP, len(CONTENT), MD5)
    monkeypatch.setattr(download, "UNCOMPRESSED_DUMP", xml)
    archive = tmp_path / f"{DUMP}.bz2"
    whole = bz2.compress(CONTENT)
    for content in (whole[:-20], b"no bz2", b""):
        archive.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"\.bz2: damaged \(.*remove it, fetch it again|0 bytes"
        ):
            download.uncompress_dump(tmp_path)
        (tmp_path / DUMP).unlink(missing_ok=True)
        assert [path.name for path in tmp_path.iterdir()] == [archive.name]
    archive.write_bytes(whole)
    for _ in range(2):  # the second call checks what is there
        download.uncompress_dump(tmp_path)
        assert (tmp_path / DUMP).read_bytes() == CONTENT
    (tmp_path / DUMP).write_bytes(CONTENT[1:])
    with pytest.raises(ValueError, match="511,999 bytes, published are 512,000"):
        download.uncompress_dump(tmp_path)


TEXTS = {"eval.txt": b"a\n", "eval.md5": b"0\n", "part-00000-of-00500": b"text\n" * 1000}
WHOLE = packed(*TEXTS.items())


@pytest.fixture
def one_part(monkeypatch):
    monkeypatch.setattr(download, "PUBLISHED_PARTS", {"part-00000-of-00500"})


def unpack(folder, content: bytes) -> dict[str, bytes]:
    """What lies in the results after an archive was unpacked."""
    (folder / "text.tar.gz").write_bytes(content)
    file = PublishedFile("text.tar.gz", len(content), hashlib.md5(content).hexdigest())
    download.unpack_text(file, folder)
    return {path.name: path.read_bytes() for path in (folder / "results").iterdir()}


def test_the_text_is_unpacked_wherever_it_lies_and_recorded(one_part, tmp_path):
    content = packed(("../outside.txt", b"!"), *((f"results4/{n}", c) for n, c in TEXTS.items()))
    found = unpack(tmp_path, content)
    del found[provenance.NAME]
    assert found == TEXTS
    assert not (tmp_path / "outside.txt").exists()
    [record] = provenance.read(tmp_path / "results")
    assert [file.path for file in record.inputs] == ["../text.tar.gz"]
    assert {file.path: file.digest for file in record.outputs} == {
        name: f"sha256:{hashlib.sha256(text).hexdigest()}" for name, text in TEXTS.items()
    }


BAD_ARCHIVES = {
    "lacks files": (packed(("a/eval.txt", b"other")), r"lacks 2 files, eval\.md5 is the first"),
    "cut at once": (WHOLE[:20], r"damaged \("),
    "no archive": (gzip.compress(b"no tar" * 999), r"damaged \("),
}


@pytest.mark.parametrize(("content", "message"), BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
def test_a_bad_archive_is_named_and_leaves_no_record(one_part, tmp_path, content, message):
    with pytest.raises(ValueError, match=message) as raised:
        unpack(tmp_path, content)
    assert str(raised.value).startswith(f"{tmp_path}/text.tar.gz: ")
    assert str(raised.value).isprintable()
    assert not (tmp_path / "results" / provenance.NAME).exists()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("part-00000-of-00500", b"TEXT\n" * 1000, "its content has changed"),
        ("part-00000-of-00500", b"", "0 bytes, 5,000 were recorded"),
        ("eval.md5", None, "eval.md5: missing"),
        (provenance.NAME, None, "not unpacked yet"),
    ],
)
def test_a_second_call_trusts_only_the_record(one_part, tmp_path, capsys, name, content, told):
    unpack(tmp_path, WHOLE)
    (tmp_path / "results" / name).unlink()
    if content is not None:
        (tmp_path / "results" / name).write_bytes(content)
    capsys.readouterr()
    found = unpack(tmp_path, WHOLE)
    assert {name: found[name] for name in TEXTS} == TEXTS
    assert told in capsys.readouterr().err


def test_what_is_recorded_is_not_written_again_and_another_archive_is(one_part, tmp_path):
    path = tmp_path / "results" / "eval.txt"
    unpack(tmp_path, WHOLE)
    first = path.stat().st_mtime_ns
    unpack(tmp_path, WHOLE)
    assert path.stat().st_mtime_ns == first
    unpack(tmp_path, packed(*reversed(TEXTS.items())))
    assert path.stat().st_mtime_ns != first
