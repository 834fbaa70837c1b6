"""A trace's tables as data frames, with seconds since its beginning, and common queries."""

import bisect
import collections
import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from tracing import access, backends, files
from tracing.calls import REMOVED, RENAMING, new_names
from tracing.conversion import Locator
from tracing.tables import FORMAT_VERSION, read_table, reading

TRANSFERS = ("read", "write")
COUNTERS = ("read_call_bytes", "write_call_bytes", "storage_read_bytes", "storage_written_bytes")
"""The counters of a process, in the table of processes."""
FAULTS = ("minor_faults", "major_faults")
_LEAST_SHARE_COUNTED = 0.95
_ROWS_AT_ONCE = 20_000


def summary_of(folder: Path) -> dict:
    """The summary of a finished trace."""
    path = folder / "summary.json"
    with reading(path):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format_version"] != FORMAT_VERSION:
            raise ValueError(f"its format_version is not {FORMAT_VERSION}")
    return record


class Trace:
    """A trace with its tables; each is in order of time, with a column `seconds`."""

    def __init__(self, folder: Path, summary: dict | None = None, locator: Locator | None = None):
        """Takes the trace's folder.

        Args:
          summary: as in summary.json; None: the folder's.
          locator: finds the files that the traced programs named.
        """
        self.folder = folder
        self.summary = summary_of(folder) if summary is None else summary
        self.locator = locator or Locator()
        self.begin_ns: int = self.summary["begin_monotonic_ns"]

    @property
    def seconds(self) -> float:
        """The trace's length in seconds."""
        return float(self.summary.get("seconds", 0))

    @property
    def has_calls(self) -> bool:
        """Whether single calls were recorded: without them their figures are unknown, not 0."""
        return self.summary["backend"] != backends.PROC

    @functools.cache  # noqa: B019 - lives as long as the trace is worked on
    def table(self, name: str) -> pd.DataFrame:
        """A whole table, shared by all callers: do not change it. Empty if it was not written."""
        rows = read_table(self.folder, name)
        rows["seconds"] = (rows["monotonic_ns"] - self.begin_ns) / 1e9
        return rows.sort_values("monotonic_ns", kind="stable", ignore_index=True)

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[tuple]:
        """The rows of a table in the file's order; a table that was not written has none."""
        path = self.folder / f"{table}.parquet"
        if not path.exists():
            return
        with reading(path), pq.ParquetFile(path) as file:
            # In pieces: a million calls at once would be gigabytes of Python's objects.
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(columns)):
                yield from zip(*(batch.column(name).to_pylist() for name in columns))

    # --- calls ----------------------------------------------------------------------------------

    @functools.cached_property
    def operations(self) -> pd.DataFrame:
        """file_ops with `final_path`, the file's last name, after renames."""
        rows = self.table("file_ops")
        rows = rows.assign(final_path=_final_paths(rows))
        renamed = rows["final_path"] != rows["path"]
        # A checkpoint that is first written under another name is a checkpoint too.
        rows.loc[renamed, "file_class"] = rows.loc[renamed, "final_path"].map(self._class_of)
        return rows

    def _class_of(self, path: str) -> str:
        return files.classify(path, seen_as=str(self.locator.find(path)))

    @functools.cached_property
    def transfers(self) -> pd.DataFrame:
        """Reads and writes that moved bytes of files; copies within the kernel included."""
        rows = self.operations
        is_file = ~rows["file_class"].isin(files.IN_KERNEL)
        moved = rows["kind"].isin(TRANSFERS) & (rows["size_bytes"] > 0)
        return rows[is_file & moved]

    @functools.cached_property
    def reads(self) -> pd.DataFrame:
        """Read calls that moved bytes, in order of time, with pattern and number of their file."""
        rows = self.transfers
        rows = rows[rows["kind"] == "read"]
        numbers, _ = pd.factorize(rows["final_path"])
        return rows.assign(file_number=numbers, pattern=access.patterns(rows))

    @functools.cached_property
    def training_reads(self) -> pd.DataFrame:
        """Reads of TFRecords outside evaluations."""
        reads = self.reads[self.reads["file_class"] == files.TFRECORDS]
        return reads[~self.is_within(reads, "eval")]

    # --- phases, counters, processes ------------------------------------------------------------

    @functools.cached_property
    def spans(self) -> pd.DataFrame:
        """The spans with `end_seconds`."""
        rows = self.table("spans")
        return rows.assign(end_seconds=(rows["end_monotonic_ns"] - self.begin_ns) / 1e9)

    def is_within(self, rows: pd.DataFrame, name: str) -> pd.Series:
        """Whether each row begins within a phase of this name."""
        inside = pd.Series(False, rows.index)
        for span in self.spans[self.spans["name"] == name].itertuples():
            inside |= rows["monotonic_ns"].between(span.monotonic_ns, span.end_monotonic_ns)
        return inside

    @functools.cached_property
    def counters(self) -> pd.DataFrame:
        """What all processes together had read and written at each sample, by their counters."""
        return totals(self.table("processes"), ran_before=self.ran_before)

    @property
    def ran_before(self) -> bool:
        """Whether the target ran before the trace; then only the growth of its counters counts."""
        return not self.summary["command"]

    @functools.cached_property
    def storage_counters(self) -> pd.DataFrame:
        """`counters`, but empty if they miss processes whose calls were recorded.

        They miss processes that ended between two samples and that no parent waited for, and
        processes that this user may not see.
        """
        return self.counters if self.share_counted >= _LEAST_SHARE_COUNTED else self.counters[:0]

    @functools.cached_property
    def share_counted(self) -> float:
        """The bytes of read calls by the counters, as a share of the bytes of recorded calls."""
        calls = self.operations[self.operations["operation"] != "splice"]  # counters omit it
        recorded = calls.loc[calls["kind"] == "read", "size_bytes"].sum()
        if not recorded or self.counters.empty:
            return 1.0
        return float(self.counters["read_call_bytes"].iloc[-1] / recorded)

    @functools.cached_property
    def usage(self) -> pd.DataFrame:
        """Processor time and page faults at each sample, also of children that were waited for."""
        rows = self.table("processes")
        cpu_ms = rows["user_ms"] + rows["system_ms"] + rows["children_ms"]
        faults = {n: rows[n] + rows[f"children_{n}"] for n in FAULTS}
        rows = rows.assign(cpu_ms=cpu_ms, **faults)
        return totals(
            rows, ran_before=self.ran_before, columns=("cpu_ms", *FAULTS), added="children_ms"
        )

    @functools.cached_property
    def unsampled(self) -> int | None:
        """How many processes came and went between two samples; None if unknown."""
        if not self.has_calls:
            return None
        events = self.table("process_events")
        born = set(events.loc[events["event"] == "process", "pid"])
        return len(born - set(self.table("processes")["pid"]))

    def process_names(self) -> dict[int, str]:
        """Process -> its command line, or the program alone for one that ended between samples."""
        executed = self.table("process_events")
        executed = executed[executed["event"] == "exec"]
        # Of several, the last one counts.
        names = dict(zip(executed["pid"].astype(int), executed["detail"]))
        sampled = self.table("processes")
        sampled = sampled[sampled["command"] != ""]  # one that has ended has none
        return names | dict(zip(sampled["pid"].astype(int), sampled["command"]))

    def cpu_percentages(self) -> pd.DataFrame:
        """Indexed by seconds: user_ms, system_ms, iowait_ms since the last sample, % of CPUs."""
        columns = ["user_ms", "system_ms", "iowait_ms", "idle_ms", "steal_ms"]
        spent = self.table("cpus").groupby("seconds")[columns].sum().diff().iloc[1:]
        spent = spent[spent.sum(axis=1) > 0]
        return spent.div(spent.sum(axis=1), axis=0)[columns[:3]] * 100


