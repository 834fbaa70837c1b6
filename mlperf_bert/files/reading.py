"""Input files: globs, and the check that a file is regular (a FIFO could block for ever).

Corpora may also lie on Hugging Face, hf://datasets/OWNER/NAME/FILE: its own client reads these.
"""

import contextlib
import glob
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from mlperf_bert.files import content, paths

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

HUGGING_FACE = "hf://"
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
      OSError: a bucket or Hugging Face refuses to list them.
      ValueError: huggingface_hub is needed and not installed.
    """
    if pattern.startswith(HUGGING_FACE):
        with _failures_named(pattern):
            return sorted(HUGGING_FACE + name for name in _hugging_face(pattern).glob(pattern))
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
    found = paths.look_up(path)
    if not found.is_file:
        raise ValueError(
            message
            or f"{path}: {_KINDS.get(found.kind, 'no file')}; give a regular file (write what it "
            "would deliver into one)"
        )
    return paths.location(path)


def read_regular_file(path: str | os.PathLike) -> bytes:
    """The content of an input file.

    Raises:
      OSError: no such file, or no permission.
      ValueError: not a regular file, or one that is compressed, an archive or a Git LFS pointer.
    """
    found = paths.read_bytes(require_regular_file(path))
    if problem := content.packed(found[: content.HEAD_BYTES]):
        raise ValueError(f"{os.fspath(path)}: {problem}")
    return found


@contextlib.contextmanager
def copied_to_disk(
    names: Sequence[str], *, only: Sequence[str] = ("*",)
) -> Iterator[dict[str, Path]]:
    """Copies the files, and folders of files, of a bucket; removes the copies at the end.

    Args:
      names: those that are not of a bucket stay as they are, whatever they are.
      only: globs of the files to copy from a folder.

    Yields: what is of a bucket -> its copy.

    Raises:
      OSError: the bucket refuses it.
    """

    def copy(name: str) -> None:
        source = paths.location(name)
        with paths.failures_named(source):
            found = list(source.iterdir()) if source.is_dir() else [source]
        for file in found:
            if file == source or any(file.match(pattern) for pattern in only):
                target = copies[name] / file.relative_to(source).as_posix()
                target.parent.mkdir(parents=True, exist_ok=True)
                with paths.opened(file) as there, target.open("wb") as here:
                    shutil.copyfileobj(there, here)

    with tempfile.TemporaryDirectory(prefix="mlperf-bert-") as folder:
        remote = list(filter(paths.is_remote, names))
        copies = {name: Path(folder, str(n), Path(name).name) for n, name in enumerate(remote)}
        paths.in_parallel(copy, remote)
        yield copies


def packed_file(path: str | os.PathLike) -> str | None:
    """What hides a file's real content, as a message with its name; None if nothing does.

    Raises:
      OSError: no such file, or no permission.
    """
    with paths.opened(path) as file:
        problem = content.packed(file.read(content.HEAD_BYTES))
    return f"{os.fspath(path)}: {problem}" if problem else None


@contextlib.contextmanager
def opened_input(path: str) -> Iterator[BinaryIO]:
    """Opens an input file, which may also lie on Hugging Face; raises as `require_regular_file`.

    Raises:
      ValueError: huggingface_hub is needed and not installed.
    """
    if path.startswith(HUGGING_FACE):
        with _failures_named(path), _hugging_face(path).open(path, "rb") as file:
            yield file
    else:
        with paths.opened(require_regular_file(path)) as file:
            yield file


def size_on_hugging_face(path: str) -> int:
    """The bytes of a file there; raises as `opened_input`."""
    with _failures_named(path):
        return _hugging_face(path).size(path)


def _hugging_face(path: str) -> "AbstractFileSystem":
    import fsspec

    try:
        return fsspec.filesystem(HUGGING_FACE.removesuffix("://"))
    except ImportError as error:
        raise ValueError(
            f"{path}: needs huggingface_hub; pip install huggingface_hub, or fetch the files"
        ) from error


@contextlib.contextmanager
def _failures_named(path: str) -> Iterator[None]:
    """Turns what the client of Hugging Face raises into an OSError of one line.

    Its own classes of errors cannot leave a worker process: they do not unpickle.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("huggingface_hub", "requests", "httpx"):
            raise
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise OSError(f"{path}: Hugging Face cannot be read: {reason}") from error


def digest(path: str | os.PathLike, algorithm: str) -> str:
    """The digest of an input file, in hexadecimal; raises as `opened_input`."""
    with opened_input(os.fspath(path)) as file:
        return hashlib.file_digest(file, algorithm).hexdigest()  # type: ignore[arg-type]
