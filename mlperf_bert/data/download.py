"""The published files: fetched with resume and retries, checked against what is published of them.

Source of sizes and MD5s: the benchmark's dataset.md. The files lie on a drive that asks for a
browser, so a base URL is the user's: any server or bucket that holds them under these paths.
"""

import bz2
import dataclasses
import hashlib
import http.client
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mlperf_bert.data.manifest import PUBLISHED_PARTS, PUBLISHED_TEXT
from mlperf_bert.progress import Progress
from mlperf_bert.writing import written_beside

TIMEOUT_SECONDS = 60
TRIES_WITHOUT_PROGRESS = 5
_CHUNK_BYTES = 1 << 20
_WORTH_A_RETRY = {408, 425, 429, 500, 502, 503, 504}


@dataclasses.dataclass(frozen=True)
class PublishedFile:
    """A file under the base URL, and under the folder that it is fetched to."""

    path: str
    size_bytes: int | None = None
    md5: str | None = None
    """None, as the size: not published."""


DUMP = "enwiki-20200101-pages-articles-multistream.xml"
TEXT_ARCHIVE = "results_text.tar.gz"

GROUPS: dict[str, tuple[PublishedFile, ...]] = {
    "config": (
        PublishedFile("bert_config.json", 314, "7f59165e21b7d566db610ff6756c926b"),
        PublishedFile("vocab.txt", 231_508, "64800d5d8528ce344256daf115d4965e"),
    ),
    "tf1": (
        PublishedFile(
            "tf1_ckpt/model.ckpt-28252.index", 17_371, "f97de3ae180eb8d479555c939d50d048"
        ),
        PublishedFile(
            "tf1_ckpt/model.ckpt-28252.meta", 24_740_228, "dbd16c731e8a8113bc08eeed0326b8e7"
        ),
        PublishedFile(
            "tf1_ckpt/model.ckpt-28252.data-00000-of-00001",
            4_034_713_312,
            "50797acd537880bfb5a7ade80d976129",
        ),
    ),
    "tf2": (
        PublishedFile("tf2_ckpt/model.ckpt-28252.index", 6_420, "fc34dd7a54afc07f2d8e9d64471dc672"),
        PublishedFile(
            "tf2_ckpt/model.ckpt-28252.data-00000-of-00001",
            1_344_982_997,
            "77d642b721cf590c740c762c7f476e04",
        ),
    ),
    "dump": (PublishedFile(f"{DUMP}.bz2", 17_751_214_669, "00d47075e0f583fb7c0791fac1c57cb3"),),
    "text": (PublishedFile(TEXT_ARCHIVE),),
}
"""What can be asked for -> its files."""

UNCOMPRESSED_DUMP = PublishedFile(DUMP, 75_163_254_305, "1021bd606cba24ffc4b93239f5a09c02")


