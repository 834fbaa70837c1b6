"""The image that extracts text from a dump, built and run, with this machine's old Python in it."""

import functools
import http.server
import os
import threading
from pathlib import Path

import pytest

from mlperf_bert.data import extraction
from tests.container.conftest import run
from tests.data import wiki_dump
from tests.fixtures import lacking

pytestmark = pytest.mark.soak  # three minutes

OLD_PYTHON = "bert-test-old-python"
IMAGE = "mlperf-bert:extractor-test"


@pytest.fixture(scope="module")
def old_python(docker, workplace):
    """An image with a Python that WikiExtractor runs on in /usr/local, as its default has."""
    try:
        python = extraction.find_python()
    except ValueError as error:
        lacking(str(error))
    prefix = run(python, "-I", "-c", "import sys; print(sys.base_prefix)").stdout.strip()
    archive = workplace / "python.tar"
    leave_out = ["--exclude=test", "--exclude=site-packages", "--exclude=*.a"]
    run("tar", "-C", prefix, *leave_out, "--transform=s,^./,usr/local/,", "-cf", archive, ".")
    run("docker", "import", archive, OLD_PYTHON, env=docker)
    archive.unlink()
    return OLD_PYTHON


@pytest.fixture(scope="module")
def program(shared):
    """The address of WikiExtractor.py, in place of GitHub's."""
    folder = shared / "wikiextractor"
    if not (folder / extraction.PROGRAM).is_file():
        lacking(f"{folder} is absent: WikiExtractor is not at hand")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{extraction.PROGRAM}"
        server.shutdown()


def test_the_extractor_image_extracts(
    docker, base_image, old_python, program, repository: Path, tmp_path
):
    words = ["docker", "build", "--network=host", "--tag", IMAGE]
    words.append("--file=environment/Dockerfile.extractor")
    for argument in (
        f"BASE_IMAGE={base_image}",
        f"EXTRACTOR_PYTHON_IMAGE={old_python}",
        f"WIKIEXTRACTOR={program}",
    ):
        words += ["--build-arg", argument]
    run(*words, ".", env=docker, cwd=repository)
    tmp_path.chmod(0o777)
    (tmp_path / "dump.xml").write_text(wiki_dump.dump())
    words = ["docker", "run", "--rm", "--read-only", "--tmpfs=/tmp", "--network=none"]
    words += [f"--user={os.getuid()}:{os.getgid()}", f"--volume={tmp_path}:/data", IMAGE]
    done = run(*words, "dump.xml", "--today=2020-01-20", env=docker)
    assert done.stdout == "text: 4 articles in 1 files, today is 2020-01-20\n"
    assert (tmp_path / "text/AA/wiki_00").read_text().count("<doc id=") == 4
