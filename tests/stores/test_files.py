"""The files of a bucket: what a store refuses, the one writer of a folder, what a run publishes."""

import concurrent.futures
import gc
import itertools
import os
import re
import tempfile
import time

import pytest
import tensorflow as tf

from mlperf_bert.checkpoints import state
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.checkpoints.state import RunState
from mlperf_bert.files import errors, locks, paths, whole
from mlperf_bert.files import working as of_runs
from mlperf_bert.files.locks import BucketLock
from mlperf_bert.files.working import WorkingFolder
from tests.helpers import waiting

# --- What a store refuses is named by the type of the client's error, and is no damage of a file.

DENIED = (PermissionError, "the store refuses these credentials; give their account the role")
ABSENT = (FileNotFoundError, "no such bucket or object; check the path")
AWAY = (errors.StoreUnavailable, "the store does not answer, or asks to try later; repeat")
REFUSALS = {401: DENIED, 403: DENIED, 404: ABSENT, 429: AWAY, 503: AWAY, "cut": AWAY}
PATH = "gs://bucket/x"
RUN = "gs://bucket/run"


def _errors_of_both_clients() -> list[OSError]:
    """What a write raises, by TensorFlow's client and by Google's."""
    blob, found = locks.client().bucket("bucket").blob("x"), []
    for write in (
        lambda: paths.location(PATH).write_bytes(b"x"),
        lambda: blob.upload_from_string(b"x", retry=None),
    ):
        try:
            with paths.failures_named(PATH):
                write()
        except OSError as error:
            found.append(error)
    return found


@pytest.mark.parametrize("status", REFUSALS)
def test_a_refusal_is_named(store, status):
    store.fail(1.0, status)
    kind, text = REFUSALS[status]
    raised = store.call(_errors_of_both_clients)
    assert [type(error) for error in raised] == [kind] * 2
    assert all(str(error).startswith(f"{PATH}: {text}") for error in raised)


def test_an_object_is_read_in_few_requests_from_anywhere_in_it(store):
    content = bytes(range(256)) * 2**17  # 32 MiB
    store.put("bucket", "x", content)
    assert store.call(_parts) == [content[:4], content[10**7 : 10**7 + 4], content[-4:]]
    assert sum(request.kind == "read" for request in store.requests) < 8


def _parts() -> list[bytes]:
    with paths.opened(PATH) as file:
        first = file.read(4)
        file.seek(10**7)
        middle = file.read(4)
        file.seek(-4, 2)
        return [first, middle, file.read()]


def _state() -> RunState:
    variable = tf.Variable(tf.fill([300, 300], 2.5))
    return RunState(RUN, parts={"variable": variable}, keep_checkpoint_max=2)


def _save() -> None:
    _state().save(20)


# The first request of each is that of the checkpoint.
WAYS = {
    "restore": lambda path: _state().restore(path),
    "look": state._is_whole,
    "open": StoredCheckpoint,
}


def _read_checkpoint(*ways: str) -> None:
    for way in ways:
        WAYS[way](f"{RUN}/model.ckpt-20")


@pytest.mark.parametrize("status", [503, 403])
def test_what_a_store_refuses_is_no_damage(store, status):
    store.call(_save)
    store.call(_read_checkpoint, *WAYS)
    store.fail(1.0, status)
    kind, told = REFUSALS[status]
    for way in WAYS:
        with pytest.raises(kind, match=told) as error:
            store.call(_read_checkpoint, way)
        assert type(error.value) is kind
        assert "remove" not in str(error.value) and "copy it here" not in str(error.value)


# --- One writer a folder of a bucket, by what the store lets be written.

LOCK = "run/.lock"
OF_ANOTHER_HOST = b"process 7 on elsewhere (abcd)"


def quick_lock(gone_after_seconds: float = waiting.HANGS_AFTER_SECONDS) -> BucketLock:
    """One that is written again, and looked at, ten times a second."""
    locks.REWRITE_SECONDS, locks._LOOK_SECONDS = 0.1, 0.1
    locks.GONE_AFTER_SECONDS = gone_after_seconds
    return BucketLock(paths.location(RUN))


def statuses_of_writes(store) -> list[int]:
    return [request.status for request in store.requests if request.kind == "write"]


