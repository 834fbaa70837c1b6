"""Corpora as they are published: JSON lines, one object {"text": ...} a document, and Parquet.

Sources: the format of the Pile; Hugging Face's wikimedia/wikipedia, whose further columns are id,
url and title.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlperf_bert.files import errors, json_text, paths, whole

_PLAIN = (".jsonl", ".json")
_COMPRESSION = {".zst": "zstd", ".gz": "gzip"}
_PARQUET = ".parquet"
SUFFIXES = (*_PLAIN, *(plain + suffix for plain in _PLAIN for suffix in _COMPRESSION), _PARQUET)
# A batch of long documents, and the part of a column that is read ahead, must fit in each process.
_ROWS_AT_ONCE = 64
_BYTES_AT_ONCE = 1 << 20


_NAMES = ("id", "url", "title")


def read_documents(path: str, *, text_column: str = "text") -> Iterator[dict[str, str]]:
    """Every document of a file, streamed: its text, id, url and title, each of which may be empty.

    Blank lines of JSON lines are skipped.
    """
    unit, number = "row" if path.endswith(_PARQUET) else "line", 0
    try:
        for number, row in enumerate(_rows(path, text_column), 1):
            if isinstance(row, dict) or row.strip():
                yield _document_of(row, text_column, f"{path}: {unit} {number}")
    except (OSError, ValueError) as error:
        # pyarrow's errors name no file, and have no number, as those of a disk have.
        is_named = type(error) is ValueError or str(error).startswith(path)
        if is_named or getattr(error, "errno", None):
            raise
        reason = str(error).split("\n", 1)[0]
        raise ValueError(
            f"{path}: damaged behind {unit} {number} ({reason}); fetch the file again"
        ) from error


def _rows(path: str, text_column: str) -> Iterator[dict | bytes]:
    """Rows of Parquet, or lines of JSON; memory holds a few, however large the file is."""
    paths.require_regular_file(path)
    compression = next((_COMPRESSION[end] for end in _COMPRESSION if path.endswith(end)), None)
    if compression is None:
        whole.require_unpacked(path)
    if compression is None and not path.endswith(_PARQUET):
        with Path(path).open("rb") as file:
            yield from file
        return
    # These take half a second, which text need not wait for.
    import pyarrow as pa
    import pyarrow.parquet as pq

    if compression:
        # zstandard's own reader would take a stream that is cut off for a short one.
        stream: Any = pa.input_stream(path, compression=compression)
        yield from io.BufferedReader(stream, _BYTES_AT_ONCE)
        return
    # The default reads the column of a whole row group at once.
    table = pq.ParquetFile(
        path, buffer_size=_BYTES_AT_ONCE, pre_buffer=False, page_checksum_verification=True
    )
    # Where the column with the text is missing, all columns are read, to name them.
    columns = [text_column, *_NAMES] if text_column in table.schema_arrow.names else None
    for batch in table.iter_batches(_ROWS_AT_ONCE, columns=columns, use_threads=False):
        yield from batch.to_pylist()


def _document_of(row: dict | bytes, text_column: str, where: str) -> dict[str, str]:
    with errors.named(where, damaged="fix or remove the line"):
        values = row if isinstance(row, dict) else json_text.parse(row)
    values = values if isinstance(values, dict) else {}
    if not isinstance(text := values.get(text_column), str):
        raise ValueError(
            f"{where}: holds no text in {text_column!r}; fix or remove it, or name another column "
            f"or key with --text_column (TEXT_COLUMN=... for process_wiki.sh), of "
            f"{', '.join(values) or 'none'}"
        )
    names = {name: values.get(name) for name in _NAMES}
    named = {name: str(value) for name, value in names.items() if isinstance(value, str | int)}
    return dict.fromkeys(_NAMES, "") | named | {"text": text}
