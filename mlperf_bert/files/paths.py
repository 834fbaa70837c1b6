"""Where a user's path leads: to local disks, or to a bucket such as gs://bucket/folder.

Local paths are pathlib's. Those of a bucket are etils.epath's, with the same methods but for `stat`
(see `size_bytes`); TensorFlow's own client reads and writes them, so that there is one way to
authenticate. TensorFlow is imported when the first of them is used.
"""

import contextlib
import dataclasses
import io
import itertools
import math
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypeVar, Union, cast

from mlperf_bert.tensorflow_import import tensorflow

if TYPE_CHECKING:  # epath takes a tenth of a second, which local paths need not wait for
    from etils import epath

Location: TypeAlias = Union[Path, "epath.Path"]
_T = TypeVar("_T")
_Item = TypeVar("_Item")

BUCKETS = "gs://"
IS_EMPTY = "is empty, perhaps a variable that is not set; give a value, or leave it out"
_HOME = re.compile(r"((?:^|,)\s*)(~[^/,]*)")
_FLAG = re.compile(r"-[^=]*=")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_REQUESTS_AT_ONCE = 16
_BUFFER_BYTES = 8 * 2**20
_WITHOUT_A_SLASH = re.compile(r"gs:(?!//)")
_CAUSE_IN_A_GRAPH = re.compile(r"^(?:\s*\(\d+\) \w+:)?[ \t]*(\S.*)\n\s*\[\[\{\{node", re.MULTILINE)
_NODE_NAMES = re.compile(r"\{\{.*?\}\}\s*")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class StoreUnavailable(OSError):
    """A store could not be reached for a while; the same command may succeed later."""


# The classes of the clients, TensorFlow's and Google's, by name: neither is imported for a look.
_CLIENTS = ("google", "requests", "tensorflow")
_KINDS_OF_ERRORS: dict[str, type[OSError]] = {
    "NotFoundError": FileNotFoundError,
    "PermissionDeniedError": PermissionError,
    "AbortedError": StoreUnavailable,  # all ten tries have failed
    "UnavailableError": StoreUnavailable,
    "OpError": OSError,
    "NotFound": FileNotFoundError,
    "PreconditionFailed": FileExistsError,
    "Forbidden": PermissionError,
    "Unauthorized": PermissionError,
    "TransportError": StoreUnavailable,
    "GoogleAuthError": PermissionError,
    "RetryError": StoreUnavailable,
    "ServerError": StoreUnavailable,
    "TooManyRequests": StoreUnavailable,
    "RequestException": StoreUnavailable,
    "GoogleAPIError": OSError,
}
_ADVICE: dict[type[OSError], str] = {
    FileNotFoundError: "no such bucket or object; check the path",
    PermissionError: "the store refuses these credentials; give their account the role Storage "
    "Object User on the bucket, or set GOOGLE_APPLICATION_CREDENTIALS to the key file of another, "
    "or run gcloud auth application-default login",
    StoreUnavailable: "the store does not answer, or asks to try later; repeat the command later",
}


def is_remote(path: str | os.PathLike) -> bool:
    """Whether a path leads to a bucket."""
    return bool(_SCHEME.match(os.fspath(path)))


def with_home(path: str) -> str:
    """The path, or several with commas, with home folders in place of "~" and "~user"."""
    return _HOME.sub(lambda found: found[1] + os.path.expanduser(found[2]), path)  # noqa: PTH111


def words_with_home(
    words: Sequence[str] | None = None, *, may_be_empty: Sequence[str] = ()
) -> list[str]:
    """A command line's words, by default this process's, with `with_home` in those before "--".

    A shell leaves "~" in --name=~/folder as it is. Ends the process with one line if there is no
    such home folder, or a word or value is empty that is not of an option that `may_be_empty`.
    """
    words = sys.argv[1:] if words is None else list(words)
    end = words.index("--") if "--" in words else len(words)
    if empty := first_empty(words[:end], may_be_empty=may_be_empty):
        sys.exit(f"{Path(sys.argv[0]).name}: {empty}: {IS_EMPTY}")
    expanded = []
    for word in words[:end]:
        flag = _FLAG.match(word)
        start = flag.end() if flag else 0
        value = with_home(word[start:])
        if value.startswith("~"):
            sys.exit(f"{Path(sys.argv[0]).name}: {word[:start]}{_no_home(value)}")
        expanded.append(word[:start] + value)
    return expanded + words[end:]