def test_a_lock_is_written_again_and_removed(store):
    store.call(_hold)
    assert statuses_of_writes(store).count(200) >= 4
    assert LOCK not in store.objects()


def _hold() -> None:
    lock = quick_lock()
    assert lock.acquire() and not lock.is_held_elsewhere()
    assert not quick_lock().acquire() and quick_lock().is_held_elsewhere()
    for _ in range(3):
        first = lock._generation
        waiting.until(lambda before=first: lock._generation != before)
    lock.require_held()
    lock.release()
    lock.release()


def test_a_lock_that_another_has_taken_over_is_left_to_it(store):
    store.call(_release_what_is_anothers)
    assert store.objects()[LOCK] == OF_ANOTHER_HOST


def _release_what_is_anothers() -> None:
    lock = quick_lock()
    locks.REWRITE_SECONDS = 600  # it does not notice before
    assert lock.acquire()
    lock._blob().upload_from_string(OF_ANOTHER_HOST)
    lock.release()


@pytest.mark.parametrize("before", [None, OF_ANOTHER_HOST], ids=["nothing there", "of a dead one"])
def test_of_two_hosts_at_once_the_store_lets_one_write(store, before):
    """Both see the same object, or none, before either writes."""
    if before:
        store.put("bucket", LOCK, before)
    assert store.call(_both) == (True, 0)
    assert 412 in statuses_of_writes(store)


def _both() -> tuple[bool, int]:
    one, other = quick_lock(1.0), quick_lock(1.0)  # so long nobody writes the dead one's again
    seen = other._replaceable()
    return one.acquire(), other._write(seen)


