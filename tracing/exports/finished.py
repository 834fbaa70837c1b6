"""A finished trace as the exports read it: its summary, and its tables a part at a time."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
from tqdm import tqdm

from tracing import backends
from tracing.loaded import Tables
from tracing.tables import FORMAT_VERSION, reading, require_columns

_ROWS_AT_ONCE = 20_000
_SILENT_SECONDS = 3  # before the progress of an export is shown


def summary_of(folder: Path) -> dict:
    """What a trace says of itself.

    Raises:
      ValueError: it is not a trace, is not finished, or is of another version.
    """
    path = folder / "summary.json"
    with reading(path):
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format_version"] != FORMAT_VERSION:
            raise ValueError(f"its format_version is not {FORMAT_VERSION}")
        if not isinstance(found["begin_monotonic_ns"], int):
            raise ValueError("when it began is not recorded")
    return found


class Finished(Tables):
    """A trace that is complete on disk."""

    def __init__(self, folder: Path):
        """Opens it.

        Raises:
          ValueError: it is not a trace, or is not finished.
        """
        self.summary = summary_of(folder)
        super().__init__(folder, self.summary["begin_monotonic_ns"])

    def require_calls(self) -> None:
        """Makes sure that single calls were recorded.

        Raises:
          ValueError: they were not.
        """
        if self.summary["backend"] == backends.PROC:
            raise ValueError(
                f"{self.folder} holds no single calls: trace with strace or bpftrace, "
                f"this one was made with {backends.PROC}"
            )

    def calls_of(self, kinds: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
        """The calls of some kinds in order of time; words stay numbers, as in the file.

        Raises:
          ValueError: the table cannot be read.
        """
        path = self.folder / "file_ops.parquet"
        with reading(path):
            require_columns(path, columns)
            wanted = [("kind", "in", list(kinds))]
            found = pq.read_table(path, columns=list(columns), filters=wanted).to_pandas()
        return found.sort_values("monotonic_ns", kind="stable", ignore_index=True)

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[tuple]:
        """The rows of a table in the file's order, with progress on standard error if it is long.

        A table that was not written has none.

        Raises:
          ValueError: the table cannot be read.
        """
        path = self.folder / f"{table}.parquet"
        if not path.exists():
            return
        with reading(path), pq.ParquetFile(path) as file:
            require_columns(path, columns)
            num_rows = file.metadata.num_rows
            with tqdm(
                total=num_rows, desc=table, unit=" rows", delay=_SILENT_SECONDS, disable=None
            ) as progress:
                # Of a million calls all at once would be gigabytes of Python's objects.
                for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(columns)):
                    yield from zip(*(batch.column(name).to_pylist() for name in columns))
                    progress.update(len(batch))
