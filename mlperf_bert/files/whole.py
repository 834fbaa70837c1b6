"""Reads regular files; writes files and folders so that they appear whole or not at all.

On local disks they are written beside and renamed. For a bucket they are written to a temporary
file and uploaded: an object appears once all of it is uploaded.
"""

import contextlib
import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from mlperf_bert.files import paths
from mlperf_bert.tensorflow_import import tensorflow

BYTE_ORDER_MARK = "\ufeff"
HEAD_BYTES = 4096
"""How many bytes of a file tell what it is."""
_POINTER = b"version https://git-lfs.github.com/spec/"
_PACKED_BY = {"gzip": b"\x1f\x8b\x08", "bzip2": b"BZh"}
_BYTES_UPLOADED_AT_ONCE = 64 * 2**20


@contextlib.contextmanager
def written_beside(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a hidden file next to `path`, which replaces `path` once all is written.

    When anything fails, the hidden file is removed and `path` stays as it was. What a killed
    process leaves is overwritten by the next one.
    """
    if paths.is_remote(path):
        target = paths.location(path)
        with tempfile.TemporaryDirectory(prefix="mlperf-bert-") as folder:
            local = Path(folder, target.name)
            with paths.failures_named(local), local.open("wb") as file:
                yield file
            upload(local, target)
        return
    path = _replaceable(path)
    beside = _replaceable(partial(path))
    try:
        with paths.failures_named(path), beside.open("wb") as file:
            yield file
            file.flush()
            # Synced before the rename: a power cut must not leave an empty file under the name.
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _replaceable(path: str | os.PathLike) -> Path:
    """The file to write for a path, links followed, so that a link stays one."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise ValueError(
            f"{os.fspath(path)}: exists and is not a regular file; give the name of a file"
        )
    return target


def partial(path: Path) -> Path:
    """The hidden name, next to `path`, of a file or folder that is not complete yet."""
    return path.with_name(f".{path.name}.partial")


@contextlib.contextmanager
def folder_written_beside(path: Path) -> Iterator[Path]:
    """Yields a hidden folder next to `path`, which becomes `path` once all is written.

    When anything fails, the hidden folder is removed, and so is what a killed process left.
    """
    beside = partial(path)
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        with paths.failures_named(path):
            yield beside
        beside.rename(path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_whole(path: str | os.PathLike, text: str) -> None:
    """Replaces the content of `path` by a text, with `written_beside`."""
    with written_beside(path) as file:
        file.write(text.encode())


def upload(source: Path, target: paths.Location) -> None:
    """Copies a local file to an object, which is replaced as a whole or not at all."""
    with paths.failures_named(target):
        if source.stat().st_size > _BYTES_UPLOADED_AT_ONCE:
            tensorflow().io.gfile.copy(str(source), str(target), overwrite=True)
        else:  # half as many requests
            target.write_bytes(source.read_bytes())


def require_writable(path: str | os.PathLike) -> None:
    """Checks that a local file's folder exists, before hours of work would end in a refusal."""
    target = Path(path)
    if not target.parent.is_dir():
        raise ValueError(f"{target}: there is no folder {target.parent}; make it")


def require_apart(
    outputs: Iterable[tuple[str, str | os.PathLike]],
    inputs: Iterable[str | os.PathLike] = (),
    *,
    remedy: str = "name another file",
) -> None:
    """Raises ValueError for an output, called by its name, that would replace an input or another.

    Called before anything is written.
    """
    read, written = set(map(paths.identity, inputs)), dict[str, str]()
    for name, path in outputs:
        if (key := paths.identity(path)) in read:
            raise ValueError(f"{name}: is an input too; {remedy}")
        if key in written:
            raise ValueError(f"{name}: is the same file as {written[key]}; {remedy}")
        written[key] = name


def matching_files(pattern: str) -> list[str]:
    """The sorted names that match a glob; "~" is the home directory."""
    if not paths.is_remote(pattern):
        return sorted(glob.glob(os.path.expanduser(pattern)))  # noqa: PTH111, PTH207 - keeps names
    with paths.failures_named(pattern):
        wanted = paths.location(pattern)
        return sorted(str(path) for path in wanted.parent.glob(wanted.name))


def read_regular_file(path: str | os.PathLike) -> bytes:
    """The content of an input file."""
    content = paths.read_bytes(path)
    if problem := packing_problem(content):
        raise ValueError(f"{os.fspath(path)}: {problem}")
    return content


def packing_problem(head: bytes) -> str | None:
    """What hides the real content of a file, as words behind its name; None if nothing does.

    No text, JSON or vocabulary begins so. A TFRecord file can, by chance: ask after it has failed.
    """
    if head.startswith(_POINTER):
        return "is a Git LFS pointer, not the file itself; fetch it with git lfs pull"
    for program, begin in _PACKED_BY.items():
        if head.startswith(begin):
            return f"is compressed by {program}; unpack it first ({program} -dc FILE > OTHER)"
    return None


def require_unpacked(path: str | os.PathLike) -> None:
    """Raises ValueError for a file that is compressed or a Git LFS pointer, if there is one."""
    if paths.is_file(path):
        with paths.opened(path) as file:
            if problem := packing_problem(file.read(HEAD_BYTES)):
                raise ValueError(f"{os.fspath(path)}: {problem}")


def digest(path: str | os.PathLike, algorithm: str) -> str:
    """The digest of an input file, in hexadecimal."""
    with paths.opened(path) as file:
        return hashlib.file_digest(file, algorithm).hexdigest()  # type: ignore[arg-type]


def decode(text: bytes, path: str) -> str:
    """The content of a text file; raises ValueError with the file's name if it is not UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: byte {error.start} is not UTF-8; give a text file, and convert another "
            "encoding (iconv -f ENCODING -t UTF-8)"
        ) from error
