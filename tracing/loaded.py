"""A finished trace's tables as data frames, with seconds since its beginning."""

import functools
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tracing import counters, files
from tracing.conversion import Locator, Losses
from tracing.recording import Recording
from tracing.tables import Tables

TRANSFERS = ("read", "write")


class Loaded(Tables):
    """The tables, each read when it is first asked for, and what was recorded besides."""

    def __init__(self, folder: Path, recording: Recording, losses: Losses, locator: Locator):
        """Takes the trace's folder and what is known besides the tables."""
        super().__init__(folder, recording.pairs[0].monotonic_ns)
        self.recording = recording
        self.losses = losses
        self.locator = locator
        self.seconds = (recording.pairs[-1].monotonic_ns - self.begin_ns) / 1e9

    @functools.cache  # noqa: B019 - lives as long as the trace is worked on
    def table(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """One of them, for all who ask: not to be changed."""
        return super().table(name, columns)

    @functools.cached_property
    def operations(self) -> pd.DataFrame:
        """file_ops with `final_path`: what a file was called in the end, after renames."""
        found = self.table("file_ops")
        found = found.assign(final_path=final_paths(found))
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


def final_paths(operations: pd.DataFrame) -> pd.Series:
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
