"""Corpora as they are published: JSON lines, one object {"text": ...} a document, and Parquet.

Sources: the format of the Pile; Hugging Face's wikimedia/wikipedia, whose further columns are id,
url and title.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from mlperf_bert.data import segmentation
from mlperf_bert.data.stages import with_plain_line_ends
from mlperf_bert.files import json_text, paths, whole
from mlperf_bert.files.whole import written_beside

_PLAIN = (".jsonl", ".json")
_COMPRESSION = {".zst": "zstd", ".gz": "gzip"}
_PARQUET = ".parquet"
SUFFIXES = (*_PLAIN, *(plain + suffix for plain in _PLAIN for suffix in _COMPRESSION), _PARQUET)


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
      ValueError: no such file, no regular one, a damaged one, or a line or row that is no document
        (named by its number).
    """
    unit, number = "row" if path.endswith(_PARQUET) else "line", 0
    try:
        with paths.opened(path) as file:
            for number, row in enumerate(_rows(file, path, text_column), 1):
                if isinstance(row, dict) or row.strip():
                    yield _document_of(row, text_column, f"{path}: {unit} {number}")
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:
        # pyarrow's errors name no file, and have no number, as those of a disk have.
        is_named = type(error) is ValueError or str(error).startswith(path)
        if is_named or getattr(error, "errno", None):
            raise
        reason = str(error).split("\n", 1)[0]
        raise ValueError(
            f"{path}: damaged behind {unit} {number} ({reason}); fetch the file again"
        ) from error


def _rows(file: BinaryIO, path: str, text_column: str) -> Iterable[dict | bytes]:
    """Rows of Parquet, or lines of JSON."""
    suffix = next((end for end in _COMPRESSION if path.endswith(end)), None)
    head = file.read(whole.HEAD_BYTES)
    file.seek(0)
    if not suffix and (problem := whole.packed(head)):
        raise ValueError(f"{path}: {problem}")
    if not suffix and not path.endswith(_PARQUET):
        return file
    # pyarrow takes half a second, which text need not wait for.
    from mlperf_bert.data import parquet

    if suffix:
        return parquet.decompressed(file, _COMPRESSION[suffix])
    return parquet.read_rows(file, needed=text_column, other_columns=_NAMES)


def _document_of(row: dict | bytes, text_column: str, where: str) -> Document:
    try:
        values = row if isinstance(row, dict) else json_text.parse(row)
    except ValueError as error:
        raise ValueError(f"{where}: {error}; fix or remove the line") from error
    values = values if isinstance(values, dict) else {}
    if not isinstance(text := values.get(text_column), str):
        raise ValueError(
            f"{where}: holds no text in {text_column!r}; fix or remove it, or name another column "
            f"or key with --text_column (TEXT_COLUMN=... for process_wiki.sh), of "
            f"{', '.join(values) or 'none'}"
        )
    names = [values.get(name) for name in _NAMES]
    return Document(text, *(str(name) if isinstance(name, str | int) else "" for name in names))


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
