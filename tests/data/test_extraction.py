"""A dump becomes text: with the real WikiExtractor, and with a small program in its place.

Long because the dump and the stand-in for WikiExtractor serve all of its tests.
"""

import bz2
import datetime
import hashlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mlperf_bert.data import extraction, provenance, published, wiki_dump
from mlperf_bert.data.wiki_dump import Dump
from mlperf_bert.files.locks import lock_of
from tests.data import wiki_dump as generated
from tests.data.file_server import serving
from tests.data.making import clean_up
from tests.fixtures import lacking
from tests.helpers import programs, waiting

TODAY = datetime.date(2020, 1, 20)

# Recorded from the real program on Python 3.7.16, without the code of this repository. The date
# stood in the dump: wiki_dump.dump() and dump(200), {{CURRENTYEAR}} replaced by 2020, ...MONTH by
# 01, ...DAY by 20, ...HOUR by 00, ...TIME by 00:00:00.
#   python3.7 WikiExtractor.py dump.xml --output=text
RECORDED = """\
<doc id="10" url="https://en.wikipedia.org/wiki?curid=10" title="Ada">
Ada

Ada – was a "mathematician".
She met Babbages.
Last words; 5 < 6.


</doc>
<doc id="11" url="https://en.wikipedia.org/wiki?curid=11" title="Dates">
Dates

It is 2020-01-20, 00:00:00 .
Hour 00, local , , , Dates.


</doc>
<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="Tools &amp; more">
Tools &amp; more

Text <nowiki>kept</nowiki> and formula_1, codice_1, HO. A site and .


</doc>
<doc id="13" url="https://en.wikipedia.org/wiki?curid=13" title="Zürich">
Zürich

Zürich (東京) is a town.\xa0It &amp; others: "quoted" ""so"".
The end.


</doc>
"""
RECORDED_MD5 = {
    "AA/wiki_00": "b1b00cd3de4f7ea013ff0d3fc500150f",
    "AA/wiki_01": "e6f11efff806ee53ba5319d068071e35",
    "AA/wiki_02": "7406fbf9485cc3c301773a0fea8ec578",
}

# Takes the dump as WikiExtractor does; writes 400 kB for each page, or does what the title says.
PROGRAM = """
import os, re, sys
for title in re.findall("<title>(.*)</title>", sys.stdin.read()):
    if title == "exit":
        sys.exit("a reason")
    if title == "die":
        os._exit(0)
    sys.stdout.buffer.write(b"" if title == "fail" else title.encode() * (400_000 // len(title)))
"""


@pytest.fixture
def dump_of(tmp_path):
    """Writes a dump of articles with these titles."""

    def write(*titles: str, name: str = "dump.xml") -> Path:
        pages = [generated.page(number, title, "x") for number, title in enumerate(titles, 1)]
        path = tmp_path / name
        path.write_text(generated.head() + "".join(pages) + "</mediawiki>\n")
        return path

    return write


