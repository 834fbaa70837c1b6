"""One writer of a folder in a bucket, by a precondition of the store.

The claim on a folder is an object. It is written only if the object is still of the generation that
the writer has seen, 0 if there was none (if_generation_match): of several at once the store lets
one write it. TensorFlow's client cannot ask for this, so that Google's does.

The owner writes its claim again every few seconds. Whoever finds one watches it: if its generation
does not change for as long as four rewrites take, its owner is gone, whatever the clocks of the two
hosts say.
"""

import functools
import json
import os
import secrets
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mlperf_bert.files import json_text, paths

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Client

REWRITE_SECONDS = 10.0
GONE_AFTER_SECONDS = 4 * REWRITE_SECONDS
_LOOK_SECONDS = 1.0


@functools.cache
def client() -> "Client":
    """Google's client, with the credentials that TensorFlow's finds too; of this process."""
    from google.cloud import storage  # a quarter of a second, which local folders need not wait for

    return storage.Client(project="")


class Claim:
    """An object of a bucket that one process at a time has."""

    def __init__(self, path: paths.Location, *, place: Path):
        """Only names it.

        Args:
          path: of the object.
          place: a local folder, in which one process at a time is when it takes this. Whoever finds
            a claim of its own place goes on with it.
        """
        self._path = path
        self._place = place
        self._content = ""
        self._generation = 0  # of the object that this process has written
        self.was_left_here = False
        """Whether the claim that was taken had been left here by a process that is gone."""
        self._writing = threading.RLock()
        self._released = threading.Event()

    def take(self) -> bool:
        """Claims it; False if another process has it.

        Raises:
          OSError: the bucket cannot be read or written.
        """
        by = f"process {os.getpid()} on {socket.gethostname()}"
        token = secrets.token_hex(8)
        self._content = json.dumps({"by": by, "place": self._here(), "token": token})
        found, is_taken = self._look()
        if not is_taken:
            self.was_left_here = self._is_of_here(found)
            self._generation = self._written(found)
        if self._generation:
            self._released.clear()
            threading.Thread(target=self._keep, daemon=True).start()
        return bool(self._generation)

    def is_taken(self) -> bool:
        """Whether another process has it; changes nothing."""
        return not self._generation and self._look()[1]

    def is_left_here(self) -> bool:
        """Whether the claim that is there was written here, by this process or one before it."""
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
            if not held or leaves:
                return
            try:
                with paths.failures_named(self._path):
                    self._blob().delete(if_generation_match=held)
            except (FileNotFoundError, FileExistsError):
                pass  # another process has taken over
            except OSError as error:
                print(f"warning: {error}", file=sys.stderr)

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
        return self._place.exists() and self._field(generation, "place") == self._here()

    def _here(self) -> str:
        """What tells the place from those of other hosts, and of other containers on this one."""
        found = self._place.stat()
        return f"{socket.gethostname()} {self._place} {found.st_dev} {found.st_ino}"

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
