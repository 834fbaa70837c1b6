"""The local folder of a run in a bucket: what stays, what is fetched, what is uploaded."""

import tempfile
from pathlib import Path

import pytest

from mlperf_bert.files import locks, paths
from mlperf_bert.files.working import WorkingFolder

FOLDER = "gs://bucket/a/run"


def working(host: Path) -> WorkingFolder:
    tempfile.tempdir = str(host)
    locks.GONE_AFTER_SECONDS, locks._LOOK_SECONDS = 0.3, 0.1
    location = paths.location(FOLDER)
    return WorkingFolder(location, record="run.json", needed=("run.json", "*.log"))


def write(host: Path, released: bool = True, **contents: str) -> WorkingFolder:
    """Writes local files, as a run does, and uploads them."""
    found = working(host)
    assert found.acquire()
    for name, text in contents.items():
        path = found.local / name.replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found.publish()
    if released:
        found.release()
    return found


def fetched(host: Path) -> dict[str, str]:
    """What a restart on a host finds in its local folder."""
    found = working(host)
    assert found.acquire()
    texts = {path.name: path.read_text() for path in found.local.glob("[!.]*")}
    found.release()
    return texts


def test_lines_that_were_not_uploaded_are_found_on_the_same_host(store, bucket, hosts):
    store.call(_write_and_die, hosts[0])
    assert store.call(fetched, hosts[0]) == {
        "run.json": "1",
        "a.log": "1\n2\n",
        "events": "x",
    }
    assert store.objects(bucket)["a/run/a.log"] == b"1\n"


def _write_and_die(host: Path) -> None:
    """As a run that is killed: nothing is released."""
    killed = write(host, released=False, run_json="1", a_log="1\n", events="x")
    with (killed.local / "a.log").open("a") as file:
        file.write("2\n")


def test_what_an_end_could_not_upload_is_found_on_the_same_host(store, bucket, hosts):
    store.call(_write_refused, hosts[0])
    assert store.call(fetched, hosts[0]) == {"run.json": "1", "a.log": "1\n2\n"}


def _write_refused(host: Path) -> None:
    found = write(host, released=False, run_json="1", a_log="1\n")
    (found.local / "a.log").write_text("1\n2\n")
    location, found._location = found._location, paths.location("gs://none/run")
    with pytest.raises(FileNotFoundError):
        found.publish()
    found._location = location
    found.release()


def test_what_was_removed_from_the_local_folder_is_fetched_again(store, bucket, hosts):
    store.call(_write_and_die, hosts[0])
    [log] = hosts[0].rglob("a.log")
    log.unlink()
    assert store.call(fetched, hosts[0]) == {"run.json": "1", "a.log": "1\n", "events": "x"}


def test_another_host_finds_what_was_uploaded_and_what_it_writes_wins(store, bucket, hosts):
    here, there = hosts
    store.call(_write_and_die, here)
    assert store.call(fetched, there) == {"run.json": "1", "a.log": "1\n"}
    store.call(_write_more, there)
    assert store.call(fetched, here) == {"run.json": "1", "a.log": "1\n", "b.log": "2\n"}


def _write_more(host: Path) -> None:
    write(host, b_log="2\n")


def test_a_run_that_was_removed_from_the_bucket_is_gone_here_too(store, bucket, hosts):
    store.call(_write_run, hosts[0])
    for name in store.objects(bucket):
        store.remove(bucket, name)
    assert store.call(fetched, hosts[0]) == {}


def _write_run(host: Path) -> None:
    write(host, run_json="1", a_log="1\n")


def uploaded(store) -> list[str]:
    """Objects in the order of their uploads, but for locks."""
    names = [request.name for request in store.requests if request.kind == "write"]
    return [name for name in names if ".lock" not in name]


def test_nothing_is_uploaded_before_the_record_and_it_comes_last(store, bucket, hosts):
    store.call(_write_log, hosts[0])
    assert not uploaded(store)
    store.call(_write_run, hosts[0])
    assert uploaded(store) == ["a/run/a.log", "a/run/run.json"]


def _write_log(host: Path) -> None:
    write(host, a_log="1\n")


def test_only_what_changed_is_uploaded(store, bucket, hosts):
    store.call(_publish_often, hosts[0])
    assert uploaded(store) == ["a/run/a.log", "a/run/sub/b", "a/run/run.json", "a/run/sub/b"]


def _publish_often(host: Path) -> None:
    found = working(host)
    assert found.acquire()
    (found.local / "sub").mkdir(parents=True)
    for name, text in (("run.json", "1"), ("a.log", "1\n"), ("sub/b", "1")):
        (found.local / name).write_text(text)
    found.publish()
    found.publish()
    (found.local / "sub/b").write_text("12")
    found.publish()
    found.release()
    found = working(host)
    assert found.acquire()
    found.publish()  # what was fetched is there
    found.release()


def test_a_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 4711)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "mlperf-bert-4711").mkdir()
    with pytest.raises(ValueError, match="belongs to somebody else; set TMPDIR"):
        WorkingFolder(paths.location(FOLDER), record="run.json", needed=())
