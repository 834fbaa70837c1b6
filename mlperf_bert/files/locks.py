"""One process at a time writes into a folder, on local disks or in a bucket.

On local disks the operating system locks a file. A bucket has no locks; there it is a claim that
the store lets one process have (buckets.py), and a lock on a local folder that stands for it.
"""

import contextlib
import errno
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from mlperf_bert.files import paths
from mlperf_bert.files.buckets import Claim

LOCK_NAME = ".lock"
# A network file system may have no locks.
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


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


class BucketLock:
    """A lock on a folder of a bucket; as `DirectoryLock`.

    On this host it is a lock on a local folder, `local`. Who has that one, and finds a claim on the
    bucket's folder from there, knows that the process that has written it is gone.
    """

    def __init__(self, folder: paths.Location, *, file_name: str = LOCK_NAME):
        """Only names the folder; raises ValueError if `local` belongs to somebody else."""
        self.local = _local_folder(str(folder))
        self._here = DirectoryLock(self.local, file_name=file_name)
        self._claim = Claim(folder / file_name, place=self.local)

    def acquire(self, *, patience_seconds: float = 0) -> bool:
        """Takes the lock; False if another process has it and keeps it for so long.

        Raises:
          OSError: the bucket, or the local folder, cannot be read or written.
        """
        deadline = time.monotonic() + patience_seconds
        if not self._here.acquire(patience_seconds=patience_seconds):
            return False
        try:
            while not (is_taken := self._claim.take()) and time.monotonic() < deadline:
                time.sleep(1)
        except BaseException:
            self._here.release()
            raise
        if not is_taken:
            self._here.release()
        return is_taken

    @property
    def was_left_here(self) -> bool:
        """Whether it had been left on this host, as by a killed process, when it was taken."""
        return self._claim.was_left_here

    def is_left_here(self) -> bool:
        """Whether it is."""
        return self._claim.is_left_here()

    def is_held_elsewhere(self) -> bool:
        """Whether another process has it; changes nothing."""
        return self._here.is_held_elsewhere() or self._claim.is_taken()

    def require_held(self) -> None:
        """Checks that no other process has taken the lock, as `Claim.require_held`."""
        self._claim.require_held()

    def release(self, *, leaves: bool = False) -> None:
        """Removes the claim, or `leaves` it, and then what stands for it here."""
        self._claim.release(leaves=leaves)
        self._here.release()


def _local_folder(remote: str) -> Path:
    """The same for the same user, host and folder of a bucket.

    Raises:
      ValueError: it belongs to somebody else.
    """
    root = Path(tempfile.gettempdir(), f"mlperf-bert-{os.getuid()}")
    if root.is_symlink() or (root.exists() and root.stat().st_uid != os.getuid()):
        raise ValueError(f"{root}: belongs to somebody else; set TMPDIR to another folder")
    return root / "runs" / remote.replace("://", "/")


Lock = DirectoryLock | BucketLock


def lock_of(directory: paths.Location, *, file_name: str = LOCK_NAME) -> Lock:
    """The lock of a local directory, or of a folder in a bucket."""
    if isinstance(directory, Path):
        return DirectoryLock(directory, file_name=file_name)
    return BucketLock(directory, file_name=file_name)


@contextlib.contextmanager
def held(
    folder: paths.Location,
    *,
    file_name: str = LOCK_NAME,
    patience_seconds: float = 0,
    by_another: str = "another process writes here",
    of: paths.Location | None = None,
) -> Iterator[Lock]:
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
