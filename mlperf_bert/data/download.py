"""The published files: fetched with resume and retries, checked against published sizes and MD5s.

Source of sizes and MD5s: the benchmark's dataset.md. The files lie on a drive that asks for a
browser, so a base URL is the user's: any server or bucket that holds them under these paths.

The retries are written here because urllib3's Retry, in requests too, repeats whole requests; it
does not go on in the middle of a file, where connections break at these sizes. requests would also
decompress what a server sends, send passwords of ~/.netrc, and quote a malformed URL.
"""

import dataclasses
import gzip
import hashlib
import http.client
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from mlperf_bert.problems import printable
from mlperf_bert.progress import Progress
from mlperf_bert.reading import require_regular_file
from mlperf_bert.writing import partial

TIMEOUT_SECONDS = 60
TRIES_WITHOUT_PROGRESS = 5
_CHUNK_BYTES = 1 << 20
_MESSAGE_CHARACTERS = 1000  # a server may send as many as it likes
UNPUBLISHED_AT_MOST_BYTES = 16 << 30  # the 500 parts are 13 GB before they are packed
_WORTH_A_RETRY = {408, 425, 429, 500, 502, 503, 504}


@dataclasses.dataclass(frozen=True)
class PublishedFile:
    """A file under the base URL, and under the folder that it is fetched to."""

    path: str
    size_bytes: int | None = None
    md5: str | None = None
    """None, as the size: not published."""

    @property
    def at_most_bytes(self) -> int:
        """More than this is not taken from a server."""
        return UNPUBLISHED_AT_MOST_BYTES if self.size_bytes is None else self.size_bytes


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
"""Argument of the script -> files."""

UNCOMPRESSED_DUMP = PublishedFile(DUMP, 75_163_254_305, "1021bd606cba24ffc4b93239f5a09c02")


def fetch_group(group: Iterable[PublishedFile], base_url: str | None, folder: Path) -> list[str]:
    """Fetches or checks every file of a group; returns one line for each that is wrong.

    A file that exists is only checked. Without a base URL nothing is fetched.
    """
    problems = []
    for published in group:
        path = folder / published.path
        try:
            if not path.exists():
                if base_url is None:
                    raise ValueError(f"{path}: missing, and no --base_url to fetch it from")
                fetch(f"{base_url.rstrip('/')}/{published.path}", path, published)
            else:
                check(path, published)
            kind = "as published" if published.md5 else "no checksum is published for it"
            print(f"{path}: {path.stat().st_size:,} bytes, {kind}", flush=True)
        except (ValueError, OSError) as error:
            problems.append(str(error))
    return problems


def check(path: Path, published: PublishedFile) -> None:
    """Raises ValueError if a file differs from what is published of it, or is no regular file."""
    if difference := _difference(path, published):
        raise ValueError(f"{path}: {difference}; remove it and fetch it again")


def _difference(path: Path, published: PublishedFile) -> str | None:
    size_bytes = require_regular_file(path).stat().st_size
    if published.size_bytes not in (None, size_bytes):
        return f"{size_bytes:,} bytes, published are {published.size_bytes:,}"
    if published.md5 and (found := md5_of(path)) != published.md5:
        return f"MD5 {found}, published is {published.md5}"
    return None


