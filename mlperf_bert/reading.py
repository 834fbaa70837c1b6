"""Input files: globs, and the check that a file is regular (a FIFO could block for ever)."""

import glob
import hashlib
import os
import stat
from pathlib import Path

from mlperf_bert import paths

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def matching_files(pattern: str) -> list[str]:
    """The sorted names that match a glob; "~" is the home directory.

    Raises:
      OSError: a bucket refuses to list them.
    """
    if not paths.is_remote(pattern):
        return sorted(glob.glob(os.path.expanduser(pattern)))  # noqa: PTH111, PTH207 - keeps names
    found = paths.location(pattern)
    with paths.failures_named(pattern):
        return sorted(str(path) for path in found.parent.glob(found.name))


def require_regular_file(path: str | os.PathLike, *, message: str | None = None) -> paths.Location:
    """Returns the path of an input file, which may be a link to one, or an object of a bucket.

    Raises:
      OSError: no such file, or no permission.
      ValueError: not a regular file; the text is `message`, if given.
    """
    found = paths.location(path)
    if not isinstance(found, Path):
        with paths.failures_named(found):
            is_folder = found.stat().is_directory
        kind = stat.S_IFDIR if is_folder else stat.S_IFREG
    else:
        kind = stat.S_IFMT(found.stat().st_mode)
    if kind != stat.S_IFREG:
        raise ValueError(
            message
            or f"{path}: {_KINDS.get(kind, 'no file')}; give a regular file (write what it would "
            "deliver into one)"
        )
    return found


def read_regular_file(path: str | os.PathLike) -> bytes:
    """The content of an input file; raises as `require_regular_file`."""
    return paths.read_bytes(require_regular_file(path))


def digest(path: str | os.PathLike, algorithm: str) -> str:
    """The digest of a file, in hexadecimal; raises as `require_regular_file`."""
    with paths.opened(require_regular_file(path)) as file:
        return hashlib.file_digest(file, algorithm).hexdigest()  # type: ignore[arg-type]
