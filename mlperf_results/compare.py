"""A or B: which of two groups of runs is faster, by how much, and how sure that is.

    python -m mlperf_results.compare A B

A and B are what run_logs.py finds: logs, output directories of runs, campaigns, folders of runs,
vendors' folders; or names of published results, ROUND/ORG/SYSTEM. A campaign
whose runs alternate holds both: give it alone.

    python -m mlperf_results.compare A --write_baseline=baseline.json
    python -m mlperf_results.compare B --baseline=baseline.json --fail_if_slower=3%

Each figure is a ratio B/A of geometric means of the runs, with a 95% interval (intervals.py).
Percentages are of A's figure: "4.1% faster" is 4.1% fewer minutes, or 4.1% more samples/s. Each
interval is for itself: of three figures of equal systems, up to one comparison in seven has one
that looks different. The exit code rests on one figure alone, --figure.

Exit codes: 0 compared; with --fail_if_slower: not slower by so much, the interval excludes it.
1 bad input. 3 slower by so much or more, and the interval excludes that nothing changed.
4 cannot tell: more runs are needed.
"""

import argparse
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.logs import in_words
from mlperf_bert.options import words_with_home
from mlperf_bert.submission.run_logs import require_free
from mlperf_results import intervals
from mlperf_results.sides import (
    MACHINE,
    SAMPLES_PER_SECOND,
    SAMPLES_TO_CONVERGE,
    TIME_TO_TRAIN,
    Side,
    differing,
    read_alternating,
    read_baseline,
    read_side,
    write_baseline,
)

EXIT_SLOWER = 3
EXIT_CANNOT_TELL = 4
DIFFERENCE = 0.03
"""That a number of further runs would tell, unless --fail_if_slower names another."""
_MOST_DIFFERENCES_SHOWN = 8
_MANY_TIMES = 2
"""Percentages are of no help from there on."""


@dataclass(frozen=True)
class Figure:
    """What is compared, and how it is spoken of."""

    key: str
    label: str
    unit: str
    if_less: str
    """What B is or does if its figure is the smaller one; {} is the percentage."""
    if_more: str
    by_samples: bool = False
    """Whether it is told of a million samples, in place of a run."""

    def of(self, run: Mapping[str, float]) -> float | None:
        """Return that of a run; None if it has none."""
        value = run.get(self.key)
        return value and value * (1e6 / run[SAMPLES_TO_CONVERGE] if self.by_samples else 1)


