"""The tables of a trace: names, columns, units, and how they are written and read."""

import contextlib
import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tracing.clocks import Alignment

if TYPE_CHECKING:  # the traced command would wait half a second for this import
    import pandas as pd

FORMAT_VERSION = 1
"""The version of summary.json's format."""
ROWS_PER_GROUP = 100_000

_TYPES = {
    "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_(), "text": pa.string(),
    "word": pa.dictionary(pa.int32(), pa.string()),
}  # fmt: skip
_STAMPS = {
    "monotonic_ns": (pa.int64(), "ns, CLOCK_MONOTONIC"),
    "realtime_ns": (pa.int64(), "ns since 1970, CLOCK_REALTIME"),
}


def _columns() -> dict[str, dict[str, tuple[pa.DataType, str]]]:
    columns: dict[str, dict[str, tuple[pa.DataType, str]]] = {}
    with (Path(__file__).parent / "tables.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            columns.setdefault(row["table"], {})[row["column"]] = _TYPES[row["type"]], row["what"]
    return columns


COLUMNS = _columns()
"""Table of a trace -> column -> (type, what it is and its unit); all begin with the two stamps."""


def schema(table: str) -> pa.Schema:
    """The Arrow schema of a table; each field's metadata says what it is and its unit."""
    columns = {**_STAMPS, **COLUMNS[table]}
    return pa.schema(
        [
            pa.field(name, kind, metadata={"description": text})
            for name, (kind, text) in columns.items()
        ]
    )


@contextlib.contextmanager
def written_beside(path: Path, mode: str = "w") -> Iterator[IO]:
    """Opens a file beside `path`, renamed to it once all is written; a failure leaves nothing.

    Tracing has its own function, because it imports nothing of the benchmark. Text is UTF-8.
    """
    # The hidden file is in the same folder, where renaming is one step.
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open(mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def table_writer(
    folder: Path, table: str, alignment: Alignment | None = None
) -> Iterator[Callable[[Iterable[dict]], None]]:
    """Yields a function that takes rows, a dict each; the file appears when all are written.

    Columns that a row lacks are null. Rows carry either stamp, or "boottime_ns"; the other one
    follows from the alignment. Without one, all rows carry both.

    Raises:
      OSError: there is no room; nothing is left.
    """
    waiting: list[dict] = []
    with (
        written_beside(folder / f"{table}.parquet", "wb") as file,
        pq.ParquetWriter(file, schema(table), compression="zstd") as writer,
    ):

        def flush() -> None:
            if waiting:
                writer.write_table(_arrow(waiting, schema(table), alignment))
                waiting.clear()

        def write(rows: Iterable[dict]) -> None:
            for row in rows:
                waiting.append(row)
                if len(waiting) >= ROWS_PER_GROUP:
                    flush()

        yield write
        flush()


def _arrow(rows: list[dict], schema: pa.Schema, alignment: Alignment | None) -> pa.Table:
    table = pa.Table.from_pylist(rows, schema)
    if alignment:
        clock = next(name for name in (*_STAMPS, "boottime_ns") if name in rows[0])
        stamps = [row[clock] for row in rows]
        for column, name in enumerate(_STAMPS):
            if name not in rows[0]:
                converted = pa.array(alignment.converted(stamps, clock, name))
                table = table.set_column(column, schema.field(name), converted)
    return table


def write_table(folder: Path, table: str, rows: Iterable[dict], alignment: Alignment) -> None:
    """Writes a whole table."""
    with table_writer(folder, table, alignment) as write:
        write(rows)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Surrounds all code that reads a file of a finished trace.

    Raises:
      ValueError: it cannot be read; names the file and the ways out.
    """
    try:
        yield
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
        pa.ArrowException,
    ) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            f"{path} is not of a finished trace ({reason}): record it again, copy it here again, "
            f"or finish it by python -m tracing --convert {path.parent}"
        ) from error


def read_table(folder: Path, table: str, columns: Sequence[str] | None = None) -> "pd.DataFrame":
    """Reads a table; words come as plain strings.

    A table that was not written is empty; without `columns` all are read.
    """
    path = folder / f"{table}.parquet"
    names = list(columns) if columns else schema(table).names
    if not path.exists():
        return schema(table).empty_table().select(names).to_pandas()
    with reading(path):
        rows = pq.read_table(path, columns=names).to_pandas()
    return rows.astype({n: object for n, t in rows.dtypes.items() if str(t) == "category"})
