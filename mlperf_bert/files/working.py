"""The local folder that a run works in, and its copy if the run's folder is in a bucket.

A store can neither append nor replace a part of an object: MLPerf log, metrics and run.json are
written locally and uploaded as whole objects. A restart on the same host finds the local folder
again; where it is gone, or older than the bucket, it is filled from the bucket.
"""

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlperf_bert.files import locks, paths
from mlperf_bert.files.whole import require_writable

if TYPE_CHECKING:
    from mlperf_bert.files.buckets import Mirror, ObjectLock


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
        self._locks: list[locks.DirectoryLock | ObjectLock] = []
        if isinstance(location, Path):
            self.local = location
        else:
            from mlperf_bert.files import buckets  # what is local needs none of it

            self._mirror = buckets.Mirror(location, record=record, needed=needed)
            self.local = self._mirror.local
            self._locks.append(locks.lock_of(location))
        self._locks.insert(0, locks.DirectoryLock(self.local))
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
