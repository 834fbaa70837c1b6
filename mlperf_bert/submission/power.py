"""Measured power, from the logs that lie in power/ beside those of runs.

A mean counts as the official summarizer counts: every reading of power/RUN/node_N.txt holds since
the one before, the first since power_measurement_start, over the time up to power_measurement_stop;
power/RUN/sw_N.txt has one estimate of a switch. The official one divides by zero on the logs of
round 4.0, where the end of the measurement is logged with the time of its start: then the mean is
that of the readings alone. What is incomplete is unknown here, and the reason is told.
"""

import itertools
import math
import re
from collections.abc import Sequence

from mlperf_bert.files.paths import Location
from mlperf_bert.mlperf.logs import Record, RunResult, read_records

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
    try:
        nodes = _logs(folder, runs, "node")
        num_measured = len(nodes[runs[0].path.stem])
        if not num_measured:
            return None, None
        switches = _logs(folder, runs, "sw")
        if num_nodes is not None and num_measured < num_nodes:
            raise _Incomplete(f"{num_measured} of {num_nodes} nodes have logs of power")
        joules = 0.0
        for run in runs:
            watts = sum(_watts_of_node(log, run) for log in nodes[run.path.stem])
            joules += run.minutes * (watts + sum(map(_watts_of_switch, switches[run.path.stem])))
    except _Incomplete as reason:
        return None, str(reason)
    minutes = sum(run.minutes for run in runs)
    return joules / minutes if minutes else None, None


def _logs(folder: Location, runs: Sequence[RunResult], kind: str) -> dict[str, list[Location]]:
    """Return the logs of all nodes, or of all switches ("sw"), of each run.

    Raises:
      _Incomplete: a run lacks one that another has.
    """
    folders = {run.path.stem: folder / "power" / run.path.stem for run in runs}
    found = {run: {path.name for path in there.glob("*.txt")} for run, there in folders.items()}
    matches = [re.fullmatch(rf"{kind}_(\d+)\.txt", name) for name in set().union(*found.values())]
    number = max((int(match[1]) for match in matches if match), default=-1) + 1
    # One more than there are: of numbers as large as a file's name allows one is missing anyway.
    names = [f"{kind}_{n}.txt" for n in range(min(number, len(matches) + 1))]
    for run, there in found.items():
        for name in names:
            if name not in there:
                raise _Incomplete(f"power/{run}/{name} is missing")
    return {run: [there / name for name in names] for run, there in folders.items()}


def _watts_of_node(log: Location, run: RunResult) -> float:
    """Return the mean of the readings over time, times the efficiency of the conversion."""
    records = sorted(read_records(log), key=lambda record: record.time_ms)
    where = f"power/{run.path.stem}/{log.name}"
    readings = [record for record in records if record.key == "power_reading"]
    starts = [record.time_ms for record in records if record.key == "power_measurement_start"]
    stops = [record.time_ms for record in records if record.key == "power_measurement_stop"]
    if not readings:
        raise _Incomplete(f"{where} has no reading")
    stop_ms = stops[-1] if stops else readings[-1].time_ms
    if starts and starts[-1] < readings[0].time_ms and stop_ms > starts[-1]:
        # Readings after the end do not count.
        readings = [reading for reading in readings if reading.time_ms <= stop_ms]
        times_ms = [starts[-1], *(reading.time_ms for reading in readings)]
        watts = readings
        whole_ms = stop_ms - starts[-1]
    else:
        times_ms, watts = [reading.time_ms for reading in readings], readings[1:]
        whole_ms = times_ms[-1] - times_ms[0]
    read_ms = times_ms[-1] - times_ms[0]
    if read_ms <= 0 or read_ms < _LEAST_SHARE_READ * run.minutes * 60_000:
        raise _Incomplete(f"the readings of {where} end after {read_ms / 1000:,.0f} s")
    spans = itertools.pairwise(times_ms)
    sum_of_parts = sum(_number(r, log) * (end - begin) for r, (begin, end) in zip(watts, spans))
    mean_watts = sum_of_parts / whole_ms
    if mean_watts < _LEAST_WATTS_OF_A_NODE:
        raise _Incomplete(f"the mean of {where} is {mean_watts:.3g} W (are its readings in kW?)")
    return _efficiency(records, log) * mean_watts


def _watts_of_switch(log: Location) -> float:
    """Return the estimate, times the efficiency that stands before it, as the official one."""
    records = read_records(log)
    keys = [record.key for record in records]
    if "interconnect_power_est" not in keys:
        raise _Incomplete(f"power/{log.parent.name}/{log.name} has no interconnect_power_est")
    place = keys.index("interconnect_power_est")
    return _efficiency(records[:place], log) * _number(records[place], log)


def _efficiency(records: Sequence[Record], log: Location) -> float:
    found = [record for record in records if record.key == "conversion_eff"]
    return _number(found[-1], log) if found else 1.0


def _number(record: Record, log: Location) -> float:
    value = record.value
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number) and number >= 0:
            return number
    raise ValueError(f"{log}: {record.key} is {value!r:.80}, which is not a number; copy it again")
