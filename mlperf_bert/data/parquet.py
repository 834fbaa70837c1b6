"""What pyarrow reads of corpora: rows of Parquet, and compressed files.

A file of its own because pyarrow takes half a second to import, which text need not wait for.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

# Long documents of a batch, and what is read ahead of a column, must fit into every process.
_ROWS_AT_ONCE = 64
_BYTES_AT_ONCE = 1 << 20


def read_rows(file: BinaryIO, *, needed: str, other_columns: Sequence[str]) -> Iterator[dict]:
    """These columns of every row, as far as the file has them; all of them if it lacks the needed.

    Memory holds a few rows, however large the file and its row groups are.

    Raises:
      ValueError, OSError: a damaged file, or text that is not UTF-8.
    """
    # The default reads the column of a whole row group at once.
    table = pq.ParquetFile(
        file, buffer_size=_BYTES_AT_ONCE, pre_buffer=False, page_checksum_verification=True
    )
    columns = [needed, *other_columns] if needed in table.schema_arrow.names else None
    for batch in table.iter_batches(_ROWS_AT_ONCE, columns=columns, use_threads=False):
        yield from batch.to_pylist()


def decompressed(file: BinaryIO, kind: str) -> BinaryIO:
    """The content of a file of "gzip" or "zstd", of one stream or several.

    Reading raises OSError without a number for one that is damaged or cut off.
    """
    # zstandard's own reader would take a stream that is cut off for a short one.
    stream: Any = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), kind)
    return cast(BinaryIO, io.BufferedReader(stream, _BYTES_AT_ONCE))
