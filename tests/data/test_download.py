"""The published files, fetched from a loopback server that misbehaves, and unpacked."""

import bz2
import gzip
import hashlib
import io
import os
import re
import urllib.request
import zipfile

import pytest

from mlperf_bert.data import download, provenance, published, punkt
from mlperf_bert.data.published import DUMP, PublishedFile
from tests.data.file_server import serving
from tests.data.making import packed

CONTENT = bytes(range(256)) * 2000
MD5 = hashlib.md5(CONTENT).hexdigest()
PUBLISHED = PublishedFile("vocab.txt", len(CONTENT), MD5)


@pytest.fixture
def server():
    with serving(**{"/vocab.txt": CONTENT}) as server:
        yield server


def fetch(server, path, file=PUBLISHED):
    pauses = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("time.sleep", pauses.append)
        download.fetch(f"{server.url}/vocab.txt", path, file)
    return pauses


@pytest.mark.parametrize(
    ("plan", "pauses"),
    [
        ([], []),
        (["drop"], [1]),
        (["half", "half", "half"], [1, 1, 1]),
        (["half", "ignore range"], [1]),
        (["status 503", "status 429", "half", "drop"], [1, 2, 1, 2]),
    ],
)
def test_all_bytes_arrive_over_bad_connections(server, tmp_path, plan, pauses):
    server.plan = list(plan)
    assert fetch(server, tmp_path / "vocab.txt") == pauses
    assert (tmp_path / "vocab.txt").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.txt"]


def test_a_later_call_goes_on_where_the_first_gave_up(server, tmp_path):
    server.plan = ["half"] + ["drop"] * download.TRIES_WITHOUT_PROGRESS
    with pytest.raises(ValueError, match=r"gave up after 5 tries .*run again to go on"):
        fetch(server, tmp_path / "vocab.txt")
    assert not (tmp_path / "vocab.txt").exists()
    fetch(server, tmp_path / "vocab.txt")
    assert server.ranges[-1] == f"bytes={len(CONTENT) // 2}-"
    assert (tmp_path / "vocab.txt").read_bytes() == CONTENT


@pytest.mark.parametrize("behind", [b"", b"more"])
def test_a_complete_part_needs_no_byte_more_and_one_of_another_file_is_dropped(
    server, tmp_path, behind
):
    (tmp_path / ".vocab.txt.partial").write_bytes(CONTENT + behind)
    fetch(server, tmp_path / "vocab.txt")
    assert (tmp_path / "vocab.txt").read_bytes() == CONTENT
    assert bool(server.requests) == bool(behind)


def test_wrong_bytes_are_refused_and_not_kept(server, tmp_path):
    server.plan = ["wrong bytes"] * 2
    for file in (PUBLISHED, PublishedFile("vocab.txt", None, MD5)):
        with pytest.raises(ValueError, match=r"not the published file \(MD5 \w+, published is"):
            fetch(server, tmp_path / "vocab.txt", file)
    server.files["/vocab.txt"] = CONTENT[:-1]
    with pytest.raises(ValueError, match=r"not the published file \(511,999 bytes, published are"):
        fetch(server, tmp_path / "vocab.txt")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size_bytes", [314, None])
def test_a_server_without_end_is_stopped_at_the_published_size(
    server, tmp_path, monkeypatch, size_bytes
):
    monkeypatch.setattr(published, "UNPUBLISHED_AT_MOST_BYTES", 1 << 20)
    server.plan = ["endless"]
    file = PublishedFile("vocab.txt", size_bytes, MD5)
    at_most = "314" if size_bytes else "1,048,576"
    with pytest.raises(ValueError, match=rf"not the published file \(more than {at_most} bytes\)"):
        fetch(server, tmp_path / "vocab.txt", file)
    assert not list(tmp_path.iterdir())
    assert server.sent_bytes < 16 << 20  # buffers; it would have sent 64 MiB


ESCAPES = "gone \x1b[2J\x1b]0;title\x07\x9b1m"