@pytest.fixture
def extract(tmp_path):
    """Extracts with the small program."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def extract(dump: Path, folder: Path, today: datetime.date | None = TODAY):
        return extraction.extract(
            dump=Dump(dump), folder=folder, today=today, program=program,
            python=Path(sys.executable), num_processes=1,
        )  # fmt: skip

    return extract


def files_in(folder: Path) -> dict[str, bytes]:
    """The content of the extracted files by their names."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("??/*"))}


def test_the_names_of_files_go_on_in_the_next_folder():
    names = [extraction.file_name(number) for number in (0, 99, 100, 2599, 2600)]
    assert names == ["AA/wiki_00", "AA/wiki_99", "AB/wiki_00", "AZ/wiki_99", "BA/wiki_00"]


def test_a_file_has_a_mebibyte_at_most_and_the_record_says_all(dump_of, extract, tmp_path, capfd):
    dump = dump_of("a", "b", "fail", "c", "d", "e")
    folder = tmp_path / "a folder" / "text"
    extract(dump, folder)
    files = files_in(folder)
    assert list(files) == ["AA/wiki_00", "AA/wiki_01", "AA/wiki_02"]
    assert [content[::400_000] for content in files.values()] == [b"ab", b"cd", b"e"]
    [record] = provenance.read(folder)
    sha256 = hashlib.sha256(dump.read_bytes()).hexdigest()
    size = dump.stat().st_size
    source = provenance.File(path="../../dump.xml", bytes=size, digest=f"sha256:{sha256}")
    assert record.inputs == [source]
    assert [file.path for file in record.outputs] == list(files)
    assert record.parameters == {
        "wiki": "enwiki", "today": "2020-01-20", "wikiextractor": extraction.COMMIT,
        "python": sys.version.split()[0], "files": 3, "articles": 6, "failed_articles": 1,
    }  # fmt: skip
    assert capfd.readouterr().err == ""
    before = (folder / "AA/wiki_00").stat()
    extract(dump, folder, today=None)  # is complete: nothing is done
    assert (folder / "AA/wiki_00").stat() == before


@pytest.mark.parametrize("title", ["exit", "die"])
def test_an_extraction_that_failed_goes_on_behind_its_last_file(
    title, dump_of, extract, tmp_path, monkeypatch
):
    monkeypatch.setattr(extraction, "_AT_ONCE_BYTES", 1000)  # two pages
    folder = tmp_path / "text"
    with pytest.raises(ValueError, match=r"failed with exit code .*wikiextractor\.log; repeat"):
        extract(dump_of("a", "fail", "b", "c", "d", title), folder)
    assert list(files_in(folder)) == ["AA/wiki_00"]
    first = (folder / "AA/wiki_00").stat()
    extract(dump_of("a", "fail", "b", "c", "d", "fine"[: len(title)]), folder, today=None)
    assert (folder / "AA/wiki_00").stat() == first
    extract(dump_of("a", "fail", "b", "c", "d", "fine"[: len(title)]), tmp_path / "at once")
    assert files_in(folder) == files_in(tmp_path / "at once")
    assert provenance.read(folder) == provenance.read(tmp_path / "at once")


def test_a_folder_of_another_extraction_is_refused(dump_of, extract, tmp_path):
    folder = tmp_path / "text"
    dump = dump_of("a", "b", "c", "d")
    extract(dump, folder)
    with pytest.raises(ValueError, match=r"is of .*2020-01-20.*, given is .*2020-01-21.*; give"):
        extract(dump, folder, today=TODAY + datetime.timedelta(days=1))
    with pytest.raises(ValueError, match=r"is of .*dump.xml.*, given is .*other.xml.*; give"):
        extract(dump_of("a", name="other.xml"), folder)
    lock = lock_of(folder)
    assert lock.acquire()
    with pytest.raises(ValueError, match="another process extracts into it; wait"):
        extract(dump, folder)
    lock.release()
    (folder / "AA/wiki_01").unlink()
    with pytest.raises(ValueError, match=r"AA/wiki_01: missing; remove .* and extract again"):
        extract(dump, folder)
    record = (folder / provenance.NAME).read_text()
    (folder / provenance.NAME).write_text(record.replace('"files": 2', '"files": "2"'))
    with pytest.raises(ValueError, match=r"provenance.json: damaged .*; remove .* and extract"):
        extract(dump, folder)
    (folder / provenance.NAME).unlink()
    with pytest.raises(ValueError, match=r"wiki_00: nothing says what it is from; give another"):
        extract(dump, folder)


DUMP = generated.dump(3).encode()
MANY = bz2.compress(generated.head().encode()) + bz2.compress(DUMP[len(generated.head()) :])


@pytest.mark.parametrize("content", [DUMP, bz2.compress(DUMP), MANY], ids=["xml", "bz2", "many"])
@pytest.mark.parametrize("chunk_bytes", [7, 1000, 1 << 20])
def test_articles_are_cut_alike_wherever_the_pieces_end(
    content, chunk_bytes, tmp_path, monkeypatch
):
    path = tmp_path / "dump"
    path.write_bytes(content)
    monkeypatch.setattr(wiki_dump, "_CHUNK_BYTES", chunk_bytes)
    dump = Dump(path)
    articles = list(dump.articles())
    titles = [re.search(rb"<title>(.*)</title>", article)[1].decode() for article in articles]
    numbered = map("Number {}".format, range(3))
    assert titles == ["Ada", "Dates", "Tools &amp; more", "Zürich", *numbered]
    assert all(article in DUMP for article in articles) and DUMP.startswith(dump.head)
    assert dump.wiki == "enwiki" and dump.position == dump.size_bytes == len(content)


def test_a_page_that_comes_again_is_passed_over(tmp_path):
    """As by WikiExtractor."""
    pages = [generated.page(7, "a", "x"), generated.page(7, "b", "x"), generated.page(8, "c", "x")]
    path = tmp_path / "dump"
    path.write_text("".join([generated.head(), *pages, "</mediawiki>\n"]))
    found = [re.search(rb"<title>(.)", page)[1] for page in Dump(path).articles()]
    assert found == [b"a", b"c"]


def test_an_archive_may_end_at_any_bit(tmp_path):
    path, ends = tmp_path / "dump", set()
    for number in range(60):
        text = generated.page(1, "a", "ab" * number + "c" * number**2)
        content = f"{generated.head()}{text}</mediawiki>\n"
        path.write_bytes(bz2.compress(content.encode()))
        tail = int.from_bytes(path.read_bytes()[-11:], "big") >> 32
        ends |= {n for n in range(8) if tail >> n & (1 << 48) - 1 == 0x177245385090}
        assert Dump(path).wiki == "enwiki"
    assert ends == set(range(8))


PACKED = bz2.compress(DUMP)
BAD = {
    "no XML": (b"PK\3\4" + bytes(99), "no head of a Wikipedia dump"),
    "no page": (generated.head().encode() + b"</mediawiki>\n", "no head of a Wikipedia dump"),
    "German": (generated.dump(language="de").encode(), "its language de; give a dump .* en$"),
    "old": (generated.dump(version="0.3").encode(), r"export-0.3/}mediawiki.* 0.10 or 0.11"),
    "cut off": (DUMP[: -len("</mediawiki>\n")], "cut off: it has .*, and its end is missing; fet"),
    "bz2 cut off": (PACKED[:-1], "damaged before byte .* fetch"),
    "bz2 flipped": (PACKED[:500] + b"\0\0" + PACKED[502:], "damaged before byte .* fetch"),
    "stream flipped": (MANY[:700] + b"\0\0" + MANY[702:], "damaged before byte .* fetch"),
    "stream missing": (MANY[: MANY.rfind(b"BZh9")], "cut off"),
    "no name space": (re.sub(rb"<ns>.*</ns>", b"", DUMP), "the page after id 0 is not laid out as"),
    "Wikidata": (DUMP.replace(b"<model>wikitext<", b"<model>item<"), "no article with text, as"),
    "stubs": (re.sub(rb"(?s)<text [^>]*>.*?</text>", b'<text bytes="4711" />', DUMP), "no article"),
    "no article": (re.sub(rb"<ns>0</ns>", b"<ns>4</ns>", DUMP), "no article .*; fetch pages-artic"),
    "revisions": (DUMP.replace(b"<revision>", b"<revision></revision>\n<revision>"), "not laid"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_dump_is_one_clear_line(name, tmp_path):
    content, message = BAD[name]
    path = tmp_path / "dump"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        list(Dump(path).articles())
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


def test_a_missing_end_is_told_before_hours_of_work(tmp_path):
    (tmp_path / "dump").write_bytes(BAD["cut off"][0])
    with pytest.raises(ValueError, match="cut off: it has"):
        Dump(tmp_path / "dump")


def test_an_extraction_of_nothing_is_an_error(dump_of, extract, tmp_path):
    with pytest.raises(ValueError, match=r"failed on all 2 articles; the cause is in .*log"):
        extract(dump_of("fail", "fail"), tmp_path / "text")


def test_another_version_of_the_program_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"WikiExtractor.py"):
        extraction.find_program(tmp_path, tmp_path)
    (tmp_path / "WikiExtractor.py").write_text("print()")
    for given in (tmp_path, tmp_path / "WikiExtractor.py", None):
        with pytest.raises(ValueError, match=r"SHA-256 is .* that of WikiExtractor at .* 3162bb6c"):
            extraction.find_program(given, tmp_path)


def test_the_program_is_fetched_once(tmp_path, monkeypatch):
    content = b"print('a stand-in')\n"
    with serving(**{"/WikiExtractor.py": content}) as server:
        monkeypatch.setattr(extraction, "URL", f"{server.url}/WikiExtractor.py")
        md5 = hashlib.md5(content).hexdigest()
        file = published.PublishedFile(extraction.PROGRAM, len(content), md5)
        monkeypatch.setattr(extraction, "PUBLISHED", file)
        with pytest.raises(ValueError, match=r"cache/WikiExtractor.py: its SHA-256 is"):
            extraction.find_program(None, tmp_path / "cache")
        monkeypatch.setattr(extraction, "SHA256", hashlib.sha256(content).hexdigest())
        found = extraction.find_program(None, tmp_path / "cache")
        assert found.read_bytes() == content and len(server.requests) == 1


def test_the_image_has_the_packages_that_the_command_imports(repository, tmp_path):
    """It has no others; `-S` keeps this environment's away."""
    image = (repository / "environment/Dockerfile.extractor").read_text()
    packages = re.findall(r"/\^(\w+)==/", image)
    assert len(packages) == 2
    for name in packages:
        (tmp_path / name).symlink_to(Path(importlib.util.find_spec(name).origin).parent)
    command = [sys.executable, "-S", "cleanup_scripts/clean_up.py", "extract_wiki.sh", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    programs.run(*command, cwd=repository, env=environment, check=True)


# From here on: the real program.


@pytest.fixture(scope="module")
def program(shared) -> Path:
    found = shared / "wikiextractor" / "WikiExtractor.py"
    if not found.is_file():
        lacking(f"{found} is absent: WikiExtractor is not at hand")
    return found


@pytest.fixture(scope="module")
def python(program) -> Path:
    try:
        return extraction.find_python()
    except ValueError as error:
        lacking(str(error))


def digests(folder: Path) -> dict[str, str]:
    files = files_in(folder).items()
    return {name: hashlib.md5(content).hexdigest() for name, content in files}


@pytest.mark.parametrize("version", ["0.10", "0.11"])
def test_the_text_is_that_of_the_real_program(version, program, python, tmp_path):
    dump = tmp_path / "a dump.xml.bz2"
    dump.write_bytes(bz2.compress(generated.dump(version=version).encode()))
    words = [dump, "--today=2020-01-20", f"--wikiextractor={program}"]
    done = clean_up("extract_wiki.sh", *words, folder=tmp_path, check=True)
    assert done.stdout == "text: 4 articles in 1 files, today is 2020-01-20\n"
    assert (tmp_path / "text/AA/wiki_00").read_text() == RECORDED


@pytest.mark.gate
def test_the_files_are_the_same_with_any_number_of_processes_and_after_a_kill(
    program, python, repository, tmp_path
):
    content = generated.dump(200).encode()
    (tmp_path / "dump.xml").write_bytes(content)
    (tmp_path / "dump.xml.bz2").write_bytes(bz2.compress(content))
    words = ["--today=2020-01-20", f"--wikiextractor={program.parent}", "--nworker=3"]
    clean_up("extract_wiki.sh", "dump.xml", *words, "--out_dir=xml", folder=tmp_path, check=True)
    assert digests(tmp_path / "xml") == RECORDED_MD5
    words[-1] = "--nworker=1"
    command = [repository / "cleanup_scripts/extract_wiki.sh", "dump.xml.bz2", *words]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as running:
        begun = (tmp_path / "text/AA/wiki_00").exists
        waiting.until(begun, running, every_seconds=0.005)
        running.send_signal(signal.SIGKILL)
    clean_up("extract_wiki.sh", "dump.xml.bz2", *words, folder=tmp_path, check=True)
    assert digests(tmp_path / "text") == RECORDED_MD5


def test_a_dump_of_the_sample_s_text_gives_the_sample_s_files(program, python, shared, tmp_path):
    """The same articles in the same files; blank lines where tables were are gone."""
    sample = {p.name: p.read_text() for p in sorted((shared / "data/wiki_sample").glob("wiki_??"))}
    article = re.compile(r'<doc id="(\d+)" url=".*?" title="(.*)">\n.*\n\n((?:.*\n)*?)\n</doc>\n')
    pages = [
        generated.page(int(number), title.replace("&amp;", "&"), text)
        for content in sample.values()
        for number, title, text in article.findall(content)
    ]
    dump = tmp_path / "sample.xml"
    dump.write_text(generated.head() + "".join(pages) + "</mediawiki>\n")
    clean_up("extract_wiki.sh", dump, f"--wikiextractor={program}", folder=tmp_path, check=True)
    found = {path.name: path.read_text() for path in (tmp_path / "text").glob("AA/*")}
    assert found.keys() == sample.keys()
    for name, content in sample.items():
        titles = [re.findall("^<doc .*", text, re.MULTILINE) for text in (found[name], content)]
        assert titles[0] == titles[1] and len(titles[0]) > 30
