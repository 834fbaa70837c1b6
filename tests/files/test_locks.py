"""One process at a time writes into a local folder; of buckets tests/stores/test_files.py."""

import errno
import threading
import time

import pytest

from mlperf_bert.files import locks
from mlperf_bert.files.locks import DirectoryLock


def test_a_lock_is_held_by_one_and_leaves_nothing(tmp_path):
    folder = tmp_path / "new" / "run"
    lock, other = DirectoryLock(folder), DirectoryLock(folder)
    assert not other.is_held_elsewhere() and not folder.exists()
    assert lock.acquire()
    assert other.is_held_elsewhere() and not other.acquire()
    other.release()  # takes nothing away from the one who has it
    assert not DirectoryLock(folder).acquire()
    lock.release()
    assert not list(tmp_path.iterdir())
    assert lock.acquire()
    (folder / "log").touch()
    lock.release()
    lock.release()
    assert [path.name for path in folder.iterdir()] == ["log"]
    (folder / locks.LOCK_NAME).touch()  # as a killed process leaves it
    assert not other.is_held_elsewhere() and lock.acquire()


def test_a_folder_is_held_as_long_as_the_work_in_it(tmp_path):
    kept = []  # what nobody refers to is released by Python

    def work() -> None:
        with locks.held(tmp_path, by_another="two write here") as lock:
            kept.append(lock)
            with pytest.raises(ValueError, match=f"^{tmp_path}: another process writes here; wait"):
                locks.held(tmp_path).__enter__()
            raise KeyError

    for _ in range(2):  # what failed holds it no longer
        with pytest.raises(KeyError):
            work()
    other = DirectoryLock(tmp_path)
    assert other.acquire()
    with pytest.raises(ValueError, match=f"^{tmp_path}: two write here; wait for it, or stop"):
        work()


def test_a_lock_is_waited_for_as_long_as_is_asked_for(tmp_path):
    def one_writer(patience_seconds: float):
        return locks.held(tmp_path, patience_seconds=patience_seconds)

    def write_first() -> None:
        with one_writer(0):
            begun.set()
            refused.wait(300)
            time.sleep(0.3)

    begun, refused = threading.Event(), threading.Event()
    thread = threading.Thread(target=write_first)
    thread.start()
    assert begun.wait(300)
    with pytest.raises(ValueError, match=f"^{tmp_path}: another process writes here; wait"):
        one_writer(0.1).__enter__()
    refused.set()
    with one_writer(300):
        thread.join()
    assert not list(tmp_path.iterdir())


def test_a_lock_that_is_taken_at_the_moment_of_a_release_is_kept(tmp_path, monkeypatch):
    first, second, third = (DirectoryLock(tmp_path) for _ in range(3))
    assert first.acquire()
    release = first._lock.release

    def released_and_taken() -> None:
        release()
        assert second.acquire()

    monkeypatch.setattr(first._lock, "release", released_and_taken)
    first.release()
    assert not third.acquire()  # the file that the second has locked is still there
    second.release()
    assert third.acquire()


def test_a_file_system_without_locks_is_warned_of_and_one_that_refuses_is_an_error(
    tmp_path, monkeypatch, capsys
):
    def refuse(number: int) -> None:
        def acquire(**_) -> None:
            raise OSError(number, "refused")

        monkeypatch.setattr(lock._lock, "acquire", acquire)

    lock = DirectoryLock(tmp_path)
    refuse(errno.ENOLCK)
    assert lock.acquire() and not lock.is_held_elsewhere()
    assert capsys.readouterr().err == (
        f"warning: {tmp_path}: cannot be locked ([Errno {errno.ENOLCK}] refused); make sure that "
        "only one process at a time writes there\n"
    )
    refuse(errno.EACCES)
    with pytest.raises(PermissionError):
        lock.acquire()