def first_empty(words: Sequence[str], *, may_be_empty: Sequence[str] = ()) -> str | None:
    """The first value on a command line that is empty, as --name= or --name '', with its option."""
    for number, (before, word) in enumerate(itertools.pairwise(["", *words]), start=1):
        name, equals, value = word.partition("=") if _FLAG.match(word) else (before, " ''", word)
        if not value.strip() and name not in may_be_empty:
            is_of_option = name.startswith("-") and "=" not in name
            return f"{name}{equals}" if is_of_option else f"word {number}"
    return None


def _no_home(path: str) -> str:
    return f"{path}: there is no such home folder; give the whole path, or ./{path}"


def require_supported(path: str) -> None:
    """Checks that a path is local or of a bucket.

    Raises:
      ValueError: its scheme is another one; or it begins with "~" or "gs:" and there is neither
        such a home folder nor such a name here.
    """
    without = _WITHOUT_A_SLASH.match(path)
    # "./~x" and "./gs:x", which are advised, have lost their "./" once they were a Path.
    if (without or path.startswith("~")) and Path(path.split("/")[0]).exists():
        return
    if path.startswith("~"):
        raise ValueError(_no_home(path))
    if without:
        raise ValueError(f"{path}: write gs://BUCKET/FOLDER, or ./gs:...")
    if path.startswith(BUCKETS):
        if not path.removeprefix(BUCKETS).split("/")[0]:
            raise ValueError(f"{path}: names no bucket; give gs://BUCKET/FOLDER")
    elif is_remote(path):
        raise ValueError(f"{path}: give a local path or gs://BUCKET/FOLDER")


def location(path: str | os.PathLike) -> Location:
    """The path as an object; raises as `require_supported`."""
    name = os.fspath(path)
    # A Path was looked at before, unless somebody made one of gs://BUCKET, which is "gs:/BUCKET".
    if isinstance(path, Path) and not name.startswith("gs:/"):
        return path
    require_supported(name)
    if not is_remote(name):
        return Path(name)
    tensorflow()
    from etils import epath

    return epath.Path(name)


def require_local(path: str, *, flag: str = "") -> Path:
    """The path as an object; raises ValueError if it leads to a bucket."""
    if is_remote(path) or _WITHOUT_A_SLASH.match(path):
        named = f"--{flag}={path}" if flag else path
        raise ValueError(f"{named}: give a local path, and copy it from or to the bucket")
    return Path(path)


def are_local(names: Iterable[str | os.PathLike]) -> bool:
    """Whether none of some paths leads to a bucket."""
    return not any(map(is_remote, names))


def resolve(path: Location) -> Location:
    """The whole path of a local one, links followed; that of a bucket is whole."""
    return path.resolve() if isinstance(path, Path) else path


def name_from(path: str, folder: Location) -> str:
    """How a record in a folder names a path: from there, or whole; `path_of` undoes it."""
    if is_remote(path) or is_remote(folder):
        return path.removeprefix(f"{folder}/")
    return os.path.relpath(path, folder)


def path_of(name: str, folder: Location) -> str:
    """The path that a record in a folder names, as `name_from`."""
    whole = name if is_remote(name) else os.path.join(folder, name)  # noqa: PTH118 - keeps gs://
    return whole if is_remote(whole) else os.path.normpath(whole)


def make_folder(path: Location) -> list[Path]:
    """Makes a local folder and those above it; a bucket has no folders, only names with slashes.

    Returns those that were absent, the innermost first.

    Raises:
      OSError: a file or an object has this name, or a folder cannot be made.
    """
    require_no_file(path)
    if not isinstance(path, Path):
        return []
    absent = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return absent


