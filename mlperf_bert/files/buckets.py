"""What a bucket needs: a lock that is an object, a local copy to work in, objects as files.

The owner of the lock rewrites it every few seconds. Whoever finds one watches it: if it does not
change for as long as four rewrites take, its owner is gone, whatever the clocks of the two hosts
say. On the owner's own host its process is looked up instead, which takes no time.

TensorFlow's client cannot write an object on the condition that it is absent. Whoever writes the
lock waits and reads it again: of several at once the last one has it. One that is held up for
longer than this wait, between its look and its writing, takes the lock from an owner. The owner
notices before its next checkpoint or upload (`require_held`) and stops, so what the two write is
never mixed from then on; what both wrote within these seconds may be.
"""

import io
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from mlperf_bert.files import json_text, paths
from mlperf_bert.files.json_text import read_record, write_record
from mlperf_bert.files.locks import LOCK_NAME
from mlperf_bert.files.whole import matching_files, written_beside

REWRITE_SECONDS = 10.0
GONE_AFTER_SECONDS = 4 * REWRITE_SECONDS
SETTLE_SECONDS = 2.0
_LOOK_SECONDS = 1.0
_MOST_BYTES = 4096
_UPLOADED_NAME = ".uploaded.json"
# One request each: a small buffer would make a request for every few records.
_BUFFER_BYTES = 8 * 2**20
_BYTES_UPLOADED_AT_ONCE = 64 * 2**20


class ObjectLock:
    """A lock on a folder of a bucket; as `locks.DirectoryLock`."""

    def __init__(self, folder: paths.Location, *, file_name: str = LOCK_NAME):
        """Only names the folder."""
        self._path = folder / file_name
        self._token = secrets.token_hex(8)
        self._rewrites = 0
        self._is_held = False
        self._released = threading.Event()
        self._thread: threading.Thread | None = None
        self._writing = threading.RLock()

    def acquire(self, *, patience_seconds: float = 0) -> bool:
        """Takes the lock; False if another process has it and keeps it for so long.

        Raises:
          OSError: the bucket cannot be read or written.
        """
        deadline = time.monotonic() + patience_seconds
        while self._owner_lives():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        with paths.failures_named(self._path):
            self._write()
        time.sleep(SETTLE_SECONDS)
        if not self._is_own(self._read()):
            return False
        self._is_held = True
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()
        return True

    def is_held_elsewhere(self) -> bool:
        """Whether another process has it; changes nothing."""
        return not self._is_held and self._owner_lives()

    def require_held(self) -> None:
        """Checks that no other process has taken the lock.

        Raises:
          OSError: one has, or the bucket cannot be read.
        """
        if not self._is_held:
            return
        found = self._read()
        if not self._is_own(found):
            raise OSError(
                f"{self._path}: {_owner(found)} has taken over; this process stops, the other "
                "goes on"
            )

    def release(self) -> None:
        """Removes the lock, if held."""
        with self._writing:
            self._released.set()
            if not self._is_held:
                return
            self._is_held = False
            try:
                with paths.failures_named(self._path):
                    if self._is_own(self._read()):
                        self._path.unlink(missing_ok=True)
            except OSError as error:
                print(f"warning: {error}", file=sys.stderr)

    def _keep(self) -> None:
        while not self._released.wait(REWRITE_SECONDS):
            with self._writing:
                if self._released.is_set():
                    return
                try:
                    if not self._is_own(self._read()):
                        return  # `require_held` raises
                    with paths.failures_named(self._path):
                        self._write()
                except OSError as error:  # the next rewrite may succeed
                    print(f"warning: {error}", file=sys.stderr)

    def _owner_lives(self) -> bool:
        first = self._read()
        if not first or self._is_own(first):
            return False
        if _same_host(first):
            return _is_running(first)
        print(
            f"{self._path}: {_owner(first)} has the lock; looking for {GONE_AFTER_SECONDS:.0f} s "
            "at most whether it still runs",
            file=sys.stderr,
            flush=True,
        )
        deadline = time.monotonic() + GONE_AFTER_SECONDS
        while time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            now = self._read()
            if now != first:
                return bool(now)
        return False

    def _is_own(self, owner: dict) -> bool:
        return owner.get("token") == self._token

    def _write(self) -> None:
        self._rewrites += 1
        content = _this_process() | {"token": self._token, "rewrites": self._rewrites}
        self._path.write_bytes(json.dumps(content).encode())

    def _read(self) -> dict:
        """What is written in the lock; nothing where there is none."""
        try:
            with paths.failures_named(self._path), self._path.open("rb") as file:
                # Not `read()`: that asks for the size, which TensorFlow remembers for seconds.
                content = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return {}
        try:
            return json_text.parse_object(content)
        except ValueError:
            return {"token": content.decode(errors="replace")}


def _this_process() -> dict:
    return {
        "host": socket.gethostname(),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "processes": str(Path("/proc/self/ns/pid").readlink()),
        "pid": os.getpid(),
        "started": _start_ticks(os.getpid()),
    }


def _same_host(owner: dict) -> bool:
    """Whether its number means the same process here: same host, boot and container."""
    here = _this_process()
    return all(owner.get(name) == here[name] for name in ("boot", "processes"))


def _is_running(owner: dict) -> bool:
    started = _start_ticks(owner.get("pid"))
    return started is not None and started == owner.get("started")


def _start_ticks(pid: object) -> int | None:
    """When a process began, in ticks since the boot; None if it is gone.

    Not psutil's time, which changes when the clock is set.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _owner(owner: dict) -> str:
    return f"process {owner.get('pid', '?')} on {owner.get('host', 'an unknown host')}"


class Mirror:
    """The local copy of a folder in a bucket; hidden files, such as locks, stay local."""

    def __init__(self, remote: paths.Location, *, record: str, needed: Sequence[str]):
        """As `working.WorkingFolder`; makes no folder."""
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


def upload(source: Path, target: paths.Location) -> None:
    """Copies a local file to an object, which is replaced as a whole or not at all.

    Raises:
      OSError: the store refuses it.
    """
    from etils import epath

    with paths.failures_named(target):
        if source.stat().st_size > _BYTES_UPLOADED_AT_ONCE:
            epath.Path(source).copy(target, overwrite=True)
        else:  # half as many requests
            target.write_bytes(source.read_bytes())


def buffered(file: BinaryIO, size_bytes: int) -> io.BufferedReader:
    """An object of so many bytes, which epath has opened, as a file of Python; 8 MiB at a time."""
    return io.BufferedReader(_Object(file, size_bytes), _BUFFER_BYTES)


class _Object(io.RawIOBase):
    """An object of a bucket as a raw file of Python, for its BufferedReader."""

    def __init__(self, file: BinaryIO, size: int):
        super().__init__()
        self._file = file
        self._size = size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._file.tell(), io.SEEK_END: self._size}[whence]
        self._file.seek(base + offset)
        return base + offset

    def tell(self) -> int:
        return self._file.tell()
