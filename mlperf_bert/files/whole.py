"""Whole files: read, if they are regular ones; written so that they appear whole or not at all.

On local disks they are written beside and renamed. For a bucket they are written to a temporary
file and uploaded: an object is there once all of it is. A FIFO is refused: reading it could block
for ever. Corpora may also lie on Hugging Face; see hugging_face.py. The end of this file names what
a file is that a reader did not expect.
"""

import contextlib
import errno
import glob
import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from mlperf_bert.files import hugging_face, paths
from mlperf_bert.tensorflow_import import tensorflow


def replaceable(path: str | os.PathLike) -> Path:
    """Returns the file to write for a path, links followed: absent, or a regular file.

    Raises:
      ValueError: it is a folder, a device, a pipe or a socket, which a file must not replace.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise ValueError(
            f"{os.fspath(path)}: exists and is not a regular file; give the name of a file"
        )
    return target


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


def require_apart(
    outputs: Iterable[tuple[str, str | os.PathLike]],
    inputs: Iterable[str | os.PathLike] = (),
    *,
    remedy: str = "name another file",
) -> None:
    """Refuses outputs that would replace an input or each other, whatever path leads there.

    Called before anything is written.

    Args:
      outputs: each with what a message calls it, such as --output=NAME.
      inputs: files that are read.
      remedy: how to give other names.

    Raises:
      ValueError: two are one.
    """
    read = {key for path in inputs for key in paths.keys(path)}
    written: dict[object, str] = {}
    for name, path in outputs:
        whole, *others = paths.keys(path)
        if read.intersection([whole, *others]):
            raise ValueError(f"{name}: is an input too; {remedy}")
        if whole in written:
            raise ValueError(f"{name}: is the same file as {written[whole]}; {remedy}")
        written[whole] = name


_BYTES_UPLOADED_AT_ONCE = 64 * 2**20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # or the disk fails


@contextlib.contextmanager
def no_room_named(path: str | os.PathLike) -> Iterator[None]:
    """Puts the name of what is written to an error of a write for which there is no room."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _NO_ROOM:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise


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
            local = Path(folder, target.name)
            with local.open("wb") as file:
                yield file
            upload(local, target)
        return
    path = replaceable(path)
    beside = replaceable(partial(path))
    try:
        with no_room_named(path), beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def upload(source: Path, target: paths.Location) -> None:
    """Copies a local file to an object, which is replaced as a whole or not at all.

    Raises:
      OSError: the store refuses it.
    """
    with paths.failures_named(target):
        if source.stat().st_size > _BYTES_UPLOADED_AT_ONCE:
            tensorflow().io.gfile.copy(str(source), str(target), overwrite=True)
        else:  # half as many requests
            target.write_bytes(source.read_bytes())


def write_whole(path: str | os.PathLike, text: str) -> None:
    """Replaces the content of `path` by a text, with `written_beside`."""
    with written_beside(path) as file:
        file.write(text.encode())


def matching_files(pattern: str) -> list[str]:
    """The sorted names that match a glob; "~" is the home directory.

    Raises:
      OSError: a bucket or Hugging Face refuses to list them.
      ValueError: huggingface_hub is needed and not installed.
    """
    if pattern.startswith(hugging_face.HUGGING_FACE):
        return hugging_face.matching_files(pattern)
    if not paths.is_remote(pattern):
        return sorted(glob.glob(os.path.expanduser(pattern)))  # noqa: PTH111, PTH207 - keeps names
    wanted = paths.location(pattern)
    with paths.failures_named(pattern):
        return sorted(str(path) for path in wanted.parent.glob(wanted.name))


def read_regular_file(path: str | os.PathLike) -> bytes:
    """The content of an input file.

    Raises:
      OSError: no such file, or no permission.
      ValueError: not a regular file, or one that is compressed, an archive or a Git LFS pointer.
    """
    content = paths.read_bytes(path)
    if problem := packed(content[:HEAD_BYTES]):
        raise ValueError(f"{os.fspath(path)}: {problem}")
    return content


def packed_file(path: str | os.PathLike) -> str | None:
    """What hides a file's real content, as a message with its name; None if nothing does.

    Raises:
      OSError, ValueError: as `paths.require_regular_file`.
    """
    with paths.opened(path) as file:
        problem = packed(file.read(HEAD_BYTES))
    return f"{os.fspath(path)}: {problem}" if problem else None