def with_folder_made(file: str | os.PathLike) -> Location:
    """Returns the place of a file that is to be written, whose folder `make_folder` has made."""
    place = location(file)
    make_folder(place.parent)
    return place


def require_no_file(path: Location) -> None:
    """Raises OSError if a path is a file; an object could be a folder at the same time."""
    if is_file(path):
        raise NotADirectoryError(f"{path}: is a file, not a folder; choose another name")


def free_bytes(folder: Location) -> float:
    """The room on the disk of a folder, which need not exist; a bucket has room without end."""
    if not isinstance(folder, Path):
        return math.inf
    whole = folder.absolute()
    existing = next(above for above in (whole, *whole.parents) if above.exists())
    return shutil.disk_usage(existing).free


@dataclasses.dataclass(frozen=True)
class Status:
    """What a file system knows of a file or folder."""

    kind: int
    """As of stat.S_IFMT; an object is a regular file."""
    size_bytes: int
    modified_ns: int
    """When it was written last, by its clock."""
    clock: str

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file or an object."""
        return self.kind == stat.S_IFREG

    def is_older_than(self, other: "Status") -> bool:
        """Whether it is known to be written before another; two clocks do not tell."""
        return self.clock == other.clock and self.modified_ns <= other.modified_ns


def look_up(path: str | os.PathLike) -> Status:
    """Asks for a file or folder, with one request of a bucket.

    Raises:
      OSError: there is none, or no permission.
    """
    target = location(path)
    if isinstance(target, Path):
        local = target.stat()
        return Status(stat.S_IFMT(local.st_mode), local.st_size, local.st_mtime_ns, "local")
    with failures_named(target):  # epath's own has whole seconds
        remote = tensorflow().io.gfile.stat(str(target))
    kind = stat.S_IFDIR if remote.is_directory else stat.S_IFREG
    return Status(kind, remote.length, remote.mtime_nsec, "store")


def status(path: str | os.PathLike) -> Status | None:
    """As `look_up`; None if there is no such file, or it is not a regular one."""
    try:
        found = look_up(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if found.is_file else None


def ask_again(path: str) -> None:
    """Raises what a store answers, after a failure that does not tell; asks no disk."""
    if is_remote(path):
        look_up(path)


def require_regular_file(path: str | os.PathLike) -> Status:
    """As `look_up`, for an input file, which may be a link to one, or an object of a bucket.

    Raises:
      OSError: no such file, or no permission.
      ValueError: not a regular file.
    """
    found = look_up(path)
    if not found.is_file:
        raise ValueError(
            f"{path}: {_KINDS.get(found.kind, 'no file')}; give a regular file (write what it "
            "would deliver into one)"
        )
    return found


def is_file(path: str | os.PathLike) -> bool:
    """As pathlib's; epath has none. Raises as `status`."""
    return status(path) is not None


def keys(path: str | os.PathLike) -> list[object]:
    """What two names of one file have in common: the whole path, links followed; its number."""
    if is_remote(path):
        return [os.fspath(path)]
    whole = os.path.realpath(path)
    try:
        found = os.stat(whole)  # noqa: PTH116 - of many files
    except OSError:
        return [whole]
    return [whole, (found.st_dev, found.st_ino)]


def identity(path: str | os.PathLike) -> object:
    """Equal for all names and links of one file; in a bucket the name is all that is known."""
    return keys(path)[-1]


def named_twice(names: Iterable[str]) -> str | None:
    """Which file is named again, by its name or a link, as the begin of a line; None if none is.

    A copy is another file: nobody reads all content for this.
    """
    first: dict[object, str] = {}
    again = []
    for name in names:
        if (key := identity(name)) in first:
            again.append((name, first[key]))
        first.setdefault(key, name)
    if not again:
        return None
    name, before = again[0]
    others = f" ({len(again)} files are named again)" if len(again) > 1 else ""
    same = "named twice" if name == before else f"the same file as {before}"
    return f"{name} is {same}{others}"


def size_bytes(path: str | os.PathLike) -> int:
    """The size of a file; raises as `look_up`."""
    return look_up(path).size_bytes


