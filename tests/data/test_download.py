"""Fetching the published files from a loopback server that misbehaves in every way."""

import hashlib
import io
import os
import re
import urllib.request
import zipfile

import pytest

from mlperf_bert.data import download, published, punkt
from mlperf_bert.data.published import PublishedFile
from tests.data.file_server import serving

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
