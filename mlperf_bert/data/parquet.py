"""Parquet files, in which Hugging Face publishes corpora: one document a row.

A file of its own because pyarrow takes half a second to import, which text need not wait for.
"""

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
      ValueError: a damaged file, no column of text with this name, or a row without text (named by
        its number, from 1).
    """
    number = 0
    try:
        # The default reads the column of a whole row group at once.
        table = pq.ParquetFile(
            file, buffer_size=_BYTES_AT_ONCE, pre_buffer=False, page_checksum_verification=True
        )
        kinds = {field.name: str(field.type) for field in table.schema_arrow}
        if "string" not in (kind := kinds.get(text_column, "nothing")) or kind.startswith("list"):
            raise ValueError(
                f"{path}: the column {text_column!r} holds {kind}, not text; name another with "
                f"--text_column (TEXT_COLUMN=... for process_wiki.sh), of {', '.join(kinds)}"
            )
        names = [name for name in other_columns if kinds.get(name) in ("string", "int64", "int32")]
        columns = [text_column, *names]
        for batch in table.iter_batches(_ROWS_AT_ONCE, columns=columns, use_threads=False):
            for row in batch.to_pylist():
                number += 1
                if row[text_column] is None:
                    raise ValueError(f"{path}: row {number}: {text_column!r} is null; remove it")
                others = (row.get(name) for name in other_columns)
                yield [row[text_column], *("" if each is None else str(each) for each in others)]
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise  # not pyarrow's
        reason = str(error).split("\n", 1)[0]
        raise ValueError(
            f"{path}: damaged or no Parquet file, behind row {number} ({reason}); fetch the file "
            "again"
        ) from error
