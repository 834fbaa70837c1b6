"""What a run publishes into a bucket, and what its next start finds."""

import gc
import os
import re
import tempfile

import pytest

from mlperf_bert.files import locks, paths, whole
from mlperf_bert.files import working as of_runs
from mlperf_bert.files.working import WorkingFolder

FOLDER = "gs://bucket/a/run"


def working() -> WorkingFolder:
    locks.GONE_AFTER_SECONDS, locks._LOOK_SECONDS = 0.3, 0.1
    location = paths.location(FOLDER)
    return WorkingFolder(location, record="run.json", needed=("run.json", "*.log"))


def write(files: dict[str, str], *, released: bool = True) -> WorkingFolder:
    """Writes local files, as a run does, and uploads them."""
    run = working()
    assert run.acquire()
    for name, text in files.items():
        (run.local / name).parent.mkdir(exist_ok=True)
        (run.local / name).write_text(text)
    run.publish()
    if released:
        run.lock.release()
    return run


def fetched() -> dict[str, str]:
    """What a restart finds in its local folder."""
    run = working()
    assert run.acquire()
    texts = {path.name: path.read_text() for path in run.local.iterdir()}
    run.lock.release()
    return texts


def test_a_start_finds_what_was_uploaded_after_a_kill_too(store, bucket):
    store.call(_write_and_die)
    assert store.objects(bucket)["a/run/a.log"] == b"1\n"
    before = store.objects(bucket)
    assert store.call(_look) == {"run.json": "1", "a.log": "1\n"}
    assert store.objects(bucket) == before
    assert store.call(fetched) == {"run.json": "1", "a.log": "1\n"}


def _look() -> dict[str, str]:
    """As --check of a restart: takes no lock and writes nothing."""
    run = working()
    run.try_out()
    return {path.name: path.read_text() for path in run.local.iterdir()}


def _write_and_die() -> None:
    """As a run that is killed: nothing is released."""
    killed = write({"run.json": "1", "a.log": "1\n", "events": "x"}, released=False)
    with (killed.local / "a.log").open("a") as file:
        file.write("2\n")


def uploaded(store) -> list[str]:
    """Objects in the order of their uploads, but for locks."""
    names = [request.name for request in store.requests if request.kind == "write"]
    return [name for name in names if ".lock" not in name]


def test_only_what_changed_is_uploaded_the_record_last_and_nothing_before_it(store, bucket):
    store.call(_publish_often)
    assert uploaded(store) == ["a/run/a.log", "a/run/sub/b", "a/run/run.json", "a/run/sub/b"]


def _publish_often() -> None:
    run = write({"a.log": "1\n", "sub/b": "1"}, released=False)
    (run.local / "run.json").write_text("1")
    run.publish()
    run.publish()
    (run.local / "sub/b").write_text("12")
    run.publish()
    run.lock.release()


def test_what_is_written_during_an_upload_is_uploaded_the_next_time(monkeypatch):
    run, uploads = working(), []

    def upload(source, target):
        uploads.append(source.read_text())
        source.write_text("12")

    monkeypatch.setattr(of_runs, "upload", upload)
    monkeypatch.setattr(run.lock, "require_held", lambda: None)
    (run.local / "run.json").write_text("1")
    for _ in range(2):
        run.publish()
    assert uploads == ["1", "12"]


def test_a_file_is_uploaded_again_if_its_size_or_its_time_is_another(monkeypatch):
    run, uploads = working(), []
    monkeypatch.setattr(of_runs, "upload", lambda source, _: uploads.append(source.read_text()))
    monkeypatch.setattr(run.lock, "require_held", lambda: None)
    for text, time in (("1", 1), ("12", 1), ("12", 1), ("34", 2)):
        (run.local / "run.json").write_text(text)
        os.utime(run.local / "run.json", (time, time))
        run.publish()
    assert uploads == ["1", "12", "34"]


def test_nothing_is_uploaded_by_a_run_whose_folder_was_taken_over(store, bucket):
    assert store.call(_lose) == f"{FOLDER}/.lock: process 7 on elsewhere has taken over; this " \
        "process stops, the other goes on"  # fmt: skip
    assert not uploaded(store)
    assert store.objects(bucket) == {"a/run/.lock": b"process 7 on elsewhere"}  # not released


def _lose() -> str:
    run = write({}, released=False)
    paths.location(f"{FOLDER}/.lock").write_bytes(b"process 7 on elsewhere")
    (run.local / "run.json").write_text("1")
    try:
        run.publish()
    except OSError as error:
        run.lock.release()
        return str(error)
    return "published"


def test_an_object_of_any_size_replaces_another(store, bucket):
    store.call(_upload_twice)
    assert store.objects(bucket) == {"large": b"another", "small": b"12"}


def _upload_twice() -> None:
    whole._BYTES_UPLOADED_AT_ONCE = 2
    for name, text in (("large", "123"), ("large", "another"), ("small", "1"), ("small", "12")):
        whole.write_whole(f"gs://bucket/{name}", text)


def test_a_disk_without_room_for_a_copy_is_named(store, bucket, small_disk):
    disk = small_disk(64)
    with pytest.raises(OSError, match="No space left on device") as failed:
        store.call(_write_by, str(disk))
    assert re.fullmatch(rf"{disk}/mlperf-bert-.*/new", failed.value.filename)


def _write_by(disk: str) -> None:
    tempfile.tempdir = disk
    with whole.written_beside("gs://bucket/new") as file:
        file.write(bytes(2**20))


def test_the_local_folder_ends_with_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = working()
    assert [run.local] == list(tmp_path.iterdir())
    del run
    gc.collect()
    assert not list(tmp_path.iterdir())