FIGURES = {
    words[0]: Figure(*words)
    for words in (
        (TIME_TO_TRAIN, "time to train", "minutes", "is {} faster", "is {} slower"),
        (SAMPLES_TO_CONVERGE, "samples to converge", "samples",
         "needs {} fewer samples", "needs {} more samples"),
        (SAMPLES_PER_SECOND, "samples/s", "samples/s", "is {} slower", "is {} faster"),
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Change:
    """How one figure, or one part of the time, differs between A and B."""

    figure: Figure
    a: float
    """The geometric mean of A's runs; arithmetic where one of the runs has none of it."""
    b: float
    interval: tuple[float, float] | None
    """95%, of the ratio; None if the runs allow none."""
    num_runs: tuple[int, int]
    """Of A and of B that have the figure."""
    method: str
    """What the interval was computed by."""
    verdict: str
    """In words, subject first."""

    @property
    def ratio(self) -> float | None:
        """B/A; None if A has none of it."""
        return self.b / self.a if self.a else None

    @property
    def is_told(self) -> bool:
        """Whether the interval excludes that nothing changed."""
        return self.interval is not None and not self.interval[0] <= 1 <= self.interval[1]

    def __str__(self) -> str:
        label, unit = self.figure.label, self.figure.unit
        text = f"{label}: {number_in_words(self.a)} -> {number_in_words(self.b)}"
        if unit not in (label, "samples") and not unit.startswith("s per"):
            text += f" {unit}"
        if self.ratio is not None:
            text += f", B/A {_ratio(self.ratio)}"
        if self.interval:
            text += " ({} to {})".format(*map(_ratio, self.interval))
        return f"{text}: {self.verdict}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A against B."""

    a: Side
    b: Side
    changes: tuple[Change, ...]
    """In the order of FIGURES."""
    parts: tuple[Change, ...]
    """Of the time, the largest change first."""
    not_compared: tuple[str, ...]
    """A line about each figure that both have and that cannot be compared, with the reason."""

    def change_of(self, figure: str) -> Change:
        """Return the change of a figure.

        Raises:
          ValueError: it is not compared; says why.
        """
        for change in self.changes:
            if change.figure.key == figure:
                return change
        label = FIGURES[figure].label
        why = [line for line in self.not_compared if line.startswith(label)]
        raise ValueError(why[0] if why else f"{label}: A or B does not have it; choose --figure")

    def lines(self) -> list[str]:
        """Return the comparison for a terminal."""
        a, b = self.a, self.b
        recorded = a.made_on.keys() & b.made_on.keys()
        lines = [_about("A", a), _about("B", b)]
        # First: a comparison on two hosts also compares the hosts.
        if others := differing(a, b, [name for name in MACHINE if name in recorded]):
            lines.append("ON OTHER HOSTS, to which differences below may be due:")
            lines += [f"  {line}" for line in others]
        elif not recorded & set(MACHINE):
            lines.append("on which hosts they ran is not recorded of both")
        if tasks := [f"{name}: {a.task[name]} -> {b.task[name]}" for name in _other_task(a, b)]:
            lines.append(f"ANOTHER TASK: {'; '.join(tasks)}")
        unlike = differing(a, b, sorted(recorded - set(MACHINE)))
        lines += [f"unlike in {line}" for line in unlike[:_MOST_DIFFERENCES_SHOWN]]
        if (more := len(unlike) - _MOST_DIFFERENCES_SHOWN) > 0:
            lines.append(f"unlike in {more} more")
        lines += [f"  {line}" for line in (*self.changes, *self.not_compared)]
        lines += _methods("  ", self.changes)
        if self.parts:
            unit = self.parts[0].figure.unit
            lines.append(f"  where the seconds went, {unit}, largest change first:")
            lines += [f"    {part}" for part in self.parts]
            lines += _methods("    ", self.parts)
        return lines


def compare(a: Side, b: Side, *, difference: float = DIFFERENCE) -> Comparison:
    """Compare two sides.

    Args:
      a, b: with one run or more each.
      difference: relative, which a number of further runs would tell.

    Raises:
      ValueError: they are the same runs, or of tasks that cannot be compared.
    """
    _require_comparable(a, b)
    changes, not_compared = [], []
    for figure in FIGURES.values():
        if change := _change(figure, a, b, difference):
            why = _why_not(figure.key, a, b)
            if why:
                not_compared.append(f"{figure.label}: not compared, {why}")
            else:
                changes.append(change)
    if not changes:
        raise ValueError(f"{a.name} and {b.name} have no figure in common: nothing to compare")
    parts = [part for each in _parts_of(a, b) if (part := _change(each, a, b, difference))]
    return Comparison(
        a=a,
        b=b,
        changes=tuple(changes),
        parts=tuple(sorted(parts, key=lambda part: -abs(part.b - part.a))),
        not_compared=tuple(not_compared),
    )


def _other_task(a: Side, b: Side) -> list[str]:
    return [name for name in a.task if name in b.task and a.task[name] != b.task[name]]


def _require_comparable(a: Side, b: Side) -> None:
    measured = [
        sorted((run[TIME_TO_TRAIN], run.get(SAMPLES_PER_SECOND, 0)) for run in side.runs.values())
        for side in (a, b)
    ]
    # As resubmitted results do: every interval would hold "no change", and mean nothing.
    if measured[0] == measured[1]:
        raise ValueError(
            f"{a.name} and {b.name} are the same runs, time for time; give those of two systems"
        )
    for name in _other_task(a, b):
        # A sample of another length, or through another model, is other work.
        if name in ("benchmark", "tokens", "weights"):
            raise ValueError(
                f"A and B differ in {name} ({a.task[name]} and {b.task[name]}): a sample of one is "
                "not the work of a sample of the other; compare runs of one task"
            )


def _why_not(figure: str, a: Side, b: Side) -> str:
    # An open run may have another target or model; its rate is still its rate.
    if figure != SAMPLES_PER_SECOND and "division" in _other_task(a, b):
        return f"the divisions differ ({a.task['division']} and {b.task['division']})"
    return ""


def _parts_of(a: Side, b: Side) -> list[Figure]:
    """Return the parts of the ledger as figures: of a million samples, or of a run."""
    # Runs need different numbers of samples: of so many a second says more than of a run.
    timed = [run for side in (a, b) for run in side.runs.values() if run.keys() & {*ledger.KINDS}]
    by_samples = all(SAMPLES_TO_CONVERGE in run for run in timed)
    unit = "s per million samples" if by_samples else "s per run"
    words = unit, "spends {} less", "spends {} more"
    return [Figure(kind, kind.replace("_", " "), *words, by_samples) for kind in ledger.KINDS]


def _values(figure: Figure, a: Side, b: Side) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return a figure of the runs of both, and whether they are pairs, in the same order."""
    of_a, of_b = (
        {name: value for name, run in side.runs.items() if (value := figure.of(run)) is not None}
        for side in (a, b)
    )
    both = [name for name in of_a if name in of_b]
    alternate = a.alternates_in is not None and a.alternates_in == b.alternates_in
    if pairs := alternate and len(both) >= intervals.LEAST_PAIRS:
        of_a, of_b = ({name: values[name] for name in both} for values in (of_a, of_b))
    return np.array([*of_a.values()]), np.array([*of_b.values()]), pairs


def _change(figure: Figure, a: Side, b: Side, difference: float) -> Change | None:
    """Return how a figure differs; None if no run of one side has it."""
    of_a, of_b, pairs = _values(figure, a, b)
    if not of_a.size or not of_b.size or not (of_a.any() or of_b.any()):
        return None
    interval, method = intervals.of_ratio(of_a, of_b, pairs=pairs)
    # Geometric: run times scatter by a factor, and then B/A is the middle of its interval.
    if min(of_a.min(), of_b.min()) > 0:
        mean_a, mean_b = (math.exp(np.log(values).mean()) for values in (of_a, of_b))
    else:
        mean_a, mean_b = of_a.mean(), of_b.mean()
    if interval is None:
        verdict = "no interval, so no verdict: these runs do not scatter"
        if len(of_a) == len(of_b) == 1:
            verdict = "one run of each: no interval, so no verdict; two of each are the least"
    elif interval[0] <= 1 <= interval[1]:
        count = intervals.more_runs(of_a, of_b, difference=difference, pairs=pairs)
        verdict = f"not distinguishable: {_runs_in_words(count, difference)}"
    else:
        verdict = _difference_in_words(figure, mean_b / mean_a, *interval)
    return Change(
        figure=figure,
        a=mean_a,
        b=mean_b,
        interval=interval,
        num_runs=(len(of_a), len(of_b)),
        method=method,
        verdict=verdict,
    )


def _difference_in_words(figure: Figure, ratio: float, low: float, high: float) -> str:
    if ratio >= _MANY_TIMES:
        words = figure.if_more.format("much")
        return f"B {words}: {ratio:.3g} times A's {figure.unit} ({low:.3g} to {high:.3g})"
    # Of A's figure, without a sign: the words say the direction.
    ends = sorted((abs(low - 1), abs(high - 1)))
    words = (figure.if_less if ratio < 1 else figure.if_more).format(f"{abs(ratio - 1):.1%}")
    return f"B {words} ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})"


def _runs_in_words(count: int | None, difference: float) -> str:
    told = f"{100 * difference:.3g}%"
    if count is None:
        return f"not even 1,000 more runs of each would tell {told}"
    if count == 0:
        return f"a difference of {told} would most likely have shown"
    runs = "1 more run" if count == 1 else f"{count} more runs"
    return f"{runs} of each would tell a difference of {told}"


def _methods(indent: str, changes: Sequence[Change]) -> list[str]:
    methods = dict.fromkeys(
        change.method
        + (f", {change.num_runs[0]} pairs" if change.method == intervals.PAIRED else "")
        for change in changes
        if change.interval
    )
    return [f"{indent}95% intervals of B/A by {'; '.join(methods)}"] if methods else []


def _about(label: str, side: Side) -> str:
    runs = f"{len(side.runs)} {'run' if len(side.runs) == 1 else 'runs'}"
    if side.left_out:
        runs += f", {len(side.left_out)} left out ({in_words(side.left_out)})"
    if side.unknown:
        runs += f"; {side.unknown}"
    return f"{label}: {side.name}: {runs}"


def _ratio(value: float) -> str:
    return f"{value:.3f}" if 0.01 < value < 100 else f"{value:.2g}"


def number_in_words(value: float) -> str:
    """Return a figure with four digits, or whole with commas."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def judge(change: Change, threshold: float) -> tuple[int, str]:
    """Return the exit code and its words; 0.03 is a threshold of 3%."""
    asked = f"verdict on {change.figure.label}, slower by {100 * threshold:.3g}% or more"
    if change.interval is None:
        return EXIT_CANNOT_TELL, f"{asked}: cannot tell, there is no interval"
    # Of A's figure: minutes rise, samples/s fall.
    sign = -1 if change.figure.key == SAMPLES_PER_SECOND else 1
    slowdown = sign * (change.b / change.a - 1)
    ends = sorted(sign * (end - 1) for end in change.interval)
    # Surely slower, and most likely by so much; the interval need not exclude less.
    if slowdown >= threshold and ends[0] > 0:
        return EXIT_SLOWER, f"{asked}: yes"
    if ends[1] < threshold:
        return 0, f"{asked}: no"
    return EXIT_CANNOT_TELL, f"{asked}: cannot tell, more runs are needed"


def share_of(text: str) -> float:
    """Return the share that a percentage says, for argparse."""
    match = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)%", text, re.ASCII)
    if not match or not 0 < float(match[1]) < 100:
        raise argparse.ArgumentTypeError(f"{text!r}: give a percentage, such as 3%")
    return float(match[1]) / 100


def _sides(given: argparse.Namespace) -> tuple[Side, Side]:
    names: Sequence[str] = given.sides
    # The folder of alternating campaigns holds both.
    if given.baseline is None and len(names) == 1:
        names = read_alternating(names[0]) or names
    if len(names) + (given.baseline is not None) != 2:
        raise ValueError(
            f"{', '.join(names)}: give A and B, or B alone with --baseline=FILE, or A alone with "
            "--write_baseline=FILE"
        )
    first = read_baseline(given.baseline) if given.baseline else read_side(names[0])
    return first, read_side(names[-1])


@ends_in_one_line("compare")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print a comparison; return as the module says."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_results.compare")
    parser.add_argument("sides", nargs="+", metavar="A B")
    parser.add_argument("--baseline", help="A, from a file of --write_baseline")
    parser.add_argument("--write_baseline", metavar="FILE", help="write A there; compare nothing")
    parser.add_argument(
        "--fail_if_slower", type=share_of, metavar="3%", help="exit code 3 if B is, 4 if unknown"
    )
    parser.add_argument(
        "--figure", choices=(TIME_TO_TRAIN, SAMPLES_PER_SECOND), default=TIME_TO_TRAIN,
        help="the one on which --fail_if_slower rests",
    )  # fmt: skip
    given = parser.parse_args(words_with_home(arguments))
    if given.write_baseline:
        if len(given.sides) != 1 or given.baseline or given.fail_if_slower:
            raise ValueError("--write_baseline writes A: give it alone")
        with paths.reads() as inputs:
            side = read_side(given.sides[0])
        require_free({"--write_baseline": given.write_baseline}, inputs)
        write_baseline(side, given.write_baseline)
        print(f"{_about('A', side)}, in {given.write_baseline}")
        return 0
    a, b = _sides(given)
    compared = compare(a, b, difference=given.fail_if_slower or DIFFERENCE)
    if not given.fail_if_slower:
        print("\n".join(compared.lines()))
        return 0
    code, words = judge(compared.change_of(given.figure), given.fail_if_slower)
    print("\n".join([*compared.lines(), words]))
    return code


if __name__ == "__main__":
    sys.exit(main())