def read_bytes(path: str | os.PathLike) -> bytes:
    """The content of a file; raises as `opened`."""
    with opened(path) as file:
        return file.read()


class _Input(io.RawIOBase):
    """A file, or an object of a bucket, to read: what fails names it, as a disk in the middle."""

    def __init__(self, file: BinaryIO, name: str, size: int):
        super().__init__()
        self._file = file
        self._name = name
        self._size = size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._file.read(len(buffer))
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._name) from error
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        # Not by the file of a bucket: it would ask the store for the size.
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._file.tell(), io.SEEK_END: self._size}[whence]
        self._file.seek(base + offset)
        return base + offset

    def tell(self) -> int:
        return self._file.tell()


_READ: list[set[str]] = []


@contextlib.contextmanager
def reads() -> Iterator[set[str]]:
    """Collects the paths of all files that this process opens by `opened` meanwhile."""
    _READ.append(set())
    try:
        yield _READ[-1]
    finally:
        _READ.pop()


@contextlib.contextmanager
def opened(path: str | os.PathLike, *, skips: bool = False) -> Iterator[BinaryIO]:
    """Opens a file to read, an object 8 MiB at a time; a bucket is asked for it once.

    Args:
      path: local or of a bucket.
      skips: most of it is passed over, which a disk then need not read; an object is read whole.

    Raises:
      OSError, ValueError: as `require_regular_file`.
    """
    target = location(path)
    size_bytes = require_regular_file(target).size_bytes
    for names in _READ:
        names.add(os.fspath(target))
    is_local = isinstance(target, Path)
    with failures_named(target), _unbuffered(target) as file:
        raw = _Input(file, os.fspath(target), size_bytes)
        # A bucket's: one request each; a small buffer would make one for every few records.
        buffer_bytes = io.DEFAULT_BUFFER_SIZE if is_local else _BUFFER_BYTES
        yield cast(BinaryIO, raw if skips and is_local else io.BufferedReader(raw, buffer_bytes))


def _unbuffered(target: Location) -> BinaryIO:
    return target.open("rb", buffering=0) if isinstance(target, Path) else target.open("rb")


@contextlib.contextmanager
def failures_named(path: object) -> Iterator[None]:
    """Turns what a client of a bucket raises into an OSError of one line."""
    try:
        yield
    except Exception as error:
        # What epath raises for an object that is absent names none.
        is_nameless = isinstance(error, FileNotFoundError) and error.filename is None
        if is_nameless and is_remote(str(path)):
            raise FileNotFoundError(f"{path}: {_ADVICE[FileNotFoundError]}") from error
        if (kind := kind_of(error)) is None:
            raise
        raise kind(f"{path}: {reason(error, str(path))}") from error


def kind_of(error: Exception) -> type[OSError] | None:
    """The class of OSError for what a client of a bucket raises; None for errors of others."""
    for base in type(error).__mro__:
        if base.__module__.split(".")[0] in _CLIENTS and base.__name__ in _KINDS_OF_ERRORS:
            return _KINDS_OF_ERRORS[base.__name__]
    return None


def reason(error: Exception, path: str = "") -> str:
    """What to do about an error if `path` is of a bucket, or TensorFlow's own words; one line."""
    if is_remote(path) and (kind := kind_of(error)) in _ADVICE:
        return _ADVICE[kind]
    whole = str(error)
    # Of a graph the first line names nothing; the cause stands before the node that failed.
    cause = _CAUSE_IN_A_GRAPH.search(whole)
    text = cause[1] if cause else next(iter(whole.splitlines()), "") or type(error).__name__
    return _NODE_NAMES.sub("", text).split(" [Op:")[0]


def in_parallel(
    function: Callable[[_Item], _T], items: Sequence[_Item], *, reads_all_of: Location | None = None
) -> list[_T]:
    """function(item) for each, several requests at a time; one if it reads whole local files."""
    at_once = 1 if isinstance(reads_all_of, Path) else _REQUESTS_AT_ONCE
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        return list(pool.map(function, items))
