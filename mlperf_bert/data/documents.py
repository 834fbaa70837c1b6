"""JSON lines, in which public corpora are published: one object {"text": ...} is one document.

Source: the format of the Pile.
"""

from collections.abc import Iterable, Iterator

import zstandard

from mlperf_bert import json_text, paths
from mlperf_bert.data.segmentation import SentenceSplitter, load_splitter
from mlperf_bert.reading import require_regular_file
from mlperf_bert.writing import written_beside

SUFFIXES = (".jsonl", ".jsonl.zst")
_CHUNK_BYTES = 1 << 20


def read_texts(path: str) -> Iterator[str]:
    """The text of every document; blank lines of the file are skipped.

    Raises:
      ValueError: no such file, no regular one, damaged compression, or a line that is no document
        (named by its number).
    """
    number = 0
    try:
        for number, line in enumerate(_lines(path), 1):
            if line.strip():
                yield _text_of(line, f"{path}: line {number}")
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error
    except (zstandard.ZstdError, EOFError) as error:
        raise ValueError(
            f"{path}: damaged behind line {number} ({error}); fetch the file again"
        ) from error


def write_sentences(input_path: str, output_path: str, punkt: paths.Location) -> None:
    """Writes what stage .3 writes: a blank line before each document, and one sentence a line.

    A line end inside a text ends a sentence, as in the extracted Wikipedia. Documents without a
    sentence are left out. Raises as `read_texts`.
    """
    splitter = load_splitter(punkt)
    with written_beside(output_path) as output:
        for text in read_texts(input_path):
            if sentences := list(_sentences(text, splitter)):
                output.write("\n".join(["", *sentences, ""]).encode())
        output.write(b"\n")


def _lines(path: str) -> Iterator[bytes]:
    """The lines without their ends."""
    tail = b""
    with paths.opened(require_regular_file(path)) as file:
        chunks = iter(lambda: file.read(_CHUNK_BYTES), b"")
        for chunk in _decompressed(chunks) if path.endswith(".zst") else chunks:
            *lines, tail = (tail + chunk).split(b"\n")
            yield from lines
    if tail:
        yield tail


def _decompressed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """All frames; zstandard's own reader takes a stream that is cut off for a short one."""
    frame, is_open = zstandard.ZstdDecompressor().decompressobj(), False
    for chunk in chunks:
        while chunk:
            yield frame.decompress(chunk)
            is_open, chunk = not frame.eof, frame.unused_data
            if not is_open:
                frame = zstandard.ZstdDecompressor().decompressobj()
    if is_open:
        raise EOFError("it is cut off")


def _text_of(line: bytes, where: str) -> str:
    try:
        document = json_text.parse(line)
    except ValueError as error:
        raise ValueError(f"{where}: {error}; fix or remove the line") from error
    text = document.get("text") if isinstance(document, dict) else None
    if not isinstance(text, str):
        raise ValueError(f'{where}: expected an object {{"text": "..."}}; fix or remove the line')
    return text


def _sentences(text: str, splitter: SentenceSplitter) -> Iterator[str]:
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        for sentence in splitter.tokenize(line):
            if stripped := sentence.strip():
                yield stripped
