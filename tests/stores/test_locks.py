"""One writer a folder of a bucket, by what the store lets be written."""

import concurrent.futures
import json
import tempfile
import time
from pathlib import Path

import pytest

from mlperf_bert.files import locks, paths
from mlperf_bert.files.locks import BucketLock

FOLDER = "gs://bucket/run"
LOCK = "run/.lock"
OF_ANOTHER_HOST = {"by": "process 7 on elsewhere", "place": "elsewhere /tmp 1 2", "token": "theirs"}


def quick_lock(host: Path, *, gone_after_seconds: float = 1.0) -> BucketLock:
    """A lock of this process, whose temporary folder is that of a host."""
    locks.REWRITE_SECONDS, locks._LOOK_SECONDS = 0.1, 0.1
    locks.GONE_AFTER_SECONDS = gone_after_seconds
    tempfile.tempdir = str(host)
    return BucketLock(paths.location(FOLDER))


def owner(**changed) -> bytes:
    return json.dumps(OF_ANOTHER_HOST | changed).encode()


def take(host: Path, gone_after_seconds: float = 1.0) -> bool:
    """Takes the lock and ends like a process that is killed: nothing is released."""
    return quick_lock(host, gone_after_seconds=gone_after_seconds).acquire()


def statuses_of_writes(store) -> list[int]:
    return [request.status for request in store.requests if request.kind == "write"]


def test_a_lock_is_written_again_and_removed(store, bucket, hosts):
    store.call(_hold, hosts[0])
    assert statuses_of_writes(store).count(200) >= 4
    assert LOCK not in store.objects(bucket)
    assert not list(hosts[0].rglob("*.lock"))


def _hold(host: Path) -> None:
    lock = quick_lock(host)
    assert lock.acquire() and not lock.is_held_elsewhere()
    assert not quick_lock(host).acquire() and quick_lock(host).is_held_elsewhere()
    first, deadline = lock._generation, time.monotonic() + 300
    for _ in range(3):
        while lock._generation == first and time.monotonic() < deadline:
            time.sleep(0.01)
        first = lock._generation
    lock.require_held()
    lock.release()
    lock.release()


@pytest.mark.parametrize("before", [None, owner()], ids=["nothing there", "of a host that is gone"])
def test_of_two_hosts_at_once_the_store_lets_one_write(store, bucket, hosts, before):
    """Both see the same object, or none, before either writes."""
    if before:
        store.put(bucket, LOCK, before)
    store.gather_writes(2)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        taken = list(pool.map(lambda host: store.call(take, host), hosts))
    assert sorted(taken) == [False, True]
    assert 412 in statuses_of_writes(store)


def test_an_owner_that_ended_on_this_host_is_known_at_once(store, bucket, hosts):
    assert store.call(take, hosts[0], 600.0)
    assert store.call(take, hosts[0], 600.0)
    assert json.loads(store.objects(bucket)[LOCK])["place"].split()[1].startswith(str(hosts[0]))


@pytest.mark.parametrize("content", [owner(), b"{}", b"\xff{"])
def test_an_unchanged_lock_of_another_host_is_taken_after_a_while(store, bucket, hosts, content):
    """Whatever its clock says: no time is written."""
    store.put(bucket, LOCK, content)
    assert store.call(take, hosts[0])
    assert store.kinds()["stat"] > 3


def test_an_owner_on_another_host_that_lives_keeps_it(store, bucket, hosts):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(store.call, take, hosts[0], 600.0)
        number = 0
        while not asked.done():
            store.put(bucket, LOCK, owner(token=str(number)))
            number += 1
            time.sleep(0.1)
        assert not asked.result()
    assert json.loads(store.objects(bucket)[LOCK])["place"] == OF_ANOTHER_HOST["place"]
    assert not [path for path in hosts[0].rglob("*") if path.is_file()]


def test_an_owner_notices_that_another_has_taken_over(store, bucket, hosts):
    message = store.call(_lose, hosts[0])
    assert message == (
        f"{FOLDER}/.lock: process 7 on elsewhere has taken over; this process stops, the other "
        "goes on"
    )
    assert store.objects(bucket)[LOCK] == owner()


def _lose(host: Path) -> str:
    lock = quick_lock(host)
    assert lock.acquire()
    paths.location(f"{FOLDER}/.lock").write_bytes(owner())
    time.sleep(0.3)  # several rewrites, which the store refuses
    with pytest.raises(OSError) as caught:
        lock.require_held()
    lock.release()
    return str(caught.value)


def test_a_store_that_fails_for_a_while_does_not_lose_the_lock(store, bucket, hosts):
    store.call(_hold_through_faults, hosts[0])


def _hold_through_faults(host: Path) -> None:
    lock = quick_lock(host)
    assert lock.acquire()
    written = lock._written
    lock._written = _failing
    time.sleep(0.4)
    lock._written = written
    with lock._writing:  # no rewrite meanwhile
        # An answer that was lost: the client wrote again, and met what it had written itself.
        assert written(0) == written(1) == lock._found() > 0
    lock.require_held()
    lock.release()


def _failing(generation: int) -> int:
    raise paths.StoreUnavailable("the store does not answer")
