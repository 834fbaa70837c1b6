"""The published files: fetched with resume and retries, checked against published sizes and MD5s.

The retries are written here because urllib3's Retry, in requests too, repeats whole requests; it
does not go on in the middle of a file, where connections break at these sizes. requests would also
decompress what a server sends, send passwords of ~/.netrc, and quote a malformed URL.
"""

import contextlib
import http.client
import re
import shutil
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from email.message import Message
from pathlib import Path

from mlperf_bert.data.published import PublishedFile
from mlperf_bert.files import paths
from mlperf_bert.files.whole import digest, partial, require_room, written_beside
from mlperf_bert.messages import Progress, printable

USER_AGENT = "mlperf-bert/0.1"  # some servers refuse the one that urllib sends
TIMEOUT_SECONDS = 60
TRIES_WITHOUT_PROGRESS = 5
_CHUNK_BYTES = 1 << 20
_MESSAGE_CHARACTERS = 1000  # a server may send as many as it likes
_WORTH_A_RETRY = {408, 425, 429, 500, 502, 503, 504}
# Published files neither begin so nor, after an interruption, are likely to go on so.
_HTML = re.compile(
    rb"(\xef\xbb\xbf)?\s*(<!--.*?-->\s*)*<(!doctype\s+html|html|head|body|title|meta|script)\b",
    re.IGNORECASE | re.DOTALL,
)
_TITLE = re.compile(rb"<title[^>]*>\s*([^<]*?)\s*<", re.IGNORECASE)
_LOGIN = re.compile(
    r"//([^/]+\.)?cloudflareaccess\.com([:/]|$)|/cdn-cgi/access/"
    r"|//(accounts|login|signin|sso)\.|//[^?]*/(login|sign-?in|sso)([/?.]|$)",
    re.IGNORECASE,
)


class NotServed(ValueError):
    """A server does not give a file: it refuses, sends something else, or cannot be reached."""


def fetch_group(
    group: Iterable[PublishedFile],
    folder: Path,
    *,
    base_url: str | None = None,
    check_only: bool = False,
) -> list[tuple[PublishedFile, Exception]]:
    """Checks the files of a group that lie in a folder and brings the others.

    What the official downloader has left in the current folder or in `folder` is taken. The rest is
    fetched from where each file is published, or all from `base_url`; with `check_only` nothing is.

    Returns:
      Each needed file that is wrong or missing, with its error.
    """
    problems: list[tuple[PublishedFile, Exception]] = []
    for published in group:
        path = folder / published.path
        try:
            if path.exists():
                check(path, published)
            elif not _take(published, folder):
                if check_only:
                    raise ValueError(f"{path}: missing; leave out --check_only to fetch it")
                place = published.place.base_url if base_url is None else base_url.rstrip("/")
                # A mirror has the names that the files have here.
                name = published.path_there if base_url is None else published.path
                fetch(f"{place}/{name}", path, published)
            print(f"{path}: {path.stat().st_size:,} bytes, as published", flush=True)
        except (ValueError, OSError) as error:
            if published.is_needed:
                problems.append((published, error))
            else:
                _note(error)
    return problems


def _note(text: object) -> None:
    print(f"note: {printable(str(text))}", file=sys.stderr)


def _take(published: PublishedFile, folder: Path) -> bool:
    """Links to a file that the official downloader has left, or copies it; False if none is right.

    It writes into a folder of its own name for each place, or into the folder that it is told.
    """
    path = folder / published.path
    roots = [root / name for root in (folder, Path()) for name in ("", published.place.folder_name)]
    paths = (published.path_there, published.path)
    for left in dict.fromkeys(root / name for root in roots for name in paths):
        if not left.exists():
            continue
        try:
            if difference := _difference(left, published):
                raise ValueError(f"{left}: {difference}")
        except (ValueError, OSError) as error:
            _note(f"{error}; not taken")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.hardlink_to(left.resolve())
        except OSError:  # another file system, or one without hard links
            require_room(path, left.stat().st_size)
            with left.open("rb") as source, written_beside(path) as copy:
                shutil.copyfileobj(source, copy, _CHUNK_BYTES)
        print(f"{path}: taken from {left}", flush=True)
        return True
    return False


def check(path: Path, published: PublishedFile) -> None:
    """Raises ValueError if a file differs from the published one, or is not a regular file."""
    if difference := _difference(path, published):
        raise ValueError(f"{path}: {difference}; remove it and fetch it again")


def _difference(path: Path, published: PublishedFile) -> str | None:
    size_bytes = paths.require_regular_file(path).size_bytes
    if published.size_bytes not in (None, size_bytes):
        return f"{size_bytes:,} bytes, published are {published.size_bytes:,}"
    if published.md5 and (md5 := digest(path, "md5")) != published.md5:
        return f"MD5 {md5}, published is {published.md5}"
    return None


