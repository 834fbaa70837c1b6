"""download_and_uncompress.sh: fetched from a server on loopback that stands for the published one.

A copy of the script has a list of MD5s of small files with the published names.
"""

import bz2
import fcntl
import hashlib
import io
import os
import re
import shutil
import urllib.request
import zipfile
from pathlib import Path

import pytest

from mlperf_bert.data import published, punkt
from tests.data.file_server import serving
from tests.data.making import clean_up, packed
from tests.fixtures import REPOSITORY
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
        self.publish({})

    def publish(self, others: dict[str, bytes]) -> None:
        """Writes the list of MD5s, with other content for some files; the server has it too."""
        lines = (REPOSITORY / LIST).read_text().splitlines()
        names = [line.split()[1] for line in lines]
        md5s = (hashlib.md5((FILES | others)[name]).hexdigest() for name in names)
        text = "".join(f"{md5}  {name}\n" for md5, name in zip(md5s, names))
        (self.folder / LIST).write_text(text)
        self.server.files |= {f"/{place_of(name)}": others[name] for name in others}

    def run(self, *words: str, begin="", **environment):
        """Runs the script in a shell, after other commands."""
        command = f'{begin} exec "$@"'
        given = {"env": {**os.environ, **environment}, "cwd": self.folder}
        url = (
            []
            if any("--base_url" in word for word in words)
            else [f"--base_url={self.server.url}/"]
        )
        return programs.run("bash", "-c", command, "sh", f"./{SCRIPT}", *url, *words, **given)

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

    def stand_in(self, program: str, text: str) -> str:
        """A PATH with another program of that name."""
        programs.stand_in(self.folder / "bin" / program, text)
        return f"{self.folder}/bin:{os.environ['PATH']}"

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
    told = room.refusal("config")
    assert re.match(r"wiki/bert_config\.json: curl ended with 18 at http://.*; repeat", told)
    assert room.files() == {"bert_config.json.partial": FILES["bert_config.json"][:1000]}
    room.brings("config")
    assert room.server.requests[0][1] == "bytes=1000-"
    assert room.files() == {name: FILES[name] for name in CONFIG}


def test_what_only_lacks_its_name_is_taken(room):
    (room.folder / "wiki").mkdir()
    for name in CONFIG:
        (room.folder / "wiki" / f"{name}.partial").write_bytes(FILES[name])
    room.brings("config")
    assert room.files() == {name: FILES[name] for name in CONFIG}


def test_a_page_in_the_place_of_a_file_is_not_kept(room):
    room.server.plan = ["page"]
    told = room.refusal("config")
    assert re.match(r"wiki/bert_config\.json: what came from http://.* is not the published", told)
    assert room.files() == {}


def test_a_page_in_the_place_of_the_rest_spoils_nothing(room):
    room.server.plan = ["half", "page"]
    room.refusal("config")
    told = room.refusal("config")
    assert "curl ended with 33 at http" in told and "; remove wiki/bert_config.json.partial" in told
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
    assert told.startswith(f"wiki/{name}: ") and re.search("remove it|move .* away", told)
    assert path.read_bytes() == b"foreign"


def test_a_part_that_is_missing_is_told(room):
    room.brings("text")
    (room.folder / "wiki/results/part-00123-of-00500").unlink()
    assert room.refusal("text").startswith("wiki/results: 499 of 500 parts, without empty ones; th")


def test_parts_may_be_linked_but_not_empty_or_in_a_folder_of_the_results(room):
    room.brings("text")
    results, elsewhere = room.folder / "wiki/results", room.folder / "elsewhere"
    results.rename(elsewhere)
    results.symlink_to(elsewhere)
    part = elsewhere / "part-00123-of-00500"
    part.rename(room.folder / "a part")
    part.symlink_to(room.folder / "a part")
    told = room.run("text").stdout
    assert told == "wiki/results: 500 parts; the eight files with published MD5s are as published\n"
    (elsewhere / "more").mkdir()
    shutil.copy(part, elsewhere / "more" / part.name)
    (room.folder / "a part").write_bytes(b"")
    assert room.refusal("text").startswith("wiki/results: 499 of 500 parts, without empty ones; th")


def test_an_archive_is_not_fetched_again_for_a_text_that_is_there(room):
    room.brings("text")
    (room.folder / "wiki" / TEXT).unlink()
    assert room.brings("text") == []


