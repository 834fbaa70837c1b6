"""Clocks read together, and stamps of one converted into stamps of another.

CLOCK_MONOTONIC never jumps, CLOCK_REALTIME is the wall clock.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ClockPair:
    """Three clocks read at the same moment, in nanoseconds."""

    monotonic_ns: int
    realtime_ns: int
    boottime_ns: int
    """The clock of bpftrace's stamps: monotonic plus the time in suspend."""
    uncertainty_ns: int
    """The most nanoseconds between the readings."""


def read_pair() -> ClockPair:
    """Reads the clocks between two readings of the monotonic one; keeps the tightest try."""
    return min((_one_pair() for _ in range(50)), key=lambda pair: pair.uncertainty_ns)


def _one_pair() -> ClockPair:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    realtime = time.clock_gettime_ns(time.CLOCK_REALTIME)
    boottime = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    width = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - before
    return ClockPair(before + width // 2, realtime, boottime, width)


class Alignment:
    """Converts between the clocks by the pairs of a trace, linearly between neighbours."""

    def __init__(self, pairs: Sequence[ClockPair]):
        """Takes at least one pair, in order of time."""
        self.pairs = list(pairs)
        names = ("monotonic_ns", "realtime_ns", "boottime_ns")
        self._read = {
            name: np.array([getattr(pair, name) for pair in pairs], np.int64) for name in names
        }
        self._ahead = self._read["realtime_ns"] - self._read["monotonic_ns"]

    @property
    def drift_ns(self) -> int:
        """How far the wall clock moved against the monotonic one from first to last pair."""
        return int(self._ahead[-1] - self._ahead[0])

    @property
    def error_bound_ns(self) -> int:
        """The largest error of a converted stamp: the largest move between neighbours."""
        moves = np.abs(np.diff(self._ahead))
        return int(max(moves, default=0) + 2 * max(pair.uncertainty_ns for pair in self.pairs))

    def converted(self, stamps, clock: str, to: str) -> np.ndarray:
        """Stamps (int64, any shape) of one clock as those of another: realtime_ns, and so on."""
        stamps, read = np.asarray(stamps, np.int64), self._read[clock]
        ahead = self._read[to] - read
        # Relative to the first pair, because whole stamps would lose nanoseconds as floats.
        move = np.interp((stamps - read[0]).astype(float), read - read[0], ahead - ahead[0])
        return stamps + ahead[0] + np.rint(move).astype(np.int64)
