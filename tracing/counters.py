"""The counters of the target's processes, added up over time."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

COLUMNS = ("read_call_bytes", "write_call_bytes", "storage_read_bytes", "storage_written_bytes")


def grown(totals: pd.DataFrame, name: str, edges: Sequence[float]) -> list[int | None]:
    """How much a counter grew between each two edges, in seconds; None without samples.

    Between samples it is taken to grow evenly, before the first not at all.
    """
    if totals.empty:
        return [None] * (len(edges) - 1)
    known = np.interp(edges, totals.index, totals[name], left=0)
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
    known = processes.dropna(subset=list(COLUMNS))
    if known.empty:
        return pd.DataFrame(columns=list(COLUMNS), dtype=float)
    parents = known.groupby("pid")["parent_pid"].last()
    lasts = known.groupby("pid")["seconds"].last()
    wide = {
        name: known.pivot_table(index="seconds", columns="pid", values=name) for name in COLUMNS
    }
    carried = {name: table.ffill() for name, table in wide.items()}
    calls = carried["read_call_bytes"]
    for pid in sorted(lasts.index, key=lambda pid: lasts[pid]):
        parent, last = parents[pid], lasts[pid]
        if parent in lasts and lasts[parent] > last:
            grown = calls[parent] - calls.loc[last, parent]
            taken = grown.index[(grown >= calls.loc[last, pid]) & (grown.index > last)]
            if len(taken):
                for table in carried.values():
                    table.loc[taken[0] :, pid] = 0
    summed = {name: table.fillna(0).sum(axis=1) for name, table in carried.items()}
    found = pd.DataFrame(summed).cummax()
    return found - found.iloc[0] if ran_before else found
