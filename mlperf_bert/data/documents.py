"""Corpora as they are published: JSON lines, one object {"text": ...} a document, and Parquet.

Sources: the format of the Pile; Hugging Face's wikimedia/wikipedia, whose further columns are id,
url and title.
"""

import collections
import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import zstandard

from mlperf_bert.data import segmentation
from mlperf_bert.data.stages import GZIP, PARQUET, ZSTD, with_plain_line_ends
from mlperf_bert.data.wiki_dump import decompressed
from mlperf_bert.files import json_text, paths, whole
from mlperf_bert.files.whole import written_beside

_PLAIN = (".jsonl", ".json")
_GZIP_WBITS = zlib.MAX_WBITS + 16  # zlib's number for a header and a checksum of gzip
_COMPRESSION: dict[str, Callable] = {
    ZSTD: lambda: zstandard.ZstdDecompressor().decompressobj(),
    GZIP: lambda: zlib.decompressobj(wbits=_GZIP_WBITS),
}
SUFFIXES = (*_PLAIN, *(plain + suffix for plain in _PLAIN for suffix in _COMPRESSION), PARQUET)
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
        with paths.opened(path) as file:
            head = file.read(whole.HEAD_BYTES)
            file.seek(0)
            new_stream = next(
                (new for end, new in _COMPRESSION.items() if path.endswith(end)), None
            )
            is_compressed = new_stream and head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd"))
            if not is_compressed and (problem := whole.packed(head)):
                raise ValueError(f"{path}: {problem}")
            if path.endswith(PARQUET):
                # pyarrow takes half a second, which text need not wait for.
                from mlperf_bert.data import parquet

                for values in parquet.read_rows(
                    file, path, text_column=text_column, other_columns=_NAMES
                ):
                    yield Document(*values)
            else:
                chunks = iter(lambda: file.read(_CHUNK_BYTES), b"")
                content = decompressed(chunks, new_stream) if new_stream else chunks
                yield from _documents_of_lines(content, path, text_column)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error


def write_stage_3(
    input_path: str, output_path: str, punkt: paths.Location, text_column: str = "text"
) -> None:
    """Stage .3 from file to file: of text, or of documents, which need no stage before it.

    Documents without a sentence are left out. Raises as `read_documents`.
    """
    if not input_path.endswith(SUFFIXES):
        segmentation.write_stage_3(input_path, output_path, punkt)
        return
    splitter = segmentation.load_splitter(punkt)
    with written_beside(output_path) as output:
        for document in read_documents(input_path, text_column=text_column):
            # A line end inside a text ends a sentence, as in the extracted Wikipedia.
            lines = with_plain_line_ends(document.text).split("\n")
            split = (sentence.strip() for line in lines for sentence in splitter.tokenize(line))
            if sentences := list(filter(None, split)):
                output.write("\n".join(["", *sentences, ""]).encode())
        output.write(b"\n")


def outputs_of(files: Sequence[str], suffix: str) -> list[str]:
    """Where the sentences of each file are written: beside it, or in the working folder.

    Raises:
      ValueError: two files of Hugging Face would be written to one.
    """
    outputs = [
        (name.rsplit("/", 1)[-1] if name.startswith(paths.HUGGING_FACE) else name) + suffix
        for name in files
    ]
    if repeated := [name for name, count in collections.Counter(outputs).items() if count > 1]:
        raise ValueError(
            f"several files would be written to {repeated[0]}; give one folder at a time"
        )
    return outputs


def _documents_of_lines(chunks: Iterable[bytes], path: str, text_column: str) -> Iterator[Document]:
    number = 0
    try:
        for number, line in enumerate(_lines(chunks), 1):
            if line.strip():
                yield _document_of(line, text_column, f"{path}: line {number}")
    except (zstandard.ZstdError, zlib.error, EOFError) as error:
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
    values = (found.get(name) for name in _NAMES)
    names = [str(value) if isinstance(value, str | int) else "" for value in values]
    return Document(text, *names)