def require_unpacked(path: str | os.PathLike) -> None:
    """Raises ValueError for a file that is an archive or a Git LFS pointer, if there is one."""
    if paths.is_file(path) and (problem := packed_file(path)):
        raise ValueError(problem)


@contextlib.contextmanager
def opened_input(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens an input file, which may also lie on Hugging Face.

    Raises:
      OSError: as `paths.require_regular_file`.
      ValueError: as well, or huggingface_hub is needed and not installed.
    """
    if (name := os.fspath(path)).startswith(hugging_face.HUGGING_FACE):
        with hugging_face.opened(name) as file:
            yield file
    else:
        with paths.opened(path) as file:
            yield file


def digest(path: str | os.PathLike, algorithm: str) -> str:
    """The digest of an input file, in hexadecimal; raises as `opened_input`."""
    with opened_input(path) as file:
        return hashlib.file_digest(file, algorithm).hexdigest()  # type: ignore[arg-type]


HEAD_BYTES = 4096
"""So many of a file tell what it is."""
BYTE_ORDER_MARK = "\ufeff"
_POINTER = b"version https://git-lfs.github.com/spec/"
_PACKED = (
    (rb"\x1f\x8b\x08", "compressed by gzip", "gzip -dc FILE > OTHER"),
    (rb"BZh[1-9](1AY&SY|\x17\x72\x45)", "compressed by bzip2", "bzip2 -dc FILE > OTHER"),
    (rb"\xfd7zXZ\x00", "compressed by xz", "xz -dc FILE > OTHER"),
    (rb"\x28\xb5\x2f\xfd", "compressed by zstd", "zstd -dc FILE > OTHER"),
    (rb"\x04\x22\x4d\x18", "compressed by lz4", "lz4 -dc FILE > OTHER"),
    (rb"PK(\x03\x04|\x05\x06)", "a zip archive", "unzip FILE"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x FILE"),
    (rb".{257}ustar", "a tar archive", "tar -xf FILE"),
)
_WIDE = (
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_OTHER = (
    (rb"PAR1", "a Parquet file"),
    (rb"\x89PNG", "a picture"),
    (rb"%PDF-", "a PDF file"),
    (rb"\x89HDF", "an HDF5 file"),
    (rb"\s*<(!doctype html|html)", "a web page"),
)


def packed(head: bytes) -> str | None:
    """What hides the real content of a file, to go on after its name; None if nothing does.

    No text, JSON or vocabulary begins so. A TFRecord file can, by chance: ask after it has failed.
    """
    if head.startswith(_POINTER):
        return "is a Git LFS pointer, not the file itself; fetch it with git lfs pull"
    for pattern, kind, command in _PACKED:
        if re.match(pattern, head, re.DOTALL):
            return f"is {kind}; unpack it first ({command})"
    return None


def wide(head: bytes) -> str | None:
    """The encoding of a text of wide characters, by its byte order mark; None for others."""
    return next((name for mark, name in _WIDE if head.startswith(mark)), None)


def kind_of(head: bytes) -> str | None:
    """What a file is that is neither packed nor a TFRecord, as "a picture"; None if unknown."""
    for pattern, kind in _OTHER:
        if re.match(pattern, head):
            return kind
    if encoding := wide(head):
        return f"text in {encoding}"
    if b"\0" in head:
        return None
    text = head.decode(errors="ignore")  # a character may be cut, or of another encoding
    return "JSON" if text.lstrip(BYTE_ORDER_MARK).lstrip()[:1] in ("{", "[") else "text"


def decode(text: bytes, path: str) -> str:
    """The content of a text file.

    Raises:
      ValueError: bytes that are not UTF-8; the message names `path`, and what the file is.
    """
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        if other := wide(text):
            raise ValueError(
                f"{path}: is text in {other}; convert it with iconv -f {other} -t UTF-8"
            ) from error
        kind = kind_of(text[:HEAD_BYTES]) or "binary data, perhaps TFRecords"
        if kind not in ("text", "JSON"):  # many a text and every vocabulary begins with [
            raise ValueError(f"{path}: is {kind}, not text; give text files") from error
        raise ValueError(
            f"{path}: byte {error.start} is not UTF-8; make the file again, or drop such bytes "
            "with iconv -f UTF-8 -t UTF-8 -c"
        ) from error
