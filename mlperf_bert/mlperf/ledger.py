"""Where the time of a run goes: every second belongs to exactly one kind.

Source of the idea of utilization: MLPerf Storage, whose accelerators have to compute 90% of the
time.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

INPUT_WAIT, COMPUTE = "input_wait", "compute"
SAVING = "saving"
EVALUATION_INPUT_WAIT, EVALUATION_COMPUTE = "evaluation_input_wait", "evaluation_compute"
HOST = "host"
KINDS = (INPUT_WAIT, COMPUTE, SAVING, EVALUATION_INPUT_WAIT, EVALUATION_COMPUTE, HOST)
LOG_KEY = "tracked_stats"
"""The event of MLPerf logs that takes figures of one's own; the checkers leave it alone."""
_COMPUTING = (COMPUTE, EVALUATION_COMPUTE)

Seconds = dict[str, float]
"""Kind -> seconds, for every one of `KINDS`."""


class Ledger:
    """Divides the seconds from its making to `stop` into kinds; host work is the kind by default.

    The sum over the kinds is the time that has passed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        """`clock` returns seconds."""
        self._clock = clock
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._kind = HOST
        self._since: float | None = clock()

    @contextlib.contextmanager
    def counting(self, kind: str) -> Iterator[None]:
        """Counts the time inside as `kind`, apart from what an inner one counts."""
        outer = self._switch(kind)
        try:
            yield
        finally:
            self._switch(outer)

    def waiting(self, items: Iterable) -> Iterator:
        """Draws items from an input; the time until each counts as an evaluation's waiting."""
        end = object()
        # Making the iterator counts too: it opens files.
        with self.counting(EVALUATION_INPUT_WAIT):
            iterator = iter(items)
        while True:
            with self.counting(EVALUATION_INPUT_WAIT):
                item = next(iterator, end)
            if item is end:
                return
            yield item

    def move(self, seconds: float, *, source: str, to: str) -> None:
        """Moves seconds to another kind: they were measured apart, by a clock of its own.

        At most what `source` has is moved, and nothing if the clock ran backwards.
        """
        # Time that has passed until now may be of `source`: it is counted first.
        self._switch(self._kind)
        moved = min(max(seconds, 0.0), self._seconds[source])
        self._seconds[source] -= moved
        self._seconds[to] += moved

    def read(self) -> Seconds:
        """The seconds so far, or until `stop`."""
        self._switch(self._kind)
        return dict(self._seconds)

    def stop(self) -> None:
        """Ends it: later time is not counted. Further calls do nothing."""
        self._switch(self._kind)
        self._since = None

    def _switch(self, kind: str) -> str:
        """Counts the time since the last switch, and returns the kind that it counted as."""
        if self._since is not None:
            now = self._clock()
            self._seconds[self._kind] += now - self._since
            self._since = now
        before, self._kind = self._kind, kind
        return before


def difference(later: Seconds, earlier: Seconds) -> Seconds:
    """What was spent between two readings."""
    return {kind: later[kind] - earlier[kind] for kind in KINDS}


def accelerator_utilization(seconds: Seconds) -> float:
    """The share of the time in which the accelerator computes, 0 to 1; 0 of no time."""
    total = sum(seconds.values())
    return sum(seconds[kind] for kind in _COMPUTING) / total if total else 0.0


def as_fields(seconds: Seconds) -> dict[str, float]:
    """Kind -> seconds as fields of a file: `input_wait_seconds` and so on."""
    return {f"{kind}_seconds": seconds[kind] for kind in KINDS}


def from_fields(fields: object) -> Seconds | None:
    """Reads what `as_fields` made; None if it is something else."""
    if not isinstance(fields, Mapping):
        return None
    seconds: Seconds = {}
    # All kinds or none: other programs use this key for events of their own.
    for kind in KINDS:
        value = fields.get(f"{kind}_seconds")
        if not isinstance(value, int | float) or not 0 <= value < math.inf:
            return None
        seconds[kind] = float(value)
    return seconds


def in_words(seconds: Seconds) -> str:
    """One line: the kinds from the largest on, with their shares."""
    total = sum(seconds.values())
    if not total:
        return "no time was spent"
    ordered = sorted(KINDS, key=lambda kind: -seconds[kind])
    shares = ", ".join(
        f"{kind.replace('_', ' ')} {seconds[kind]:.4g} s ({seconds[kind] / total:.1%})"
        for kind in ordered
        if seconds[kind]
    )
    return f"{shares}; accelerator utilization {accelerator_utilization(seconds):.1%}"
