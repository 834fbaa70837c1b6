"""A finished trace as the exports read it: its summary, and its tables a part at a time."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from tracing import backends
from tracing.recording import RAW
from tracing.tables import Tables, reading, require_written

_ROWS_AT_ONCE = 20_000
_SILENT_SECONDS = 3  # before the progress of an export is shown


def summary_of(folder: Path, *needed: str) -> dict:
    """What a trace says of itself, also under the `needed` names.

    Raises:
      ValueError: it is not a trace, or is not finished.
    """
    try:
        found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        if missing := {"backend", "checkpoints", "records", *needed} - found.keys():
            raise ValueError(f"summary.json lacks {', '.join(sorted(missing))}")
        if not isinstance(found.get("begin_monotonic_ns"), int):
            raise ValueError("when it began is not recorded")
    except FileNotFoundError:
        raise ValueError(f"{folder} is not a finished trace: {_why_unfinished(folder)}") from None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{folder} is not a finished trace: {error}") from None
    return found


def _why_unfinished(folder: Path) -> str:
    if not folder.is_dir():
        return "there is no such folder"
    if (folder / RAW).is_dir():
        return f"python -m tracing --convert {folder} finishes it"
    return "it has no summary.json"


@contextlib.contextmanager
def readable(*folders: Path) -> Iterator[None]:
    """Around all that a command makes of traces.

    Raises:
      ValueError: their values are not what the tracing writes.
    """
    try:
        yield
    except (ValueError, OSError):  # some are LookupError or ArrowException too
        raise
    except (TypeError, LookupError, ArithmeticError, AttributeError, RecursionError,
            pa.ArrowException) as error:  # fmt: skip
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ValueError(
            f"{' or '.join(map(str, folders))}: a trace is damaged ({reason}); "
            "copy it here again, or record it again"
        ) from error


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
        if not self._path("file_ops").is_file():
            raise ValueError(f"{self.folder} is damaged: file_ops.parquet is missing")

    def calls_of(self, kinds: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
        """The calls of some kinds in order of time; words stay numbers, as in the file.

        Raises:
          ValueError: the table cannot be read.
        """
        path, wanted = self._path("file_ops"), [("kind", "in", list(kinds))]
        require_written(path)
        with reading(path):
            found = pq.read_table(path, columns=list(columns), filters=wanted).to_pandas()
        return found.sort_values("monotonic_ns", kind="stable", ignore_index=True)

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[tuple]:
        """The rows of a table in the file's order, with progress on standard error if it is long.

        Raises:
          ValueError: the table cannot be read.
        """
        path = self._path(table)
        if not path.is_file():
            return
        require_written(path)
        with (
            reading(path),
            pq.ParquetFile(path) as file,
            tqdm(
                total=file.metadata.num_rows, desc=table, unit=" rows", delay=_SILENT_SECONDS,
                disable=None,
            ) as progress,
        ):  # fmt: skip
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(columns)):
                yield from zip(*(batch.column(name).to_pylist() for name in columns))
                progress.update(len(batch))

    def _path(self, table: str) -> Path:
        return self.folder / f"{table}.parquet"
