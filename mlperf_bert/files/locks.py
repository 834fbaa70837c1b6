"""One process at a time writes into a folder, on local disks or in a bucket: locks, a run's folder.

On local disks the operating system locks a file. A bucket has no locks; see buckets.py.

A store can neither append nor replace a part of an object: a run writes MLPerf log, metrics and
run.json into a local folder, and they are uploaded as whole objects. A restart on the same host
finds the local folder again; where it is gone, or older than the bucket, it is filled again.
"""

import contextlib
import errno
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from mlperf_bert.files import paths
from mlperf_bert.files.whole import require_writable

if TYPE_CHECKING:
    from mlperf_bert.files.buckets import Mirror, ObjectLock

LOCK_NAME = ".lock"
# A network file system may have no locks.
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def lock_of(
    directory: paths.Location, *, file_name: str = LOCK_NAME
) -> "DirectoryLock | ObjectLock":
    """The lock of a local directory, or of a folder in a bucket."""
    if isinstance(directory, Path):
        return DirectoryLock(directory, file_name=file_name)
    from mlperf_bert.files.buckets import ObjectLock  # what is local needs none of it

    return ObjectLock(directory, file_name=file_name)


@contextlib.contextmanager
def held(
    folder: paths.Location,
    *,
    file_name: str = LOCK_NAME,
    patience_seconds: float = 0,
    by_another: str = "another process writes here",
    of: paths.Location | None = None,
) -> "Iterator[DirectoryLock | ObjectLock]":
    """Holds the lock of a folder, and yields it; raises ValueError with `by_another` if that is.

    The message names `of`, a file in the folder, or the folder.
    """
    lock = lock_of(folder, file_name=file_name)
    if not lock.acquire(patience_seconds=patience_seconds):
        raise ValueError(f"{of or folder}: {by_another}; wait for it, or stop it")
    try:
        yield lock
    finally:
        lock.release()


def held_by_one_writer(
    path: paths.Location, *, patience_seconds: float
) -> contextlib.AbstractContextManager:
    """Holds a lock of a file; two who write an object at once do not write into one file.

    Raises:
      ValueError: another process has it.
    """
    if not isinstance(path, Path):
        return contextlib.nullcontext()
    name = f".{path.name}.lock"
    return held(path.parent, file_name=name, patience_seconds=patience_seconds, of=path)


class DirectoryLock:
    """A lock on a directory, which is made if it is absent; it ends with the process at the latest.

    The lock is a file in the directory (flock), removed at the release, so that a directory into
    which nothing was written is removed again, with the folders made for it. Forked processes do
    not share it: a worker that outlives this process needs a lock of its own on what it writes.
    """

    def __init__(self, directory: Path, *, file_name: str = LOCK_NAME):
        """Only names the directory."""
        self._directory = directory
        self._path = directory / file_name
        # Not bound to a thread: any thread of this process may release it.
        self._lock = FileLock(self._path, timeout=0, fallback_to_soft=False, thread_local=False)
        self._made: list[Path] = []
        self._releasing = threading.RLock()

    def acquire(self, *, patience_seconds: float = 0) -> bool:
        """Takes the lock; False if another process has it and keeps it for so long.

        Raises:
          OSError: the directory cannot be made or written to.
        """
        made = paths.make_folder(self._directory)
        try:
            self._lock.acquire(timeout=patience_seconds)
        except Timeout:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            print(
                f"warning: {self._directory}: its file system has no locks ({error.strerror}); see "
                "to it that one process at a time writes there",
                file=sys.stderr,
            )
        self._made = made
        return True

    def is_held_elsewhere(self) -> bool:
        """Whether another process has it; changes nothing."""
        if not self._path.exists():
            return False
        try:
            self._lock.acquire()
        except Timeout:
            return True
        except OSError:  # no permission to write here, or no locks: unknown
            return False
        self._lock.release()
        return False

    def require_held(self) -> None:
        """Nothing takes a lock of the operating system away."""

    def release(self) -> None:
        """Releases the lock, if held, and removes the folders that were made and are empty.

        Returns once all is done, also where another thread does it: the process may end then.
        """
        with self._releasing:
            if not self._lock.is_locked:
                return
            # Unlinked while held: a process that has opened it already notices, and tries again.
            self._path.unlink(missing_ok=True)
            self._lock.release()
            for folder in self._made:
                with contextlib.suppress(OSError):
                    folder.rmdir()


class WorkingFolder:
    """The folder that one process at a time writes into: a local one, or a copy of a bucket's.

    Attributes:
      local: where to write.
    """

    def __init__(self, location: paths.Location, *, record: str, needed: Sequence[str]):
        """Only names the folder.

        Args:
          location: local, or in a bucket.
          record: name of the file that says which run it is; it is uploaded last.
          needed: globs of the files that a restart needs, among them `record`.

        Raises:
          ValueError: the folder for copies of a bucket belongs to somebody else.
        """
        self._probe = location / record
        self._mirror: Mirror | None = None
        self._locks: list[DirectoryLock | ObjectLock] = []
        if isinstance(location, Path):
            self.local = location
        else:
            from mlperf_bert.files import buckets  # what is local needs none of it

            self._mirror = buckets.Mirror(location, record=record, needed=needed)
            self.local = self._mirror.local
            self._locks.append(lock_of(location))
        self._locks.insert(0, DirectoryLock(self.local))
        self._publishing = threading.Lock()  # the thread that writes checkpoints publishes too

    def acquire(self) -> bool:
        """Locks it, and brings a copy up to date; False if another process has it.

        Raises:
          OSError: it cannot be written, or a bucket not be read or written.
        """
        is_free = all(lock.acquire() for lock in self._locks)
        if is_free and self._mirror:
            self._mirror.pull()
        return is_free

    def release(self) -> None:
        """Unlocks it; removes it if this process made it and wrote nothing into it."""
        for lock in reversed(self._locks):
            lock.release()

    def is_held_elsewhere(self) -> bool:
        """Whether another process has it."""
        return any(lock.is_held_elsewhere() for lock in self._locks)

    def try_out(self) -> None:
        """Writes there and removes what was written; brings a copy up to date.

        Raises:
          OSError: it cannot be written to.
        """
        if self._mirror:
            require_writable(self._probe)
            self._mirror.pull()
            return
        folders = (self.local, *self.local.parents)
        existing = next(folder for folder in folders if folder.exists())
        with tempfile.TemporaryDirectory(prefix=".check-", dir=existing):
            pass

    def publish(self) -> None:
        """Uploads what was written to a copy since the last time.

        Raises:
          OSError: the bucket refuses it, or another process has taken the folder over.
        """
        if self._mirror:
            with self._publishing:
                for lock in self._locks:
                    lock.require_held()
                self._mirror.push()