@pytest.mark.parametrize("entries", [[("a/eval.txt", b"other")], list(TEXTS.items())[:-1]])
def test_a_text_that_is_not_whole_is_not_unpacked(room, entries):
    room.publish({TEXT: packed(*entries)})
    assert room.refusal("text").startswith(f"wiki/{TEXT}: not unpacked")
    assert [path.name for path in (room.folder / "wiki").iterdir()] == [TEXT]


HALF = 'for last; do :; done; echo half >"$last/eval.txt"; exit 2'


@pytest.mark.parametrize(
    ("words", "program", "text"),
    [("text", "tar", HALF), ("dump", "bzip2", "echo half; exit 1"), ("dump", "bzip2", "echo")],
)
def test_what_is_half_unpacked_is_removed(room, words, program, text):
    [archive] = {"text": [TEXT], "dump": [f"{DUMP}.bz2"]}[words]
    told = room.refusal(words, PATH=room.stand_in(program, text))
    assert told.startswith(f"wiki/{archive}: not unpacked; make room")
    assert [path.name for path in (room.folder / "wiki").iterdir()] == [archive]
    assert len(room.brings(words)) == 0


@pytest.mark.parametrize(
    ("words", "kilobytes", "told", "left"),
    [
        ("config", 1, "bert_config.json: curl ended with 23", "bert_config.json.partial"),
        ("dump", 100, f"{DUMP}.bz2: not unpacked; make room for 75 GB", f"{DUMP}.bz2"),
    ],
)
def test_a_full_disk_leaves_nothing_half_under_a_files_name(room, words, kilobytes, told, left):
    """By the limit of a file's size, at which writing fails as on a full disk."""
    line = room.refusal(words, begin=f"trap '' XFSZ; ulimit -f {kilobytes};")
    assert line.startswith(f"wiki/{told}")
    assert list(room.files()) == [left]
    room.brings(words)


def test_a_folder_in_which_their_downloader_was_started_is_a_place(room):
    there = room.folder / "a [b] {c,d} #1 100%25 ?"
    for name in CONFIG + TF1:
        path = there / place_of(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(FILES[name])
    assert room.brings("config", "tf1", f"--base_url=file://{there}", "--out_dir=a/b c") == []
    assert (room.folder / "a/b c" / TF1[2]).read_bytes() == FILES[TF1[2]]


def test_of_two_calls_at_once_one_is_refused(room):
    (room.folder / "wiki").mkdir()
    folder = os.open(room.folder / "wiki", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    assert room.refusal("config") == "wiki: another call still works there; wait for its end"
    os.close(folder)
    room.brings("config")


def test_mlcommons_storage_is_asked_where_no_other_is_named(room, tmp_path):
    path = room.stand_in("curl", 'echo "$@" >words; exit 6')
    given = {"cwd": tmp_path, "env": {"PATH": path, "HOME": str(tmp_path)}}
    done = programs.run(f"./{SCRIPT}", "--out_dir=~/w", **given)
    assert done.returncode == 1
    place = "https://training.mlcommons-storage.org/wikipedia_for_bert/input_files/bert_config.json"
    assert f"curl ended with 6 at {place}; " in done.stderr
    assert (tmp_path / "w" / "words").read_text().split()[-1] == place


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


def test_without_curl_it_says_so(room):
    (room.folder / "bin").mkdir()
    for name in ("bash", "dirname"):
        (room.folder / "bin" / name).symlink_to(shutil.which(name))
    told = room.refusal(begin=f"PATH={room.folder}/bin;")
    assert told == "curl is missing: install it"


def test_help_names_all_words(room):
    told = room.run("--help").stdout
    assert all(re.search(rf"^  .*\b{word}\b", told, re.MULTILINE) for word in WORDS.split()[2:8])


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
        monkeypatch.setattr(punkt, "PUNKT_INDEX_URL", f"{server.url}/index.xml")
        monkeypatch.setattr("nltk.downloader.urlopen", urllib.request.urlopen)  # it bars loopback
        found = punkt.find_or_fetch_punkt()
        assert found == tmp_path / "tokenizers/punkt_tab/english"
        server.files.clear()
        monkeypatch.setattr("nltk.data.path", [str(tmp_path / "other")])
        with pytest.raises(ValueError, match="the sentence splitter's tables are missing"):
            punkt.find_or_fetch_punkt()


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
