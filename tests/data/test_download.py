"""download_and_uncompress.sh: fetched from a server on loopback that stands for the published one.

A copy of the script has a list of MD5s of small files with the published names.
"""

import bz2
import hashlib
import io
import os
import re
import shutil
import urllib.request
import zipfile
from pathlib import Path

import nltk.downloader
import pytest

from mlperf_bert.data import published, punkt
from tests.data.file_server import serving
from tests.data.making import clean_up, packed
from tests.fixtures import REPOSITORY, lacking
from tests.helpers import programs

SCRIPT = "cleanup_scripts/download_and_uncompress.sh"
LIST = "mlperf_bert/data/published.md5"
CONFIG = ["bert_config.json", "vocab.txt"]
TF1 = [f"tf1_ckpt/model.ckpt-28252.{end}" for end in ("index", "meta", "data-00000-of-00001")]
TF2 = [f"tf2_ckpt/model.ckpt-28252.{end}" for end in ("index", "data-00000-of-00001")]
DUMP = "enwiki-20200101-pages-articles-multistream.xml"
TEXT = "results_text.tar.gz"
TEXTS = {
    name: f"{name}\n".encode() for name in [*published.PUBLISHED_PARTS, "eval.md5", "eval.txt"]
}
UNPACKED = {f"results/{name}": text for name, text in TEXTS.items()}
XML = b"<page>text</page>\n" * 10_000
FETCHED = {name: os.urandom(2000) for name in CONFIG + TF1 + TF2} | {
    TEXT: packed(*((f"results4/{name}", text) for name, text in TEXTS.items())),
    f"{DUMP}.bz2": bz2.compress(XML),
}
FILES = {**FETCHED, **UNPACKED, DUMP: XML}


def place_of(name: str) -> str:
    """Where MLCommons has a file, under the folder of the benchmark."""
    folder = "processed_dataset" if name == TEXT else "input_files"
    return f"{folder}/{name.replace('28252.data', '28252-003.data') if name in TF1 else name}"


class Room:
    """A folder with a copy of the script, beside a server of the published places."""

    def __init__(self, folder: Path, server):
        self.folder, self.server = folder, server
        for name in (SCRIPT, LIST):
            (folder / name).parent.mkdir(parents=True)
        shutil.copy(REPOSITORY / SCRIPT, folder / SCRIPT)
        server.files = {f"/{place_of(name)}": content for name, content in FETCHED.items()}
        self.publish()

    def publish(self) -> None:
        """Writes the list of MD5s."""
        lines = (REPOSITORY / LIST).read_text().splitlines()
        names = [line.split()[1] for line in lines]
        md5s = (hashlib.md5(FILES[name]).hexdigest() for name in names)
        text = "".join(f"{md5}  {name}\n" for md5, name in zip(md5s, names))
        (self.folder / LIST).write_text(text)

    def run(self, *words: str, **environment):
        given = {"env": {**os.environ, **environment}, "cwd": self.folder}
        if not shutil.which("curl"):
            lacking("curl is not installed: apt-get install curl")
        url = [f"--base_url={self.server.url}/"]
        if any("--base_url" in word for word in words):
            url = []
        return programs.run(f"./{SCRIPT}", *url, *words, **given)

    def brings(self, *words: str, **environment) -> list[str]:
        """The places that the server was asked for by a call that ends well."""
        self.server.requests.clear()
        done = self.run(*words, **environment)
        assert done.returncode == 0, done.stderr
        return [path[1:] for path, _ in self.server.requests]

    def refusal(self, *words: str, code: int = 1, **given) -> str:
        """The last line of a call that fails; what comes before is curl's or tar's."""
        done = self.run(*words, **given)
        assert done.returncode == code, done.stderr
        line = done.stderr.splitlines()[-1]
        assert line.startswith("download_and_uncompress.sh: ")
        return line.removeprefix("download_and_uncompress.sh: ")

    def files(self) -> dict[str, bytes]:
        wiki = self.folder / "wiki"
        paths = [path for path in wiki.rglob("*") if path.is_file()]
        return {path.relative_to(wiki).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def room(tmp_path):
    with serving() as server:
        yield Room(tmp_path, server)


def test_without_words_all_that_a_run_needs_comes_whole_and_once(room):
    assert room.brings() == [place_of(name) for name in [*CONFIG, *TF1, TEXT]]
    assert room.files() == {name: FILES[name] for name in [*CONFIG, *TF1, TEXT, *UNPACKED]}
    assert room.brings() == []


def test_other_words_bring_theirs(room):
    assert room.brings("dump", "tf2") == [place_of(name) for name in [f"{DUMP}.bz2", *TF2]]
    assert room.files() == {name: FILES[name] for name in [*TF2, f"{DUMP}.bz2", DUMP]}
    assert room.brings("dump") == []
    (room.folder / "wiki" / f"{DUMP}.bz2").unlink()
    assert room.brings("dump") == []


def test_a_broken_download_goes_on(room):
    room.server.plan = ["half"]
    assert "bert_config.json: not whole yet, or not the" in (told := room.refusal("config"))
    assert "(curl ended with 18 at http" in told and "repeat the command to go on" in told
    assert room.files() == {"bert_config.json.partial": FILES["bert_config.json"][:1000]}
    room.brings("config")
    assert room.server.requests[0][1] == "bytes=1000-"
    assert room.files() == {name: FILES[name] for name in CONFIG}


def test_what_is_not_the_published_file_gets_no_name(room):
    """A page for a login is such a file; what is whole and only lacks its name is taken."""
    room.server.plan = ["page"]
    told = room.refusal("config")
    assert "bert_config.json: not whole yet, or not the published file (curl ended with 0" in told
    assert "remove wiki/bert_config.json.partial to begin again" in told
    assert list(room.files()) == ["bert_config.json.partial"]
    (room.folder / "wiki/bert_config.json.partial").write_bytes(FILES["bert_config.json"])
    room.brings("config")
    assert room.files() == {name: FILES[name] for name in CONFIG}


@pytest.mark.parametrize(
    ("words", "name"),
    [("tf1", TF1[2]), ("text", TEXT), ("text", "results/eval.md5"), ("dump", DUMP)],
)
def test_a_file_that_is_there_and_wrong_is_named_and_not_touched(room, words, name):
    path = room.folder / "wiki" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"foreign")
    told = room.refusal(words)
    assert told.startswith(f"wiki/{Path(name).parts[0]}") and re.search(
        "remove it|move it aw", told
    )
    assert path.read_bytes() == b"foreign"


