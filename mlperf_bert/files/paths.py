"""A user's path leads to local disks, or to a bucket such as gs://bucket/folder.

Local paths are pathlib's. Those of a bucket are etils.epath's, with the same methods except `stat`
(see `size_bytes`); TensorFlow's own client reads and writes them, so that there is one way to
authenticate. TensorFlow is imported when the first of them is used.
"""

import contextlib
import dataclasses
import errno
import io
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypeVar, Union, cast

from mlperf_bert.files.errors import StoreUnavailable, kind_of, reason, with_remedy
from mlperf_bert.tensorflow_import import tensorflow

if TYPE_CHECKING:  # epath takes a tenth of a second, which local paths need not wait for
    from etils import epath

Location: TypeAlias = Union[Path, "epath.Path"]
_T = TypeVar("_T")
_Item = TypeVar("_Item")

BUCKETS = "gs://"
# This includes gs:/BUCKET, which a Path makes of gs://BUCKET.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_REQUESTS_AT_ONCE = 16
_BUFFER_BYTES = 8 * 2**20
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # no room, or the disk fails
_ADVICE: dict[type[OSError], str] = {
    FileNotFoundError: "no such bucket or object; check the path",
    PermissionError: "the store refuses these credentials; give their account the role Storage "
    "Object User on the bucket, or set GOOGLE_APPLICATION_CREDENTIALS to the key file of another, "
    "or run gcloud auth application-default login",
    StoreUnavailable: "the store does not answer, or asks to try later; repeat the command later",
}


def is_remote(path: str | os.PathLike) -> bool:
    """Whether a path leads to a bucket, or would lead to what nothing here reads."""
    return bool(_SCHEME.match(os.fspath(path)))


@contextlib.contextmanager
def failures_named(path: object) -> Iterator[None]:
    """A failure of a disk or a bucket's client inside becomes an OSError with the path."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _OF_DISKS:
            raise OSError(error.errno, error.strerror, str(path)) from error
        remote = is_remote(str(path))
        # epath's error for an absent object does not name it.
        is_nameless = isinstance(error, FileNotFoundError) and error.filename is None
        kind = FileNotFoundError if is_nameless and remote else kind_of(error)
        if kind is None:
            raise
        told = _ADVICE.get(kind) if remote else None
        raise kind(f"{path}: {told or with_remedy(reason(error))}") from error


def are_local(names: Iterable[str | os.PathLike]) -> bool:
    """Whether none of some paths leads to a bucket."""
    return not any(map(is_remote, names))


def require_supported(path: str) -> None:
    """Raises ValueError for a scheme other than gs://, and for the "~" of an unknown user."""
    # The message advises "./~x", but a Path has dropped its "./".
    if path.startswith("~") and not Path(path.split("/")[0]).exists():
        raise ValueError(f"{path}: there is no such home folder; give the whole path, or ./{path}")
    if is_remote(path) and not re.match(f"{BUCKETS}[^/]", path):
        raise ValueError(f"{path}: give a local path or gs://BUCKET/FOLDER")


def location(path: str | os.PathLike) -> Location:
    """The path as an object."""
    name = os.fspath(path)
    # A Path was checked before, unless a caller made it of gs://BUCKET.
    if isinstance(path, Path) and not is_remote(name):
        return path
    require_supported(name)
    if not is_remote(name):
        return Path(name)
    tensorflow()
    from etils import epath

    return epath.Path(name)


def require_local(path: str, *, flag: str = "") -> Path:
    """The path as an object; raises ValueError if it leads to a bucket."""
    if is_remote(path):
        named = f"--{flag}={path}" if flag else path
        raise ValueError(f"{named}: give a local path, and copy it from or to the bucket")
    return Path(path)


def make_folder(path: Location) -> list[Path]:
    """Makes a local folder and those above it; a bucket has no folders, only names with slashes.

    Returns those that were absent, the innermost first; raises OSError if a file has this name.
    """
    require_no_file(path)
    if not isinstance(path, Path):
        return []
    absent = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return absent


