"""One process at a time writes into a folder, on local disks or in a bucket.

On local disks the operating system locks a file; in a bucket the store lets one write an object.
"""

import contextlib
import errno
import functools
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from mlperf_bert.files import paths

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Client

LOCK_NAME = ".lock"
REWRITE_SECONDS = 10.0
GONE_AFTER_SECONDS = 4 * REWRITE_SECONDS
_LOOK_SECONDS = 1.0
# A network file system may have no locks.
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class DirectoryLock:
    """A lock on a directory, which is made if it is absent. The end of the process frees the lock.

    The lock is a file in the directory (flock), removed at the release, so that a directory into
    which nothing was written is removed again, with the folders made for it. Forked processes do
    not share it: a worker that outlives this process needs a lock of its own on what it writes.
    """

    def __init__(self, directory: Path, *, file_name: str = LOCK_NAME):
        """Names the directory; locks nothing yet."""
        self._directory = directory
        self._path = directory / file_name
        self._lock = FileLock(self._path, timeout=0, fallback_to_soft=False)
        self._made: list[Path] = []

    def acquire(self, *, patience_seconds: float = 0) -> bool:
        """Takes the lock; False if another process keeps it for `patience_seconds`."""
        made = paths.make_folder(self._directory)
        try:
            self._lock.acquire(timeout=patience_seconds)
        except Timeout:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            print(f"warning: {self._directory}: cannot be locked ({error}); make sure that "
                  "only one process at a time writes there", file=sys.stderr)  # fmt: skip
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
        """Does nothing: nobody can take away a lock of the operating system."""

    def release(self) -> None:
        """Releases the lock, if held, and removes the folders that were made and are empty."""
        if not self._lock.is_locked:
            return
        # Removed while held: a process that has opened the file notices, and tries again.
        self._path.unlink(missing_ok=True)
        self._lock.release()
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()


@functools.cache
def client() -> "Client":
    """Google's client, with the credentials that TensorFlow's finds too; of this process."""
    from google.cloud import storage  # takes a quarter of a second, which local folders save

    return storage.Client(project="")


class BucketLock:
    """A lock on a folder of a bucket; as `DirectoryLock`.

    The store lets one process have it: an object is written on the condition that it is still of
    the generation that the writer has seen, 0 if there was none (if_generation_match). TensorFlow's
    client cannot ask for this; Google's can. The owner writes the object again every few seconds.
    A process that finds one watches it: if its generation does not change for as long as four
    rewrites take, its owner is gone, whatever the clocks of the two hosts say.
    """

    def __init__(self, folder: paths.Location, *, file_name: str = LOCK_NAME):
        """Names the folder; locks nothing yet."""
        self._folder = folder
        self._path = folder / file_name
        # The random number tells this lock from others of the same process.
        by = f"process {os.getpid()} on {socket.gethostname()}"
        self._content = f"{by} ({secrets.token_hex(8)})"
        self._generation = 0  # the generation of the object that this process has written
        self._writing = threading.RLock()
        self._released = threading.Event()

    def acquire(self, *, patience_seconds: float = 0) -> bool:
        """Takes the lock; False if another process has it, which takes seconds to find out."""
        paths.make_folder(self._folder)
        replaceable = self._replaceable()
        if replaceable is not None:
            self._generation = self._write(replaceable)
        if self._generation:
            self._released.clear()
            threading.Thread(target=self._keep, daemon=True).start()
        return bool(self._generation)

    def is_held_elsewhere(self) -> bool:
        """Whether another process has it; changes nothing."""
        return not self._generation and self._replaceable() is None

    def require_held(self) -> None:
        """Writes the object again, which the store lets its owner alone do.

        Raises:
          OSError: another process has taken over, or the bucket cannot be written.
        """
        with self._writing:
            self._generation = self._generation and self._write(self._generation)
            if not self._generation:
                raise OSError(
                    f"{self._path}: {self._read()[1] or 'another process'} has taken over; this "
                    "process stops, the other continues"
                )

    def release(self) -> None:
        """Removes the object, if it is still this process's."""
        self._released.set()
        # If the store refuses, the next process will find that the owner is gone.
        with self._writing, contextlib.suppress(OSError):
            held, self._generation = self._generation, 0
            if held:
                with paths.failures_named(self._path):
                    self._blob().delete(if_generation_match=held)

    def _keep(self) -> None:
        while not self._released.wait(REWRITE_SECONDS):
            # The next rewrite may succeed; a run calls `require_held` itself before it continues.
            with contextlib.suppress(OSError):
                self.require_held()

    def _replaceable(self) -> int | None:
        """The generation to write over, 0 if there is no object; None if its owner lives."""
        generation, content = self._read()
        if not generation:
            return 0
        print(
            f"{self._path}: {content} has the lock; watching for up to {GONE_AFTER_SECONDS:.0f} s "
            "whether it still runs",
            file=sys.stderr,
            flush=True,
        )
        deadline = time.monotonic() + GONE_AFTER_SECONDS
        while time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            now, _ = self._read()
            if now != generation:
                return None if now else 0
        return generation

    def _write(self, generation: int) -> int:
        """Replaces the object of a generation; returns the new one, 0 if the old one is gone."""
        blob = self._blob()
        try:
            with paths.failures_named(self._path):
                blob.upload_from_string(self._content, if_generation_match=generation)
            return blob.generation
        except FileExistsError:
            # If an answer is lost, the client writes again, and may meet its own first try.
            now, content = self._read()
            return now if content == self._content else 0

    def _read(self) -> tuple[int, str]:
        """Generation and content of the object; 0 and nothing if there is none."""
        blob = self._blob()
        try:
            with paths.failures_named(self._path):
                blob.reload()
                content = self._blob(blob.generation).download_as_bytes()
        except FileNotFoundError:  # or there is no such bucket: the writing will fail
            return 0, ""
        return blob.generation, content.decode(errors="replace")

    def _blob(self, generation: int | None = None) -> "Blob":
        bucket, _, name = str(self._path).removeprefix(paths.BUCKETS).partition("/")
        return client().bucket(bucket).blob(name, generation=generation)


Lock = DirectoryLock | BucketLock


def lock_of(directory: paths.Location, *, file_name: str = LOCK_NAME) -> Lock:
    """The lock of a local directory, or of a folder in a bucket."""
    kind = DirectoryLock if isinstance(directory, Path) else BucketLock
    return kind(directory, file_name=file_name)


@contextlib.contextmanager
def held(
    folder: paths.Location,
    *,
    file_name: str = LOCK_NAME,
    patience_seconds: float = 0,
    by_another: str = "another process writes here",
) -> Iterator[Lock]:
    """Holds a folder's lock and yields it; raises ValueError if another process has it."""
    lock = lock_of(folder, file_name=file_name)
    if not lock.acquire(patience_seconds=patience_seconds):
        raise ValueError(f"{folder}: {by_another}; wait for it, or stop it")
    try:
        yield lock
    finally:
        lock.release()
