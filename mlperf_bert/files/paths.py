"""Where a user's path leads: to local disks, or to a bucket such as gs://bucket/folder.

Local paths are pathlib's. Those of a bucket are etils.epath's, with the same methods but for `stat`
(see `size_bytes`); TensorFlow's own client reads and writes them, so that there is one way to
authenticate. TensorFlow is imported when the first of them is used.
"""

import contextlib
import dataclasses
import importlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias, TypeVar, Union

from mlperf_bert.tensorflow_import import tensorflow

if TYPE_CHECKING:  # epath takes a tenth of a second, which local paths need not wait for
    from etils import epath

Location: TypeAlias = Union[Path, "epath.Path"]
_T = TypeVar("_T")
_Item = TypeVar("_Item")

BUCKETS = "gs://"
_OTHER_STORES = ("s3://", "az://")
_HOME = re.compile(r"((?:^|,)\s*)(~[^/,]*)")
_FLAG = re.compile(r"-[^=]*=")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# One request each: a small buffer would make a request for every few records.
_BUFFER_BYTES = 8 * 2**20
_BYTES_UPLOADED_AT_ONCE = 64 * 2**20
_REQUESTS_AT_ONCE = 16
_WITHOUT_A_SLASH = re.compile(r"(gs|s3|az):(?!//)")
_HTTP_CODE = re.compile(r"HTTP response code (\d+)")
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_ADVICE = {
    401: "no valid credentials; set GOOGLE_APPLICATION_CREDENTIALS to a key file, or run gcloud "
    "auth application-default login",
    403: "these credentials have no permission; give their account the role Storage Object User "
    "on the bucket, or use others (GOOGLE_APPLICATION_CREDENTIALS)",
    404: "no such bucket or object; check the path",
}


class StoreUnavailable(OSError):
    """A store could not be reached for a while; the same command may succeed later."""


def is_remote(path: str | os.PathLike) -> bool:
    """Whether a path leads to a bucket."""
    return bool(_SCHEME.match(os.fspath(path)))


def with_home(path: str) -> str:
    """The path, or several with commas, with home folders in place of "~" and "~user"."""
    return _HOME.sub(lambda found: found[1] + os.path.expanduser(found[2]), path)  # noqa: PTH111


def words_with_home(words: Sequence[str] | None = None) -> list[str]:
    """A command line's words, by default this process's, with `with_home` in those before "--".

    A shell leaves "~" in --name=~/folder as it is. Ends the process with one line if there is no
    such home folder.
    """
    words = sys.argv[1:] if words is None else list(words)
    end = words.index("--") if "--" in words else len(words)
    expanded = []
    for word in words[:end]:
        flag = _FLAG.match(word)
        start = flag.end() if flag else 0
        value = with_home(word[start:])
        if value.startswith("~"):
            sys.exit(f"{Path(sys.argv[0]).name}: {word[:start]}{_no_home(value)}")
        expanded.append(word[:start] + value)
    return expanded + words[end:]


def _no_home(path: str) -> str:
    return f"{path}: there is no such home folder; give the whole path, or ./{path}"


def require_supported(path: str) -> None:
    """Checks that a path is local or of a store that TensorFlow can reach here.

    Raises:
      ValueError: its scheme is another one, or a store whose file system is not installed, or it
        begins with "~" and there is no such home folder.
    """
    if path.startswith("~"):
        raise ValueError(_no_home(path))
    if without := _WITHOUT_A_SLASH.match(path):
        raise ValueError(f"{path}: write {without[0]}//BUCKET/FOLDER, or ./{without[0]}...")
    found = _SCHEME.match(path)
    if not found or found[0] == BUCKETS:
        if found and not path.removeprefix(BUCKETS).split("/")[0]:
            raise ValueError(f"{path}: names no bucket; give gs://BUCKET/FOLDER")
        return
    if found[0] not in _OTHER_STORES:
        raise ValueError(f"{path}: give a local path or gs://BUCKET/FOLDER")
    if found[0].removesuffix("://") not in _schemes_of_tensorflow():
        raise ValueError(
            f"{path}: TensorFlow has no file system for {found[0]} here; install tensorflow-io in "
            "a version for this TensorFlow, or use a local path or gs://BUCKET/FOLDER"
        )


def _schemes_of_tensorflow() -> list[str]:
    with contextlib.suppress(ImportError):
        importlib.import_module("tensorflow_io")  # registers its file systems
    return tensorflow().io.gfile.get_registered_schemes()


def location(path: str | os.PathLike) -> Location:
    """The path as an object; raises as `require_supported`."""
    name = os.fspath(path)
    require_supported(name)
    if not is_remote(name):
        return Path(name)
    tensorflow()
    from etils import epath

    return epath.Path(name)


def make_folder(path: Location) -> None:
    """Makes a local folder and those above it; a bucket has no folders, only names with slashes.

    Raises:
      OSError: a file or an object has this name, or a folder cannot be made.
    """
    if isinstance(path, Path):
        path.mkdir(parents=True, exist_ok=True)
    require_no_object(path)


def require_no_object(path: Location) -> None:
    """Raises OSError if a path of a bucket is an object: it could be a folder at the same time."""
    if not isinstance(path, Path) and status(path):
        raise NotADirectoryError(f"{path}: is an object, not a folder; choose another name")


