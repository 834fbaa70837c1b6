"""The image of WikiExtractor, built and run for real: a dump becomes the reference's text files."""

import bz2
import functools
import hashlib
import http.server
import os
import re
import shutil
import threading
from pathlib import Path

import pytest

from tests.container.conftest import of_pyenv, run
from tests.data import wiki_dump
from tests.fixtures import lacking, open_to_all

pytestmark = pytest.mark.gate

OLD_PYTHON = "bert-test-old-python"
EXTRACTOR = "mlperf-bert:extractor-test"
PROGRAM = "WikiExtractor.py"
USER = 12345

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


@pytest.fixture(scope="module")
def old_python(docker, base_image, tmp_path_factory):
    """An image with Python 3.7 in /usr/local, as the default one."""
    folder = tmp_path_factory.mktemp("old python")
    ignored = shutil.ignore_patterns("test", "__pycache__", "site-packages", "*.a")
    shutil.copytree(of_pyenv("3.7"), folder / "python", ignore=ignored, symlinks=True)
    (folder / "Dockerfile").write_text(f"FROM {base_image}\nCOPY python /usr/local\nRUN ldconfig\n")
    run("docker", "build", "--tag", OLD_PYTHON, folder, env=docker)
    return OLD_PYTHON


@pytest.fixture(scope="module")
def program(shared):
    """The address of WikiExtractor.py, in place of GitHub's."""
    folder = shared / "wikiextractor"
    if not (folder / PROGRAM).is_file():
        lacking(f"{folder} is absent: WikiExtractor is not at hand")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{PROGRAM}"
        server.shutdown()


@pytest.fixture(scope="module")
def extractor(docker, old_python, program, repository):
    words = ["docker", "build", "--network=host", "--tag", EXTRACTOR]
    words += ["--file=environment/Dockerfile.extractor", f"--build-arg=BASE_IMAGE={old_python}"]
    run(*words, f"--build-arg=WIKIEXTRACTOR={program}", ".", env=docker, cwd=repository)
    return EXTRACTOR


@pytest.fixture
def extract(docker, extractor, tmp_path):
    """Extracts a dump of the temporary folder, which belongs to another user than root."""
    open_to_all(tmp_path)
    os.chown(tmp_path, USER, USER)

    def extract(*words: str, user: int = USER):
        options = ["--rm", "--read-only", "--network=none", f"--user={user}:{user}"]
        options.append(f"--volume={tmp_path}:/data")
        return run("docker", "run", *options, extractor, *words, env=docker, check=False)

    return extract


@pytest.mark.parametrize("version", ["0.10", "0.11"])  # of the schema: 2020's, the newest
def test_the_text_is_that_of_the_real_program(version, extract, tmp_path):
    (tmp_path / "dump.xml").write_text(wiki_dump.dump(version=version))
    done = extract("dump.xml")
    assert (done.returncode, done.stdout) == (0, "text: 1 files\n"), done.stderr
    assert (tmp_path / "text/AA/wiki_00").read_text() == RECORDED
    made = [tmp_path / "text", *tmp_path.rglob("text/**/*")]
    assert {path.stat().st_uid for path in made} == {USER}
    assert {path.name for path in tmp_path.iterdir()} == {"dump.xml", "text"}


@pytest.mark.parametrize("num_streams", [1, 20])
def test_a_dump_that_is_packed_gives_the_same_files(num_streams, extract, tmp_path):
    lines = wiki_dump.dump(200).encode().splitlines(keepends=True)
    each = len(lines) // num_streams + 1
    streams = [b"".join(lines[start : start + each]) for start in range(0, len(lines), each)]
    (tmp_path / "dump.xml.bz2").write_bytes(b"".join(map(bz2.compress, streams)))
    done = extract("dump.xml.bz2")
    assert done.returncode == 0, done.stderr
    files = {path: path.read_bytes() for path in tmp_path.glob("text/*/*")}
    assert {
        str(path.relative_to(tmp_path / "text")): hashlib.md5(content).hexdigest()
        for path, content in files.items()
    } == RECORDED_MD5


def test_what_is_no_whole_dump_leaves_nothing(extract, shared, tmp_path):
    packed = bz2.compress(wiki_dump.dump(200).encode())
    dumps = {path.name: path.read_bytes() for path in (shared / "cases/dumps").glob("*.xml")}
    dumps |= {"cut": packed[:-1], "damaged": packed[:9000] + b"\0\0" + packed[9002:]}
    told = {}
    for name, content in dumps.items():
        (tmp_path / name).write_bytes(content)
        done = extract(name)
        assert (done.returncode, done.stdout) == (1, "")
        told[name] = done.stderr.splitlines()[-1].removeprefix(f"extract: {name}: ")[:24]
        assert not [path for path in tmp_path.iterdir() if path.name.startswith("text")]
    assert told == {
        "no_articles.xml": "no article; fetch pages-",
        "no_siteinfo.xml": "does not begin as pages-",
        "wikidata.xml": "does not begin as pages-",
        "cut": "damaged or cut off (Comp",
        "damaged": "damaged or cut off (Inva",
    }
    assert extract("cut", user=54321).stderr == (
        "extract: text.partial: Permission denied; "
        "user 54321 must be able to write into the mounted folder\n"
    )


def test_a_dump_of_the_sample_s_text_gives_the_sample_s_files(extract, shared, tmp_path: Path):
    """The same articles in the same files; blank lines where tables were are gone."""
    sample = {p.name: p.read_text() for p in sorted((shared / "data/wiki_sample").glob("wiki_??"))}
    article = re.compile(r'<doc id="(\d+)" url=".*?" title="(.*)">\n.*\n\n((?:.*\n)*?)\n</doc>\n')
    pages = [
        wiki_dump.page(int(number), title.replace("&amp;", "&"), text)
        for content in sample.values()
        for number, title, text in article.findall(content)
    ]
    (tmp_path / "sample.xml").write_text(wiki_dump.head() + "".join(pages) + "</mediawiki>\n")
    assert extract("sample.xml").returncode == 0
    found = {path.name: path.read_text() for path in (tmp_path / "text").glob("AA/*")}
    assert found.keys() == sample.keys()
    for name, content in sample.items():
        titles = [re.findall("^<doc .*", text, re.MULTILINE) for text in (found[name], content)]
        assert titles[0] == titles[1] and len(titles[0]) > 30
