"""Archives that are whole, damaged in every way, unpacked once and again."""

import bz2
import gzip
import hashlib
import json
import random
import tarfile

import pytest

from mlperf_bert.data import unpacking
from mlperf_bert.data.published import DUMP, PublishedFile
from tests.data.making import packed

CONTENT = bytes(range(256)) * 2000
MD5 = hashlib.md5(CONTENT).hexdigest()


def test_the_dump_is_uncompressed_and_checked(tmp_path, monkeypatch):
    xml = PublishedFile(DUMP, len(CONTENT), MD5)
    monkeypatch.setattr(unpacking, "UNCOMPRESSED_DUMP", xml)
    archive = tmp_path / f"{DUMP}.bz2"
    whole = bz2.compress(CONTENT)
    for content, message in [
        (whole[:-20], "cut off; remove it"),
        (bz2.compress(CONTENT[:-1]), "uncompressed its MD5 is"),
        (b"no bz2", r"damaged \(Invalid data stream\); remove it and fetch it again"),
        (bz2.compress(CONTENT * 9), "uncompressed its MD5 is"),
    ]:
        archive.write_bytes(content)
        with pytest.raises((ValueError, OSError), match=message):
            unpacking.uncompress_dump(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [archive.name]
    archive.write_bytes(whole)
    unpacking.uncompress_dump(tmp_path)
    assert (tmp_path / DUMP).read_bytes() == CONTENT
    unpacking.uncompress_dump(tmp_path)  # is there, is checked
    (tmp_path / DUMP).write_bytes(CONTENT[1:])
    with pytest.raises(ValueError, match="511,999 bytes, published are 512,000"):
        unpacking.uncompress_dump(tmp_path)


# A header that announces a long name for the one after it, and a name.
LONG_NAME = tarfile.TarInfo("x" * 101).tobuf(tarfile.GNU_FORMAT)[:1024]
TEXTS = {"eval.txt": b"a\n", "eval.md5": b"0\n", "part-00000-of-00500": b"text\n" * 1000}


@pytest.fixture
def published_text(monkeypatch):
    """Publishes TEXTS, of one part."""
    monkeypatch.setattr(unpacking, "PUBLISHED_PARTS", {"part-00000-of-00500"})
    published = {n: (len(c), hashlib.md5(c).hexdigest()) for n, c in TEXTS.items() if "e" in n[:1]}
    monkeypatch.setattr(unpacking, "PUBLISHED_TEXT", published)
    monkeypatch.setattr(unpacking, "TEXT_AT_MOST_BYTES", 10_000)


def unpack(folder, content: bytes, md5s=None) -> dict[str, bytes]:
    """What lies in the results after an archive was unpacked."""
    (folder / "results_text.tar.gz").write_bytes(content)
    unpacking.unpack_text(folder / "results_text.tar.gz", folder / "results", md5s or {})
    return {path.name: path.read_bytes() for path in (folder / "results").iterdir()}


def test_the_text_is_unpacked_wherever_it_lies_and_recorded(published_text, tmp_path):
    content = packed(("../outside.txt", b"!"), *((f"results4/{n}", c) for n, c in TEXTS.items()))
    found = unpack(tmp_path, content)
    record = json.loads(found.pop(unpacking.RECORD_NAME))
    assert found == TEXTS
    assert not (tmp_path / "outside.txt").exists()
    assert record == {
        "archive": {"name": "results_text.tar.gz", **facts(content)},
        "files": {name: facts(text) for name, text in TEXTS.items()},
    }


def facts(content: bytes) -> dict[str, object]:
    return {"bytes": len(content), "md5": hashlib.md5(content).hexdigest()}


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


WHOLE = packed(*TEXTS.items())


BAD_ARCHIVES = {
    "lacks files": (packed(("a/eval.txt", b"other")), r"lacks 2 files, eval\.md5 is the first"),
    "not as published": (
        packed(*(TEXTS | {"eval.txt": b"b\n"}).items()),
        r"eval\.txt: MD5 \w+ of 2 bytes, published is \w+ of 2; fetch it again",
    ),
    "twice": (packed(*TEXTS.items(), ("old/eval.txt", b"a\n")), r"holds eval\.txt twice"),
    "too large": (packed(("eval.txt", bytes(10_001))), r"damaged \(eval\.txt has 10,001 bytes\)"),
    "cut at once": (WHOLE[:40], r"damaged .*remove it and fetch it again"),
    "cut before the checksum": (WHOLE[:-8], r"damaged or cut off; remove it and fetch it again"),
    "cut in the last byte": (WHOLE[:-1], r"damaged or cut off; remove it and fetch it again"),
    "text": (flipped(WHOLE, WHOLE.index(b"text\n" * 9)), r"damaged \(CRC check failed"),
    "checksum": (flipped(WHOLE, len(WHOLE) - 6), r"damaged \(CRC check failed"),
    "length": (flipped(WHOLE, len(WHOLE) - 1), r"damaged \(Incorrect length of data"),
    "a block's head": (flipped(WHOLE, 12), r"damaged \("),
    "something behind": (WHOLE + b"\x1b[2J", r"damaged \(Not a gzipped file"),
    "empty": (gzip.compress(b""), r"damaged \(empty file"),
    "no archive": (gzip.compress(b"no tar" * 999), r"damaged \("),
    "not compressed": (gzip.decompress(WHOLE), "is a tar archive; unpack it first"),
    "half a header": (gzip.compress(tarfile.TarInfo("x").tobuf()[:300]), r"damaged \("),
    "headers without end": (gzip.compress(LONG_NAME * 3000), r"damaged \("),
}


@pytest.mark.parametrize(("content", "message"), BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
def test_a_bad_archive_is_named_and_leaves_nothing(published_text, tmp_path, content, message):
    with pytest.raises(ValueError, match=message) as raised:
        unpack(tmp_path, content)
    assert str(raised.value).startswith(f"{tmp_path}/results_text.tar.gz: ")
    assert str(raised.value).isprintable()
    assert not list((tmp_path / "results").iterdir())


def test_no_flipped_byte_of_an_archive_goes_unnoticed(published_text, tmp_path):
    """But for the header's time stamp, operating system and flags without meaning."""
    draw = random.Random(18)
    content = packed(*TEXTS.items())
    for place in [draw.randrange(10, len(content)) for _ in range(100)]:
        with pytest.raises(ValueError, match=r"damaged|lacks"):
            unpack(tmp_path, flipped(content, place))
        assert not list((tmp_path / "results").iterdir())


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("eval.txt", TEXTS["eval.txt"], None),
        ("part-00000-of-00500", b"TEXT\n" * 1000, "part-00000-of-00500 is not as recorded"),
        ("part-00000-of-00500", b"", "part-00000-of-00500 is not as recorded"),
        ("eval.md5", None, "eval.md5 is missing"),
        ("unpacked.json", None, None),
        ("unpacked.json", b"{}", "unpacked.json: damaged (lacks 'files')"),
        (
            "unpacked.json",
            b'{"archive": 1, "files": {}}',
            "unpacked.json: damaged ('int' object is not subscriptable)",
        ),
    ],
)
def test_a_second_run_trusts_only_the_record(published_text, tmp_path, capsys, name, content, told):
    unpack(tmp_path, WHOLE)
    (tmp_path / "results" / name).unlink()
    if content is not None:
        (tmp_path / "results" / name).write_bytes(content)
    capsys.readouterr()
    found = unpack(tmp_path, WHOLE)
    assert {name: found[name] for name in TEXTS} == TEXTS
    lines = capsys.readouterr().err.splitlines()
    assert lines == ([f"{tmp_path}/results/{told}; unpacking again"] if told else [])


def test_what_is_recorded_is_not_written_again_and_another_archive_is(
    published_text, tmp_path, capsys
):
    path = tmp_path / "results" / "eval.txt"
    unpack(tmp_path, WHOLE)
    first = path.stat().st_mtime_ns
    unpack(tmp_path, WHOLE)
    assert path.stat().st_mtime_ns == first
    unpack(tmp_path, packed(*reversed(TEXTS.items())))
    assert path.stat().st_mtime_ns != first
    assert "unpacked.json is of another archive; unpacking again" in capsys.readouterr().err
