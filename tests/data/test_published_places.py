"""The script without an option, against stand-ins for the published places on loopback.

Long because the stand-ins for the published places serve all of its tests.
"""

import dataclasses
import hashlib
import os
import re
import runpy
from pathlib import Path

import pytest

from mlperf_bert.data import download, provenance, published
from mlperf_bert.data.published import PUBLISHED_PARTS
from tests.data.file_server import serving
from tests.data.making import packed

DATA = "tf1_ckpt/model.ckpt-28252.data-00000-of-00001"
DATA_THERE = "tf1_ckpt/model.ckpt-28252-003.data-00000-of-00001"
TEXT = published.TEXT.path
PARTS = sorted(PUBLISHED_PARTS)[120:125]
TEXTS = {name: f"{name}\n".encode() for name in [*PARTS, "eval.md5", "eval.txt"]}
COMMAND = "bash <(curl -s https://raw.githubusercontent.com/mlcommons/r2-downloader/refs/heads/main"
LISTS = [
    f"/metadata/{name}.uri" for name in ("bert-input-files", "bert-preprocessed-wikipedia-dataset")
]


def md5_of(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


FILES = {file.path: os.urandom(2000) for group in published.GROUPS.values() for file in group} | {
    TEXT: packed(*TEXTS.items()),
}


@pytest.fixture(scope="module")
def serving_once():
    with serving() as server:
        yield server


@pytest.fixture
def there(serving_once, tmp_path, monkeypatch):
    """The published places, with small files; the current folder is empty."""
    server = serving_once
    server.requests.clear(), server.ranges.clear(), server.plan.clear()
    server.always = "serve"
    groups = {
        name: tuple(small(file, server.url) for file in group)
        for name, group in published.GROUPS.items()
    }
    monkeypatch.setattr(published, "GROUPS", groups)
    monkeypatch.setattr(download, "PUBLISHED_PARTS", set(PARTS))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.chdir(tmp_path)
    server.files = {
        f"/{file.place.folder_name}/{file.path_there}": FILES[file.path]
        for group in groups.values()
        for file in group
    }
    return server


def small(file, url):
    """A published file as the stand-in has it."""
    content = FILES[file.path]
    return dataclasses.replace(
        file,
        size_bytes=file.size_bytes and len(content),
        md5=md5_of(content),
        place=dataclasses.replace(file.place, base_url=f"{url}/{file.place.folder_name}"),
    )


@pytest.fixture
def run(repository, monkeypatch, capsys):
    """Runs the script in this process; returns exit code, standard output and error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        script = repository / "cleanup_scripts" / "clean_up.py"
        words = [str(script), "download_and_uncompress.sh", *arguments]
        monkeypatch.setattr("sys.argv", words)
        capsys.readouterr()
        try:
            code, message = runpy.run_path(str(script))["main"](), ""
        except SystemExit as ended:
            is_text = isinstance(ended.code, str)
            code, message = (1, str(ended.code)) if is_text else (int(ended.code or 0), "")
        output = capsys.readouterr()
        return code, output.out, output.err + message

    return run


def asked(server) -> list[str]:
    return [path for path, _ in server.requests]


def test_one_command_and_no_option_brings_what_a_run_needs(there, run, tmp_path):
    assert run()[0] == 0
    wiki = tmp_path / "wiki"
    expected = {file.path for name in ("config", "tf1", "text") for file in published.GROUPS[name]}
    assert {path for path in expected if (wiki / path).read_bytes() == FILES[path]} == expected
    assert {name: (wiki / "results" / name).read_bytes() for name in TEXTS} == TEXTS
    written = [path for path in wiki.rglob("*") if path.is_file()]
    assert len(written) == len(expected) + len(TEXTS) + 1  # provenance.json
    assert f"/input_files/{DATA_THERE}" in asked(there)
    assert f"/processed_dataset/{TEXT}" in asked(there)
    assert not [path for path in asked(there) if "tf2" in path or "enwiki" in path]
    assert {agent for _, agent in there.requests} == {download.USER_AGENT}
    [record] = provenance.read(wiki / "results")
    assert record.inputs[0].digest == f"md5:{md5_of(FILES[TEXT])}"
    assert {file.path for file in record.outputs} == TEXTS.keys()


def test_a_second_call_and_check_only_ask_nobody(there, run, tmp_path):
    assert run()[0] == 0
    there.requests.clear()
    assert run()[0] == 0
    assert run("--check_only")[0] == 0
    (tmp_path / "wiki" / "vocab.txt").unlink()
    (tmp_path / "wiki" / DATA).write_bytes(b"x" * 2000)
    code, _, errors = run("--check_only", "config", "tf1")
    assert code == 1 and "2 not right" in errors and COMMAND not in errors
    assert "wiki/vocab.txt: missing; leave out --check_only to fetch it" in errors
    assert re.search(rf"wiki/{DATA}: MD5 \w+, published is \w+; remove it", errors)
    assert there.requests == []


def answer(status: str, body: str = "", **headers: str) -> str:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"raw HTTP/1.1 {status}", *lines, f"Content-Length: {len(body)}", "", body])


LOGIN_PAGE = "\n<!-- a --><!DOCTYPE html><html><head><title> Sign in \x1b[2J</title></head></html>"
NO_FILES = {
    "page": (
        answer("200 OK", LOGIN_PAGE, Content_Type="text/html; charset=utf-8"),
        "the answer is",
    ),
    "only by type": (answer("200 OK", "no", Content_Type="text/html"), "the answer is a web page"),
    "403": (answer("403 Forbidden", LOGIN_PAGE), "403 Forbidden"),
    "redirected without end": (answer("302 Found", Location="/login"), "302 The HTTP server ret"),
}


@pytest.mark.parametrize(("response", "message"), NO_FILES.values(), ids=NO_FILES)
def test_what_is_not_the_file_is_told_and_never_kept(there, run, tmp_path, response, message):
    there.always = response
    code, _, errors = run()
    assert code == 1
    assert f"wiki/vocab.txt: {there.url}/input_files/vocab.txt: {message}" in errors
    assert "6 not right" in errors
    assert [errors.count(list_url) for list_url in LISTS] == [1, 1]  # of the official commands
    assert COMMAND in errors and "start the official downloader in this folder" in errors
    assert errors.replace("\n", "").isprintable()
    assert there.always.startswith("raw HTTP/1.1 302") or len(asked(there)) == 6  # no retries
    assert not [path for path in (tmp_path / "wiki").rglob("*") if path.is_file()]


def test_a_page_in_the_place_of_the_rest_spoils_nothing(there, run, tmp_path):
    there.plan = ["serve", "serve", "half", NO_FILES["page"][0]]
    code, _, errors = run("tf1")
    assert code == 1 and "a web page" in errors
    part = tmp_path / "wiki" / "tf1_ckpt" / f".{Path(DATA).name}.partial"
    assert part.read_bytes() == FILES[DATA][:1000]
    assert run("tf1")[0] == 0
    assert there.ranges[-1] == "bytes=1000-"


def test_a_redirect_is_followed_and_a_login_behind_it_is_no_file(there, run):
    there.plan = [answer("302 Found", Location=f"{there.url}/input_files/bert_config.json")]
    assert run("config")[0] == 0
    there.plan = [answer("302 Found", Location="/login"), NO_FILES["page"][0]]
    code, _, errors = run("tf2")
    assert code == 1 and "the answer is a web page and not the file" in errors


@pytest.mark.parametrize(
    ("name", "folder", "arguments"),
    [
        (DATA_THERE, "wiki/input_files", ()),
        (DATA_THERE, "input_files", ("--out_dir=elsewhere/wiki",)),
        (DATA, ".", ()),
        (DATA_THERE, ".", ("--out_dir=.",)),
    ],
)
def test_what_the_official_downloader_left_is_taken(
    there, run, tmp_path, monkeypatch, folder, name, arguments
):
    there.always = "status 403"
    for path in published.GROUPS["config"] + published.GROUPS["tf1"]:
        left = tmp_path / folder / (name if path.path == DATA else path.path)
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_bytes(FILES[path.path])
    code, _, errors = run("config", "tf1", *arguments)
    assert (code, errors) == (0, "")
    out_dir = tmp_path / (arguments or ("--out_dir=wiki",))[0].partition("=")[2]
    for file in published.GROUPS["config"] + published.GROUPS["tf1"]:
        assert (out_dir / file.path).read_bytes() == FILES[file.path]
    left = tmp_path / folder / name
    assert left.samefile(out_dir / DATA)  # no byte more on the disk
    assert there.requests == []


def test_what_is_left_on_another_file_system_is_copied(there, run, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    (tmp_path / "vocab.txt").write_bytes(FILES["vocab.txt"])
    assert run("config")[0] == 0
    assert (tmp_path / "wiki" / "vocab.txt").read_bytes() == FILES["vocab.txt"]
    assert asked(there) == ["/input_files/bert_config.json"]


def test_what_is_left_and_wrong_is_told_and_fetched(there, run, tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n")
    code, _, errors = run("config")
    assert code == 0
    assert "note: not taken: vocab.txt: 6 bytes, published are 2,000" in errors
    assert (tmp_path / "vocab.txt").read_bytes() == b"[PAD]\n"
    assert (tmp_path / "wiki" / "vocab.txt").read_bytes() == FILES["vocab.txt"]


def test_a_mirror_has_every_file_under_one_url(there, run, tmp_path):
    there.files = {f"/bert/{path}": content for path, content in FILES.items()}
    assert run(f"--base_url={there.url}/bert/")[0] == 0
    assert (tmp_path / "wiki" / DATA).read_bytes() == FILES[DATA]
    there.files.clear()
    code, _, errors = run(f"--base_url={there.url}/bert/", "tf2")
    assert code == 1 and "404 Not Found\ncheck --base_url and what lies there" in errors
    assert COMMAND not in errors


@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [
        (("--base_url=x", "--check_only"), 2, "--check_only fetches nothing: leave out --base_url"),
        (("--out_dir=gs://bucket/wiki",), 1, "give a local path, and copy it"),
    ],
)
def test_bad_arguments_are_refused(there, run, arguments, expected, message):
    code, _, errors = run(*arguments)
    assert code == expected and message in errors and there.requests == []


def test_the_dump_comes_when_it_is_named(there, run, monkeypatch):
    monkeypatch.setattr(download, "uncompress_dump", lambda folder: None)
    assert run("dump", "tf2")[0] == 0
    assert [path for path in asked(there) if "enwiki" in path] == [
        f"/input_files/{published.DUMP}.bz2"
    ]
    assert f"/input_files/{published.GROUPS['tf2'][0].path}" in asked(there)
