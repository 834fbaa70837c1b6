"""Files and directories appear whole or not at all.

On local disks they are written beside and renamed. For a bucket they are written to a temporary
file and uploaded: an object is there once all of it is.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from mlperf_bert.files import paths


def replaceable(path: str | os.PathLike) -> Path:
    """Returns the file to write for a path, links followed: absent, or a regular file.

    Raises:
      ValueError: it is a folder, a device, a pipe or a socket, which a file must not replace.
    """
    found = Path(os.path.realpath(path))
    if found.exists() and not found.is_file():
        raise ValueError(
            f"{os.fspath(path)}: exists and is not a regular file; give the name of a file"
        )
    return found


def partial(path: Path) -> Path:
    """The hidden name, next to `path`, of what is not complete yet."""
    return path.with_name(f".{path.name}.partial")


def workplace(path: str | os.PathLike) -> tuple[Path, int]:
    """The local folder where a file is written at first, and how many copies it holds then."""
    target = paths.location(path)
    if isinstance(target, Path):
        return target.parent, 1
    return Path(tempfile.gettempdir()), 2  # one is TensorFlow's, while it sends the file


def require_room(path: str | os.PathLike, num_bytes: int, *, remedy: str = "make room") -> None:
    """Raises ValueError if the disk on which a file is written at first has less room for it."""
    folder, num_copies = workplace(path)
    free = paths.free_bytes(folder)
    if (needed := num_bytes * num_copies) > free:
        raise ValueError(
            f"{os.fspath(path)}: needs {needed:,} bytes, {free:,} are free in {folder}; {remedy}"
        )


def require_writable(path: str | os.PathLike) -> None:
    """Looks for the folder of a file, so that nobody waits hours for a refusal; tries a bucket.

    Raises:
      ValueError: a local file's folder is not there.
      OSError: the bucket refuses it.
    """
    target = paths.location(path)
    if isinstance(target, Path):
        if not target.parent.is_dir():
            raise ValueError(f"{target}: there is no folder {target.parent}; make it")
        return
    probe = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    with paths.failures_named(target):
        probe.write_bytes(b"can be removed\n")
        probe.unlink()


@contextlib.contextmanager
def written_beside(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a hidden file next to `path`, which replaces `path` once all is written.

    When anything fails, the hidden file is removed and `path` stays as it was. What a killed
    process leaves is overwritten by the next one.

    Raises:
      ValueError: `path` exists and is not a regular file.
      OSError: a bucket refuses it.
    """
    if paths.is_remote(path):
        target = paths.location(path)
        with tempfile.TemporaryDirectory(prefix="mlperf-bert-") as folder:
            whole = Path(folder, target.name)
            with whole.open("wb") as file:
                yield file
            paths.upload(whole, target)
        return
    path = replaceable(path)
    beside = replaceable(partial(path))
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def on_disk(
    folder: paths.Location, *, before_upload: Callable[[], None] = lambda: None
) -> Iterator[Path]:
    """Yields a local folder itself; for a bucket's an empty one, whose files are uploaded then."""
    if isinstance(folder, Path):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="mlperf-bert-") as name:
        yield Path(name)
        before_upload()
        for file in sorted(Path(name).rglob("*")):
            if file.is_file():
                paths.upload(file, folder / file.relative_to(name).as_posix())


@contextlib.contextmanager
def directory_written_beside(path: paths.Location) -> Iterator[Path]:
    """Yields a hidden directory next to `path`, which becomes `path` once all is written.

    When anything fails, the hidden directory is removed, and so is what a killed process left. In
    a bucket the files appear one after the other, each as a whole.
    """
    if not isinstance(path, Path):
        with on_disk(path) as folder:
            yield folder
        return
    beside = partial(path)
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        yield beside
        beside.rename(path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_whole(path: str | os.PathLike, text: str) -> None:
    """Replaces the content of `path` by a text, with `written_beside`."""
    with written_beside(path) as file:
        file.write(text.encode())