def test_a_lock_is_free_if_its_owner_removes_it_or_writes_no_more(monkeypatch):
    monkeypatch.setattr(locks, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(locks, "GONE_AFTER_SECONDS", 0.1)
    lock = BucketLock(paths.location(RUN))
    for seen, replaceable in (([0], 0), ([5, 5, 0], 0), ([5, 5, 6], None), ([5], 5)):
        generations = itertools.chain(seen, itertools.repeat(seen[-1]))
        monkeypatch.setattr(lock, "_read", lambda of=generations: (next(of), "another"))
        assert lock._replaceable() == replaceable


def at_once(function) -> None:
    """Calls it in two threads."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(function) for _ in range(2)]:
            done.result()


def test_one_thread_at_a_time_writes_a_lock_again(monkeypatch):
    """The store would refuse the second one, as if another process had taken over."""
    lock, written = BucketLock(paths.location(RUN)), []

    def write(generation: int) -> int:
        written.append(generation)
        time.sleep(0.05)
        return generation + 1

    monkeypatch.setattr(lock, "_write", write)
    lock._generation = 1
    at_once(lock.require_held)
    assert written == [1, 2]


def test_an_owner_that_lives_keeps_it(store):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(store.call, _take)
        while not asked.done():
            store.put("bucket", LOCK, OF_ANOTHER_HOST)  # of another generation each time
            time.sleep(0.1)
        assert not asked.result()
    assert store.objects()[LOCK] == OF_ANOTHER_HOST


def _take() -> bool:
    return quick_lock().acquire()


def test_a_store_that_fails_for_a_while_does_not_lose_the_lock(store):
    store.call(_hold_through_faults)


def _hold_through_faults() -> None:
    lock, failed = quick_lock(), []

    def fails(generation: int) -> int:
        failed.append(generation)
        raise errors.StoreUnavailable("the store does not answer")

    assert lock.acquire()
    written = lock._write
    lock._write = fails
    waiting.until(lambda: len(failed) > 2, seconds=60)
    lock._write = written
    with lock._writing:  # no rewrite meanwhile
        # An answer that was lost: the client wrote again, and met what it had written itself.
        assert written(0) == written(1) == lock._read()[0] > 0
    lock.require_held()
    lock.release()


# --- What a run publishes into a bucket, and what its next start finds.

FOLDER = "gs://bucket/a/run"


def working() -> WorkingFolder:
    locks.GONE_AFTER_SECONDS, locks._LOOK_SECONDS = 0.3, 0.1
    location = paths.location(FOLDER)
    return WorkingFolder(location, record="run.json", needed=("run.json", "*.log"))


def write(files: dict[str, str]) -> WorkingFolder:
    """Writes local files, as a run does, and uploads them; the run holds its lock still."""
    run = working()
    assert run.acquire()
    for name, text in files.items():
        (run.local / name).parent.mkdir(exist_ok=True)
        (run.local / name).write_text(text)
    run.publish()
    return run


def fetched() -> dict[str, str]:
    """What a restart finds in its local folder."""
    run = working()
    assert run.acquire()
    texts = {path.name: path.read_text() for path in run.local.iterdir()}
    run.lock.release()
    return texts


def test_a_start_finds_what_was_uploaded_after_a_kill_too(store):
    store.call(_write_and_die)
    assert store.objects()["a/run/a.log"] == b"1\n"
    before = store.objects()
    assert store.call(_look) == {"run.json": "1", "a.log": "1\n"}
    assert store.objects() == before
    assert store.call(fetched) == {"run.json": "1", "a.log": "1\n"}


def _look() -> dict[str, str]:
    """As --check of a restart: takes no lock and writes nothing."""
    run = working()
    run.try_out()
    return {path.name: path.read_text() for path in run.local.iterdir()}


def _write_and_die() -> None:
    """As a run that is killed: nothing is released."""
    killed = write({"run.json": "1", "a.log": "1\n", "events": "x"})
    with (killed.local / "a.log").open("a") as file:
        file.write("2\n")


def uploaded(store) -> list[str]:
    """Objects in the order of their uploads, but for locks."""
    names = [request.name for request in store.requests if request.kind == "write"]
    return [name for name in names if ".lock" not in name]


def test_only_what_changed_is_uploaded_the_record_last_and_nothing_before_it(store):
    store.call(_publish_often)
    assert uploaded(store) == ["a/run/a.log", "a/run/sub/b", "a/run/run.json", "a/run/sub/b"]


def _publish_often() -> None:
    run = write({"a.log": "1\n", "sub/b": "1", ".events.partial": "half of it"})
    (run.local / "run.json").write_text("1")
    run.publish()
    run.publish()
    (run.local / "sub/b").write_text("12")
    run.publish()
    run.lock.release()


def test_a_file_is_uploaded_again_if_its_size_or_its_time_is_another(monkeypatch):
    """Also what is written during an upload."""
    run, uploads = working(), []
    record = run.local / "run.json"

    def upload(source, _):
        uploads.append(source.read_text())
        time.sleep(0.02)
        if uploads[-1] == "34":
            record.write_text("567")

    monkeypatch.setattr(of_runs, "upload", upload)
    monkeypatch.setattr(run.lock, "require_held", lambda: None)
    for text, seconds in (("1", 1), ("12", 1), ("12", 1), ("34", 2)):
        record.write_text(text)
        os.utime(record, (seconds, seconds))
        run.publish()
    run.publish()
    assert uploads == ["1", "12", "34", "567"]
    record.write_text("8")
    at_once(run.publish)  # a run's thread, and the one that writes its checkpoints
    assert uploads[4:] == ["8"]


def test_nothing_is_uploaded_by_a_run_whose_folder_was_taken_over(store):
    assert store.call(_lose) == f"{FOLDER}/.lock: process 7 on elsewhere has taken over; this " \
        "process stops, the other continues"  # fmt: skip
    assert not uploaded(store)
    assert store.objects() == {"a/run/.lock": b"process 7 on elsewhere"}  # still there


def _lose() -> str:
    run = write({})
    paths.location(f"{FOLDER}/.lock").write_bytes(b"process 7 on elsewhere")
    (run.local / "run.json").write_text("1")
    try:
        run.publish()
    except OSError as error:
        run.lock.release()
        return str(error)
    return "published"


def test_an_object_of_any_size_replaces_another(store):
    store.call(_upload_twice)
    assert store.objects() == {"large": b"another", "small": b"12"}


def _upload_twice() -> None:
    whole._BYTES_UPLOADED_AT_ONCE = 2
    for name, text in (("large", "123"), ("large", "another"), ("small", "1"), ("small", "12")):
        whole.write_whole(f"gs://bucket/{name}", text)


def test_a_disk_without_room_for_a_copy_is_named(store, small_disk):
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
