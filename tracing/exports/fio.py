"""A trace as fio replays it: iologs of version 3, the files that they read, and a job file.

Source: fio's HOWTO, "Trace file format v3", and fio 3.33, iolog.c: stamps are microseconds; a log's
first stamp is a delay only after one above 0; names hold no white space and 256 bytes at most; with
the option `directory` the names of a log are not found.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from tracing.loaded import TRANSFERS, Trace
from tracing.tables import folder_written_beside

GROUPS: Mapping[str, list[str]] = {"thread": ["pid", "tid"], "process": ["pid"], "trace": []}
"""What a log is of -> the columns whose values its calls share."""

_COLUMNS = (
    "monotonic_ns", "pid", "tid", "kind", "operation", "path", "file_class", "offset_bytes",
    "size_bytes", "error",
)  # fmt: skip
_ACTIONS = {"fsync": "sync", "fdatasync": "datasync"}
_FIRST_STAMP_US = 1
_LONGEST_NAME = 100
_MOST_LOGS = 4096  # fio's REAL_MAX_JOBS
_JOBS = """\
# The calls of a trace that moved bytes of files, one log for each {per}:
#   cd to this folder, then: fio replay.fio
# files.csv holds the names that the files had. They are sparse: reads of them reach no storage.
# To measure storage, fill them first:
#   find files -size +0 -exec shred --iterations=1 --exact {{}} +
[global]
ioengine=psync
# As the traced program: the page cache stays, and the kernel gets no hint.
invalidate=0
fadvise_hint=0
"""


def write(trace: Trace, output: Path, *, per: str = "thread") -> str:
    """Makes a folder with logs, files and replay.fio; returns how to replay it.

    Raises:
      ValueError: the trace has no single calls, none that moved bytes, or too many threads.
      OSError: there is no room; nothing is left.
    """
    calls = _calls(trace)
    logs = list(_groups(calls, per))
    if not 0 < len(logs) <= _MOST_LOGS:
        raise ValueError(
            f"{trace.folder}: its calls on files make {len(logs):,} logs, one for each {per}, and "
            f"fio replays 1 to {_MOST_LOGS:,}; --per=process or --per=trace makes fewer"
        )
    with folder_written_beside(output) as folder:
        (folder / "logs").mkdir()
        (folder / "files").mkdir()
        _write_files(calls, folder)
        with (folder / "replay.fio").open("w", encoding="utf-8") as jobs:
            jobs.write(_JOBS.format(per=per))
            for name, group in logs:
                jobs.write(f"[{name}]\nread_iolog=logs/{name}.log\n")
                with (folder / "logs" / f"{name}.log").open("w", encoding="utf-8") as log:
                    log.writelines(f"{line}\n" for line in _lines(group, trace.begin_ns))
    guessed = f", {num:,} of them at guessed offsets" if (num := calls["is_guessed"].sum()) else ""
    held = f"{len(calls):,} calls{guessed} in {len(logs):,} logs"
    return f"{held}; replay: cd {output} && fio replay.fio"


def _calls(trace: Trace) -> pd.DataFrame:
    """Reads and writes that moved bytes of files, and the syncs of these, in order of time.

    Adds `name`, by which the replay knows the file, and `is_guessed`, of the offset.
    """
    found = trace.calls_of((*TRANSFERS, "sync"), _COLUMNS)
    moved = found["kind"].isin(TRANSFERS) & (found["size_bytes"] > 0) & found["path"].notna()
    found = found[moved | found["operation"].isin(_ACTIONS)]
    found = found[found["path"].isin(found.loc[moved, "path"].unique())]
    is_guessed = found["offset_bytes"].isna() & found["kind"].isin(TRANSFERS)
    offsets = _known_offsets(found).astype("int64")
    numbers, paths = pd.factorize(found["path"])
    names = pd.Series([_name(number, path) for number, path in enumerate(paths)], dtype=object)
    names = names.to_numpy()[numbers]
    return found.assign(offset_bytes=offsets, name=names, is_guessed=is_guessed)


def _known_offsets(calls: pd.DataFrame) -> pd.Series:
    """The offsets; where the trace does not know one, behind the call before on that file."""
    of_file = [calls["path"], calls["kind"]]
    # Bytes since the last call whose offset is known, that call included.
    known = calls["offset_bytes"].notna()
    runs = known.groupby(of_file).cumsum()
    moved = calls["size_bytes"].groupby([*of_file, runs]).cumsum() - calls["size_bytes"]
    return calls["offset_bytes"].groupby(of_file).ffill().fillna(0) + moved


def _name(number: int, path: str) -> str:
    tail = re.sub(r"[^\w.-]", "_", path.rpartition("/")[2], flags=re.ASCII)[-_LONGEST_NAME:]
    return f"files/{number:06d}-{tail}"


def _write_files(calls: pd.DataFrame, folder: Path) -> None:
    """Those that are read must be there; those that are written, fio makes."""
    ends = (calls["offset_bytes"] + calls["size_bytes"]).where(calls["kind"] == "read", 0)
    sizes = ends.groupby([calls["name"], calls["path"]]).max().rename("size_bytes").reset_index()
    for row in sizes.itertuples():
        if row.size_bytes:
            with (folder / row.name).open("wb") as file:
                file.truncate(row.size_bytes)
    sizes.to_csv(folder / "files.csv", index=False)


def _groups(calls: pd.DataFrame, per: str) -> Iterator[tuple[str, pd.DataFrame]]:
    if calls.empty:
        return
    if not GROUPS[per]:
        yield per, calls
        return
    for key, group in calls.groupby(GROUPS[per], sort=True):
        if group["kind"].isin(TRANSFERS).any():  # fio refuses a log of nothing but syncs
            yield "-".join(str(part) for part in key), group


def _lines(calls: pd.DataFrame, begin_ns: int) -> Iterator[str]:
    """A log: every file is opened before its first call and closed after its last."""
    yield "fio version 3 iolog"
    for name in calls["name"].unique():
        yield f"{_FIRST_STAMP_US} {name} add"
    stamps = ((calls["monotonic_ns"] - begin_ns) // 1000).clip(lower=0) + _FIRST_STAMP_US
    actions = calls["operation"].map(_ACTIONS).fillna(calls["kind"])
    is_first = ~calls["name"].duplicated()
    is_last = ~calls["name"].duplicated(keep="last")
    columns = [stamps, calls["name"], actions, calls["offset_bytes"], calls["size_bytes"]]
    for stamp, name, action, offset, size, first, last in zip(*columns, is_first, is_last):
        if first:
            yield f"{stamp} {name} open"
        yield f"{stamp} {name} {action} {offset} {size}"
        if last:
            yield f"{stamp} {name} close"
