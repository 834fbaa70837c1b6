"""How the processes of a run recognise each other: by a key in a file that the chief writes.

All processes of a run share --output_dir; other programs on the network do not. While the processes
connect, a file with a random key is there, which only the same user can read. The chief sends the
path of the file to each connection, and both ends prove that they have read it, by an HMAC over
random numbers that both have just drawn. The flags are not part of this: processes with different
flags recognise each other too, so the chief can report the difference.

This protects against everyone who cannot read that file: other runs, other users, port scanners,
and programs that pretend to be a worker or the chief. It does not protect against those who can
read the file (root, the same user, and anyone if the file system ignores its mode) or change
packets on the network, because later messages are neither encrypted nor signed. TensorFlow's own
servers, which start on the same ports later, ask for no proof: use a network that you trust.
"""

import contextlib
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from mlperf_bert.files import paths

_NAME = re.compile(r"\.meeting-[0-9a-f]{16}\.key")
_KEY_BYTES = 32


@contextlib.contextmanager
def temporary_key(folder: paths.Location) -> Iterator[tuple[str, bytes]]:
    """Writes a new key into a folder; yields its path and the key; removes it afterwards.

    Raises:
      OSError: the folder cannot be written.
    """
    name = f".meeting-{secrets.token_hex(8)}.key"
    key = secrets.token_bytes(_KEY_BYTES)
    if not isinstance(folder, Path):
        with paths.failures_named(f"--output_dir={folder}"):
            (folder / name).write_bytes(key)
            try:
                yield str(folder / name), key
            finally:
                (folder / name).unlink(missing_ok=True)
        return
    folder = folder.absolute()
    missing = [part for part in (folder, *folder.parents) if not part.exists()]
    path = folder / name
    try:
        _write(path, key)
        yield str(path), key
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            for part in missing:
                part.rmdir()  # fails where another process has written something


def _write(path: Path, key: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor has no path
            file.write(key)
    except OSError as error:
        raise OSError(
            f"--output_dir={path.parent}: cannot be written ({error.strerror}); give a directory "
            "that all processes share"
        ) from error


def read(path: object, *, folder: paths.Location) -> bytes:
    """The key that the chief has written.

    Raises:
      ValueError: the path is not that of a key file, or the file holds no key; or it lies in a
        bucket, but not in this run's folder: anyone can have a bucket.
      OSError: the file cannot be read: it does not exist here, or belongs to another user.
    """
    if not isinstance(path, str) or not _NAME.fullmatch(Path(path).name):
        raise ValueError("sent no path of a key file")
    if paths.is_remote(path):
        return _read_from_bucket(path, folder)
    try:
        # Opening a FIFO would block.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            key = file.read(_KEY_BYTES + 1) if is_file else b""
    except OSError as error:
        raise OSError(
            f"its key {path} cannot be read here ({error.strerror}); give a directory that all "
            "processes share as --output_dir, and run them as one user"
        ) from error
    return _checked(key, path)


def _read_from_bucket(path: str, folder: paths.Location) -> bytes:
    if paths.location(path).parent != folder:
        raise ValueError(f"sent the path {path}, which is not in --output_dir={folder}")
    return _checked(paths.read_bytes(path), path)


def _checked(key: bytes, path: str) -> bytes:
    if len(key) != _KEY_BYTES:
        raise ValueError(f"sent the path {path}, which holds no key")
    return key


def challenge() -> str:
    """A new random number."""
    return secrets.token_hex(16)


def proof(key: bytes, *parts: object) -> str:
    """An HMAC of these parts, which only a process with the key can compute."""
    return hmac.digest(key, json.dumps(parts).encode(), "sha256").hex()


def require_proof(given: object, key: bytes, *parts: object) -> None:
    """Checks a proof that came over the network.

    Raises:
      ValueError: it is wrong.
    """
    expected = proof(key, *parts)
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(), expected.encode()):
        raise ValueError("does not know the key of this run")
