"""A finished trace's tables as data frames, with seconds since its beginning."""

import functools
from pathlib import Path

import pandas as pd

from tracing import counters, files
from tracing.conversion import Locator, Losses
from tracing.recording import Recording
from tracing.tables import read_table

TRANSFERS = ("read", "write")


class Loaded:
    """The tables, each read when it is first asked for; every one has a column `seconds`."""

    def __init__(self, folder: Path, recording: Recording, losses: Losses, locator: Locator):
        """Takes the trace's folder and what is known besides the tables."""
        self.folder = folder
        self.recording = recording
        self.losses = losses
        self.locator = locator
        self.begin_ns = recording.pairs[0].monotonic_ns
        self.seconds = (recording.pairs[-1].monotonic_ns - self.begin_ns) / 1e9

    @functools.cache  # noqa: B019 - lives as long as the trace is worked on
    def table(self, name: str) -> pd.DataFrame:
        """One table in order of time."""
        found = read_table(self.folder, name)
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
    def transfers(self) -> pd.DataFrame:
        """Reads and writes that moved bytes of files; copies within the kernel included."""
        found = self.operations
        is_file = ~found["file_class"].isin([files.PIPES, files.PSEUDO])
        moved = found["kind"].isin(TRANSFERS) & (found["size_bytes"] > 0)
        return found[is_file & moved]

    @functools.cached_property
    def counters(self) -> pd.DataFrame:
        """What all processes together had read and written, by their counters, at each sample."""
        return counters.totals(self.table("processes"), ran_before=not self.recording.command)

    @functools.cached_property
    def spans(self) -> pd.DataFrame:
        """The spans with `end_seconds`."""
        found = self.table("spans")
        return found.assign(end_seconds=(found["end_monotonic_ns"] - self.begin_ns) / 1e9)


def _final_paths(operations: pd.DataFrame) -> pd.Series:
    final = operations["path"].copy()
    renames = operations[(operations["kind"] == "rename") & operations["error"].isna()]
    if renames.empty:
        return final
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
