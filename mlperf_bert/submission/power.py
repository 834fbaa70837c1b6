"""Measured power, from the logs that lie in power/ beside those of runs.

The official summarizer reads them too, but divides by zero on those of round 4.0, where the end of
the measurement is logged with the time of its start. So the mean is computed here, from the
readings alone.
"""

import itertools
from collections.abc import Sequence

from mlperf_bert.mlperf.results import Record, RunResult, read_records
from mlperf_bert.paths import Location


def mean_watts(folder: Location, runs: Sequence[RunResult]) -> float | None:
    """Return the mean power of all nodes during the runs; None if it was not measured.

    Args:
      folder: holds the logs of runs, and power/result_N/node_M.txt.
      runs: of these logs.

    Raises:
      ValueError: a log of power is damaged.
    """
    watts, minutes = 0.0, 0.0
    for run in runs:
        nodes = sorted((folder / "power" / run.path.stem).glob("node_*.txt"))
        if nodes:
            watts += run.minutes * sum(_mean(read_records(node)) for node in nodes)
            minutes += run.minutes
    return watts / minutes if minutes else None


def _mean(records: Sequence[Record]) -> float:
    """Return the mean of the readings over time; each holds since the one before."""
    readings = [record for record in records if record.key == "power_reading"]
    efficiencies = [record for record in records if record.key == "conversion_eff"]
    factor = float(str(efficiencies[-1].value)) if efficiencies else 1.0
    joules = seconds = 0.0
    for before, reading in itertools.pairwise(readings):
        elapsed = (reading.time_ms - before.time_ms) / 1000
        joules += float(str(reading.value)) * elapsed
        seconds += elapsed
    return factor * joules / seconds if seconds else 0.0