@pytest.mark.parametrize(
    "plan",
    [
        [f"status 404 {ESCAPES}"],
        [f"status 503 {ESCAPES}"] * 5,
        [f"raw HTTP/1.1 {ESCAPES} OK\r\n\r\n"] * 5,
        [f"raw HTTP/1.1 302 Found\r\nLocation: http://{ESCAPES}:x/\r\n\r\n"],
        [f"raw HTTP/1.1 200 OK\r\nContent-Length: {ESCAPES}\r\n\r\nx"],
        ["raw HTTP/1.1 200 " + "x" * 70_000 + "\r\n\r\n"] * 5,
    ],
    ids=range(6),
)
def test_a_servers_words_do_nothing_to_the_terminal(server, tmp_path, capsys, plan):
    server.plan = plan
    with pytest.raises(ValueError) as raised:
        fetch(server, tmp_path / "vocab.txt")
    printed = capsys.readouterr()
    message = str(raised.value)
    assert message.startswith(f"{tmp_path}/vocab.txt: {server.url}/vocab.txt: ")
    assert message.isprintable() and len(message) <= 1000
    assert (printed.out + printed.err).replace("\n", "").isprintable()


@pytest.mark.parametrize("host", ["", "htp://mirror/", "http:///"])
def test_a_url_that_is_none_is_said_at_once(tmp_path, monkeypatch, host):
    monkeypatch.setattr("time.sleep", pytest.fail)
    with pytest.raises(ValueError, match="not a URL of http or https; check --base_url") as raised:
        download.fetch(f"{host}vocab.txt", tmp_path / "vocab.txt", PUBLISHED)
    assert str(raised.value).startswith(f"{tmp_path}/vocab.txt: {host}vocab.txt: ")


@pytest.mark.parametrize("name", ["vocab.txt", ".vocab.txt.partial"])
def test_a_fifo_in_the_place_of_a_file_is_refused(server, tmp_path, name):
    os.mkfifo(tmp_path / name)
    [(_, problem)] = download.fetch_group([PUBLISHED], tmp_path, base_url=server.url)
    assert f"{tmp_path}/{name}: is not a regular file; give one" in str(problem)


def test_punkt_is_fetched_from_an_index_when_missing(server, tmp_path, monkeypatch):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in punkt.PUBLISHED_SHA256:
            archive.writestr(f"punkt_tab/english/{name}", "")
    zipped = content.getvalue()
    server.files["/punkt_tab.zip"] = zipped
    server.files["/index.xml"] = (
        f'<nltk_data><packages><package id="punkt_tab" subdir="tokenizers" unzip="1" '
        f'size="{len(zipped)}" unzipped_size="0" checksum="{hashlib.md5(zipped).hexdigest()}" '
        f'url="{server.url}/punkt_tab.zip"/></packages><collections/></nltk_data>'
    ).encode()
    monkeypatch.setattr("nltk.data.path", [str(tmp_path)])
    index = f"{server.url}/index.xml"
    monkeypatch.setattr(punkt, "PUNKT_INDEX_URL", index)
    monkeypatch.setattr("nltk.downloader.urlopen", urllib.request.urlopen)  # nltk bars loopback
    found = punkt.find_or_fetch_punkt()
    assert found == tmp_path / "tokenizers/punkt_tab/english"
    server.files.clear()
    monkeypatch.setattr("nltk.data.path", [str(tmp_path / "other")])
    with pytest.raises(ValueError, match="the sentence splitter's tables are missing"):
        punkt.find_or_fetch_punkt()


def test_the_md5s_are_those_beside_the_published_lists(shared):
    facts = (shared / "facts" / "published_data.md").read_text()
    listed = dict(
        re.findall(r"^\|[^|]*\| `([^`]+)`[^|]*\| ([0-9a-f]{32}) \|$", facts, re.MULTILINE)
    )
    files = [file for group in published.GROUPS.values() for file in group]
    assert {file.path_there: file.md5 for file in files}.items() <= listed.items()
    assert {file.place.base_url for file in files} | {file.place.list_url for file in files} == set(
        re.findall(r"`(https://training\.[^`]*)`", facts)
    )


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


def test_the_text_is_unpacked_wherever_it_lies_and_once_of_each_archive(one_part, tmp_path):
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
    path = tmp_path / "results" / "eval.txt"
    first = path.stat().st_mtime_ns
    unpack(tmp_path, content)
    assert path.stat().st_mtime_ns == first
    unpack(tmp_path, WHOLE)  # another archive
    assert path.stat().st_mtime_ns != first


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
