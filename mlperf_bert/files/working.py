"""The folder of a run, in which one process at a time works: a local one, or one in a bucket.

A store can neither append nor replace a part of an object: a run writes MLPerf log, metrics and
run.json into a local folder, and they are uploaded as whole objects. A restart on the same host
finds the local folder again; where it is gone, or older than the bucket, it is filled again.
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.files.json_text import read_record, write_record
from mlperf_bert.files.locks import DirectoryLock, Lock, lock_of
from mlperf_bert.files.whole import matching_files, require_writable, upload, written_beside

_UPLOADED_NAME = ".uploaded.json"


class Mirror:
    """The local copy of a folder in a bucket; hidden files, such as locks, stay local."""

    def __init__(self, remote: paths.Location, *, record: str, needed: Sequence[str]):
        """As `WorkingFolder`; makes no folder."""
        self._remote = remote
        self._record = record
        self._needed = needed
        self.local = _local_folder(str(remote))
        self._uploaded: dict[str, list[int]] = {}
        self._objects: dict[str, list[int]] = {}

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
        states = {name: _state(self.local / name) for name in self._names()}
        changed = [name for name, state in states.items() if self._uploaded.get(name) != state]
        for name in changed:
            upload(self.local / name, self._remote / name)
            # As it was before the upload: what was written meanwhile is uploaded the next time.
            self._uploaded[name] = states[name]
            if any(Path(name).match(pattern) for pattern in self._needed):
                self._objects[name] = _state(self._remote / name)
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

    def _list(self) -> dict[str, list[int]]:
        files = [file for name in self._needed for file in matching_files(f"{self._remote}/{name}")]
        states = paths.in_parallel(_state, files)
        return {Path(path).name: state for path, state in zip(files, states)}

    def _known(self) -> dict:
        try:
            return read_record(self.local / _UPLOADED_NAME, dict, remedy="") or {}
        except (OSError, ValueError):
            return {}

    def _note(self) -> None:
        write_record(self.local / _UPLOADED_NAME, self._objects)


def _state(path: paths.Location | str) -> list[int]:
    """Bytes, and time of writing in ns, of a file or an object; nothing if there is none."""
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
        self._locks: list[Lock] = []
        if isinstance(location, Path):
            self.local = location
        else:
            self._mirror = Mirror(location, record=record, needed=needed)
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
