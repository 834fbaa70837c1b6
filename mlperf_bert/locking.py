"""One process at a time writes into a directory."""

import contextlib
import errno
import sys
from pathlib import Path

from filelock import FileLock, Timeout

# A network file system may know no locks: then nobody has one.
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class DirectoryLock:
    """A directory held by this process, made if it is absent; ends with the process at the latest.

    The lock is on a file in it (flock), removed at the release, so that a directory into which
    nothing was written is removed again with the folders made for it.
    """

    def __init__(self, directory: Path, *, file_name: str = ".lock"):
        """Names the directory; touches nothing."""
        self._directory = directory
        self._path = directory / file_name
        # Not of one thread: the one that watches the other processes may have to let go.
        self._lock = FileLock(self._path, timeout=0, fallback_to_soft=False, thread_local=False)
        self._made: list[Path] = []

    def acquire(self, *, patience_seconds: float = 0) -> bool:
        """Takes the lock; False if another process has it and keeps it for so long.

        Raises:
          OSError: the directory cannot be made or written to.
        """
        parents = (self._directory, *self._directory.parents)
        missing = [folder for folder in parents if not folder.exists()]
        self._directory.mkdir(parents=True, exist_ok=True)
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
        self._made = missing
        return True

    def is_held_elsewhere(self) -> bool:
        """Whether another process has it; touches nothing."""
        if not self._path.exists():
            return False
        try:
            self._lock.acquire()
        except Timeout:
            return True
        except OSError:  # no right to write here, or no locks: nobody can say
            return False
        self._lock.release()
        return False

    def release(self) -> None:
        """Lets go, and removes the folders that were made and are empty. Once is enough."""
        if not self._lock.is_locked:
            return
        # While it is held: whoever opened the file before finds it unlinked, and tries again.
        self._path.unlink(missing_ok=True)
        self._lock.release()
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()
