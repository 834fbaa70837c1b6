"""One process at a time writes into a folder, on local disks or in a bucket.

On local disks the operating system locks a file; in a bucket the store lets one write an object.
"""

import contextlib
import errno
import functools
import json
import os
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from mlperf_bert.files import json_text, paths

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Client

LOCK_NAME = ".lock"
REWRITE_SECONDS = 10.0
GONE_AFTER_SECONDS = 4 * REWRITE_SECONDS
_LOOK_SECONDS = 1.0
# A network file system may have no locks.
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class DirectoryLock:
    """A lock on a directory, which is made if it is absent; it ends with the process at the latest.

    The lock is a file in the directory (flock), removed at the release, so that a directory into
    which nothing was written is removed again, with the folders made for it. Forked processes do
    not share it: a worker that outlives this process needs a lock of its own on what it writes.
    """

    was_left_here = True  # what is on a disk is there

    def __init__(self, directory: Path, *, file_name: str = LOCK_NAME):
        """Only names the directory."""
        self.local = directory
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
        made = paths.make_folder(self.local)
        try:
            self._lock.acquire(timeout=patience_seconds)
        except Timeout:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            print(
                f"warning: {self.local}: its file system has no locks ({error.strerror}); see "
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

    def is_left_here(self) -> bool:
        """As `was_left_here`."""
        return True

    def release(self, *, leaves: bool = False) -> None:
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


@functools.cache
def client() -> "Client":
    """Google's client, with the credentials that TensorFlow's finds too; of this process."""
    try:  # a quarter of a second, which local folders need not wait for
        from google.cloud import storage
    except ImportError as error:
        raise ValueError(
            "a folder of a bucket is locked by google-cloud-storage; pip install "
            "google-cloud-storage, or give a local folder"
        ) from error
    return storage.Client(project="")


class BucketLock:
    """A lock on a folder of a bucket; as `DirectoryLock`.

    The store lets one process have it: an object is written on the condition that it is still of
    the generation that the writer has seen, 0 if there was none (if_generation_match). TensorFlow's
    client cannot ask for this, so that Google's does. The owner writes it again every few seconds.
    Whoever finds one watches it: if its generation does not change for as long as four rewrites
    take, its owner is gone, whatever the clocks of the two hosts say.

    On each host a local folder, `local`, stands for that of the bucket, and is locked too: whoever
    has that lock, and finds an object that was written from there, knows that its owner is gone.

    Attributes:
      local: a folder of this host, where the owner may work.
      was_left_here: whether the object was there when it was taken, written from this host, as a
        process that is killed leaves it.
    """

    def __init__(self, folder: paths.Location, *, file_name: str = LOCK_NAME):
        """Only names the folder; raises ValueError if `local` belongs to somebody else."""
        self.local = _local_folder(str(folder))
        self.was_left_here = False
        self._path = folder / file_name
        self._here = DirectoryLock(self.local, file_name=file_name)
        self._content = ""
        self._generation = 0  # of the object that this process has written
        self._writing = threading.RLock()
        self._released = threading.Event()

    def acquire(self, *, patience_seconds: float = 0) -> bool:
        """Takes the lock; False if another process has it and keeps it for so long.

        Raises:
          OSError: the bucket, or the local folder, cannot be read or written.
        """
        deadline = time.monotonic() + patience_seconds
        if not self._here.acquire(patience_seconds=patience_seconds):
            return False
        try:
            by = f"process {os.getpid()} on {socket.gethostname()}"
            token = secrets.token_hex(8)
            self._content = json.dumps({"by": by, "place": self._place(), "token": token})
            while not self._take() and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
        finally:
            if not self._generation:
                self._here.release()
        if self._generation:
            self._released.clear()
            threading.Thread(target=self._keep, daemon=True).start()
        return bool(self._generation)

    def is_held_elsewhere(self) -> bool:
        """Whether another process has it; changes nothing."""
        return self._here.is_held_elsewhere() or (not self._generation and self._look()[1])

    def is_left_here(self) -> bool:
        """Whether the object is there and was written from this host."""
        return self._is_of_here(self._found())

    def require_held(self) -> None:
        """Checks that no other process has taken over.

        Raises:
          OSError: one has, or the bucket cannot be read.
        """
        with self._writing:
            found = self._found()
            if found != self._generation and self._read(found) != self._content:
                by = self._field(found, "by") or "another process"
                raise OSError(
                    f"{self._path}: {by} has taken over; this process stops, the other goes on"
                )

    def release(self, *, leaves: bool = False) -> None:
        """Removes the object, if it is this process's, or `leaves` it for the next one here."""
        self._released.set()
        with self._writing:
            held, self._generation = self._generation, 0
            try:
                if held and not leaves:
                    with paths.failures_named(self._path):
                        self._blob().delete(if_generation_match=held)
            except (FileNotFoundError, FileExistsError):
                pass  # another process has taken over
            except OSError as error:
                print(f"warning: {error}", file=sys.stderr)
        self._here.release()

    def _take(self) -> bool:
        found, is_kept = self._look()
        if not is_kept:
            self.was_left_here = self._is_of_here(found)
            self._generation = self._written(found)
        return bool(self._generation)

    def _keep(self) -> None:
        while not self._released.wait(REWRITE_SECONDS):
            with self._writing:
                if self._released.is_set():
                    return
                try:
                    if not (written := self._written(self._generation)):
                        return  # `require_held` raises
                    self._generation = written
                except OSError as error:  # the next rewrite may succeed
                    print(f"warning: {error}", file=sys.stderr)

    def _look(self) -> tuple[int, bool]:
        """The generation that may be replaced, and whether another process keeps it instead."""
        found = self._found()
        if not found or self._is_of_here(found):
            return found, False
        by = self._field(found, "by") or "another process"
        print(
            f"{self._path}: {by} has the lock; looking for {GONE_AFTER_SECONDS:.0f} s at most "
            "whether it still runs",
            file=sys.stderr,
            flush=True,
        )
        deadline = time.monotonic() + GONE_AFTER_SECONDS
        while time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            if (now := self._found()) != found:
                return now, bool(now)
        return found, False

    def _is_of_here(self, generation: int) -> bool:
        return self.local.exists() and self._field(generation, "place") == self._place()

    def _place(self) -> str:
        """What tells the local folder from those of other hosts, and of containers on this one."""
        found = self.local.stat()
        return f"{socket.gethostname()} {self.local} {found.st_dev} {found.st_ino}"

    def _written(self, generation: int) -> int:
        """The generation after writing it over one; 0 if that one is not there any more."""
        blob = self._blob()
        try:
            with paths.failures_named(self._path):
                blob.upload_from_string(self._content, if_generation_match=generation)
            return blob.generation
        except FileExistsError:
            # Where an answer is lost the client writes again, and may meet its own first try.
            found = self._found()
            return found if self._read(found) == self._content else 0

    def _found(self) -> int:
        """The generation of the object; 0 if there is none."""
        blob = self._blob()
        try:
            with paths.failures_named(self._path):
                blob.reload()
        except FileNotFoundError:  # or there is no such bucket: the writing will fail
            return 0
        return blob.generation

    def _read(self, generation: int) -> str:
        try:
            with paths.failures_named(self._path):
                return self._blob(generation).download_as_bytes().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _field(self, generation: int, name: str) -> str:
        try:
            return str(json_text.parse_object(self._read(generation)).get(name, ""))
        except ValueError:
            return ""

    def _blob(self, generation: int | None = None) -> "Blob":
        bucket, _, name = str(self._path).removeprefix(paths.BUCKETS).partition("/")
        return client().bucket(bucket).blob(name, generation=generation)


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
