"""Parquet files, in which Hugging Face publishes corpora: one document a row."""

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

# Long documents of a batch, and what is read ahead of a column, must fit into every process.
_ROWS_AT_ONCE = 64
_BYTES_AT_ONCE = 1 << 20


def read_rows(
    file: BinaryIO, path: str, *, text_column: str, other_columns: Sequence[str]
) -> Iterator[list[str]]:
    """The text of every row, and after it each other column, "" where that is absent or null.

    Memory holds a few rows, however large the file and its row groups are.

    Raises:
      ValueError: a damaged or empty file, a text column that is absent or holds no text, or a row
        without text (named by its number, from 1).
    """
    number = 0
    try:
        # The default reads the column of a whole row group at once.
        table = pq.ParquetFile(
            file, buffer_size=_BYTES_AT_ONCE, pre_buffer=False, page_checksum_verification=True
        )
        _require_text(table.schema_arrow, text_column, path)
        if not table.metadata.num_rows:
            raise ValueError(f"{path}: has no rows; leave it out, or fetch it again")
        names = [text_column, *other_columns]
        plain = [name for name in names if _is_plain(table.schema_arrow, name)]
        for batch in table.iter_batches(_ROWS_AT_ONCE, columns=plain, use_threads=False):
            absent = pa.nulls(batch.num_rows)
            columns = (batch.column(name) if name in plain else absent for name in names)
            for row in zip(*columns):
                number += 1
                where = f"{path}: row {number}"
                try:
                    text, *others = (value.as_py() for value in row)
                except UnicodeDecodeError as error:
                    raise ValueError(f"{where}: the text is not UTF-8; remove the row") from error
                if text is None:
                    raise ValueError(f"{where}: {text_column!r} is null; remove the row")
                yield [text, *("" if value is None else str(value) for value in others)]
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise  # not pyarrow's
        reason = str(error).split("\n", 1)[0]
        raise ValueError(
            f"{path}: damaged or no Parquet file, behind row {number} ({reason}); fetch the file "
            "again"
        ) from error


def _require_text(schema: pa.Schema, column: str, path: str) -> None:
    index = schema.get_field_index(column)
    if index < 0:
        raise ValueError(
            f"{path}: no single column {column!r}; there are {', '.join(schema.names) or 'none'}: "
            "name one with --text_column (TEXT_COLUMN=... for process_wiki.sh)"
        )
    kind = schema.field(index).type
    if not _is_text(kind):
        raise ValueError(
            f"{path}: the column {column!r} holds {kind}, not text; name another with "
            f"--text_column, of {', '.join(schema.names)}"
        )


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_plain(schema: pa.Schema, name: str) -> bool:
    index = schema.get_field_index(name)
    kind = schema.field(index).type if index >= 0 else pa.null()
    return _is_text(kind) or pa.types.is_integer(kind)
