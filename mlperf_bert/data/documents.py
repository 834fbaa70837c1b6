"""Corpora as they are published: JSON lines, one object {"text": ...} a document, and Parquet.

Sources: the format of the Pile; Hugging Face's wikimedia/wikipedia, whose further columns are id,
url and title.
"""

import dataclasses
from collections.abc import Iterable, Iterator

import zstandard

from mlperf_bert import json_text, paths
from mlperf_bert.data.segmentation import SentenceSplitter, load_splitter
from mlperf_bert.reading import opened_input
from mlperf_bert.writing import written_beside

SUFFIXES = (".jsonl", ".jsonl.zst", ".parquet")
_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Document:
    """A text, and what names it: each may be empty."""

    text: str
    id: str = ""
    url: str = ""
    title: str = ""


_NAMES = [field.name for field in dataclasses.fields(Document)][1:]


def read_documents(path: str, *, text_column: str = "text") -> Iterator[Document]:
    """Every document of a file, streamed; blank lines of JSON lines are skipped.

    Raises:
      ValueError: no such file, no regular one, damaged compression, or a line or row that is no
        document (named by its number).
    """
    try:
        with opened_input(path) as file:
            if path.endswith(".parquet"):
                # pyarrow takes half a second, which text need not wait for.
                from mlperf_bert.data import parquet

                for values in parquet.read_rows(
                    file, path, text_column=text_column, other_columns=_NAMES
                ):
                    yield Document(*values)
            else:
                chunks = iter(lambda: file.read(_CHUNK_BYTES), b"")
                yield from _read_json(chunks, path, text_column)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error


def read_texts(path: str, *, text_column: str = "text") -> Iterator[str]:
    """The text of every document; raises as `read_documents`."""
    return (document.text for document in read_documents(path, text_column=text_column))


def write_sentences(
    input_path: str, output_path: str, punkt: paths.Location, text_column: str = "text"
) -> None:
    """Writes what stage .3 writes: a blank line before each document, and one sentence a line.

    A line end inside a text ends a sentence, as in the extracted Wikipedia. Documents without a
    sentence are left out. Raises as `read_documents`.
    """
    splitter = load_splitter(punkt)
    with written_beside(output_path) as output:
        for text in read_texts(input_path, text_column=text_column):
            if sentences := list(_sentences(text, splitter)):
                output.write("\n".join(["", *sentences, ""]).encode())
        output.write(b"\n")


def _read_json(chunks: Iterable[bytes], path: str, text_column: str) -> Iterator[Document]:
    number = 0
    try:
        lines = _lines(_decompressed(chunks) if path.endswith(".zst") else chunks)
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _document_of(line, text_column, f"{path}: line {number}")
    except (zstandard.ZstdError, EOFError) as error:
        raise ValueError(
            f"{path}: damaged behind line {number} ({error}); fetch the file again"
        ) from error


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines without their ends."""
    tail = b""
    for chunk in chunks:
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


def _document_of(line: bytes, text_column: str, where: str) -> Document:
    try:
        found = json_text.parse(line)
    except ValueError as error:
        raise ValueError(f"{where}: {error}; fix or remove the line") from error
    found = found if isinstance(found, dict) else {}
    if not isinstance(text := found.get(text_column), str):
        keys = f", not one with {', '.join(found)}" if found and text_column not in found else ""
        raise ValueError(
            f'{where}: expected an object {{"{text_column}": "..."}}{keys}; fix or remove the '
            "line, or name the key with --text_column (TEXT_COLUMN=... for process_wiki.sh)"
        )
    names = (found.get(name) for name in _NAMES)
    return Document(text, *(str(name) if isinstance(name, str | int) else "" for name in names))


def _sentences(text: str, splitter: SentenceSplitter) -> Iterator[str]:
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        for sentence in splitter.tokenize(line):
            if stripped := sentence.strip():
                yield stripped
