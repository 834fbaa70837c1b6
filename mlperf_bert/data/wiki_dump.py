"""A Wikipedia dump, page by page: .xml, or .xml.bz2 of one stream or many.

The pages are cut at their tags, not parsed: WikiExtractor reads lines, so it must get these very
bytes. The head is parsed.
"""

import bz2
import collections
import concurrent.futures
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from mlperf_bert.files import paths, whole
from mlperf_bert.messages import printable

LANGUAGE = "en"
SCHEMAS = ("0.10", "0.11")
_SCHEMAS_IN_WORDS = " or ".join(SCHEMAS)
_FETCH, _FETCH_AGAIN = "fetch pages-articles of enwiki", "fetch the dump again"
_BZ2 = b"BZh"
_STREAM = b"BZh91AY&SY"  # how a stream of the largest blocks starts; anywhere else by chance: 2^-80
_STREAMS_AT_ONCE = min(8, os.cpu_count() or 1)
_CHUNK_BYTES = _HEAD_BYTES = 1 << 20
_TAIL_BYTES = 1 << 10
_PAGE_AT_MOST_BYTES = 64 << 20  # Wikipedia allows 2 MiB of text, before it is escaped
_PAGE_END = b"</page>\n"
_END = b"</mediawiki>"
_PAGE = re.compile(
    rb"\s*<page>\n\s*<title>[^<]*</title>\n\s*<ns>(?P<namespace>-?\d+)</ns>\n\s*<id>(?P<id>\d+)</id>\n"
    rb"(?P<redirect>\s*<redirect )?"
)
_WIKITEXT = re.compile(rb"<model>wikitext</model>.*<text[^>]*[^/]>", re.DOTALL)
_ROOTS = {f"{{http://www.mediawiki.org/xml/export-{version}/}}mediawiki" for version in SCHEMAS}
# The last stream of a .bz2 ends with these 48 bits, 32 of a checksum, and up to 7 bits of padding.
_LAST_BITS, _CHECKSUM_BITS, _BZ2_TAIL_BYTES = 0x177245385090, 32, 11


