"""A lock of a bucket, which has none: an object that its owner rewrites.

The owner of the lock rewrites it every few seconds. Whoever finds one watches it: if it does not
change for as long as four rewrites take, its owner is gone, whatever the clocks of the two hosts
say. On the owner's own host its process is looked up instead, which takes no time.

TensorFlow's client cannot write an object on the condition that it is absent. Whoever writes the
lock waits and reads it again: of several at once the last one has it. One that is held up for
longer than this wait, between its look and its writing, takes the lock from an owner. The owner
notices before its next checkpoint or upload (`require_held`) and stops, so what the two write is
never mixed from then on; what both wrote within these seconds may be.
"""

import json
import os
import secrets
import socket
import sys
import threading
import time
from pathlib import Path

from mlperf_bert.files import json_text, paths

REWRITE_SECONDS = 10.0
GONE_AFTER_SECONDS = 4 * REWRITE_SECONDS
SETTLE_SECONDS = 2.0
_LOOK_SECONDS = 1.0
_MOST_BYTES = 4096


class ObjectLock:
    """A lock on a folder of a bucket; as `locks.DirectoryLock`."""

    def __init__(self, folder: paths.Location, *, file_name: str):
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
