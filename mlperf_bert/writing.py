"""Files appear whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def written_beside(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a hidden file beside `path`, which takes its place once all is written.

    When anything fails, the hidden file is removed and `path` stays as it was. What a killed
    process leaves is overwritten by the next one.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.partial")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_whole(path: str | os.PathLike, text: str) -> None:
    """Writes a text in place of what `path` held, by `written_beside`."""
    with written_beside(path) as file:
        file.write(text.encode())
