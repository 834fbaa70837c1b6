"""Measured power, from the logs that lie in power/ beside those of runs.

A mean counts as the official summarizer counts: every reading of power/RUN/node_N.txt holds since
the one before, the first since power_measurement_start, over the time up to power_measurement_stop;
power/RUN/sw_N.txt has one estimate of a switch. What is incomplete is unknown here, and the reason
is told.
"""

import itertools
import math
import re
from collections.abc import Sequence

from mlperf_bert.files.paths import Location
from mlperf_bert.mlperf.logs import LogRecord, RunResult, read_records

_LEAST_SHARE_READ = 0.5
_LEAST_WATTS_OF_A_NODE = 20


class _Incomplete(Exception):
    """Why the power of a run cannot be told."""


def measured_watts(
    folder: Location, runs: Sequence[RunResult], *, num_nodes: int | None
) -> tuple[float | None, str | None]:
    """Return the mean power of all nodes and switches during the runs, or why it is unknown.

    Both are None where no power was measured.

    Args:
      folder: holds the logs of runs, and power/result_N/node_M.txt and sw_M.txt.
      runs: of these logs.
      num_nodes: of the system, by its description.

    Raises:
      ValueError: a log of power is damaged.
    """
    folders = [folder / "power" / run.path.stem for run in runs]
    listed = {path.name for each in folders for path in each.glob("*.txt")}
    names = sorted(name for name in listed if re.fullmatch(r"(node|sw)_\d+\.txt", name))
    num_measured = sum(name.startswith("node") for name in names)
    if not num_measured:  # few submitters measure
        return None, None
    if num_nodes is not None and num_measured < num_nodes:
        return None, f"{num_measured} of {num_nodes} nodes have logs of power"
    joules = minutes = 0.0
    try:
        for run, logs in zip(runs, folders, strict=True):
            joules += run.minutes * sum(_watts(logs / name, run) for name in names)
            minutes += run.minutes
    except _Incomplete as reason:
        return None, str(reason)
    return joules / minutes if minutes else None, None


def _watts(log: Location, run: RunResult) -> float:
    """Return the mean of a node, or the estimate of a switch, times the conversion's efficiency."""
    where = f"power/{run.path.stem}/{log.name}"
    # The mean of a system lacks what one of its nodes took.
    if not log.exists():
        raise _Incomplete(f"{where} is missing")
    if log.name.startswith("node"):
        records = sorted(read_records(log), key=lambda record: record.time_ms)
        return _efficiency(records, log) * _mean_watts(records, log, where, run.minutes)
    records = read_records(log)
    estimated = [n for n, record in enumerate(records) if record.key == "interconnect_power_est"]
    if not estimated:
        raise _Incomplete(f"{where} has no interconnect_power_est")
    # The official summarizer takes the efficiency that stands before the estimate.
    return _efficiency(records[: estimated[0]], log) * _number(records[estimated[0]], log)


def _mean_watts(records: Sequence[LogRecord], log: Location, where: str, minutes: float) -> float:
    """Return the mean of a node's readings over time."""
    readings = [record for record in records if record.key == "power_reading"]
    starts = [record.time_ms for record in records if record.key == "power_measurement_start"]
    stops = [record.time_ms for record in records if record.key == "power_measurement_stop"]
    if not readings:
        raise _Incomplete(f"{where} has no reading")
    stop_ms = stops[-1] if stops else readings[-1].time_ms
    # Round 4.0 logs the stop with the time of the start: the official mean divides by zero there,
    # and here it is that of the readings alone, of which the first one only begins the time.
    is_timed = bool(starts) and starts[-1] < readings[0].time_ms and stop_ms > starts[-1]
    begin_ms = starts[-1] if is_timed else readings[0].time_ms
    end_ms = stop_ms if is_timed else readings[-1].time_ms
    counted = [reading for reading in readings if begin_ms < reading.time_ms <= end_ms]
    times_ms = [begin_ms, *(reading.time_ms for reading in counted)]
    read_ms = times_ms[-1] - begin_ms
    if read_ms <= 0 or read_ms < _LEAST_SHARE_READ * minutes * 60_000:
        raise _Incomplete(f"the readings of {where} end after {read_ms / 1000:,.0f} s")
    spans = [end - begin for begin, end in itertools.pairwise(times_ms)]
    watts = [_number(reading, log) for reading in counted]
    mean = sum(map(math.prod, zip(watts, spans))) / (end_ms - begin_ms)
    if mean < _LEAST_WATTS_OF_A_NODE:
        raise _Incomplete(f"the mean of {where} is {mean:.3g} W (are its readings in kW?)")
    return mean


def _efficiency(records: Sequence[LogRecord], log: Location) -> float:
    logged = [record for record in records if record.key == "conversion_eff"]
    return _number(logged[-1], log) if logged else 1.0


def _number(record: LogRecord, log: Location) -> float:
    # Some vendors write numbers as texts.
    try:
        number = float(str(record.value))
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        reason = f"{record.key} is {record.value!r:.80}, which is not a number"
        raise ValueError(f"{log}: {reason}; copy it again")
    return number
