"""Finds the runs in what a user names: a log, a folder of one or several runs, a submission.

A user names a log, the output directory of a run, a campaign, a folder of runs, a vendor's folder
of result_*.txt, the SYSTEM folder above it, or the ORG folder above that, if it has one system. Of
a run that was repeated the newest repetition counts. A run that was resumed has several logs.
"""

import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.mlperf.log_reader import (
    CAMPAIGN_RECORD,
    LOG_NAME,
    RECORD_NAME,
    RESULT_LOG,
    RESUMED_LOGS,
    logs_of_run,
)
from mlperf_bert.submission.plan import result_files
from mlperf_bert.submission.runs import has_ended

WAS_RESUMED = "was resumed, none of its logs has all of its time"
_OF_A_RUN = (RESULT_LOG, LOG_NAME)
_NUMBER = re.compile(r"(\d+)(?:\.repeat-(\d+))?")
_WHAT_TO_GIVE = (
    f"give a log, a folder with {LOG_NAME}, {CAMPAIGN_RECORD} or result_*.txt, or one of such runs"
)


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The files of one run."""

    name: str
    """The run's name within the folder that the user named."""
    logs: tuple[Path, ...]
    """The logs, oldest first; a resumed run has several, a run that wrote none has none."""
    output_dir: Path | None = None
    """The folder of a run of this project."""
    results_dir: Path | None = None
    """The folder of result_*.txt of a vendor's run."""

    @property
    def is_unfinished(self) -> bool:
        """Whether it is this project's run and its record does not say that it has ended."""
        # The log may already have a run_stop while the last checkpoint is being written.
        folder = self.output_dir
        return bool(folder and (folder / RECORD_NAME).exists() and not has_ended(folder))


def runs_in(name: str) -> list[RunFiles]:
    """Returns the runs of what a user has named."""
    path = paths.require_local(name)
    if runs := _runs_in(path):
        return runs
    why = "no run in it" if path.exists() else "there is no such file or folder"
    raise ValueError(f"{name}: {why}; {_WHAT_TO_GIVE}")


def _runs_in(path: Path) -> list[RunFiles]:
    if fnmatch.fnmatch(path.name, RESUMED_LOGS) and path in logs_of_run(path.parent):
        return [_of_output_dir(path.parent, str(path))]  # one log of several lacks some time
    if path.is_file():
        output_dir = path.parent if path.name in _OF_A_RUN else None
        return [RunFiles(name=str(path), logs=(path,), output_dir=output_dir)]
    if any((path / file).exists() for file in _OF_A_RUN):
        return [_of_output_dir(path, str(path))]
    if (path / CAMPAIGN_RECORD).exists():
        return _of_folders(path / "runs", is_campaign=True)
    if runs := _of_folders(path / "runs") or _of_folders(path):
        return runs
    folders = (path, path / "bert", *sorted(path.glob("results/*/bert")))
    results = {folder: logs for folder in folders if (logs := result_files(folder))}
    if len(results) > 1:  # means over two systems' runs would mean nothing
        first = next(iter(results))
        raise ValueError(f"{path}: results of {len(results)} systems; give one, as {first}")
    return [
        RunFiles(name=log.name, logs=(log,), results_dir=folder)
        for folder, logs in results.items()
        for log in logs
    ]


def _of_folders(above: Path, *, is_campaign: bool = False) -> list[RunFiles]:
    """Returns the runs of a folder that has one folder for each run."""
    newest: dict[str, tuple[int, Path]] = {}
    for folder in above.glob("*"):
        number = _NUMBER.fullmatch(folder.name)
        if number if is_campaign else any((folder / file).exists() for file in _OF_A_RUN):
            name = number[1] if number else folder.name
            repetition = int(number[2] or 0) if number else 0
            newest[name] = max(newest.get(name, (-1, folder)), (repetition, folder))
    # Sorted by number, not by letters: 10 comes after 9.
    names = sorted(newest, key=lambda name: (int(name) if name.isdecimal() else -1, name))
    return [_of_output_dir(newest[name][1], name) for name in names]


def _of_output_dir(folder: Path, name: str) -> RunFiles:
    """Returns the run of an output directory."""
    # An evaluation after the training joins all of the logs in a single one.
    joined = folder / RESULT_LOG
    logs = [joined] if joined.exists() else logs_of_run(folder)
    return RunFiles(name=name, logs=tuple(map(Path, logs)), output_dir=folder)
