"""The local copy of a run's folder: what stays, what is fetched, what is uploaded."""

import tempfile
from pathlib import Path

import pytest

from mlperf_bert.files import paths
from mlperf_bert.files.working import Mirror

FOLDER = "gs://bucket/a/run"


def mirror(host: Path) -> Mirror:
    tempfile.tempdir = str(host)
    return Mirror(paths.location(FOLDER), record="run.json", needed=("run.json", "*.log"))


def write(host: Path, **contents: str) -> None:
    """Writes local files, as a run does, and uploads them."""
    found = mirror(host)
    for name, text in contents.items():
        path = found.local / name.replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found.push()


def pulled(host: Path) -> dict[str, str]:
    """What a restart on a host finds in its local folder."""
    found = mirror(host)
    found.pull()
    return {path.name: path.read_text() for path in found.local.glob("[!.]*")}


@pytest.fixture
def hosts(tmp_path) -> list[Path]:
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder in folders:
        folder.mkdir()
    return folders


def test_lines_that_were_not_uploaded_are_found_on_the_same_host(store, bucket, hosts):
    assert store.call(_restart, hosts[0]) == {"run.json": "1", "a.log": "1\n2\n"}
    assert store.objects(bucket)["a/run/a.log"] == b"1\n"


def _restart(host: Path) -> dict[str, str]:
    write(host, run_json="1", a_log="1\n")
    with (mirror(host).local / "a.log").open("a") as file:
        file.write("2\n")
    return pulled(host)


def test_another_host_finds_what_was_uploaded_and_what_it_writes_wins(store, bucket, hosts):
    there, here = store.call(_move, *hosts)
    assert there == {"run.json": "1", "a.log": "1\n"}
    assert here == {"run.json": "1", "a.log": "1\n", "b.log": "2\n"}


def _move(here: Path, there: Path) -> list[dict[str, str]]:
    write(here, run_json="1", a_log="1\n", events="x")
    first = pulled(there)
    write(there, run_json="1", b_log="2\n")
    with (mirror(here).local / "a.log").open("a") as file:
        file.write("of before the move\n")
    return [first, pulled(here)]


def test_a_run_that_was_removed_from_the_bucket_is_gone_here_too(store, bucket, hosts):
    store.call(write, hosts[0])
    store.call(_write_run, hosts[0])
    for name in store.objects(bucket):
        store.remove(bucket, name)
    assert store.call(pulled, hosts[0]) == {}


def _write_run(host: Path) -> None:
    write(host, run_json="1", a_log="1\n")


def test_nothing_is_uploaded_before_the_record_and_it_comes_last(store, bucket, hosts):
    store.call(_write_log, hosts[0])
    assert not store.objects(bucket)
    store.call(_write_run, hosts[0])
    uploaded = [request.name for request in store.requests if request.kind == "write"]
    assert uploaded == ["a/run/a.log", "a/run/run.json"]


def _write_log(host: Path) -> None:
    write(host, a_log="1\n")


def test_only_what_changed_is_uploaded(store, bucket, hosts):
    store.call(_push_thrice, hosts[0])
    uploaded = [request.name for request in store.requests if request.kind == "write"]
    assert uploaded == ["a/run/a.log", "a/run/sub/b", "a/run/run.json", "a/run/sub/b"]


def _push_thrice(host: Path) -> None:
    found = mirror(host)
    (found.local / "sub").mkdir(parents=True)
    for name, text in (("run.json", "1"), ("a.log", "1\n"), ("sub/b", "1"), (".lock", "")):
        (found.local / name).write_text(text)
    found.push()
    found.push()
    (found.local / "sub/b").write_text("12")
    found.push()


def test_a_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 4711)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "mlperf-bert-4711").mkdir()
    with pytest.raises(ValueError, match="belongs to somebody else; set TMPDIR"):
        Mirror(paths.location(FOLDER), record="run.json", needed=())
