"""One writer a folder of a bucket, by what the store lets be written."""

import concurrent.futures
import time

import pytest

from mlperf_bert.files import errors, locks, paths
from mlperf_bert.files.locks import BucketLock

FOLDER = "gs://bucket/run"
LOCK = "run/.lock"
OF_ANOTHER_HOST = b"process 7 on elsewhere (abcd)"


def quick_lock(gone_after_seconds: float = 1.0) -> BucketLock:
    locks.REWRITE_SECONDS, locks._LOOK_SECONDS = 0.1, 0.1
    locks.GONE_AFTER_SECONDS = gone_after_seconds
    return BucketLock(paths.location(FOLDER))


def take(gone_after_seconds: float = 1.0) -> bool:
    """Takes the lock and ends like a process that is killed: nothing is released."""
    return quick_lock(gone_after_seconds).acquire()


def statuses_of_writes(store) -> list[int]:
    return [request.status for request in store.requests if request.kind == "write"]


def test_a_lock_is_written_again_and_removed(store, bucket):
    store.call(_hold)
    assert statuses_of_writes(store).count(200) >= 4
    assert LOCK not in store.objects(bucket)


def _hold() -> None:
    lock = quick_lock()
    assert lock.acquire() and not lock.is_held_elsewhere()
    assert not quick_lock().acquire() and quick_lock().is_held_elsewhere()
    first, deadline = lock._generation, time.monotonic() + 300
    for _ in range(3):
        while lock._generation == first and time.monotonic() < deadline:
            time.sleep(0.01)
        first = lock._generation
    lock.require_held()
    lock.release()
    lock.release()


@pytest.mark.parametrize("before", [None, OF_ANOTHER_HOST], ids=["nothing there", "of a dead one"])
def test_of_two_hosts_at_once_the_store_lets_one_write(store, bucket, before):
    """Both see the same object, or none, before either writes."""
    if before:
        store.put(bucket, LOCK, before)
    store.gather_writes(2)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        taken = list(pool.map(lambda _: store.call(take), range(2)))
    assert sorted(taken) == [False, True]
    assert 412 in statuses_of_writes(store)


def test_an_owner_that_lives_keeps_it(store, bucket):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(store.call, take, 600.0)
        while not asked.done():
            store.put(bucket, LOCK, OF_ANOTHER_HOST)  # of another generation each time
            time.sleep(0.1)
        assert not asked.result()
    assert store.objects(bucket)[LOCK] == OF_ANOTHER_HOST


def test_a_store_that_fails_for_a_while_does_not_lose_the_lock(store, bucket):
    store.call(_hold_through_faults)


def _hold_through_faults() -> None:
    lock = quick_lock()
    assert lock.acquire()
    written = lock._written
    lock._written = _failing
    time.sleep(0.4)
    lock._written = written
    with lock._writing:  # no rewrite meanwhile
        # An answer that was lost: the client wrote again, and met what it had written itself.
        assert written(0) == written(1) == lock._found()[0] > 0
    lock.require_held()
    lock.release()


def _failing(generation: int) -> int:
    raise errors.StoreUnavailable("the store does not answer")
