"""download_and_uncompress.sh, from a folder that stands for the published one.

A copy of the script has a list of MD5s of small files with the published names.
"""

import bz2
import hashlib
import io
import os
import re
import shutil
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import nltk.downloader
import pytest

from mlperf_bert.data import published, punkt
from tests.data.file_server import serving
from tests.data.making import clean_up
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


def packed(texts: dict[str, bytes]) -> bytes:
    """A .tar.gz of files; not compressed, so that flipped bytes fall on their text."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=0) as file:
        for name, text in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            file.addfile(member, io.BytesIO(text))
    return content.getvalue()


FETCHED = {name: os.urandom(2000) for name in CONFIG + TF1 + TF2} | {
    TEXT: packed({f"results4/{name}": text for name, text in TEXTS.items()}),
    f"{DUMP}.bz2": bz2.compress(XML),
}
FILES = {**FETCHED, **UNPACKED, DUMP: XML}


def place_of(name: str) -> str:
    """Where MLCommons has a file, under the folder of the benchmark."""
    folder = "processed_dataset" if name == TEXT else "input_files"
    return f"{folder}/{name.replace('28252.data', '28252-003.data') if name in TF1 else name}"


class Room:
    """A folder with a copy of the script, beside the published places."""

    def __init__(self, folder: Path):
        self.folder, self.published = folder, folder / "the published"
        for name in (SCRIPT, LIST):
            (folder / name).parent.mkdir(parents=True)
        shutil.copy(REPOSITORY / SCRIPT, folder / SCRIPT)
        for name, content in FETCHED.items():
            path = self.published / place_of(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        names = [line.split()[1] for line in (REPOSITORY / LIST).read_text().splitlines()]
        md5s = {name: hashlib.md5(FILES[name]).hexdigest() for name in names}
        (folder / LIST).write_text("".join(f"{md5}  {name}\n" for name, md5 in md5s.items()))

    def run(self, *words: str):
        if not shutil.which("curl"):
            lacking("curl is not installed: apt-get install curl")
        return programs.run(
            f"./{SCRIPT}", f"--base_url=file://{self.published}/", *words, cwd=self.folder
        )

    def brings(self, *words: str) -> dict[str, bytes]:
        """All files that are there after a call that ends well."""
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return self.files()

    def refusal(self, *words: str, code: int = 1) -> str:
        """The last line of a call that fails; what comes before is curl's or tar's."""
        done = self.run(*words)
        assert done.returncode == code, done.stderr
        line = done.stderr.splitlines()[-1]
        assert line.startswith("download_and_uncompress.sh: ")
        return line.removeprefix("download_and_uncompress.sh: ")

    def files(self) -> dict[str, bytes]:
        wiki = self.folder / "wiki"
        paths = [path for path in wiki.rglob("*") if path.is_file()]
        return {path.relative_to(wiki).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def room(tmp_path) -> Room:
    return Room(tmp_path)


@pytest.mark.parametrize(
    ("words", "names"),
    [([], [*CONFIG, *TF1, TEXT, *UNPACKED]), (["dump", "tf2"], [*TF2, f"{DUMP}.bz2", DUMP])],
)
def test_words_bring_their_files_whole_and_once(room, words, names):
    assert room.brings(*words) == {name: FILES[name] for name in names}
    shutil.rmtree(room.published)
    (room.folder / "wiki" / f"{DUMP}.bz2").unlink(missing_ok=True)
    assert room.brings(*words).keys() == set(names) - {f"{DUMP}.bz2"}


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


def test_a_server_that_breaks_off_or_that_sends_a_page_leaves_no_file(room):
    """What has come is kept; what is whole is taken, though the server has no more to send."""
    config, vocab = CONFIG
    files = {f"/mirror/{place_of(name)}": FILES[name] for name in CONFIG}
    with serving(files) as server:
        words = ("config", f"--base_url={server.url}/mirror/")
        server.plan = ["half", "serve", "page"]
        told = f"{config}: not whole yet, or not the published file (curl ended with 18 at http"
        assert told in (line := room.refusal(*words)) and ": repeat the command to resume, " in line
        assert room.files() == {f"{config}.partial": FILES[config][:1000]}
        line = room.refusal(*words)
        assert "(curl ended with 0 at" in line
        assert line.endswith(f" or remove wiki/{vocab}.partial to begin again")
        assert room.files().keys() == {config, f"{vocab}.partial"}
        assert [range for _, range in server.requests] == [None, "bytes=1000-", None]
        (room.folder / "wiki" / f"{vocab}.partial").unlink()
        content = files.pop(f"/mirror/{place_of(vocab)}")
        assert "(curl ended with 22 at" in room.refusal(*words)
        assert room.files().keys() == {config}
        files[f"/mirror/{place_of(vocab)}"] = content
        (room.folder / "wiki" / config).rename(room.folder / "wiki" / f"{config}.partial")
        assert room.brings(*words) == {name: FILES[name] for name in CONFIG}
        assert server.requests[-2] == (f"/mirror/{place_of(config)}", "bytes=2000-")


def test_a_folder_in_which_their_downloader_was_started_is_a_place(room):
    words = (f"--base_url=file://{room.published}", "--out_dir=a/b c")
    assert not room.brings("config", "tf1", *words)
    there = {name: (room.folder / "a/b c" / name).read_bytes() for name in CONFIG + TF1}
    assert there == {name: FILES[name] for name in CONFIG + TF1}


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
    assert not (room.folder / "wiki").exists()


def test_punkt_is_fetched_from_an_index_when_missing(tmp_path, monkeypatch):
    zipped = tmp_path / "punkt_tab.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        for name in punkt.PUBLISHED_SHA256:
            archive.writestr(f"punkt_tab/english/{name}", "")
    md5 = hashlib.md5(zipped.read_bytes()).hexdigest()
    (tmp_path / "index.xml").write_text(
        f'<nltk_data><packages><package id="punkt_tab" subdir="tokenizers" unzip="1" '
        f'size="{zipped.stat().st_size}" unzipped_size="0" checksum="{md5}" '
        f'url="file://{zipped}"/></packages><collections/></nltk_data>'
    )
    monkeypatch.setattr("nltk.data.path", [str(tmp_path)])
    monkeypatch.setattr(nltk.downloader._downloader, "_url", f"file://{tmp_path}/index.xml")
    monkeypatch.setattr("nltk.downloader.urlopen", urllib.request.urlopen)  # it bars such places
    assert punkt.find_or_fetch() == tmp_path / "tokenizers/punkt_tab/english"
    zipped.unlink()
    monkeypatch.setattr("nltk.data.path", [str(tmp_path / "other")])
    with pytest.raises(ValueError, match=r"nltk\.downloader punkt_tab.*PUNKT="):
        punkt.find_or_fetch()


def test_other_tables_of_punkt_that_are_there_are_named(tmp_path, punkt, stage, monkeypatch):
    folder = shutil.copytree(punkt, tmp_path / "tokenizers/punkt_tab/english")
    monkeypatch.setattr("nltk.data.path", [str(tmp_path)])
    line = stage("punkt")
    assert line.startswith(f"punkt: {folder}: abbrev_types.txt, ")
    assert line.endswith(" not as published; remove it and repeat")


def test_the_published_tables_of_punkt_are_told(tmp_path, clean_up, monkeypatch, capsys):
    monkeypatch.setattr(punkt, "find_or_fetch", lambda: tmp_path)
    monkeypatch.setattr(punkt, "not_published", lambda _: [])
    monkeypatch.setattr(sys, "argv", ["clean_up.py", "punkt"])
    assert clean_up() == 0
    assert capsys.readouterr().out == f"{tmp_path}: as published\n"


def test_help_names_every_word(room):
    done = room.run("config", "--help")
    assert done.returncode == 0 and not done.stderr and not (room.folder / "wiki").exists()
    usage, *lines = done.stdout.splitlines()
    assert usage == "usage: download_and_uncompress.sh [WORD ...] [--out_dir=wiki] [--base_url=URL]"
    assert [line.split("  ")[1] for line in lines if line.startswith("  ")] == [
        "config", "tf1, tf2", "text", "dump", "punkt",
    ]  # fmt: skip
    for text in ("into OUT_DIR by curl, checks them by their MD5s and unpacks", "text: config tf1"):
        assert text in done.stdout.replace("Without words", "text")


def test_what_is_done_is_told(room, monkeypatch):
    done = room.run("config")
    place = f"file://{room.published}/input_files/".replace(" ", "%20")
    assert done.stdout.splitlines() == [f"wiki/{name}: as published" for name in CONFIG]
    told = [line for line in done.stderr.splitlines() if re.match("fetching|comparing", line)]
    assert told == [
        line.format(name)
        for name in CONFIG
        for line in (
            f"fetching {place}{{}}",
            "comparing wiki/{}.partial with its published MD5; the dump takes minutes",
        )
    ]
    assert room.run("config").stdout == done.stdout
    done = room.run("text")
    assert done.stdout.splitlines()[-1] == (
        "wiki/results: the eight files with published MD5s are as published"
    )
    monkeypatch.setenv("HOME", str(room.folder))
    told = [f"{room.folder}/wiki/{name}: as published" for name in CONFIG]
    assert room.run("config", "--out_dir=~/wiki").stdout.splitlines() == told


FULL = "echo no room >&2; exit 1"


@pytest.mark.parametrize(
    ("word", "name", "size", "does"),
    [
        ("text", TEXT, "14 GB", FULL),
        ("dump", f"{DUMP}.bz2", "75 GB", FULL),
        ("dump", f"{DUMP}.bz2", "75 GB", "echo half of it"),
    ],
)
def test_what_cannot_be_unpacked_is_told_and_later_begun_again(room, word, name, size, does):
    """As on a full disk; what is left of it is in no one's way."""
    wiki = room.folder / "wiki"
    (wiki / "results.partial" / "old").mkdir(parents=True)
    (wiki / "results.partial" / "old" / "eval.txt").write_bytes(b"old")
    path = os.environ["PATH"]
    for program in ("tar", "bzip2"):
        programs.stand_in(room.folder / "bin" / program, does)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", f"{room.folder}/bin:{path}")
        told = f"not unpacked; make room for {size} and repeat the command"
        assert room.refusal(word) == f"wiki/{name}: {told}"
    made = room.brings(word)
    assert made[name] == FILES[name] and all(
        made[each] == FILES[each] for each in made.keys() & FILES.keys()
    )
    assert (DUMP in made) if word == "dump" else UNPACKED.keys() <= made.keys()
    assert word == "dump" or not (wiki / "results.partial").exists()


def test_the_word_punkt_starts_this_stage(tmp_path):
    python = programs.stand_in(tmp_path / "python", 'echo "$@"')
    words = (f"--out_dir={tmp_path}", "punkt")
    done = clean_up("download_and_uncompress.sh", *words, check=True, PYTHON=str(python))
    assert done.stdout.endswith("/cleanup_scripts/clean_up.py punkt\n")


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
