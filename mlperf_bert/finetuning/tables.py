r"""GLUE's files: lines of columns with tabs between them.

Read by hand, not by the csv module: quotation marks are text here, and csv takes a "\r" within a
sentence for the end of the line.
"""

import sys
from collections.abc import Sequence
from pathlib import PurePath

from mlperf_bert.files import whole

Row = tuple[str, dict[str, str]]
"""File and line (from 1), and column -> value."""


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
    try:
        content = whole.read_regular_file(path)
    except FileNotFoundError as error:
        raise ValueError(
            f"{path}: no such file; --data_dir takes the folder of the unpacked GLUE, which holds "
            f"{'/'.join(PurePath(path).parts[-2:])} for this task"
        ) from error
    # MRPC's files begin with a byte order mark.
    lines = whole.decode(content, str(path)).removeprefix(whole.BYTE_ORDER_MARK).split("\n")
    first = 1
    if names is None:
        names, first = lines.pop(0).removesuffix("\r").split("\t"), 2
        if missing := [column for column in columns if column not in names]:
            raise ValueError(
                f"{path} line 1: no column {missing[0]!r}; give the file as GLUE publishes it"
            )
    rows, num_skipped = [], 0
    for line, text in enumerate(lines, start=first):
        if not text.strip("\r\t "):
            continue
        values = text.removesuffix("\r").split("\t")
        row = dict(zip(names, values))
        lacks = any(column not in row for column in columns)
        if lacks and skips_incomplete:
            num_skipped += 1
        elif lacks or any(values[len(names) :]):  # tabs at the end are no values
            raise ValueError(
                f"{path} line {line}: {len(values)} columns, expected {len(names)}; correct or "
                "remove the line"
            )
        else:
            rows.append((f"{path} line {line}", row))
    if not rows:
        raise ValueError(f"{path}: no examples; copy the file here again")
    if num_skipped:
        print(f"{path}: skipped {num_skipped} lines without all columns", file=sys.stderr)
    return rows
