"""How the processes of a run know each other: by a key that the chief leaves in --output_dir.

All processes share --output_dir, and a stranger on the network does not. As long as they meet, a
file with a random key lies there that only the same user can read. The chief names the file to
whoever connects, and both ends prove that they have read it, by an HMAC over numbers that both
have just drawn. The flags play no part: processes with other flags know each other too, and can be
told what differs.

It keeps out whoever cannot read that file: other runs, other users, scanners, and strangers who
pose as a worker or as the chief. It does not keep out who can read the file (root, the same user,
and anyone where the file system ignores its mode), nor who can change packets on the way, for what
is said afterwards is neither encrypted nor signed. And TensorFlow's own servers, which start on the
same ports later, ask nobody for a proof: a run belongs in a network that you trust.
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

_NAME = re.compile(r"\.meeting-[0-9a-f]{16}\.key")
_KEY_BYTES = 32


@contextlib.contextmanager
def left_in(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Leaves a new key in a folder, its path and the key; afterwards all is as before.

    Raises:
      OSError: the folder cannot be written.
    """
    folder = folder.absolute()
    missing = [part for part in (folder, *folder.parents) if not part.exists()]
    path = folder / f".meeting-{secrets.token_hex(8)}.key"
    key = secrets.token_bytes(_KEY_BYTES)
    try:
        _write(path, key)
        yield str(path), key
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            for part in missing:
                part.rmdir()  # refused by the system where somebody has put something


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


def read(path: object) -> bytes:
    """The key that the chief has left.

    Raises:
      ValueError: the path is not one that a chief would name, or there is no key.
      OSError: it cannot be read: there is no such file here, or it belongs to another user.
    """
    if not isinstance(path, str) or not _NAME.fullmatch(Path(path).name):
        raise ValueError("names no file with a key")
    try:
        # A FIFO would be waited for.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            key = file.read(_KEY_BYTES + 1) if is_file else b""
    except OSError as error:
        raise OSError(
            f"its key {path} cannot be read here ({error.strerror}); give a directory that all "
            "processes share as --output_dir, and run them as one user"
        ) from error
    if len(key) != _KEY_BYTES:
        raise ValueError(f"names the file {path}, which holds no key")
    return key


def challenge() -> str:
    """A number that nobody has used before."""
    return secrets.token_hex(16)


def proof(key: bytes, *parts: str | int) -> str:
    """What only who has the key can say about these parts."""
    return hmac.digest(key, json.dumps(parts).encode(), "sha256").hex()


def require_proof(given: object, key: bytes, *parts: str | int) -> None:
    """Checks a proof that came over the network.

    Raises:
      ValueError: it is wrong.
    """
    expected = proof(key, *parts)
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(), expected.encode()):
        raise ValueError("does not know the key of this run")
