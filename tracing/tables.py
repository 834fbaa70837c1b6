"""The tables of a trace: names, columns, units, and how they are written and read."""

import contextlib
import csv
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tracing.clocks import Alignment

if TYPE_CHECKING:  # a command that is traced would wait half a second for it
    import pandas as pd

FORMAT_VERSION = 1
"""Of summary.json."""
ROWS_PER_GROUP = 100_000

_TYPES = {
    "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_(), "text": pa.string(),
    "word": pa.dictionary(pa.int32(), pa.string()), "int64s": pa.list_(pa.int64()),
}  # fmt: skip
_STAMPS = {
    "monotonic_ns": (pa.int64(), "ns, CLOCK_MONOTONIC"),
    "realtime_ns": (pa.int64(), "ns since 1970, CLOCK_REALTIME"),
}


def _columns() -> dict[str, dict[str, tuple[pa.DataType, str]]]:
    found: dict[str, dict[str, tuple[pa.DataType, str]]] = {}
    with (Path(__file__).parent / "tables.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["table"], {})[row["column"]] = _TYPES[row["type"]], row["what"]
    return found


COLUMNS = _columns()
"""Table of a trace -> column -> (type, what it is and its unit); all begin with the two stamps."""
RUNS = COLUMNS.pop("runs")
"""The columns of a sweep's runs.parquet."""


def schema(table: str) -> pa.Schema:
    """The Arrow schema of a table; each field's metadata says what it is and its unit."""
    return described({**_STAMPS, **COLUMNS[table]})


def described(columns: Mapping[str, tuple[pa.DataType, str]]) -> pa.Schema:
    """A schema of columns with types and descriptions."""
    return pa.schema(
        [
            pa.field(name, kind, metadata={"description": text})
            for name, (kind, text) in columns.items()
        ]
    )


@contextlib.contextmanager
def written_beside(path: Path, mode: str = "w") -> Iterator[IO]:
    """Opens a file beside `path`, renamed to it once all is written; a failure leaves nothing.

    Tracing's own, because it imports nothing of the benchmark. Text is UTF-8.

    Raises:
      ValueError: `path` is a folder, a device or a pipe.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: exists and is not a regular file; give the name of a file")
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open(mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def folder_written_beside(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, renamed to it once all is written; a failure leaves nothing."""
    unfinished = path.with_name(path.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


class TableWriter:
    """Collects rows, a dict each, and writes them in groups; the file appears when complete.

    Rows carry either stamp, or "boottime_ns"; the other one follows from the alignment.
    """

    def __init__(self, folder: Path, table: str, alignment: Alignment | None = None):
        """Without an alignment all rows must carry both stamps."""
        self._schema = schema(table)
        self._alignment = alignment
        self._rows: list[dict] = []
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(written_beside(folder / f"{table}.parquet", "wb"))
            writer = pq.ParquetWriter(file, self._schema, compression="zstd")
            self._writer = opened.enter_context(writer)
            self._opened = opened.pop_all()

    def write(self, rows: Iterable[dict]) -> None:
        """Adds rows; columns that a row lacks are null."""
        for row in rows:
            self._rows.append(row)
            if len(self._rows) >= ROWS_PER_GROUP:
                self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = {name: [row.get(name) for row in self._rows] for name in self._schema.names}
        self._complete_stamps(columns)
        arrays = [pa.array(columns[field.name], field.type) for field in self._schema]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self._rows.clear()

    def _complete_stamps(self, columns: dict) -> None:
        first = self._rows[0]
        if {"monotonic_ns", "realtime_ns"} <= first.keys():
            return
        assert self._alignment is not None  # without one, all rows carry both stamps
        if "monotonic_ns" not in first and "realtime_ns" in first:
            stamps = self._alignment.monotonic_from_realtime(columns["realtime_ns"])
            columns["monotonic_ns"] = stamps
        elif "monotonic_ns" not in first:
            boottime = [row["boottime_ns"] for row in self._rows]
            columns["monotonic_ns"] = self._alignment.monotonic_from_boottime(boottime)
        if "realtime_ns" not in first:
            stamps = self._alignment.realtime_from_monotonic(columns["monotonic_ns"])
            columns["realtime_ns"] = stamps

    def __enter__(self) -> "TableWriter":
        return self

    def __exit__(self, kind, *rest) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def close(self) -> None:
        """Writes what is left; the file appears.

        Raises:
          OSError: there is no room; nothing is left.
        """
        with self._opened:
            self._flush()

    def discard(self) -> None:
        """Leaves nothing."""
        with contextlib.suppress(OSError), self._opened:
            raise OSError("discarded")


def write_table(folder: Path, table: str, rows: Iterable[dict], alignment: Alignment) -> None:
    """Writes a whole table."""
    with TableWriter(folder, table, alignment) as writer:
        writer.write(rows)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around all that reads a file of a finished trace.

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


def require_columns(path: Path, names: Iterable[str]) -> None:
    """Makes sure that a table has these columns: another version may have written it."""
    if missing := set(names) - set(pq.read_schema(path).names):
        raise KeyError(f"no column {min(missing)}")


def read_table(folder: Path, table: str, columns: Sequence[str] | None = None) -> "pd.DataFrame":
    """Reads a table; words come as plain strings.

    A table that was not written is empty; without `columns` all are read.

    Raises:
      ValueError: the file is not such a table, or it is damaged.
    """
    path = folder / f"{table}.parquet"
    names = list(columns) if columns else schema(table).names
    if not path.exists():
        return schema(table).empty_table().select(names).to_pandas()
    with reading(path):
        require_columns(path, names)
        found = pq.read_table(path, columns=names).to_pandas()
    return found.astype({n: object for n, t in found.dtypes.items() if str(t) == "category"})


class Tables:
    """The tables of a finished trace, in order of time and with a column `seconds`."""

    def __init__(self, folder: Path, begin_ns: int):
        """Takes the trace's folder, and when it began by CLOCK_MONOTONIC."""
        self.folder = folder
        self.begin_ns = begin_ns

    def table(self, name: str, columns: Sequence[str] | None = None) -> "pd.DataFrame":
        """A whole table; empty if it was not written."""
        found = read_table(self.folder, name, columns)
        found["seconds"] = (found["monotonic_ns"] - self.begin_ns) / 1e9
        return found.sort_values("monotonic_ns", kind="stable", ignore_index=True)

    def process_names(self) -> dict[int, str]:
        """Process -> its command line, or the program alone for one that ended between samples."""
        executed = self.table("process_events")
        executed = executed[executed["event"] == "exec"].drop_duplicates("pid", keep="last")
        names = dict(zip(executed["pid"].astype(int), executed["detail"]))
        sampled = self.table("processes").drop_duplicates("pid", keep="last")
        sampled = sampled[sampled["command"] != ""]
        return names | dict(zip(sampled["pid"].astype(int), sampled["command"]))

    def cpu_percentages(self) -> Iterator[tuple[float, float, float, float]]:
        """(seconds, user, system, iowait) between samples, in percent of all processors."""
        columns = ["user_ms", "system_ms", "iowait_ms", "idle_ms", "steal_ms"]
        sums = self.table("cpus").groupby("seconds")[columns].sum()
        spent = sums.diff().iloc[1:]
        for seconds, row in spent.iterrows():
            if total := row.sum():
                yield (float(seconds), *(100 * row[name] / total for name in columns[:3]))