def test_a_folder_in_which_their_downloader_was_started_is_a_place(room):
    there = room.folder / "a place"
    for name in CONFIG + TF1:
        path = there / place_of(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(FILES[name])
    assert room.brings("config", "tf1", f"--base_url=file://{there}", "--out_dir=a/b c") == []
    assert (room.folder / "a/b c" / TF1[2]).read_bytes() == FILES[TF1[2]]


WORDS = "choose of config tf1 tf2 dump text punkt --out_dir= --base_url="


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["config", "confg"], f"confg: {WORDS}"),
        (["--out_dir", "wiki"], f"--out_dir: {WORDS}"),
        (["--out_dir= "], "--out_dir= : name a local folder"),
        (["--out_dir=gs://bucket/wiki"], "--out_dir=gs://bucket/wiki: name a local folder"),
        (["--base_url="], "--base_url=: name a URL, such as https://HOST/FOLDER or file:///FOLDER"),
    ],
)
def test_other_words_are_refused_before_anything_is_done(room, words, message):
    assert room.refusal(*words, code=2) == message
    assert not (room.folder / "wiki").exists() and not room.server.requests


def test_punkt_is_fetched_from_an_index_when_missing(tmp_path, monkeypatch):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in punkt.PUBLISHED_SHA256:
            archive.writestr(f"punkt_tab/english/{name}", "")
    zipped = content.getvalue()
    with serving(**{"/punkt_tab.zip": zipped}) as server:
        server.files["/index.xml"] = (
            f'<nltk_data><packages><package id="punkt_tab" subdir="tokenizers" unzip="1" '
            f'size="{len(zipped)}" unzipped_size="0" checksum="{hashlib.md5(zipped).hexdigest()}" '
            f'url="{server.url}/punkt_tab.zip"/></packages><collections/></nltk_data>'
        ).encode()
        monkeypatch.setattr("nltk.data.path", [str(tmp_path)])
        monkeypatch.setattr(nltk.downloader._downloader, "_url", f"{server.url}/index.xml")
        monkeypatch.setattr("nltk.downloader.urlopen", urllib.request.urlopen)  # it bars loopback
        assert punkt.find_or_fetch() == tmp_path / "tokenizers/punkt_tab/english"
        server.files.clear()
        monkeypatch.setattr("nltk.data.path", [str(tmp_path / "other")])
        with pytest.raises(ValueError, match=r"nltk\.downloader punkt_tab.*PUNKT="):
            punkt.find_or_fetch()


def test_other_tables_of_punkt_that_are_there_are_named(tmp_path, punkt):
    folder = shutil.copytree(punkt, tmp_path / "tokenizers/punkt_tab/english")
    words = (f"--out_dir={tmp_path}", "punkt")
    done = clean_up("download_and_uncompress.sh", *words, NLTK_DATA=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"punkt: {folder}: abbrev_types.txt, ")
    assert done.stderr.endswith(" not as published; remove it and repeat\n")


def test_the_published_tables_of_punkt_are_known(shared):
    assert not punkt.not_published(shared / "data/nltk_data/tokenizers/punkt_tab/english")


def test_the_md5s_are_those_beside_the_published_lists(shared):
    facts = (shared / "facts" / "published_data.md").read_text()
    listed = dict(
        re.findall(r"^\|[^|]*\| `([^`]+)`[^|]*\| ([0-9a-f]{32}) \|$", facts, re.MULTILINE)
    )
    places = {name: place_of(name).partition("/")[2] for name in FETCHED}
    assert {there: published.MD5S[name] for name, there in places.items()}.items() <= listed.items()
    assert published.MD5S.keys() == {*FETCHED, DUMP} | {
        f"results/{name}" for name in published.PUBLISHED_TEXT
    }
