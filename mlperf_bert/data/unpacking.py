"""The published archives: unpacked and checked to their end, with a record of the files."""

import bz2
import contextlib
import gzip
import hashlib
import re
import sys
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from mlperf_bert.data.download import check
from mlperf_bert.data.manifest import PUBLISHED_PARTS
from mlperf_bert.data.published import DUMP, MD5S_OF_TEXT, PUBLISHED_TEXT, UNCOMPRESSED_DUMP
from mlperf_bert.files import paths
from mlperf_bert.files.json_text import read_record, write_record
from mlperf_bert.files.whole import digest, packed_file, require_room, written_beside
from mlperf_bert.messages import Progress, printable

TEXT_AT_MOST_BYTES = 100 << 20  # three times the largest that is published
RECORD_NAME = "unpacked.json"
_CHUNK_BYTES = 1 << 20
_FACTS = ("bytes", "md5")


def uncompress_dump(folder: Path) -> None:
    """Writes the dump's XML beside the .bz2 and checks it.

    Raises:
      ValueError: damaged, or not the published XML.
      OSError: it cannot be written.
    """
    source, target = folder / f"{DUMP}.bz2", folder / DUMP
    if target.exists():
        check(target, UNCOMPRESSED_DUMP)
        return
    require_room(target, UNCOMPRESSED_DUMP.at_most_bytes)
    md5 = hashlib.md5()
    total_bytes = paths.require_regular_file(source).size_bytes
    with (
        Progress(total=total_bytes, unit="B", description=f"uncompress {source.name}") as progress,
        source.open("rb") as raw,
        bz2.open(raw) as compressed,
        written_beside(target) as output,
    ):
        position = 0
        for chunk in _chunks_of_archive(source, compressed):
            md5.update(chunk)
            output.write(chunk)
            progress.advance(raw.tell() - position)
            position = raw.tell()
            if output.tell() > UNCOMPRESSED_DUMP.at_most_bytes:
                break
        if md5.hexdigest() != UNCOMPRESSED_DUMP.md5:
            raise ValueError(
                f"{source}: uncompressed its MD5 is {md5.hexdigest()}, published is "
                f"{UNCOMPRESSED_DUMP.md5}; fetch the dump again"
            )


def md5s_of_text(path: Path) -> dict[str, str]:
    """Name -> MD5 of the texts, by the list that is published beside their archive.

    We have not seen the list; others check it by `md5sum --check`. So a line may have any order,
    separators and folders, and lines that name no text are left out. What the list does not tell is
    said on standard error.
    """
    try:
        check(path, MD5S_OF_TEXT)
        found = _read_md5s(path)
        problem = f"{path}: names {len(found):,} of {len(_wanted()):,} texts in a form known here"
    except ValueError as error:
        found, problem = {}, str(error)
    except OSError as error:
        found, problem = {}, f"{path}: {error.strerror or error}"
    if found.keys() != _wanted():
        print(
            f"note: {printable(problem)}; the rest is checked by the MD5 of the archive alone",
            file=sys.stderr,
        )
    return found