def remove_folder(path: Location) -> None:
    """Removes a folder of a bucket and all that is in it; nothing where there is none.

    Raises:
      OSError: the bucket refuses it.
    """
    with failures_named(path), contextlib.suppress(FileNotFoundError):
        if path.is_dir():
            tensorflow().io.gfile.rmtree(str(path))


def is_file(path: Location) -> bool:
    """As pathlib's; epath has none. Raises as `status`."""
    return status(path) is not None


def size_bytes(path: str | os.PathLike) -> int:
    """The size of a file.

    Raises:
      OSError: no such file, or no permission.
    """
    found = location(path)
    if isinstance(found, Path):
        return found.stat().st_size
    with failures_named(found):
        return found.stat().length


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
    """What a file system knows of a file."""

    size_bytes: int
    modified_ns: int
    """When it was written last: by this host's clock, or by the store's."""


def status(path: str | os.PathLike) -> Status | None:
    """Asks for a file, with one request of a bucket; None if there is no such file.

    Raises:
      OSError: no permission.
    """
    found = location(path)
    if isinstance(found, Path):
        if not found.is_file():
            return None
        local = found.stat()
        return Status(size_bytes=local.st_size, modified_ns=local.st_mtime_ns)
    try:
        with failures_named(found):  # epath's own has whole seconds
            remote = tensorflow().io.gfile.stat(str(found))
    except FileNotFoundError:
        return None
    if remote.is_directory:
        return None
    return Status(size_bytes=remote.length, modified_ns=remote.mtime_nsec)


def read_bytes(path: str | os.PathLike) -> bytes:
    """The content of a file; raises as `opened`."""
    with opened(path) as file:
        return file.read()


@contextlib.contextmanager
def opened(path: str | os.PathLike, *, buffering: int = -1) -> Iterator[BinaryIO]:
    """Opens a file to read; of a bucket, 8 MiB at a time unless `buffering` says other bytes.

    Raises:
      OSError: no such file, or no permission.
    """
    found = location(path)
    if isinstance(found, Path):
        with found.open("rb", buffering) as file:
            yield file
        return
    size = size_bytes(found)
    with failures_named(found), found.open("rb") as remote:
        buffer = _BUFFER_BYTES if buffering < 0 else max(buffering, 512)
        yield io.BufferedReader(_Object(remote, size), buffer)


class _Object(io.RawIOBase):
    """An object of a bucket as a raw file of Python, for its BufferedReader."""

    def __init__(self, file: BinaryIO, size: int):
        super().__init__()
        self._file = file
        self._size = size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._file.tell(), io.SEEK_END: self._size}[whence]
        self._file.seek(base + offset)
        return base + offset

    def tell(self) -> int:
        return self._file.tell()


def upload(source: Path, target: Location) -> None:
    """Copies a local file to an object, which is replaced as a whole or not at all.

    Raises:
      OSError: the store refuses it.
    """
    from etils import epath

    with failures_named(target):
        if source.stat().st_size > _BYTES_UPLOADED_AT_ONCE:
            epath.Path(source).copy(target, overwrite=True)
        else:  # half as many requests
            target.write_bytes(source.read_bytes())


@contextlib.contextmanager
def failures_named(path: object) -> Iterator[None]:
    """Turns what TensorFlow raises for a bucket into an OSError of one line."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename is None:
            raise FileNotFoundError(f"{path}: {_ADVICE[404]}") from error
        raise
    except OSError:
        raise
    except Exception as error:
        if not is_of_tensorflow(error):
            raise
        raise kind_of(error)(f"{path}: {reason(error)}") from error


def is_of_tensorflow(error: Exception) -> bool:
    """Whether TensorFlow raised it; without importing TensorFlow."""
    return any(base.__module__.startswith("tensorflow.") for base in type(error).__mro__)


def kind_of(error: Exception) -> type[OSError]:
    """The class of OSError for what TensorFlow raises for a bucket."""
    if type(error).__name__ == "NotFoundError" or "HTTP response code 404" in str(error):
        return FileNotFoundError
    passes = type(error).__name__ == "AbortedError" or _may_pass(str(error))
    return StoreUnavailable if passes else OSError


def is_answer_of_a_store(error: Exception) -> bool:
    """Whether TensorFlow raised it because of what a store answers, or that it does not.

    What reads checkpoints raises Python's own errors, with the text of TensorFlow's.
    """
    return "HTTP request" in str(error) or "retry attempts failed" in str(error)


def reason(error: Exception) -> str:
    """What a store has answered, and what to do, in one line."""
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    found = _HTTP_CODE.search(text)
    code = int(found[1]) if found else None
    if code in _ADVICE:
        return f"the store answers {code}: {_ADVICE[code]}"
    if _may_pass(text):
        answer = f"answers {code}" if code else "cannot be reached"
        return f"the store {answer}, again and again; repeat the command later"
    return text


def _may_pass(text: str) -> bool:
    found = _HTTP_CODE.search(text)
    if found and int(found[1]) in _ADVICE:
        return False
    return bool(found and int(found[1]) in _TRANSIENT) or "retry attempts failed" in text


def in_parallel(function: Callable[[_Item], _T], items: Sequence[_Item]) -> list[_T]:
    """function(item) for each, several requests at a time."""
    with ThreadPoolExecutor(max_workers=_REQUESTS_AT_ONCE) as pool:
        return list(pool.map(function, items))
