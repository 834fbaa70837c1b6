"""The local folder that a run works in, and its copy if the run's folder is in a bucket.

A store can neither append nor replace a part of an object: MLPerf log, metrics and run.json are
written locally and uploaded as whole objects. A restart on the same host finds the local folder
again; where it is gone, or older than the bucket, it is filled from the bucket.
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from mlperf_bert.files import locks, paths
from mlperf_bert.files.records import read_record, write_record
from mlperf_bert.files.writing import require_writable, written_beside

_UPLOADED_NAME = ".uploaded.json"


def working_folder(
    location: paths.Location, *, record: str, needed: Sequence[str]
) -> "WorkingFolder":
    """The folder to work in for a run's folder, which is not made yet.

    Args:
      location: local, or in a bucket.
      record: name of the file that says which run it is; it is uploaded last.
      needed: globs of the files that a restart needs, among them `record`.

    Raises:
      ValueError: the folder for copies of a bucket belongs to somebody else.
    """
    if isinstance(location, Path):
        return WorkingFolder(location)
    return Mirror(location, record=record, needed=needed)


class WorkingFolder:
    """A folder into which one process at a time writes.

    Attributes:
      local: where it writes.
    """

    def __init__(self, local: Path):
        """Only names the folder."""
        self.local = local
        self._lock = locks.DirectoryLock(local)

    def acquire(self) -> bool:
        """Locks it, and brings it up to date; False if another process has it.

        Raises:
          OSError: it cannot be written, or a bucket not be read or written.
        """
        return self._lock.acquire()

    def release(self) -> None:
        """Unlocks it; removes it if this process made it and wrote nothing into it."""
        self._lock.release()

    def is_held_elsewhere(self) -> bool:
        """Whether another process has it."""
        return self._lock.is_held_elsewhere()

    def try_out(self) -> None:
        """Makes a folder in it, or where it would be made, and removes it; brings it up to date.

        Raises:
          OSError: it cannot be written to.
        """
        folders = (self.local, *self.local.parents)
        existing = next(folder for folder in folders if folder.exists())
        with tempfile.TemporaryDirectory(prefix=".check-", dir=existing):
            pass

    def publish(self) -> None:
        """Uploads what was written since the last time, if it is a copy.

        Raises:
          OSError: the bucket refuses it, or another process has taken the folder over.
        """


class Mirror(WorkingFolder):
    """The local copy of a run's folder in a bucket.

    Hidden files, such as locks, stay local.
    """

    def __init__(self, remote: paths.Location, *, record: str, needed: Sequence[str]):
        """As `working_folder`."""
        super().__init__(_local_folder(str(remote)))
        self._remote = remote
        self._remote_lock = locks.ObjectLock(remote)
        self._record = record
        self._needed = needed
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._objects: dict[str, list[int]] = {}
        self._publishing = threading.Lock()  # the thread that writes checkpoints publishes too

    def acquire(self) -> bool:
        """Locks both folders."""
        if not (super().acquire() and self._remote_lock.acquire()):
            return False
        self.pull()
        return True

    def release(self) -> None:
        """Unlocks both folders."""
        self._remote_lock.release()
        super().release()

    def is_held_elsewhere(self) -> bool:
        """Whether another process has either."""
        return super().is_held_elsewhere() or self._remote_lock.is_held_elsewhere()

    def try_out(self) -> None:
        """Writes an object and removes it."""
        require_writable(self._remote / self._record)
        self.pull()

    def publish(self) -> None:
        """Uploads what has changed, if no other process has taken the folder over."""
        with self._publishing:
            self._remote_lock.require_held()
            self.push()

    def pull(self) -> None:
        """Brings the local folder up to date.

        Files stay that this host's last run has written, if no other host has written since: they
        may hold more than the bucket.

        Raises:
          OSError: the bucket cannot be read, or the local folder not be written.
        """
        self._objects = self._list()
        known = self._known()
        if self._record not in known or known[self._record] != self._objects.get(self._record):
            self.discard()
            known = {}
        for name, state in self._objects.items():
            if state != known.get(name) or not (self.local / name).exists():
                self.local.mkdir(parents=True, exist_ok=True)
                with written_beside(self.local / name) as file:
                    file.write(paths.read_bytes(self._remote / name))
        if self._objects:
            self._note()

    def push(self) -> None:
        """Uploads every file that has changed, the record last; nothing before it is there.

        Raises:
          OSError: the bucket refuses it.
        """
        if not (self.local / self._record).exists():
            return
        changed = [name for name in self._names() if self._uploaded.get(name) != self._state(name)]
        for name in changed:
            state = self._state(name)
            paths.upload(self.local / name, self._remote / name)
            self._uploaded[name] = state
            if any(Path(name).match(pattern) for pattern in self._needed):
                self._objects[name] = _state_there(f"{self._remote}/{name}")
        if changed:
            self._note()

    def discard(self) -> None:
        """Removes the local files, but for locks."""
        for path in self.local.glob("*"):
            if path.is_dir():
                shutil.rmtree(path)
            elif not path.name.startswith("."):
                path.unlink()
        (self.local / _UPLOADED_NAME).unlink(missing_ok=True)

    def _names(self) -> list[str]:
        files = (path for path in self.local.rglob("[!.]*") if path.is_file())
        names = (path.relative_to(self.local).as_posix() for path in files)
        return sorted(names, key=lambda name: (name == self._record, name))

    def _state(self, name: str) -> tuple[int, int]:
        found = (self.local / name).stat()
        return found.st_size, found.st_mtime_ns

    def _list(self) -> dict[str, list[int]]:
        with paths.failures_named(self._remote):
            files = [
                path
                for pattern in self._needed
                for path in tf.io.gfile.glob(f"{self._remote}/{pattern}")
            ]
        states = paths.in_parallel(_state_there, files)
        return {path.rpartition("/")[2]: state for path, state in zip(files, states)}

    def _known(self) -> dict:
        try:
            return read_record(self.local / _UPLOADED_NAME, dict, remedy="") or {}
        except (OSError, ValueError):
            return {}

    def _note(self) -> None:
        write_record(self.local / _UPLOADED_NAME, self._objects)


def _state_there(path: str) -> list[int]:
    """Bytes, and time of writing in ns, of an object."""
    found = paths.status(path)
    return [found.size_bytes, found.modified_ns] if found else []


def _local_folder(remote: str) -> Path:
    """The same for the same user, host and run.

    Raises:
      ValueError: it belongs to somebody else.
    """
    root = Path(tempfile.gettempdir(), f"mlperf-bert-{os.getuid()}")
    if root.is_symlink() or (root.exists() and root.stat().st_uid != os.getuid()):
        raise ValueError(f"{root}: belongs to somebody else; set TMPDIR to another folder")
    return root / "runs" / remote.replace("://", "/")