class Dump:
    """A dump that is read once.

    Attributes:
      path: of the file.
      head: what stands before the first page.
      wiki: its database's name, such as "enwiki"; None if it has none.
      size_bytes: of the file.
      position: bytes of the file that have been read.
    """

    def __init__(self, path: Path):
        """Reads the head, and looks at the end.

        Raises:
          ValueError: no dump, cut off, or of another language or schema.
          OSError: no such file, or it cannot be read.
        """
        self.path = path
        self.size_bytes = paths.require_regular_file(path).size_bytes
        self.position = 0
        self._content = self._pieces()
        self._rest = b""
        while b"<page>" not in self._rest and len(self._rest) < _HEAD_BYTES:
            if not (piece := next(self._content, b"")):
                break
            self._rest += piece
        self.head = self._rest.partition(b"<page>")[0]
        self._rest = self._rest[len(self.head) :]
        self.wiki = self._checked()
        self._require_end()  # now: the last byte would be read hours later

    def articles(self) -> Iterator[bytes]:
        """The <page> of each article: those of the main name space that redirect to no other.

        Raises:
          ValueError: damaged, cut off, pages of another layout, or no article with text.
        """
        last_id, num_articles = b"", 0
        for page in self._pages():
            match = _PAGE.match(page)
            if not match or page.count(b"<revision>") != 1:
                raise self._bad(
                    f"the page after id {last_id.decode() or 0} is not laid out as in "
                    f"pages-articles of export schema {_SCHEMAS_IN_WORDS}; take such a dump"
                )
            repeated, last_id = match["id"] == last_id, match["id"]
            if match["namespace"] == b"0" and not match["redirect"] and not repeated:
                if not num_articles and not _WIKITEXT.search(page):
                    break  # all articles would be empty, after hours
                num_articles += 1
                yield page
        if not num_articles:
            raise self._bad(f"no article with text, as in dumps of stubs or Wikidata; {_FETCH}")

    def _pages(self) -> Iterator[bytes]:
        rest = self._rest
        while True:
            *pages, rest = rest.split(_PAGE_END)
            for page in pages:
                yield page + _PAGE_END
            if len(rest) > _PAGE_AT_MOST_BYTES:
                raise self._damaged("a page without an end")
            if not (piece := next(self._content, b"")):
                break
            rest += piece
        if not rest.rstrip().endswith(_END):
            raise self._cut_off()
        if rest.strip() != _END:
            yield rest  # a page whose end is not a line of its own

    def _pieces(self) -> Iterator[bytes]:
        """The XML, piece by piece; never an empty piece."""
        with paths.opened(self.path) as file:
            first = file.read(_CHUNK_BYTES)
            file.seek(0)
            xml = _chunks(file)
            if first.startswith(_BZ2):
                has_many = _STREAM in first[1:]
                xml = _many_streams(xml) if has_many else _chunks(bz2.BZ2File(file))
            try:
                for piece in filter(None, xml):
                    self.position = file.tell()
                    yield piece
            except (OSError, EOFError, ValueError) as error:
                if isinstance(error, OSError) and error.errno:
                    raise  # the disk's
                raise self._damaged(str(error)) from error

    def _checked(self) -> str | None:
        """The database's name; raises ValueError unless the head is that of a dump we know."""
        try:
            root = ElementTree.fromstring(self.head + _END)
        except ElementTree.ParseError as error:
            reason = whole.packed(self.head) or printable(str(error))
            raise self._bad(f"no head of a Wikipedia dump ({reason}); {_FETCH}") from error
        language = root.get("{http://www.w3.org/XML/1998/namespace}lang")
        if root.tag not in _ROOTS or language != LANGUAGE:
            # The clean-up, the splitting of sentences and the vocabulary are for this language.
            raise self._bad(
                f"its root is {printable(root.tag, at_most=100)}, its language {language}; give a "
                f"dump of export schema {_SCHEMAS_IN_WORDS}, language {LANGUAGE}"
            )
        return root.findtext("{*}siteinfo/{*}dbname")

    def _require_end(self) -> None:
        """Raises ValueError for a file that was cut off."""
        with paths.opened(self.path) as file:
            is_bz2 = file.read(len(_BZ2)) == _BZ2
            file.seek(max(self.size_bytes - _TAIL_BYTES, 0))
            tail = file.read()
        bits = int.from_bytes(tail[-_BZ2_TAIL_BYTES:], "big") >> _CHECKSUM_BITS
        # bzip2 counts bits, not bytes: its end may stand at any of eight places.
        ends = any(bits >> padding & (1 << 48) - 1 == _LAST_BITS for padding in range(8))
        if not (ends if is_bz2 else tail.rstrip().endswith(_END)):
            raise self._cut_off()

    def _damaged(self, how: str) -> ValueError:
        return self._bad(f"damaged before byte {self.position:,} ({how}); {_FETCH_AGAIN}")

    def _cut_off(self) -> ValueError:
        size = f"it has {self.size_bytes:,} bytes"
        return self._bad(f"cut off: {size}, and its end is missing; {_FETCH_AGAIN}")

    def _bad(self, problem: str) -> ValueError:
        return ValueError(f"{self.path}: {problem}")


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: file.read(_CHUNK_BYTES), b"")


def _many_streams(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Decompresses several streams at a time, which a dump called multistream allows."""
    waiting: collections.deque[concurrent.futures.Future] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(_STREAMS_AT_ONCE) as pool:
        for stream in _streams(chunks):
            waiting.append(pool.submit(bz2.decompress, stream))
            if len(waiting) > _STREAMS_AT_ONCE:
                yield waiting.popleft().result()
        for done in waiting:
            yield done.result()


def _streams(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        rest += chunk
        # From 1: the stream that `rest` begins with is not complete before the next one begins.
        while (start := rest.find(_STREAM, 1)) > 0:
            yield rest[:start]
            rest = rest[start:]
    yield rest
