"""A published file: fetched with resume and retries, checked by its size and MD5.

The retries are written here because urllib3's Retry, in requests too, repeats whole requests; it
does not go on in the middle of a file, where connections break at these sizes. requests would also
decompress what a server sends, send passwords of ~/.netrc, and quote a malformed URL.
"""

import http
import http.client
import re
import time
import urllib.error
import urllib.request
from pathlib import Path

from mlperf_bert.data.published import PublishedFile
from mlperf_bert.files import paths
from mlperf_bert.files.whole import digest, partial
from mlperf_bert.messages import Progress, printable

USER_AGENT = "mlperf-bert/0.1"  # some servers refuse the one that urllib sends
TIMEOUT_SECONDS = 60
TRIES_WITHOUT_PROGRESS = 5
_CHUNK_BYTES = 1 << 20
_MESSAGE_CHARACTERS = 1000  # a server may send as many as it likes
_TOO_LONG = http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
_WORTH_A_RETRY = {408, _TOO_LONG, 425, 429, 500, 502, 503, 504}
_URL = re.compile(r"https?://[^\s/:]+(:\d+)?/[!-~]*")
_PAGE = re.compile(rb"\s*<(!--|!doctype|html)", re.IGNORECASE)  # no published file begins so


class NotServed(ValueError):
    """A server does not give a file: it refuses, sends something else, or cannot be reached."""


def _difference(path: Path, published: PublishedFile) -> str | None:
    size_bytes = paths.require_regular_file(path).size_bytes
    if published.size_bytes not in (None, size_bytes):
        return f"{size_bytes:,} bytes, published are {published.size_bytes:,}"
    md5 = digest(path, "md5")
    return None if md5 == published.md5 else f"MD5 {md5}, published is {published.md5}"


def fetch(url: str, path: Path, published: PublishedFile) -> None:
    """Fetches a file; after a broken connection, also one of an earlier call, it goes on.

    Raises:
      NotServed: the server does not have it, gives up, or sends other bytes than the published.
      ValueError: the URL is none, or the file cannot be written. The messages name file and URL,
        in printable characters.
    """
    try:
        if not _URL.fullmatch(url):
            raise ValueError("not a URL of http or https; check --base_url")
        path.parent.mkdir(parents=True, exist_ok=True)
        # Kept after a failure, unlike by `written_beside`: the next try goes on with it.
        beside = partial(path)
        size_bytes = published.size_bytes or 0
        with Progress(total=size_bytes, unit="B", description=path.name) as progress:
            if not beside.exists() or _difference(beside, published):
                _fetch_with_retries(url, beside, published.at_most_bytes, progress)
        if difference := _difference(beside, published):
            beside.unlink()
            raise _not_published(difference)
        beside.replace(path)
    except (ValueError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        kind = type(error) if isinstance(error, NotServed) else ValueError
        raise kind(printable(f"{path}: {url}: {reason}", at_most=_MESSAGE_CHARACTERS)) from error


def _size_of(beside: Path) -> int:
    return paths.require_regular_file(beside).size_bytes if beside.exists() else 0


def _not_published(reason: str) -> NotServed:
    return NotServed(f"not the published file ({reason}); fetch again, or from another server")


def _fetch_with_retries(url: str, beside: Path, at_most_bytes: int, progress: Progress) -> None:
    tries = 0
    while True:
        before_bytes = _size_of(beside)
        try:
            return _receive(url, beside, at_most_bytes, progress)
        except urllib.error.HTTPError as error:
            reason = f"{error.code} {error.reason}"
            if error.code not in _WORTH_A_RETRY:
                raise NotServed(reason) from error
            if error.code == _TOO_LONG:  # what was fetched before is not of this file
                beside.unlink(missing_ok=True)
        # Not any OSError: a full disk stays full.
        except (
            urllib.error.URLError,
            http.client.HTTPException,
            ConnectionError,
            TimeoutError,
        ) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        # What brought bytes was no failure: tries and pauses begin again.
        tries = 1 if _size_of(beside) > before_bytes else tries + 1
        if tries == TRIES_WITHOUT_PROGRESS:
            raise NotServed(
                f"gave up after {TRIES_WITHOUT_PROGRESS} tries ({reason}); run again to go on "
                "where it stopped"
            )
        pause_seconds = 2 ** (tries - 1)
        progress.line(printable(f"{url}: {reason:.300}; trying again in {pause_seconds} s"))
        time.sleep(pause_seconds)


def _receive(url: str, beside: Path, at_most_bytes: int, progress: Progress) -> None:
    """Appends what is missing to `beside`, or begins again where the server cannot resume.

    Raises:
      NotServed: the answer is a web page, such as one for a login; what came before is kept then.
        Or the server sends more than `at_most_bytes`; nothing is kept then.
    """
    have_bytes = _size_of(beside)
    headers = {"User-Agent": USER_AGENT} | ({"Range": f"bytes={have_bytes}-"} if have_bytes else {})
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        # A server that knows no ranges sends the whole file with 200: it begins again.
        resumes = response.status == http.HTTPStatus.PARTIAL_CONTENT
        have_bytes = have_bytes if resumes else 0
        progress.advance(have_bytes - progress.done)
        if response.length:
            progress.expect(have_bytes + response.length)
        chunk = response.read(_CHUNK_BYTES)
        # A login page, a proxy's page or a storage's error may come with any status.
        if response.headers.get_content_subtype().endswith("html") or _PAGE.match(chunk):
            raise NotServed("the answer is a web page and not the file")
        with beside.open("ab" if resumes else "wb") as file:
            while chunk:
                have_bytes += len(chunk)
                if have_bytes > at_most_bytes:
                    beside.unlink()
                    raise _not_published(f"more than {at_most_bytes:,} bytes")
                file.write(chunk)
                progress.advance(len(chunk))
                chunk = response.read(_CHUNK_BYTES)
        if response.length:  # what is still to come of its Content-Length
            raise ConnectionError(f"cut off, {response.length:,} bytes are missing")