def _read_md5s(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = re.split(r"[^\w.-]+", line)
        names = _wanted().intersection(words)
        md5s = {word.lower() for word in words if re.fullmatch(r"[0-9a-fA-F]{32}", word)}
        if len(names) == len(md5s) == 1:
            name, md5 = names.pop(), md5s.pop()
            # A list that is read wrongly must not condemn text that is right.
            known = PUBLISHED_TEXT.get(name, (0, found.get(name, md5)))[1]
            if md5 != known:
                raise ValueError(f"{path}: {name} has MD5 {md5} there, and {known} too")
            found[name] = md5
    return found


def unpack_text(archive: Path, folder: Path, md5s: Mapping[str, str]) -> None:
    """Unpacks eval.txt, eval.md5 and the 500 parts, wherever they lie in the archive; checks them.

    `unpacked.json` beside the files records bytes and MD5 of them and of the archive. A later call
    reads all files, and unpacks again unless they and the archive are those of the record. `md5s`
    has the published MD5s of texts, by name.

    Raises:
      ValueError: damaged, a file is missing, or one is not as published.
      OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / RECORD_NAME
    source = _facts(archive)
    is_unpacked = record.exists()
    if is_unpacked and (difference := _difference(record, source, md5s)):
        print(f"{difference}; unpacking again", file=sys.stderr)
        is_unpacked = False
    if not is_unpacked:
        # The files take their places as the stack closes: once the archive was read to its end,
        # the checksum there included, and all MD5s were right.
        with contextlib.ExitStack() as outputs:
            found = _unpack(archive, folder, outputs)
            _require_published_text(archive, found, md5s)
        content = {"archive": {"name": archive.name, **source}, "files": found}
        write_record(record, content)
    print(
        f"{folder}: {len(_wanted()):,} files, as {RECORD_NAME} records, "
        f"{len(md5s.keys() | PUBLISHED_TEXT.keys()):,} of them with a published MD5",
        flush=True,
    )


def _wanted() -> set[str]:
    return PUBLISHED_PARTS | {"eval.txt", "eval.md5"}


def _difference(record: Path, source: dict[str, object], md5s: Mapping[str, str]) -> str | None:
    """How a folder differs from its record, or the record from this archive, in words."""
    try:
        of_archive, recorded = read_record(record, _parsed, remedy="") or ({}, {})
    except ValueError as error:
        return str(error)
    if of_archive != source or recorded.keys() != _wanted():
        return f"{record} is of another archive"
    if any(recorded[name]["md5"] != md5 for name, md5 in md5s.items()):
        return f"{record} has another MD5 than is published"
    with Progress(total=len(recorded), unit="files", description="check") as progress:
        for name, facts in recorded.items():
            if not (path := record.parent / name).is_file():
                return f"{path} is missing"
            if _facts(path) != facts:
                return f"{path} is not as recorded"
            progress.advance(1)
    return None


def _parsed(content: dict) -> tuple[dict, dict[str, dict]]:
    files = {name: {key: file[key] for key in _FACTS} for name, file in content["files"].items()}
    return {key: content["archive"][key] for key in _FACTS}, files


def _facts(path: Path) -> dict[str, object]:
    return {"bytes": paths.size_bytes(path), "md5": digest(path, "md5")}


def _unpack(
    archive: Path, folder: Path, outputs: contextlib.ExitStack
) -> dict[str, dict[str, object]]:
    """Writes the texts, which appear when `outputs` closes; returns bytes and MD5 by name."""
    found = {}
    with Progress(total=len(_wanted()), unit="files", description=archive.name) as progress:
        for name, content in _texts(archive):
            if name in found:
                raise ValueError(f"{archive}: holds {name} twice; fetch it again")
            output = outputs.enter_context(written_beside(folder / name))
            md5, size_bytes = hashlib.md5(), 0
            for chunk in _chunks_of_archive(archive, content):
                md5.update(chunk)
                size_bytes += output.write(chunk)
            found[name] = {"bytes": size_bytes, "md5": md5.hexdigest()}
            progress.advance(1)
    return found


def _texts(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of each text; then the rest up to the checksum that ends the archive."""
    with gzip.open(archive) as stream:
        with _damage_named(archive), tarfile.open(fileobj=stream, mode="r|") as members:
            for member in members:
                name = PurePosixPath(member.name).name
                is_wanted = member.isfile() and name in _wanted()
                if is_wanted and (content := members.extractfile(member)):
                    if member.size > TEXT_AT_MOST_BYTES:
                        raise ValueError(f"{name} has {member.size:,} bytes")
                    yield name, content
        for _ in _chunks_of_archive(archive, stream):
            pass


def _chunks_of_archive(archive: Path, content: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    with _damage_named(archive):
        yield from iter(lambda: content.read(_CHUNK_BYTES), b"")


@contextlib.contextmanager
def _damage_named(archive: Path) -> Iterator[None]:
    """Turns the errors of damaged content into a ValueError that names the archive."""
    try:
        yield
    except EOFError as error:
        raise ValueError(f"{archive}: damaged or cut off; remove it and fetch it again") from error
    except (ValueError, tarfile.TarError, zlib.error, RecursionError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        problem = packed_file(archive)
        if problem and not any(kind in problem for kind in ("gzip", "bzip2")):
            raise ValueError(problem) from error
        raise ValueError(
            printable(f"{archive}: damaged ({error!s:.300}); remove it and fetch it again")
        ) from error


def _require_published_text(
    archive: Path, found: dict[str, dict[str, object]], md5s: Mapping[str, str]
) -> None:
    if missing := sorted(_wanted() - found.keys()):
        raise ValueError(f"{archive}: lacks {len(missing)} files, {missing[0]} is the first")
    sizes = {name: size_bytes for name, (size_bytes, _) in PUBLISHED_TEXT.items()}
    for name, md5 in md5s.items() | {(name, md5) for name, (_, md5) in PUBLISHED_TEXT.items()}:
        size_bytes = sizes.get(name, found[name]["bytes"])
        if found[name] != {"bytes": size_bytes, "md5": md5}:
            raise ValueError(
                f"{archive}: {name}: MD5 {found[name]['md5']} of {found[name]['bytes']:,} bytes, "
                f"published is {md5} of {size_bytes:,}; fetch it again"
            )
