"""One writer a folder, in a store that has no locks."""

import concurrent.futures
import json
import subprocess
import sys
import time

import pytest

from mlperf_bert.files import buckets, paths

FOLDER = "gs://bucket/run"
LOCK = "run/.lock"


def quick_lock() -> buckets.ObjectLock:
    buckets.REWRITE_SECONDS, buckets.SETTLE_SECONDS = 0.1, 0.3
    buckets.GONE_AFTER_SECONDS, buckets._LOOK_SECONDS = 1.0, 0.1
    return buckets.ObjectLock(paths.location(FOLDER), file_name=".lock")


def owner(**changed) -> bytes:
    """What a process has written that has ended on this host, or as changed."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    content = buckets._this_process() | {"pid": gone.pid, "token": "theirs", "rewrites": 3}
    return json.dumps(content | changed).encode()


def seconds_to_acquire(gone_after_seconds: float = 1.0) -> tuple[bool, float]:
    lock, began = quick_lock(), time.monotonic()
    buckets.GONE_AFTER_SECONDS = gone_after_seconds
    found = lock.acquire()
    seconds = time.monotonic() - began
    lock.release()
    return found, seconds


def test_a_lock_is_written_again_and_removed(store, bucket):
    assert store.call(_hold) >= 3
    assert LOCK not in store.objects(bucket)


def _hold() -> int:
    lock = quick_lock()
    assert lock.acquire() and not lock.is_held_elsewhere()
    assert not quick_lock().acquire() and quick_lock().is_held_elsewhere()
    deadline = time.monotonic() + 300
    while (written := lock._read()["rewrites"]) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    lock.require_held()
    lock.release()
    lock.release()
    return written


@pytest.mark.gate
def test_of_many_at_once_one_has_it(store, bucket):
    assert store.call(_race) == 1


def _race() -> int:
    racing = [quick_lock() for _ in range(8)]
    buckets.SETTLE_SECONDS = 3.0  # longer than a busy machine takes from looking to writing
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda lock: lock.acquire(), racing))
    for lock in racing:
        lock.release()
    return sum(taken)


def test_an_owner_that_ended_on_this_host_is_looked_up(store, bucket):
    store.put(bucket, LOCK, owner())
    taken, seconds = store.call(seconds_to_acquire, 600.0)
    assert taken and seconds < 300


@pytest.mark.parametrize("content", [owner(boot="of another host"), b"", b"{}", b"\xff{"])
def test_an_unchanged_lock_of_another_host_is_taken_after_a_while(store, bucket, content):
    """Whatever its clock says: no time is written."""
    store.put(bucket, LOCK, content)
    taken, seconds = store.call(seconds_to_acquire)
    assert taken and (content == b"{}" or seconds > 1.0)


def test_an_owner_on_another_host_that_lives_keeps_it(store, bucket):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(store.call, seconds_to_acquire)
        number = 0
        while not asked.done():
            store.put(bucket, LOCK, owner(boot="of another host", rewrites=number))
            number += 1
            time.sleep(0.1)
        taken, _ = asked.result()
    assert not taken
    assert json.loads(store.objects(bucket)[LOCK])["token"] == "theirs"


def test_an_owner_notices_that_another_has_taken_over(store, bucket):
    message = store.call(_lose, owner(host="elsewhere", pid=7))
    assert message == (
        f"{FOLDER}/.lock: process 7 on elsewhere has taken over; this process stops, the other "
        "goes on"
    )
    assert json.loads(store.objects(bucket)[LOCK])["token"] == "theirs"


def _lose(content: bytes) -> str:
    lock = quick_lock()
    assert lock.acquire()
    with lock._writing:
        paths.location(f"{FOLDER}/.lock").write_bytes(content)
    time.sleep(0.3)
    with pytest.raises(OSError) as caught:
        lock.require_held()
    lock.release()
    return str(caught.value)


def test_a_store_that_fails_for_a_while_does_not_lose_the_lock(store, bucket):
    assert store.call(_hold_through_faults)


def _hold_through_faults() -> bool:
    lock = quick_lock()
    assert lock.acquire()
    read = lock._read
    lock._read = _failing
    time.sleep(0.4)
    lock._read = read
    time.sleep(0.3)
    lock.require_held()
    lock.release()
    return True


def _failing() -> dict:
    raise OSError("the store answers 503")