def require_no_file(path: Location) -> None:
    """Raises OSError if a path is a file; an object could be a folder at the same time."""
    if is_file(path):
        raise NotADirectoryError(f"{path}: is a file, not a folder; choose another name")


def free_bytes(folder: Location) -> float:
    """The free bytes on the disk of a folder, which need not exist; in a bucket, infinite."""
    if not isinstance(folder, Path):
        return math.inf
    whole = folder.absolute()
    return shutil.disk_usage(next(at for at in (whole, *whole.parents) if at.exists())).free


@dataclasses.dataclass(frozen=True)
class Status:
    """What a file system knows of a file or folder."""

    is_file: bool
    """Whether it is a regular file or an object."""
    is_folder: bool
    size_bytes: int


def look_up(path: str | os.PathLike) -> Status:
    """Asks for a file or folder, with one request of a bucket; raises OSError if there is none."""
    target = location(path)
    if isinstance(target, Path):
        local = target.stat()
        is_file, is_folder = stat.S_ISREG(local.st_mode), stat.S_ISDIR(local.st_mode)
        return Status(is_file, is_folder, local.st_size)
    with failures_named(target):  # epath's own stat makes more requests
        remote = tensorflow().io.gfile.stat(str(target))
    is_folder = remote.is_directory
    return Status(not is_folder, is_folder, remote.length)


def is_file(path: str | os.PathLike) -> bool:
    """Whether a path is a file; epath has no such method."""
    try:
        return look_up(path).is_file
    except (FileNotFoundError, NotADirectoryError):
        return False


def require_regular_file(path: str | os.PathLike) -> Status:
    """The answer of `look_up` for an input file; raises ValueError if it is not a regular one.

    It may be a link to one, or an object of a bucket. To read a FIFO could block for ever.
    """
    status = look_up(path)
    if not status.is_file:
        raise ValueError(
            f"{path}: is not a regular file; give one (write what a pipe delivers into one)"
        )
    return status


def size_bytes(path: str | os.PathLike) -> int:
    """The size of a file."""
    return look_up(path).size_bytes


def identity(path: str | os.PathLike) -> str:
    """Equal for all names of one local file, links followed; an object has one name alone."""
    return os.fspath(path) if is_remote(path) else os.path.realpath(path)


def named_twice(names: Iterable[str]) -> str | None:
    """Which file is named twice, also by a link, as the beginning of a line; None if none is."""
    first: dict[str, str] = {}
    for name in names:
        if before := first.setdefault(identity(name), ""):
            same = "named twice" if name == before else f"the same file as {before}"
            return f"{name} is {same}"
        first[identity(name)] = name
    return None


class _Object(io.RawIOBase):
    """An object of a bucket, to be read through a buffer: a request for each 8 MiB."""

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()


@contextlib.contextmanager
def opened(path: str | os.PathLike, *, skips: bool = False) -> Iterator[BinaryIO]:
    """Opens a file to read, an object 8 MiB at a time.

    With `skips` most of it is passed over, which a disk then need not read; an object is read
    whole.
    """
    target = location(path)
    require_regular_file(target)
    with failures_named(target):
        if isinstance(target, Path):
            with target.open("rb", buffering=0 if skips else -1) as file:
                yield file
        else:
            with target.open("rb") as file:
                yield cast(BinaryIO, io.BufferedReader(_Object(file), _BUFFER_BYTES))


def read_bytes(path: str | os.PathLike) -> bytes:
    """The content of a file."""
    with opened(path) as file:
        return file.read()


def in_parallel(function: Callable[[_Item], _T], items: Sequence[_Item]) -> list[_T]:
    """function(item) for each, several requests at a time."""
    with ThreadPoolExecutor(max_workers=_REQUESTS_AT_ONCE) as pool:
        return list(pool.map(function, items))
