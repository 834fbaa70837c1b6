"""The folder of a run, in which one process at a time works: a local one, or one in a bucket.

A store can neither append nor replace a part of an object: a run writes MLPerf log, metrics and
run.json into a local folder, and publishes them as whole objects.
"""

import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.files.locks import lock_of
from mlperf_bert.files.whole import matching_files, require_writable, upload, written_beside


class WorkingFolder:
    """The folder of a run: where to write, `local`, and how that comes into a bucket."""

    def __init__(self, location: paths.Location, *, record: str, needed: Sequence[str]):
        """Only names the folder.

        Args:
          location: local, or in a bucket.
          record: name of the file that says which run it is; it is uploaded last.
          needed: globs of the files that a restart needs, among them `record`.

        Raises:
          ValueError: the local folder for a bucket's belongs to somebody else.
        """
        self._location = location
        self._record = record
        self._needed = needed
        self._lock = lock_of(location)
        self.local = self._lock.local
        self._publishes = self.local != location
        self._published: dict[str, tuple[int, int]] = {}  # bytes and time of what was uploaded
        self._is_behind = False  # a bucket: an upload has failed
        self._publishing = threading.Lock()  # the thread that writes checkpoints publishes too

    def acquire(self) -> bool:
        """Locks it, and fetches what a run in a bucket goes on from; False if another has it.

        Raises:
          OSError: it cannot be written, or a bucket not be read or written.
        """
        if not self._lock.acquire():
            return False
        self._fetch(stays=self._lock.was_left_here)
        return True

    def release(self) -> None:
        """Unlocks it; removes it if this process made it and wrote nothing into it."""
        # What could not be uploaded is there for the next start on this host.
        self._lock.release(leaves=self._is_behind)

    def is_held_elsewhere(self) -> bool:
        """Whether another process has it."""
        return self._lock.is_held_elsewhere()

    def try_out(self) -> None:
        """Writes there and removes what was written; fetches what is needed from a bucket.

        Raises:
          OSError: it cannot be written to.
        """
        if self._publishes:
            require_writable(self._location / self._record)
            self._fetch(stays=self._lock.is_left_here())
            return
        existing = next(each for each in (self.local, *self.local.parents) if each.exists())
        with tempfile.TemporaryDirectory(prefix=".check-", dir=existing):
            pass

    def publish(self) -> None:
        """Uploads every file that has changed, the record last; none before there is a record.

        Raises:
          OSError: the bucket refuses it, or another process has taken the folder over.
        """
        if not self._publishes:
            return
        with self._publishing:
            self._lock.require_held()
            if not (self.local / self._record).exists():
                return
            self._is_behind = True
            files = [path for path in self.local.rglob("[!.]*") if path.is_file()]
            for path in sorted(files, key=lambda path: (path == self.local / self._record, path)):
                # Before the upload: what is written meanwhile is uploaded the next time.
                state, name = _state(path), path.relative_to(self.local).as_posix()
                if self._published.get(name) != state:
                    upload(path, self._location / name)
                    self._published[name] = state
            self._is_behind = False

    def _fetch(self, *, stays: bool) -> None:
        """Fetches what is needed and not there; locks, which are hidden, stay in any case.

        What is there `stays` if this host has worked on the run last: it may hold more than the
        bucket.
        """
        if not self._publishes:
            return
        for path in [] if stays else self.local.glob("[!.]*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for pattern in self._needed:
            for name in matching_files(f"{self._location}/{pattern}"):
                copy = self.local / Path(name).name
                if copy.exists():
                    continue
                self.local.mkdir(parents=True, exist_ok=True)
                with written_beside(copy) as file:
                    file.write(paths.read_bytes(name))
                self._published[copy.name] = _state(copy)


def _state(path: Path) -> tuple[int, int]:
    """Bytes, and time of writing in ns."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns
