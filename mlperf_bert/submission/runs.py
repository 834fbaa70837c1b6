"""Reads the runs of one system: each once, with those that do not count and those far off."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mlperf_bert.mlperf.log_reader import (
    LOG_NAME,
    RECORD_NAME,
    RunResult,
    is_end,
    read_own_record,
    read_run,
)

_FAR_OFF = 5
"""Standard deviations, estimated by the median absolute deviation."""
_FAR_OFF_SHARE = 0.2
"""At least this share of the median is far off, even where runs hardly scatter."""
_LEAST_RUNS = 3


def read_runs(logs: Mapping[str, Path]) -> tuple[dict[str, RunResult], list[str], list[str]]:
    """Returns the runs of one system by name, each once, and lines on those left out and on copies.

    Args:
      logs: name of each run -> its log.
    """
    runs: dict[str, RunResult] = {}
    left_out, copies = [], []
    first: dict[str, str] = {}
    # One log that does not count must not hide the others.
    for name, path in logs.items():
        try:
            run = read_run(path)
        except ValueError as error:
            reason = str(error).removeprefix(f"{path}: ").removeprefix(f"{path} ")
            left_out.append(f"{name}: {reason.replace(': ', ', ')}")
            continue
        # Compared as text: accuracies may be NaN, which is not equal to itself.
        text = repr(replace(run, path=Path()))
        if (other := first.setdefault(text, name)) == name:
            runs[name] = run
        else:
            copies.append(f"{name}: the same run as {other}")
    return dict(zip(runs, with_planned_samples_unknown(list(runs.values())))), left_out, copies


def in_words(left_out: Sequence[str]) -> str:
    """Returns "NAME: REASON" of runs that do not count as one line, those of a reason together."""
    names: dict[str, list[str]] = {}
    for line in left_out:
        name, _, reason = line.rpartition(": ")
        names.setdefault(reason, []).append(name)
    shown = [
        f"{first}{f' and {len(others)} more' if others else ''}: {reason:.200}"
        for reason, (first, *others) in names.items()
    ]
    return "; ".join(shown[:3]) + ("; ..." if len(shown) > 3 else "")


def with_planned_samples_unknown(runs: Sequence[RunResult]) -> list[RunResult]:
    """Returns the runs of one system without samples that were planned, not trained.

    The same train_samples after different numbers of evaluations is a plan.
    """
    evaluations: dict[float | None, set[int]] = {}
    for run in runs:
        if run.counts_by_train_samples:
            evaluations.setdefault(run.samples_to_converge, set()).add(len(run.evaluations))
    # Longer runs have trained more: their number of samples cannot be the same.
    planned = {samples for samples, numbers in evaluations.items() if len(numbers) > 1} - {None}
    return [
        replace(run, samples_to_converge=None, planned_samples=run.samples_to_converge)
        if run.counts_by_train_samples and run.samples_to_converge in planned
        else run
        for run in runs
    ]


def why_samples_are_unknown(runs: Sequence[RunResult]) -> str:
    """Returns "samples unknown: " and why, if a successful run's log has no samples; else ""."""
    unknown = [run for run in runs if run.succeeded and run.samples_to_converge is None]
    if not unknown:
        return ""
    planned = [run.planned_samples for run in unknown if run.planned_samples is not None]
    why = "the logs do not say them"
    if planned:
        why = f"train_samples, {planned[0]:,}, is a plan or the size of the data set"
    return f"samples unknown: {why}"


def far_off(figures: Mapping[str, float]) -> list[str]:
    """Returns the names of runs whose figure is far from the others', if there are enough runs.

    Uses the median and the median absolute deviation of logarithms: one run moves neither.
    """
    logarithms = {name: math.log(figure) for name, figure in figures.items() if figure > 0}
    if len(logarithms) < _LEAST_RUNS:
        return []
    middle = statistics.median(logarithms.values())
    away = {name: abs(value - middle) for name, value in logarithms.items()}
    scatter = 1.4826 * statistics.median(away.values())
    limit = max(_FAR_OFF * scatter, math.log1p(_FAR_OFF_SHARE))
    return [name for name, distance in away.items() if distance > limit]


def has_ended(output_dir: Path) -> bool:
    """Returns whether a run began in a directory and came to its end."""
    record = output_dir / RECORD_NAME
    return record.exists() and is_end(read_own_record(record).get("status"))


def finished_run(output_dir: Path, log_name: str = LOG_NAME) -> RunResult | None:
    """Returns what the log of a run that has ended says; None if there is none."""
    log = output_dir / log_name
    return read_run(log) if log.exists() and has_ended(output_dir) else None