def fetch(url: str, path: Path, published: PublishedFile) -> None:
    """Fetches a file; after a broken connection, also one of an earlier call, it goes on.

    That is why what came so far is kept, as `written_beside` would not.

    Raises:
      ValueError: the server does not have it, gives up, or sends other bytes than the published;
        or it cannot be written. The message names file and URL, in printable characters.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = partial(path)
        size_bytes = published.size_bytes or 0
        require_room(path, size_bytes - _size_of(beside))
        with Progress(total=size_bytes, unit="B", description=path.name) as progress:
            _fetch_with_retries(url, beside, published.at_most_bytes, progress)
        if difference := _difference(beside, published):
            beside.unlink()
            raise _not_published(difference)
        beside.replace(path)
    except (ValueError, OSError, http.client.InvalidURL) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            printable(f"{path}: {url}: {reason}", at_most=_MESSAGE_CHARACTERS)
        ) from error


def _size_of(beside: Path) -> int:
    return require_regular_file(beside).stat().st_size if beside.exists() else 0


def _not_published(reason: str) -> ValueError:
    return ValueError(f"not the published file ({reason}); fetch again, or from another server")


def _fetch_with_retries(url: str, beside: Path, at_most_bytes: int, progress: Progress) -> None:
    tries_left, pause_seconds = TRIES_WITHOUT_PROGRESS, 1
    while True:
        before_bytes = _size_of(beside)
        try:
            return _receive(url, beside, at_most_bytes, progress)
        except urllib.error.HTTPError as error:
            reason = f"{error.code} {error.reason}"
            if error.code not in _WORTH_A_RETRY:
                raise ValueError(f"{reason}; check the base URL and what lies there") from error
        except http.client.InvalidURL:
            raise
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            if reason is getattr(error, "reason", None):  # about the URL, not about the network
                raise ValueError(f"{reason}; check the base URL") from error
        except TimeoutError:
            reason = f"nothing came for {TIMEOUT_SECONDS} s"
        if _size_of(beside) > before_bytes:
            tries_left, pause_seconds = TRIES_WITHOUT_PROGRESS, 1
        tries_left -= 1
        if not tries_left:
            raise ValueError(
                f"gave up after {TRIES_WITHOUT_PROGRESS} tries ({reason}); run again to go on "
                "where it stopped"
            )
        progress.line(printable(f"{url}: {reason:.300}; trying again in {pause_seconds} s"))
        time.sleep(pause_seconds)
        pause_seconds *= 2


def _receive(url: str, beside: Path, at_most_bytes: int, progress: Progress) -> None:
    """Appends what is missing to `beside`, or begins again where the server cannot resume.

    Raises:
      ValueError: the server sends more than `at_most_bytes`; nothing is kept then.
    """
    have_bytes = _size_of(beside)
    headers = {"Range": f"bytes={have_bytes}-"} if have_bytes else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have_bytes}":
            return  # it was complete
        beside.unlink(missing_ok=True)
        raise ConnectionError("the part fetched before does not fit this file") from error
    with response:
        resumes = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if not resumes:
            have_bytes = 0
        progress.advance(have_bytes - progress.done)
        expected_bytes = response.headers.get("Content-Length", "")
        received_bytes = 0
        with beside.open("ab" if resumes else "wb") as file:
            while chunk := response.read(_CHUNK_BYTES):
                received_bytes += len(chunk)
                if have_bytes + received_bytes > at_most_bytes:
                    beside.unlink()
                    raise _not_published(f"more than {at_most_bytes:,} bytes")
                file.write(chunk)
                progress.advance(len(chunk))
        if expected_bytes.isdecimal() and received_bytes < int(expected_bytes):
            raise ConnectionError(f"cut off after {received_bytes:,} of {expected_bytes} bytes")


def require_room(path: Path, needed_bytes: int) -> None:
    """Raises ValueError if the disk has less room for a file than it needs."""
    free_bytes = shutil.disk_usage(path.parent).free
    if needed_bytes > free_bytes:
        raise ValueError(
            f"{path}: needs {needed_bytes:,} bytes, the disk has {free_bytes:,} free; make room"
        )


def md5_of(path: Path) -> str:
    """The MD5 of a large file, with progress."""
    with path.open("rb") as file:
        digest = hashlib.md5()
        size_bytes = path.stat().st_size
        with Progress(total=size_bytes, unit="B", description=f"check {path.name}") as progress:
            for chunk in chunks(file):
                digest.update(chunk)
                progress.advance(len(chunk))
    return digest.hexdigest()


def chunks(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    """What is left of a file, piece by piece."""
    return iter(lambda: file.read(_CHUNK_BYTES), b"")