def fetch(url: str, path: Path, published: PublishedFile) -> None:
    """Fetches a file; after a broken connection, also one of an earlier call, it goes on.

    Raises:
      NotServed: the server does not have it, gives up, or sends other bytes than the published.
      ValueError: the URL is none, or the file cannot be written. The messages name file and URL,
        in printable characters.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Kept after a failure, unlike by `written_beside`: the next try goes on with it.
        beside = partial(path)
        size_bytes = published.size_bytes or 0
        require_room(path, size_bytes - _size_of(beside))
        with Progress(total=size_bytes, unit="B", description=path.name) as progress:
            if _size_of(beside) != published.size_bytes:
                _fetch_with_retries(url, beside, published.at_most_bytes, progress)
        if difference := _difference(beside, published):
            beside.unlink()
            raise _not_published(difference)
        beside.replace(path)
    except (ValueError, OSError, http.client.InvalidURL) as error:
        reason = getattr(error, "strerror", None) or error
        kind = type(error) if isinstance(error, NotServed) else ValueError
        raise kind(printable(f"{path}: {url}: {reason}", at_most=_MESSAGE_CHARACTERS)) from error


def _size_of(beside: Path) -> int:
    return paths.require_regular_file(beside).size_bytes if beside.exists() else 0


def _not_published(reason: str) -> NotServed:
    return NotServed(f"not the published file ({reason}); fetch again, or from another server")


def _fetch_with_retries(url: str, beside: Path, at_most_bytes: int, progress: Progress) -> None:
    tries_left, pause_seconds = TRIES_WITHOUT_PROGRESS, 1
    while True:
        before_bytes = _size_of(beside)
        try:
            return _receive(url, beside, at_most_bytes, progress)
        except urllib.error.HTTPError as error:
            if error.code not in _WORTH_A_RETRY:
                raise _refusal(error) from error
            reason = f"{error.code} {error.reason}"
        except http.client.InvalidURL:
            raise
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            if reason is getattr(error, "reason", None):  # about the URL, not about the network
                raise ValueError(f"{reason}; check the base URL") from error
        except TimeoutError:
            reason = f"nothing came for {TIMEOUT_SECONDS} s"
        # What brought bytes was no failure: tries and pauses begin again.
        if _size_of(beside) > before_bytes:
            tries_left, pause_seconds = TRIES_WITHOUT_PROGRESS, 1
        tries_left -= 1
        if not tries_left:
            raise NotServed(
                f"gave up after {TRIES_WITHOUT_PROGRESS} tries ({reason}); run again to go on "
                "where it stopped"
            )
        progress.line(printable(f"{url}: {reason:.300}; trying again in {pause_seconds} s"))
        time.sleep(pause_seconds)
        pause_seconds *= 2


def _receive(url: str, beside: Path, at_most_bytes: int, progress: Progress) -> None:
    """Appends what is missing to `beside`, or begins again where the server cannot resume.

    Raises:
      NotServed: the answer is a web page; what came before is kept then. Or the server sends more
        than `at_most_bytes`; nothing is kept then.
    """
    have_bytes = _size_of(beside)
    headers = {"User-Agent": USER_AGENT} | ({"Range": f"bytes={have_bytes}-"} if have_bytes else {})
    opener = urllib.request.build_opener(_Redirects)
    try:
        response = opener.open(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS
        )
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have_bytes}":
            return  # it was complete
        beside.unlink(missing_ok=True)
        raise ConnectionError("the part fetched before does not fit this file") from error
    with response:
        chunk = response.read(_CHUNK_BYTES)
        if page := _page(response.headers, chunk):
            raise NotServed(f"the answer is {page} and not the file")
        # A server that knows no ranges sends the whole file with 200: it begins again.
        resumes = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if not resumes:
            have_bytes = 0
        progress.advance(have_bytes - progress.done)
        expected = response.headers.get("Content-Length", "")
        if expected.isdecimal():
            progress.expect(have_bytes + int(expected))
        received_bytes = 0
        with beside.open("ab" if resumes else "wb") as file:
            while chunk:
                received_bytes += len(chunk)
                if have_bytes + received_bytes > at_most_bytes:
                    beside.unlink()
                    raise _not_published(f"more than {at_most_bytes:,} bytes")
                file.write(chunk)
                progress.advance(len(chunk))
                chunk = response.read(_CHUNK_BYTES)
        if expected.isdecimal() and received_bytes < int(expected):
            raise ConnectionError(f"cut off after {received_bytes:,} of {expected} bytes")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, as from a mirror to its storage, but not to a login page."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        if _LOGIN.search(newurl):
            fp.close()
            host = urllib.parse.urlsplit(newurl).netloc
            raise NotServed(f"{code} {msg}: a login is asked for, at {host}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _refusal(error: urllib.error.HTTPError) -> NotServed:
    reason = f"{error.code} {error.reason}"
    if error.code == http.HTTPStatus.NOT_FOUND:
        return NotServed(reason)  # its page, which many servers send, says nothing else
    with contextlib.suppress(OSError, http.client.HTTPException):
        if page := _page(error.headers, error.read(_CHUNK_BYTES)):
            return NotServed(f"{reason}, with {page}")
    return NotServed(reason)


def _page(headers: Message, beginning: bytes) -> str | None:
    """Names the web page that an answer is, None if it is not one.

    A login page, a proxy's page or a storage's error may come with any status.
    """
    is_named_so = headers.get_content_type() in ("text/html", "application/xhtml+xml")
    if not is_named_so and not _HTML.match(beginning):
        return None
    title = _TITLE.search(beginning)
    return f'a web page ("{title[1].decode(errors="replace"):.80}")' if title else "a web page"
