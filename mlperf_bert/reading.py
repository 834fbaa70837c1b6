"""Input files: found behind globs, and regular ones, as a FIFO might be waited for without end."""

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
    """The sorted names behind a glob on local disks; "~" is the home directory."""
    return sorted(glob.glob(os.path.expanduser(pattern)))  # noqa: PTH111, PTH207 - keeps the names


def require_regular_file(path: str | os.PathLike, *, message: str | None = None) -> Path:
    """Returns the path of an input file, which may be a link to one.

    Raises:
      OSError: there is none, or it cannot be looked at.
      ValueError: it is something else than a file; with `message`, if one is given.
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
