"""The time budget of a run: how it is written, and what the run's logs say of it."""

import re
from collections.abc import Sequence
from pathlib import Path

from mlperf_bert.mlperf.log_lines import read_records

_DURATION = re.compile(r"(?:([0-9.]{1,9})h)?(?:([0-9.]{1,9})m)?(?:([0-9.]{1,9})s)?")
_UNITS = {"h": 3600, "m": 60, "s": 1}


def parse(text: str) -> float:
    """Return the seconds of a budget such as 90s, 45m, 24h or 1h30m.

    Raises:
      ValueError: the text has another form, or means no time at all.
    """
    duration = _DURATION.fullmatch(text)
    try:
        seconds = sum(
            float(number) * _UNITS[unit]
            for number, unit in zip(duration.groups() if duration else (), _UNITS)
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


def spent(logs: Sequence[Path]) -> float:
    """Return the seconds from run_start to the last line, summed over the logs of one run.

    A killed run with a budget wrote its last line about a hundredth of it before its end, or later.

    Raises:
      ValueError: a log is damaged.
    """
    seconds = 0.0
    for path in logs:
        records = read_records(path, may_be_cut=True)
        start = next((record for record in records if record.key == "run_start"), None)
        if start:
            seconds += max(0.0, records[-1].time_ms - start.time_ms) / 1000
    return seconds
