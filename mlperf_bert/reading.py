"""Input files: globs, and the check that a file is regular (a FIFO could block for ever)."""

import glob
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def matching_files(pattern: str) -> list[str]:
    """The sorted names that match a glob on local disks; "~" is the home directory."""
    return sorted(glob.glob(os.path.expanduser(pattern)))  # noqa: PTH111, PTH207 - keeps the names


def require_regular_file(path: str | os.PathLike, *, message: str | None = None) -> Path:
    """Returns the path of an input file, which may be a link to one.

    Raises:
      OSError: no such file, or no permission.
      ValueError: not a regular file; the text is `message`, if given.
    """
    path = Path(path)
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        raise ValueError(
            message
            or f"{path}: {_KINDS.get(kind, 'no file')}; give a regular file (write what it would "
            "deliver into one)"
        )
    return path