def _final_paths(operations: pd.DataFrame) -> pd.Series:
    """The last name of each row's file in file_ops; rows are in order of time.

    A removed file keeps its name, in a folder with the folder's last name.
    """
    is_one = operations["kind"].isin(RENAMING) & operations["error"].isna()
    renames = operations[is_one]
    # In the order of their returns: before it returns, a rename may not have been done.
    renames = renames.assign(end_ns=renames["monotonic_ns"] + renames["latency_ns"].fillna(0))
    renames = renames.sort_values("end_ns", kind="stable")
    names = list(zip(renames["kind"], renames["path"], renames["new_path"]))
    last_names = LastNames(new_names(*each) for each in names)
    begins_ns = renames["monotonic_ns"].to_list()

    def number_of(path: str, stamp_ns: int, number: int) -> int:
        """The number of the first rename after a call: of the first that returned since, or later.

        A rename under way had been done if the call has the new name.
        """
        while number < len(names) and begins_ns[number] < stamp_ns:
            kind, _, new_path = names[number]
            if kind != "rename" or not f"{path}/".startswith(f"{new_path}/"):
                break
            number += 1
        return number

    final = operations["path"].copy()
    concerned = final[final.isin([path for path in final.unique() if last_names.differ(path)])]
    # A rename concerns what came before it, and its own row.
    stamps = operations.loc[concerned.index, "monotonic_ns"]
    numbers = np.searchsorted(renames["end_ns"], stamps)
    calls = zip(concerned, stamps.tolist(), numbers.tolist())
    final[concerned.index] = [last_names.of(call[0], number_of(*call)) for call in calls]
    # An opening identifies its file, even if another file has the name since a removal.
    is_opened = operations["kind"].isin(["open", "create"]) & operations["opening"].notna()
    of_opening = pd.Series(final[is_opened].array, operations.loc[is_opened, "opening"])
    openings = operations["opening"]
    openings = openings[openings.isin(of_opening.index)]
    final[openings.index] = of_opening[openings].array
    return final


