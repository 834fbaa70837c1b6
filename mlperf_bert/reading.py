"""Input files are regular ones: a FIFO or a device might be waited for without end."""

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


def require_regular_file(path: str | os.PathLike) -> Path:
    """Returns the path of an input file, which may be a link to one.

    Raises:
      OSError: there is none, or it cannot be looked at.
      ValueError: it is something else than a file.
    """
    path = Path(path)
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        raise ValueError(
            f"{path}: {_KINDS.get(kind, 'no file')}; give a regular file (write what it would "
            "deliver into one)"
        )
    return path
