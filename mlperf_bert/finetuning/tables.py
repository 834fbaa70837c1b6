r"""GLUE's files: lines of columns with tabs between them.

Read by hand, not by the csv module: quotation marks are text here, and csv takes a "\r" within a
sentence for the end of the line.
"""

import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from mlperf_bert.files import whole

_MOST_NAMES = 20
LONGEST_VALUE = 60
"""What a message quotes of one."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a file, column by column."""

    where: str
    """File and line, counted from 1."""
    values: Mapping[str, str]

    def problem(self, text: str) -> ValueError:
        """An error that names file and line."""
        return ValueError(f"{self.where}: {text}; correct or remove the line")


def read_table(
    path: str | PurePath,
    *,
    columns: Sequence[str],
    names: Sequence[str] | None = None,
    skips_incomplete: bool = False,
) -> list[Row]:
    """Reads a file.

    Args:
      path: the file, local or in a bucket.
      columns: those that are needed.
      names: of all columns, where the file has no line with them.
      skips_incomplete: leaves out lines that lack a needed column, and says how many; otherwise
        they are errors.

    Raises:
      ValueError: no such file, not UTF-8, a column or a value is missing or too much, or there is
        no row.
    """
    lines = _text(path).split("\n")
    first = 1
    if names is None:
        names, first = lines[0].rstrip("\r").split("\t"), 2
        lines = lines[1:]
    for column in columns:
        if column not in names:
            listed = ", ".join(repr(name[:LONGEST_VALUE]) for name in names[:_MOST_NAMES])
            raise ValueError(
                f"{path} line 1: no column {column!r}, there are {listed}; give the file as GLUE "
                "publishes it"
            )
    rows, num_incomplete = [], 0
    for line, text in enumerate(lines, start=first):
        if not text.strip("\r\n \t"):
            continue
        values = text.removesuffix("\r").split("\t")
        row = Row(f"{path} line {line}", dict(zip(names, values)))
        if any(values[len(names) :]):
            raise row.problem(f"{len(values)} columns, expected {len(names)}")
        if missing := [column for column in columns if column not in row.values]:
            if not skips_incomplete:
                raise row.problem(f"{len(row.values)} columns, {missing[0]!r} is missing")
            num_incomplete += 1
            continue
        rows.append(row)
    if not rows:
        raise ValueError(f"{path}: no examples; copy the file here again")
    _report_skipped(str(path), num_incomplete)
    return rows


@functools.cache  # Of all of GLUE the files are read twice.
def _report_skipped(path: str, number: int) -> None:
    if number:
        print(f"{path}: skipped {number} lines without all columns", file=sys.stderr)


def _text(path: str | PurePath) -> str:
    try:
        content = whole.read_regular_file(path)
    except FileNotFoundError as error:
        raise ValueError(
            f"{path}: no such file; --data_dir takes the folder of the unpacked GLUE, which holds "
            f"{'/'.join(PurePath(path).parts[-2:])} for this task"
        ) from error
    if not content.strip():
        raise ValueError(f"{path}: is empty; copy the file here again")
    # MRPC's files begin with a byte order mark.
    return whole.decode(content, str(path)).removeprefix(whole.BYTE_ORDER_MARK)
