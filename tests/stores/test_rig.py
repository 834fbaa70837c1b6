"""The rig is a good stand-in: TensorFlow's own client, unmodified, works with it."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf

from tests.stores.rig import Request

files = tf.io.gfile


def _write(path, text, mode="w"):
    with files.GFile(path, mode) as file:
        file.write(text)


def _read(path):
    with files.GFile(path) as file:
        return file.read()


def _work_on_files(folder):
    _write(f"{folder}/x", "hello")
    _write(f"{folder}/x", " again", "a")
    _write(f"{folder}/empty", "")
    files.makedirs(f"{folder}/deep/er")
    files.rename(f"{folder}/x", f"{folder}/y")
    return (
        _read(f"{folder}/y"),
        _read(f"{folder}/empty"),
        files.stat(f"{folder}/y").length,
        [files.exists(f"{folder}/{name}") for name in ("x", "y", "deep")],
        sorted(files.listdir(folder)),
        files.glob(f"{folder}/*y"),
    )


def test_files(store, bucket):
    assert store.call(_work_on_files, f"gs://{bucket}/run") == (
        "hello again",
        "",
        11,
        [False, True, True],
        ["deep/", "empty", "y"],
        [f"gs://{bucket}/run/empty", f"gs://{bucket}/run/y"],
    )
    assert store.objects(bucket) == {
        "run/deep/": b"",
        "run/deep/er/": b"",
        "run/empty": b"",
        "run/y": b"hello again",
    }


def _make_folder_eight_times(path):
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(files.mkdir, [path] * 8))


def test_a_precondition_is_kept(store, bucket):
    """TensorFlow makes a folder only if there is none; a folder that is there is no error."""
    store.delay_s = 1.0  # so that several see that there is none
    store.call(_make_folder_eight_times, f"gs://{bucket}/folder")
    tried = [each.status for each in store.requests if each.kind == "write"]
    assert tried.count(200) == 1 and 412 in tried
    assert store.objects(bucket) == {"folder/": b""}


def _checkpoint(path, value):
    """Saves a variable, and restores it into another."""
    tf.train.Checkpoint(variable=tf.Variable(tf.fill([300, 300], value))).write(path)
    restored = tf.Variable(tf.zeros([300, 300]))
    tf.train.Checkpoint(variable=restored).read(path).assert_consumed()
    return float(tf.reduce_max(restored))


def _records(path, count):
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(count):
            writer.write(str(number).encode() * 1000)
    return sum(1 for _ in tf.data.TFRecordDataset(path))


def test_put_remove_and_the_requests_that_were_made(store, bucket):
    store.put(bucket, "run/x", b"content")
    assert store.call(_read, f"gs://{bucket}/run/x") == "content"
    assert store.requests == [
        Request("GET", "stat", "run/x", 200),
        Request("GET", "read", "run/x", 206),
    ]
    store.remove(bucket, "run/x")
    with pytest.raises(tf.errors.NotFoundError):
        store.call(_read, f"gs://{bucket}/run/x")
    assert store.objects(bucket) == {}
    store.requests.clear()
    store.call(_write, f"gs://{bucket}/run/x", "content")
    assert store.kinds() == {"session": 1, "write": 1}


def test_without_the_right(store, bucket):
    store.put(bucket, "x", b"content")
    store.deny_writes()
    assert store.call(_read, f"gs://{bucket}/x") == "content"
    for change in ((_write, f"gs://{bucket}/y", ""), (files.remove, f"gs://{bucket}/x")):
        with pytest.raises(tf.errors.PermissionDeniedError, match="403"):
            store.call(*change)
    del store.environment["GOOGLE_AUTH_TOKEN_FOR_TESTING"]
    with pytest.raises(tf.errors.PermissionDeniedError, match="401"):
        store.call(_read, f"gs://{bucket}/x")
    assert store.objects(bucket) == {"x": b"content"}


@pytest.mark.parametrize(
    "status", [*(pytest.param(status, marks=pytest.mark.all) for status in (503, 429)), "cut"]
)
def test_the_client_tries_again(store, bucket, status):
    store.fail(0.2, status, seed=1)
    assert store.call(_checkpoint, f"gs://{bucket}/run/ck", 2.5) == 2.5
    names = {"run/", "run/ck.index", "run/ck.data-00000-of-00001"}
    assert set(store.objects(bucket)) == names
    assert store.call(_records, f"gs://{bucket}/data/part-0", 1000) == 1000
    failed = [each for each in store.requests if each.status == (0 if status == "cut" else status)]
    assert len(failed) > 5
    store.fail(1.0, status)
    store.requests.clear()
    with pytest.raises(tf.errors.AbortedError, match="All 10 retry attempts failed"):
        store.call(files.exists, f"gs://{bucket}/x")
    assert store.kinds() == {"stat": 11}
    store.fail(0.0)
    assert store.call(files.exists, f"gs://{bucket}/run/ck.index")


def _seconds_of_stats(names):
    started = time.monotonic()
    with ThreadPoolExecutor(len(names)) as threads:
        assert all(threads.map(files.exists, names))
    return time.monotonic() - started


def test_delay_is_each_requests_own(store, bucket):
    names = [f"part-{number}" for number in range(20)]
    for name in names:
        store.put(bucket, name, b"")
    store.delay_s = 3.0
    seconds = store.call(_seconds_of_stats, [f"gs://{bucket}/{name}" for name in names])
    assert store.kinds() == {"stat": 20}
    assert 3.0 <= seconds < 45  # 60, one after the other


def _large(path):
    _write(path, "x" * 50_000_000)
    files.rename(path, path + "2")
    return len(_read(path + "2"))


def test_a_large_object_is_one_request(store, bucket):
    assert store.call(_large, f"gs://{bucket}/x") == 50_000_000
    assert store.kinds()["write"] == 1
