"""The published archives unpacked; their MD5s have been compared, so their content is known."""

import bz2
import contextlib
import shutil
import sys
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mlperf_bert.data import provenance
from mlperf_bert.data.download import check
from mlperf_bert.data.published import DUMP, PUBLISHED_PARTS, UNCOMPRESSED_DUMP, PublishedFile
from mlperf_bert.files.whole import written_beside
from mlperf_bert.messages import Progress, printable

STEP = "unpacked text"
_CHUNK_BYTES = 1 << 20


def uncompress_dump(folder: Path) -> None:
    """Writes the dump's XML beside the .bz2, unless it is there, and checks it.

    Raises:
      ValueError: damaged, or not the published XML.
      OSError: it cannot be written.
    """
    source, target = folder / f"{DUMP}.bz2", folder / DUMP
    if not target.exists():
        total_bytes = UNCOMPRESSED_DUMP.at_most_bytes
        with (
            Progress(total=total_bytes, unit="B", description=f"uncompress {DUMP}") as progress,
            _damage_named(source),
            bz2.open(source) as compressed,
            written_beside(target) as output,
        ):
            while chunk := compressed.read(_CHUNK_BYTES):
                output.write(chunk)
                progress.advance(len(chunk))
    check(target, UNCOMPRESSED_DUMP)


def unpack_text(published: PublishedFile, folder: Path) -> None:
    """Unpacks eval.txt, eval.md5 and the 500 parts into `folder`/results, and records their origin.

    They may lie anywhere in the archive, which lies in `folder` and has the published MD5. A later
    call reads all files, and unpacks again unless they are those of the record, of this archive.

    Raises:
      ValueError: damaged, a file is missing, or the record is damaged.
      OSError: it cannot be written.
    """
    archive, results = folder / published.path, folder / "results"
    source = provenance.File(
        path=f"../{published.path}", bytes=archive.stat().st_size, digest=f"md5:{published.md5}"
    )
    before = provenance.of_step(results, STEP)
    wrong: str | None = "not unpacked yet"
    if before and before.inputs == [source]:
        differences = (provenance.difference(file, results) for file in before.outputs)
        wrong = next(filter(None, differences), None)
    if wrong:
        print(f"{results}: {wrong}; unpacking", file=sys.stderr)
        # After the files: without it they are unpacked again.
        names = _unpacked(archive, results)
        provenance.note(
            results, step=STEP, inputs=[source], parameters={}, outputs=[results / n for n in names]
        )
    print(f"{results}: all files are as {provenance.NAME} records", flush=True)


def _unpacked(archive: Path, folder: Path) -> list[str]:
    """The names of the texts, which have been written, each whole."""
    names = sorted(PUBLISHED_PARTS | {"eval.txt", "eval.md5"})
    missing = set(names)
    folder.mkdir(parents=True, exist_ok=True)
    with (
        _damage_named(archive),
        tarfile.open(archive, "r|gz") as members,
        Progress(total=len(names), unit="files", description=archive.name) as progress,
    ):
        for member in members:
            name = PurePosixPath(member.name).name
            if name in missing and (content := members.extractfile(member)):
                with written_beside(folder / name) as output:
                    shutil.copyfileobj(content, output, _CHUNK_BYTES)
                missing.remove(name)
                progress.advance(1)
    if missing:
        raise ValueError(f"{archive}: lacks {len(missing)} files, {min(missing)} is the first")
    return names


@contextlib.contextmanager
def _damage_named(archive: Path) -> Iterator[None]:
    """Turns the errors of damaged content into a ValueError that names the archive."""
    try:
        yield
    except (EOFError, tarfile.TarError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # the disk's
        reason = printable(f"{error!s:.300}")
        raise ValueError(f"{archive}: damaged ({reason}); remove it, fetch it again") from error
