"""A finished trace's tables as data frames, with seconds since its beginning."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from tracing import files
from tracing.calls import Losses
from tracing.conversion import Locator
from tracing.recording import Recording
from tracing.tables import read_table

TRANSFERS = ("read", "write")
COUNTERS = ("read_call_bytes", "write_call_bytes", "storage_read_bytes", "storage_written_bytes")
"""Of a process, in the table of processes."""


class Tables:
    """The tables of a trace, in order of time and with a column `seconds`."""

    def __init__(self, folder: Path, begin_ns: int, locator: Locator | None = None):
        """Takes the trace's folder, when it began by CLOCK_MONOTONIC, and where files are found."""
        self.folder = folder
        self.begin_ns = begin_ns
        self.locator = locator or Locator()

    @functools.cache  # noqa: B019 - lives as long as the trace is worked on
    def table(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """A whole table, for all who ask: not to be changed; empty if it was not written."""
        found = read_table(self.folder, name, columns)
        found["seconds"] = (found["monotonic_ns"] - self.begin_ns) / 1e9
        return found.sort_values("monotonic_ns", kind="stable", ignore_index=True)

    @functools.cached_property
    def operations(self) -> pd.DataFrame:
        """file_ops with `final_path`: what a file was called in the end, after renames."""
        found = self.table("file_ops")
        found = found.assign(final_path=_final_paths(found))
        renamed = found["final_path"] != found["path"]
        # A checkpoint that is written under another name is a checkpoint.
        found.loc[renamed, "file_class"] = found.loc[renamed, "final_path"].map(self._class_of)
        return found

    def _class_of(self, path: str) -> str:
        return files.classify(path, seen_as=str(self.locator.find(path)))

    @functools.cached_property
    def spans(self) -> pd.DataFrame:
        """The spans with `end_seconds`."""
        found = self.table("spans")
        return found.assign(end_seconds=(found["end_monotonic_ns"] - self.begin_ns) / 1e9)

    def is_within(self, rows: pd.DataFrame, name: str) -> pd.Series:
        """Whether each row begins within a phase of this name."""
        inside = pd.Series(False, rows.index)
        for span in self.spans[self.spans["name"] == name].itertuples():
            inside |= rows["monotonic_ns"].between(span.monotonic_ns, span.end_monotonic_ns)
        return inside

    def growth(self, name: str, columns: list[str], *, by: str = "device") -> pd.DataFrame:
        """How much counters since boot grew; a row for each device, or what else tells them apart.

        Containers have interfaces of the same name in name spaces of their own.
        """
        table = self.table(name)
        counters = table.groupby([by, *({"name_space"} & {*table})])[columns]
        return (counters.last() - counters.first()).groupby(level=0).sum()

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
        spent = self.table("cpus").groupby("seconds")[columns].sum().diff().iloc[1:]
        spent = spent[spent.sum(axis=1) > 0]
        shares = spent.div(spent.sum(axis=1), axis=0) * 100
        yield from shares[columns[:3]].itertuples(name=None)


class Loaded(Tables):
    """A trace whose outputs are being made, with what was recorded besides the tables."""

    def __init__(self, folder: Path, recording: Recording, losses: Losses, locator: Locator):
        """Takes the trace's folder and what is known besides the tables."""
        super().__init__(folder, recording.pairs[0].monotonic_ns, locator)
        self.recording = recording
        self.losses = losses
        self.seconds = (recording.pairs[-1].monotonic_ns - self.begin_ns) / 1e9

    @functools.cached_property
    def transfers(self) -> pd.DataFrame:
        """Reads and writes that moved bytes of files; copies within the kernel included."""
        found = self.operations
        is_file = ~found["file_class"].isin(files.IN_KERNEL)
        moved = found["kind"].isin(TRANSFERS) & (found["size_bytes"] > 0)
        return found[is_file & moved]

    @functools.cached_property
    def counters(self) -> pd.DataFrame:
        """What all processes together had read and written, by their counters, at each sample."""
        return totals(self.table("processes"), ran_before=not self.recording.command)


def _final_paths(operations: pd.DataFrame) -> pd.Series:
    """What the file of each row of file_ops was called in the end; rows in order of time."""
    final = operations["path"].copy()
    is_rename = (operations["kind"] == "rename") & operations["error"].isna()
    renames = operations[is_rename & operations["new_path"].notna()]
    stamps = operations["monotonic_ns"]
    # In order of time: what is renamed twice is followed to its last name.
    for rename in renames.itertuples():
        old, new = rename.path, rename.new_path
        before = stamps <= rename.monotonic_ns
        inside = final.str.startswith(old + "/", na=False) & before
        final[(final == old) & before] = new
        if inside.any():
            final[inside] = new + final[inside].str[len(old) :]
    return final


def grown(counters: pd.DataFrame, name: str, edges: Sequence[float]) -> list[int | None]:
    """How much a counter grew between each two edges, in seconds; None without samples.

    Between samples it is taken to grow evenly, before the first not at all.
    """
    if counters.empty:
        return [None] * (len(edges) - 1)
    known = np.interp(edges, counters.index, counters[name], left=0)
    return [int(part) for part in np.diff(known)]


def totals(processes: pd.DataFrame, *, ran_before: bool) -> pd.DataFrame:
    """What all processes together had read and written at each sample.

    A process that has ended keeps what it had, until the kernel adds it to the parent that waited
    for it: from then on it is counted there.

    Args:
      processes: the table with `seconds`.
      ran_before: what runs at the first sample did so before the trace; only growth counts.

    Returns: one row for each sample, indexed by seconds; empty if no process showed counters.
    """
    known = processes.dropna(subset=list(COUNTERS))
    if known.empty:
        return pd.DataFrame(columns=list(COUNTERS), dtype=float)
    parents = known.groupby("pid")["parent_pid"].last()
    lasts = known.groupby("pid")["seconds"].last()
    wide = {
        name: known.pivot_table(index="seconds", columns="pid", values=name) for name in COUNTERS
    }
    carried = {name: table.ffill() for name, table in wide.items()}
    calls = carried["read_call_bytes"]
    for pid in sorted(lasts.index, key=lambda pid: lasts[pid]):
        parent, last = parents[pid], lasts[pid]
        if parent in lasts and lasts[parent] > last:
            since = calls[parent] - calls.loc[last, parent]
            taken = since.index[(since >= calls.loc[last, pid]) & (since.index > last)]
            if len(taken):
                for table in carried.values():
                    table.loc[taken[0] :, pid] = 0
    summed = {name: table.fillna(0).sum(axis=1) for name, table in carried.items()}
    found = pd.DataFrame(summed).cummax()
    return found - found.iloc[0] if ran_before else found