class LastNames:
    """The names of files after all renames; a folder takes its files along.

    The time grows in proportion to the renames and the names asked for.
    """

    def __init__(self, renames: Iterable[dict[str, str]]):
        """Takes what `new_names` gives for each rename or removal, in order of time."""
        # (number of a rename, old name) -> new name
        self._news = {
            (number, old): new for number, each in enumerate(renames) for old, new in each.items()
        }
        # Old name -> the numbers of its renames, ascending.
        self._numbers: dict[str, list[int]] = collections.defaultdict(list)
        for number, old in self._news:
            self._numbers[old].append(number)
        self._known: dict[tuple[str, int], str] = {}
        # From the last to the first: each takes one step to a name that is known.
        for number, old in reversed(self._news):
            self.of(old, number)

    def differ(self, path: str) -> bool:
        """Whether the file, or a folder above it, is ever renamed or removed."""
        return any(name in self._numbers for name in _with_folders(path))

    def of(self, path: str, number: int) -> str:
        """The last name of the file that is called `path` before the rename of this number."""
        passed = []
        while following := self._next_rename(path, number):
            number, renamed = following
            if (path, number) in self._known:
                path = self._known[path, number]
                break
            passed.append((path, number))
            path, number = self._news[number, renamed] + path[len(renamed) :], number + 1
        path = path.replace(REMOVED, "")
        self._known.update(dict.fromkeys(passed, path))
        return path

    def _next_rename(self, path: str, number: int) -> tuple[int, str] | None:
        """The first rename from this number on that concerns a path, and the name it renames."""
        events = []
        for name in _with_folders(path):
            numbers = self._numbers.get(name, [])
            at = bisect.bisect_left(numbers, number)
            events += [(number, name) for number in numbers[at : at + 1]]
        return min(events, default=None)


def _with_folders(path: str) -> Iterator[str]:
    """A path, and the folders above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def grown(counters: pd.DataFrame, name: str, edges: Sequence[float]) -> list[int | None]:
    """How much a counter grew between each two edges, in seconds; None without samples.

    Between samples it is assumed to grow evenly, and before the first sample not at all.
    """
    if counters.empty:
        return [None] * (len(edges) - 1)
    known = np.interp(edges, counters.index, counters[name], left=0)
    return [int(part) for part in np.diff(known)]


def totals(
    processes: pd.DataFrame,
    *,
    ran_before: bool,
    columns: Sequence[str] = COUNTERS,
    added: str = COUNTERS[0],
) -> pd.DataFrame:
    """The use of all processes together at each sample, by counters that include children's.

    An ended process keeps its numbers until the kernel adds them to the parent that waited for it:
    from then on they count there. If both have ended, the parent's parent has them.

    Args:
      processes: the table with `seconds`.
      ran_before: processes of the first sample ran before the trace; only their growth counts.
      columns: the counters.
      added: the counter whose growth shows that a parent has waited, for the first of `columns`.

    Returns: one row for each sample, indexed by seconds; empty if no process showed counters.
    """
    known = processes.dropna(subset=columns[0])
    if known.empty:
        return pd.DataFrame(columns=list(columns), dtype=float)
    parents = known.groupby("pid")["parent_pid"].last()
    lasts = known.groupby("pid")["seconds"].last()
    carried = {
        name: known.pivot(index="seconds", columns="pid", values=name).ffill().fillna(0)
        for name in {*columns, added}
    }
    # Copies: the loop takes out of `carried` what a parent has taken over.
    own, waited = carried[columns[0]].copy(), carried[added].copy()
    for pid, last in lasts.items():
        parent = parents[pid]
        passed = {pid}
        while parent in lasts and lasts[parent] <= last and parent not in passed:
            passed.add(parent)
            parent = parents[parent]
        if parent in lasts and lasts[parent] > last:
            since = waited[parent] - waited.loc[last, parent]
            taken = since.index[(since >= own.loc[last, pid]) & (since.index > last)]
            if len(taken):
                for name in columns:
                    carried[name].loc[taken[0] :, pid] = 0
    summed = {name: carried[name].sum(axis=1) for name in columns}
    sums = pd.DataFrame(summed).cummax()
    return sums - sums.iloc[0] if ran_before else sums
