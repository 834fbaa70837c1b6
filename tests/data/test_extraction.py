"""A dump becomes text, with a small program in WikiExtractor's place.

The image and the real program: tests/container/test_extractor.py.
"""

import bz2
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data import wiki_dump
from tests.helpers import programs, waiting

# Takes the dump as WikiExtractor does, which reads its head first; processes write the titles.
PROGRAM = """
import os, re, sys, time
from multiprocessing import Process, Queue
from pathlib import Path

def end_as(title):
    if title == "exit":
        sys.exit("a reason")
    os.kill(os.getpid(), 9)

def write(titles, path):
    path.parent.mkdir()
    path.write_text("".join(f"{title} {time.strftime('%Y-%m-%d %H:%M:%S')}\\n" for title in titles))

assert sys.argv[1:3] == ["-", "--quiet"]
queue = Queue()
queue.put(bytes(1 << 20))  # nobody reads it
folder = next(Path(word[9:]) for word in sys.argv if word.startswith("--output="))
for line in sys.stdin:
    if "</siteinfo>" in line:
        break
titles = []
for line in sys.stdin:
    titles += re.findall("<title>(.*)</title>", line)
    if titles[-1:] in (["exit"], ["kill"]):
        Process(target=end_as, args=titles[-1:]).start()
        time.sleep(600)  # as WikiExtractor, without end
    if titles[-1:] == ["wait"]:
        (folder / "waits").touch()
        time.sleep(600)
sys.stdin.close()
process = Process(target=write, args=(titles, folder / "AA" / "wiki_00"))
process.start()
process.join()
"""
HEAD = wiki_dump.head()
DUMP = wiki_dump.dump(3).encode()


def dump_of(*titles: str) -> str:
    pages = [wiki_dump.page(number, title, "x") for number, title in enumerate(titles, 1)]
    return HEAD + "".join(pages) + "</mediawiki>\n"


@pytest.fixture
def command(repository, tmp_path, worker_processes) -> list[str]:
    """The entry point, beside the small program."""
    (tmp_path / "image").mkdir()
    entry_point = repository / "mlperf_bert" / "data" / "wikiextractor.py"
    shutil.copy(entry_point, tmp_path / "image" / "extract.py")
    (tmp_path / "image" / "WikiExtractor.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "image" / "extract.py")]


@pytest.fixture
def data(tmp_path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def refused(command, data):
    """Extracts, which must be refused and leave nothing; returns the reason."""

    def refused(*words: object) -> str:
        before = {path: path.lstat().st_mtime_ns for path in data.rglob("*")}
        done = programs.run(*command, *words, cwd=data)
        assert (done.returncode, done.stdout) == (1, "")
        assert {path: path.lstat().st_mtime_ns for path in data.rglob("*")} == before
        line = done.stderr.splitlines()[-1]
        assert line.startswith("extract: ")
        return line.removeprefix("extract: ")

    return refused


STREAMS = bz2.compress(HEAD.encode()) + bz2.compress(DUMP[len(HEAD.encode()) :])


@pytest.mark.parametrize(
    "content",
    [DUMP, STREAMS, bz2.compress(DUMP + b"\n \n")],
    ids=["xml", "bz2 of streams", "bz2 with white space"],
)
def test_the_text_is_whole_and_its_date_is_fixed(content, command, data):
    (data / "a dump").write_bytes(content)
    done = programs.run(*command, "a dump", cwd=data, check=True)
    assert done.stdout == "text: 1 files\n"
    text = (data / "text/AA/wiki_00").read_text()
    assert "Tools &amp; more 2020-01-20 00:00:00\nZürich 2020-01-20 00:00:00\n" in text
    assert {path.name for path in data.iterdir()} == {"a dump", "text"}


PACKED = bz2.compress(DUMP)
BAD = {
    "no XML": (b"PK\3\4" + bytes(99), "does not begin as pages-articles of enwiki; fetch that"),
    "German": (DUMP.replace(b">enwiki<", b">dewiki<"), "does not begin"),
    "no head": (re.sub(rb"(?s)  <siteinfo>.*</siteinfo>\n", b"", DUMP), "does not begin"),
    "stubs": (re.sub(rb"(?s)<text [^>]*>.*?</text>", b'<text bytes="1" />', DUMP), "does not b"),
    "cut off": (DUMP[: -len("</mediawiki>\n")], "cut off: </mediawiki> is missing; fetch it again"),
    "bz2 cut off": (PACKED[:-1], r"damaged or cut off \(.*\); fetch it again"),
    "stream missing": (
        bz2.compress(DUMP[:-50]) + bz2.compress(DUMP[-50:])[:4],
        r"damaged or cut off|cut off: </mediawiki> is missing",
    ),
    "no article": (dump_of().replace("</med", "<text a>b</text>\n</med").encode(), "no article; "),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_dump_is_one_line_and_leaves_nothing(name, refused, data):
    content, message = BAD[name]
    (data / "dump").write_bytes(content)
    assert re.match(f"dump: {message}", refused("dump"))


def test_a_missing_end_is_told_before_hours_of_work(command, refused, data):
    Path(command[1]).with_name("WikiExtractor.py").write_text("open('started', 'w')")
    (data / "dump").write_bytes(BAD["cut off"][0] + b"more than a kilobyte " * 100)
    assert refused("dump").startswith("dump: cut off: </mediawiki> is missing")


def test_without_a_dump_or_a_place_for_the_text_nothing_begins(refused, data):
    assert refused().startswith("give one dump, .xml or .xml.bz2: docker run --rm --user")
    assert refused("--help").startswith("give one dump")
    assert refused("a", "b").startswith("give one dump")
    assert refused("none") == f"none: no such file below {data}, where --volume mounts a folder"
    (data / "folder").mkdir()
    assert "no such file" in refused("folder")
    (data / "dump").write_bytes(DUMP)
    (data / "text").symlink_to("elsewhere")
    assert refused("dump") == "text: is there; move it away"
    (data / "text").unlink()
    (data / "text.partial").mkdir()
    assert refused("dump").startswith("text.partial: of an extraction that still runs, or was kil")


def test_a_machine_whose_processes_get_no_semaphores_is_named(command, data, monkeypatch):
    """As a container whose /dev/shm only root can write."""
    (data / "dump").write_text(dump_of("a"))
    (data.parent / "sitecustomize.py").write_text(
        "import _multiprocessing\n"
        "class Refused:\n"
        "    SEM_VALUE_MAX = 1\n"
        "    def __init__(self, *_): raise PermissionError(13, 'None of it')\n"
        "_multiprocessing.SemLock = Refused\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(data.parent))
    done = programs.run(*command, "dump", cwd=data)
    assert (done.returncode, [path.name for path in data.iterdir()]) == (1, ["dump"])
    assert done.stderr.startswith("extract: /dev/shm: None of it; its processes need semaphores")


@pytest.mark.parametrize("title, code", [("exit", "1, see above"), ("kill", "-9, perhaps for lac")])
def test_a_process_that_is_lost_ends_the_extraction(title, code, refused, data):
    (data / "dump").write_text(dump_of("a", title, "b"))
    assert f"a process of WikiExtractor ended with {code}" in refused("dump")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_that_is_stopped_leaves_nothing(number, command, data):
    (data / "dump").write_text(dump_of("a", "wait"))
    with subprocess.Popen([*command, "dump"], cwd=data) as running:
        waiting.until((data / "text.partial" / "waits").exists, running)
        running.send_signal(number)
    assert running.returncode == 128 + number
    assert [path.name for path in data.iterdir()] == ["dump"]
