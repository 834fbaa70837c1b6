"""The time budget of a run: how it is written, and what the run's logs say of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlperf_bert.mlperf.results import Record, read_records
from mlperf_bert.mlperf.timed_run import TIME_BUDGET_SPENT

_DURATION = re.compile(r"(?:([0-9.]{1,9})h)?(?:([0-9.]{1,9})m)?(?:([0-9.]{1,9})s)?")
_UNITS = {"h": 3600, "m": 60, "s": 1}


@dataclass(frozen=True)
class Estimate:
    """How many steps the budget is expected to allow in all, from a step on."""

    step: int
    num_train_steps: int


@dataclass(frozen=True)
class Spent:
    """What a run has used of its budget before this process: nothing if it is new."""

    seconds: float = 0.0
    estimates: tuple[Estimate, ...] = ()
    """In the order of their steps."""
    saved_step: int = 0
    """The last one of which the logs have the beginning of a checkpoint."""


def parse(text: str) -> float:
    """Return the seconds of a budget such as 90s, 45m, 24h or 1h30m.

    Raises:
      ValueError: the text has another form, or means no time at all.
    """
    found = _DURATION.fullmatch(text)
    try:
        seconds = sum(
            float(number) * _UNITS[unit]
            for number, unit in zip(found.groups() if found else (), _UNITS)
            if number
        )
    except ValueError:  # such as 1.2.3h
        seconds = 0
    if not seconds > 0:
        raise ValueError(
            f"--time_budget={text} must be a time above 0 with its unit, such as 90s, 45m, 24h or "
            "1h30m"
        )
    return float(seconds)


def in_words(seconds: float) -> str:
    """Return seconds in the form that `parse` reads, rounded to tenths: 5400 -> 1h30m."""
    tenths = round(10 * seconds)
    hours, tenths = divmod(tenths, 36_000)
    minutes, tenths = divmod(tenths, 600)
    counts = {"h": hours, "m": minutes, "s": tenths / 10}
    return "".join(f"{count:.9g}{unit}" for unit, count in counts.items() if count) or "0s"


def spent(logs: Sequence[Path]) -> Spent:
    """Return the time from run_start to the last line, summed over the logs of one run.

    A killed run with a budget wrote its last line about a hundredth of it before its end, or later.

    Raises:
      ValueError: a log is damaged.
    """
    seconds, estimates, saved_step = 0.0, {}, 0
    for path in logs:
        records = read_records(path, may_be_cut=True)
        start = next((record for record in records if record.key == "run_start"), None)
        if start:
            seconds += max(0.0, records[-1].time_ms - start.time_ms) / 1000
        for record in records:
            if record.key == TIME_BUDGET_SPENT:
                estimate = _estimate(record, path)
                estimates[estimate.step] = estimate
            elif record.key == "checkpoint_start":
                saved_step = max(saved_step, _step(record, path))
    return Spent(seconds, tuple(estimates[step] for step in sorted(estimates)), saved_step)


def _estimate(record: Record, path: Path) -> Estimate:
    value = record.value if isinstance(record.value, dict) else {}
    num_train_steps = value.get("num_train_steps")
    if type(num_train_steps) is not int or num_train_steps < 1:
        raise _damaged(record, path)
    return Estimate(_step(record, path), num_train_steps)


def _step(record: Record, path: Path) -> int:
    step = record.metadata.get("step_num")
    if type(step) is not int:
        raise _damaged(record, path)
    return step


def _damaged(record: Record, path: Path) -> ValueError:
    return ValueError(f"{path}: a line {record.key} is damaged; copy the log again")
