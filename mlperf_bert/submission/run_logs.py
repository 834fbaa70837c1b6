"""Where runs lie in what a user names, and what they have in common: for all that compares runs.

A user names a log, the output directory of a run, a campaign, a folder of runs, a vendor's folder
of result_*.txt, the SYSTEM folder above it, or the ORG folder above that, if it has one system. Of
a run that was repeated the newest repetition counts. A run that was resumed has several logs.
"""

import fnmatch
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlperf_bert.files import paths, whole
from mlperf_bert.mlperf.logs import (
    CAMPAIGN_RECORD,
    LOG_NAME,
    RESULT_LOG,
    RESUMED_LOGS,
    RunResult,
    logs_of_run,
)
from mlperf_bert.submission.plan import result_files

_OF_A_RUN = (RESULT_LOG, LOG_NAME)
_KEPT = re.compile(
    r"bert(\.resumed-\d+)?\.log|result_.*\.txt|metrics\.jsonl"
    r"|(run|campaign|provenance)\.json"
)
"""Names of what runs and campaigns have written."""
_NUMBER = re.compile(r"(\d+)(?:\.repeat-(\d+))?")
_WHAT_TO_GIVE = (
    f"give a log, a folder with {LOG_NAME}, {CAMPAIGN_RECORD} or result_*.txt, or one of such runs"
)


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The files of one run."""

    name: str
    """Within what the user has named."""
    logs: tuple[paths.Location, ...]
    """The oldest first, more than one of a run that was resumed; none if none was written."""
    output_dir: paths.Location | None = None
    """Of a run of this project."""
    results_dir: paths.Location | None = None
    """Of a vendor's run: the folder of result_*.txt."""


def runs_in(name: str | os.PathLike) -> list[RunFiles]:
    """Return the runs of what a user has named.

    Raises:
      ValueError: there are none.
      OSError: it cannot be read.
    """
    place = paths.location(name)
    with paths.failures_named(place):
        if runs := _runs_in(place):
            return runs
        why = "no run in it" if place.exists() else "there is no such file or folder"
    raise ValueError(f"{name}: {why}; {_WHAT_TO_GIVE}")


def _runs_in(place: paths.Location) -> list[RunFiles]:
    if fnmatch.fnmatch(place.name, RESUMED_LOGS) and place in logs_of_run(place.parent):
        return [_of_output_dir(place.parent, str(place))]  # a piece has not all of the time
    if paths.is_file(place):
        output_dir = place.parent if place.name in _OF_A_RUN else None
        return [RunFiles(name=str(place), logs=(place,), output_dir=output_dir)]
    if any((place / file).exists() for file in _OF_A_RUN):
        return [_of_output_dir(place, str(place))]
    if (place / CAMPAIGN_RECORD).exists():
        return _of_folders(place / "runs", is_campaign=True)
    if runs := _of_folders(place / "runs") or _of_folders(place):
        return runs
    folders = (place, place / "bert", *sorted(place.glob("results/*/bert")))
    results = {folder: logs for folder in folders if (logs := result_files(folder))}
    if len(results) > 1:  # of two systems' runs no figure is a mean
        first = next(iter(results))
        raise ValueError(f"{place}: results of {len(results)} systems; give one, as {first}")
    return [
        RunFiles(name=log.name, logs=(log,), results_dir=folder)
        for folder, logs in results.items()
        for log in logs
    ]


def _of_folders(above: paths.Location, *, is_campaign: bool = False) -> list[RunFiles]:
    """Return the runs of a folder that has one folder for each."""
    newest: dict[str, tuple[int, paths.Location]] = {}
    for folder in above.glob("*"):
        number = _NUMBER.fullmatch(folder.name)
        if number if is_campaign else any((folder / file).exists() for file in _OF_A_RUN):
            name = number[1] if number else folder.name
            repetition = int(number[2] or 0) if number else 0
            newest[name] = max(newest.get(name, (-1, folder)), (repetition, folder))
    # By number, not by letters: 10 comes after 9.
    names = sorted(newest, key=lambda name: (int(name) if name.isdecimal() else -1, name))
    return [_of_output_dir(newest[name][1], name) for name in names]


def _of_output_dir(folder: paths.Location, name: str) -> RunFiles:
    """Return the run of an output directory."""
    # What evaluates checkpoints after the training writes all of the logs again, as one.
    joined = folder / RESULT_LOG
    logs = [joined] if joined.exists() else logs_of_run(folder)
    return RunFiles(name=name, logs=tuple(logs), output_dir=folder)


def require_free(
    outputs: Mapping[str, str | os.PathLike | None], inputs: Iterable[str | os.PathLike | None] = ()
) -> None:
    """Refuses outputs that would replace what was read, each other, or a file of any run.

    Args:
      outputs: option -> path, or None.
      inputs: files that were read; None is none.

    Raises:
      ValueError: one would.
    """
    given = [(f"{option}={path}", path) for option, path in outputs.items() if path]
    whole.require_apart(given, filter(None, inputs))
    for name, path in given:
        # Also of a run that was left out, or is behind a link.
        place = paths.resolve(paths.location(path))
        if _KEPT.fullmatch(place.name) and paths.is_file(place):
            raise ValueError(f"{name}: is a file of a run; name another file")


def task_of(run: RunResult) -> dict[str, object]:
    """Return what runs must have in common to be compared; None: not logged."""
    return {
        "benchmark": run.benchmark,
        "tokens": run.max_sequence_length,
        "weights": run.num_weights,
        "batch": run.global_batch_size,
        "division": run.division,
    }


def common_task(name: str, tasks: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return what the runs of a place have in common, as far as their logs say it.

    Raises:
      ValueError: they are of different tasks.
    """
    common: dict[str, object] = {}
    for key in dict.fromkeys(key for task in tasks for key in task):
        values = {task[key] for task in tasks} - {None}
        if len(values) > 1:
            listed = " and ".join(sorted(map(str, values)))
            raise ValueError(f"{name}: runs of different {key}: {listed}; give a folder of each")
        common[key] = next(iter(values), None)
    return {key: value for key, value in common.items() if value is not None}
