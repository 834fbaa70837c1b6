"""The parts of a training step as one table: what they compute and move, need at least, and take.

An operation is bounded by its products at the speed of a plain product, by its bytes at the
bandwidth of the memory, or by a launch, whichever takes longest. roofline.py has operations that
were measured, compiled_roofline.py kernels that have not run.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

_TITLES = ("part", "operations", "GB", "TFLOP", "ms by bytes", "ms by products", "bound, ms")
_MEASURED = ("measured, ms", "remains, ms")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speeds:
    """What a device does in a second."""

    flop: float
    num_bytes: float
    launch_seconds: float = 0.0
    """The least that an operation takes."""


@dataclasses.dataclass(kw_only=True)
class Operation:
    """One operation of a step, or one kernel."""

    part: str
    """Of the step."""
    flop: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    """In one step, where it was measured."""

    def bound(self, speeds: Speeds) -> float:
        """The seconds that it needs at least."""
        limits = (self.flop / speeds.flop, self.num_bytes / speeds.num_bytes)
        return max(*limits, speeds.launch_seconds)


def by_part(operations: Iterable[Operation], speeds: Speeds) -> dict[str, list[float]]:
    """Sums over the operations of each part: the columns of the table, bound and measured in ms."""
    sums: dict[str, list[float]] = collections.defaultdict(lambda: [0.0] * 8)
    for each in operations:
        bound = 1e3 * each.bound(speeds)
        by_bytes, by_products = each.num_bytes / speeds.num_bytes, each.flop / speeds.flop
        row = [1, each.num_bytes / 1e9, each.flop / 1e12, 1e3 * by_bytes, 1e3 * by_products, bound]
        # What a cache keeps is read faster than by the memory: then less than nothing remains.
        row += [1e3 * each.seconds, 1e3 * each.seconds - bound]
        sums[each.part] = [old + new for old, new in zip(sums[each.part], row)]
    return dict(sums)


def table(programs: Sequence[Iterable[Operation]], speeds: Speeds, *, measured: bool) -> list[str]:
    """Rows of Markdown: the parts, the longest first; cells of two programs are `2 → 1`."""
    sums = [by_part(each, speeds) for each in programs]
    longest = 6 if measured else 5
    nothing = [0.0] * 8
    ordered = sorted(
        {part for each in sums for part in each},
        key=lambda part: -max(each.get(part, nothing)[longest] for each in sums),
    )
    totals = [[sum(column) for column in zip(*each.values())] for each in sums]
    titles = _TITLES + _MEASURED * measured
    formats = ("{:.0f}", "{:.1f}", "{:.2f}", *["{:.1f}"] * (len(titles) - 4))
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for part in [*ordered, "all"]:
        rows = totals if part == "all" else [each.get(part, nothing) for each in sums]
        columns = zip(formats, zip(*rows))
        cells = [" → ".join(map(spec.format, column)) for spec, column in columns]
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return lines
