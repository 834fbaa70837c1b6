"""The folder of a run, in which one process at a time works: a local one, or one in a bucket.

A store can neither append nor replace a part of an object: a run writes MLPerf log, metrics and
run.json into a local folder, and publishes them as whole objects.
"""

import secrets
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.files.locks import lock_of
from mlperf_bert.files.whole import matching_files, upload


class WorkingFolder:
    """The folder of a run: its files are written to `local`, and `publish` uploads them.

    Attributes:
      local: where the files of the run are written; for a bucket, a temporary folder.
      lock: the lock of the folder.
    """

    def __init__(self, location: paths.Location, *, record: str, needed: Sequence[str]):
        """Names the folder; locks and reads nothing yet.

        Args:
          location: local, or in a bucket.
          record: name of the file that says which run it is; it is uploaded last.
          needed: globs of the files that a restart needs, among them `record`.
        """
        self._location = location
        self._record = record
        self._needed = needed
        self.lock = lock_of(location)
        self._temporary = None
        if isinstance(location, Path):
            self.local = location
        else:
            self._temporary = tempfile.TemporaryDirectory(prefix="mlperf-bert-")
            self.local = Path(self._temporary.name)
        self._published: dict[str, tuple[int, int]] = {}  # bytes and time of what was uploaded
        self._publishing = threading.Lock()  # the thread that writes checkpoints publishes too

    def acquire(self) -> bool:
        """Locks it, and fetches what a run in a bucket resumes from; False if another has it."""
        if not self.lock.acquire():
            return False
        self._fetch()
        return True

    def try_out(self) -> None:
        """Writes there and removes what was written; fetches what is needed from a bucket."""
        paths.require_no_file(self._location)
        if self._temporary:
            record = self._location / self._record
            probe = record.with_name(f".{record.name}.{secrets.token_hex(8)}")
            with paths.failures_named(record):
                probe.write_bytes(b"can be removed\n")
                probe.unlink()
            self._fetch()
            return
        existing = next(each for each in (self.local, *self.local.parents) if each.exists())
        with tempfile.TemporaryDirectory(prefix=".check-", dir=existing):
            pass

    def publish(self) -> None:
        """Uploads every file that has changed, the record last; none before there is a record.

        Raises:
          OSError: the bucket refuses it, or another process has taken the folder over.
        """
        if not self._temporary:
            return
        with self._publishing:
            self.lock.require_held()
            record = self.local / self._record
            if not record.exists():
                return
            files = [path for path in self.local.rglob("[!.]*") if path.is_file()]
            for path in sorted(files, key=lambda path: (path == record, path)):
                # Noted before the upload: what is written meanwhile is uploaded the next time.
                known, name = path.stat(), path.relative_to(self.local).as_posix()
                state = known.st_size, known.st_mtime_ns
                if self._published.get(name) != state:
                    upload(path, self._location / name)
                    self._published[name] = state

    def _fetch(self) -> None:
        for pattern in self._needed if self._temporary else ():
            for name in matching_files(f"{self._location}/{pattern}"):
                (self.local / Path(name).name).write_bytes(paths.read_bytes(name))