def fetch_group(
    group: Iterable[PublishedFile],
    base_url: str | None,
    folder: Path,
    *,
    wait: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Brings every file of a group into `folder`; returns one line for each that is not right.

    A file that is there is only checked. Without a base URL nothing is fetched.
    """
    problems = []
    for published in group:
        path = folder / published.path
        try:
            if not path.exists():
                if base_url is None:
                    raise ValueError(f"{path}: missing, and no --base_url to fetch it from")
                fetch(f"{base_url.rstrip('/')}/{published.path}", path, published, wait=wait)
            else:
                check(path, published)
            kind = "as published" if published.md5 else "no checksum is published for it"
            print(f"{path}: {path.stat().st_size:,} bytes, {kind}", flush=True)
        except (ValueError, OSError) as error:
            problems.append(str(error))
    return problems


def check(path: Path, published: PublishedFile) -> None:
    """Compares a file with what is published of it.

    Raises:
      ValueError: it differs.
    """
    size_bytes = path.stat().st_size
    if published.size_bytes not in (None, size_bytes):
        raise ValueError(
            f"{path}: {size_bytes:,} bytes, published are {published.size_bytes:,}; remove it and "
            "fetch it anew"
        )
    if published.md5 and (found := _md5(path)) != published.md5:
        raise ValueError(
            f"{path}: MD5 {found}, published is {published.md5}; remove it and fetch it anew"
        )


def fetch(
    url: str,
    path: Path,
    published: PublishedFile,
    *,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Fetches a file; what a broken connection left is gone on with, also in a later call.

    Raises:
      ValueError: the server does not have it, gives up, or sends other bytes than the published.
      OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    size_bytes = published.size_bytes or 0
    _require_room(path, size_bytes - (partial.stat().st_size if partial.exists() else 0))
    with Progress(total=size_bytes, unit="B", description=path.name) as progress:
        _fetch_with_retries(url, partial, progress, wait)
    try:
        check(partial, published)
    except ValueError as error:
        partial.unlink()
        raise ValueError(
            f"{url}: not the published file ({str(error).split('; ')[0].split(': ', 1)[1]}); "
            "fetch again, or from another server"
        ) from error
    partial.replace(path)


def _fetch_with_retries(url: str, partial: Path, progress: Progress, wait) -> None:
    tries_left, pause_seconds = TRIES_WITHOUT_PROGRESS, 1
    while True:
        before_bytes = partial.stat().st_size if partial.exists() else 0
        try:
            _receive(url, partial, progress)
            return
        except urllib.error.HTTPError as error:
            if error.code not in _WORTH_A_RETRY:
                raise ValueError(
                    f"{url}: {error.code} {error.reason}; check the base URL and what lies there"
                ) from error
            reason = f"{error.code} {error.reason}"
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        except TimeoutError:
            reason = f"nothing came for {TIMEOUT_SECONDS} s"
        if partial.exists() and partial.stat().st_size > before_bytes:
            tries_left, pause_seconds = TRIES_WITHOUT_PROGRESS, 1
        tries_left -= 1
        if not tries_left:
            raise ValueError(
                f"{url}: gave up after {TRIES_WITHOUT_PROGRESS} tries ({reason}); run again to go "
                "on where it stopped"
            )
        progress.line(f"{url}: {reason}; trying again in {pause_seconds} s")
        wait(pause_seconds)
        pause_seconds *= 2


def _receive(url: str, partial: Path, progress: Progress) -> None:
    """Appends what is missing to `partial`, or begins anew where the server cannot resume."""
    have_bytes = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url)
    if have_bytes:
        request.add_header("Range", f"bytes={have_bytes}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            if error.headers.get("Content-Range") == f"bytes */{have_bytes}":
                return  # it was complete
            partial.unlink()
            raise ConnectionError("the part fetched before does not fit this file") from error
        raise
    with response:
        resumes = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if resumes:
            progress.advance(max(0, have_bytes - progress.done))
        else:
            progress.advance(-progress.done)
        expected_bytes = response.headers.get("Content-Length")
        received_bytes = 0
        with partial.open("ab" if resumes else "wb") as file:
            while chunk := response.read(_CHUNK_BYTES):
                received_bytes += file.write(chunk)
                progress.advance(len(chunk))
        if expected_bytes is not None and received_bytes < int(expected_bytes):
            raise ConnectionError(f"cut off after {received_bytes:,} of {expected_bytes} bytes")


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
    _require_room(target, UNCOMPRESSED_DUMP.size_bytes)
    digest = hashlib.md5()
    total_bytes = source.stat().st_size
    with (
        Progress(total=total_bytes, unit="B", description=f"uncompress {source.name}") as progress,
        source.open("rb") as raw,
        bz2.open(raw) as compressed,
        written_beside(target) as output,
    ):
        position = 0
        try:
            while chunk := compressed.read(_CHUNK_BYTES):
                digest.update(chunk)
                output.write(chunk)
                progress.advance(raw.tell() - position)
                position = raw.tell()
        except EOFError as error:
            raise ValueError(f"{source}: cut off; remove it and fetch it anew") from error
        if digest.hexdigest() != UNCOMPRESSED_DUMP.md5:
            raise ValueError(
                f"{source}: uncompressed its MD5 is {digest.hexdigest()}, published is "
                f"{UNCOMPRESSED_DUMP.md5}; fetch the dump anew"
            )


def unpack_text(archive: Path, folder: Path) -> None:
    """Unpacks eval.txt, eval.md5 and the 500 parts, wherever they lie in the archive; checks them.

    Raises:
      ValueError: damaged, a file is missing, or one is not as published.
    """
    wanted = PUBLISHED_PARTS | {"eval.txt", "eval.md5"}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with (
            tarfile.open(archive) as members,
            Progress(total=len(wanted), unit="files", description=archive.name) as progress,
        ):
            for member in members:
                name = Path(member.name).name
                if member.isfile() and name in wanted:
                    with written_beside(folder / name) as output:
                        shutil.copyfileobj(members.extractfile(member), output)
                    progress.advance(1)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ValueError(f"{archive}: damaged ({error}); remove it and fetch it anew") from error
    if missing := sorted(name for name in wanted if not (folder / name).is_file()):
        raise ValueError(f"{archive}: lacks {len(missing)} files, {missing[0]} is the first")
    for name, (size_bytes, md5) in PUBLISHED_TEXT.items():
        check(folder / name, PublishedFile(name, size_bytes, md5))


def _require_room(path: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(path.parent).free
    if needed_bytes > free_bytes:
        raise ValueError(
            f"{path}: needs {needed_bytes:,} bytes, the disk has {free_bytes:,} free; make room"
        )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.md5()
        size_bytes = path.stat().st_size
        with Progress(total=size_bytes, unit="B", description=f"check {path.name}") as progress:
            for chunk in _chunks(file):
                digest.update(chunk)
                progress.advance(len(chunk))
    return digest.hexdigest()


def _chunks(file) -> Iterator[bytes]:
    return iter(lambda: file.read(_CHUNK_BYTES), b"")
