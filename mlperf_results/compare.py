"""Says which of two groups of runs, A or B, is faster, by how much, and how sure that is.

    python -m mlperf_results.compare A B

A and B are what runs.py finds: logs, output directories of runs, campaigns, folders of runs,
vendors' folders; or names of published results, ROUND/ORG/SYSTEM.

Each figure is a ratio B/A of geometric means of the runs, with a 95% interval by scipy's t on
logarithms, because run times scatter by a factor. Percentages are of A's figure: "4.1% faster" is
4.1% fewer minutes, or 4.1% more samples/s. Each interval covers one figure: with three figures, up
to one comparison in seven of equal systems shows a difference. So the exit code depends on a single
figure, --figure.

Exit codes: 0 compared; with --fail_if_slower: not slower by so much, the interval excludes it.
1 bad input. 3 slower by so much or more, and the interval excludes that nothing changed.
4 cannot tell: more runs are needed.
"""

import argparse
import math
import re
import statistics
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import expanded_arguments
from mlperf_bert.submission.runs import far_off, in_words
from mlperf_results.sides import (
    MACHINE,
    SAMPLES_PER_SECOND,
    SAMPLES_TO_CONVERGE,
    TIME_TO_TRAIN,
    Side,
    read_side,
)

EXIT_SLOWER = 3
EXIT_CANNOT_TELL = 4
LEVEL = 0.95
_LEAST_SCATTER = 1e-5
"""Figures that differ by less are equal: stamps are rounded to milliseconds, for instance."""
_MOST_DIFFERENCES_SHOWN = 8
_MANY_TIMES = 2
"""From this ratio on, "times" replaces percentages."""


@dataclass(frozen=True)
class Figure:
    """A figure that is compared, and its words."""

    key: str
    label: str
    unit: str
    if_less: str
    """The words for B if its figure is the smaller one; {} is the percentage."""
    if_more: str


FIGURES = (
    Figure(TIME_TO_TRAIN, "time to train", "minutes", "is {} faster", "is {} slower"),
    Figure(
        SAMPLES_TO_CONVERGE,
        "samples to converge",
        "samples",
        "needs {} fewer samples",
        "needs {} more samples",
    ),
    Figure(SAMPLES_PER_SECOND, "samples/s", "samples/s", "is {} slower", "is {} faster"),
)


@dataclass(frozen=True, kw_only=True)
class Change:
    """How one figure differs between A and B."""

    figure: Figure
    a: float
    """The geometric mean of A's runs."""
    b: float
    interval: tuple[float, float] | None
    """95%, of the ratio; None if the runs allow none."""
    verdict: str
    """A sentence, subject first."""

    @property
    def ratio(self) -> float:
        """B/A."""
        return self.b / self.a

    def __str__(self) -> str:
        label, unit = self.figure.label, self.figure.unit
        text = f"{label}: {_in_digits(self.a)} -> {_in_digits(self.b)}"
        if unit not in (label, "samples"):
            text += f" {unit}"
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
    """One for each figure, in the order of FIGURES."""
    not_compared: tuple[str, ...]
    """A line about each figure that both have but that cannot be compared, with the reason."""

    def change_of(self, key: str) -> Change:
        """Returns the change of a figure.

        Raises:
          ValueError: it is not compared; says why.
        """
        for change in self.changes:
            if change.figure.key == key:
                return change
        [label] = [figure.label for figure in FIGURES if figure.key == key]
        why = [line for line in self.not_compared if line.startswith(label)]
        raise ValueError(why[0] if why else f"{label}: A or B does not have it; choose --figure")

    def lines(self) -> list[str]:
        """Returns the comparison for a terminal."""
        a, b = self.a, self.b
        lines = [_about("A", a), _about("B", b), *_far_off("A", a), *_far_off("B", b)]
        recorded = sorted(a.made_on.keys() & b.made_on.keys())
        unlike = {
            name: f"{name}: {' or '.join(a.made_on[name])[:60]} -> "
            f"{' or '.join(b.made_on[name])[:60]}"
            for name in recorded
            if set(a.made_on[name]) != set(b.made_on[name])
        }
        # Said first: a comparison on two hosts also compares the hosts.
        if others := [unlike.pop(name) for name in MACHINE if name in unlike]:
            lines.append("DIFFERENT HOSTS, which may explain the differences below:")
            lines += [f"  {line}" for line in others]
        elif not set(recorded) & set(MACHINE):
            lines.append("on which hosts they ran is not recorded of both")
        if tasks := [f"{name}: {a.task[name]} -> {b.task[name]}" for name in _other_task(a, b)]:
            lines.append(f"ANOTHER TASK: {'; '.join(tasks)}")
        lines += [f"different {line}" for line in list(unlike.values())[:_MOST_DIFFERENCES_SHOWN]]
        if (more := len(unlike) - _MOST_DIFFERENCES_SHOWN) > 0:
            lines.append(f"and {more} more differences")
        lines += [f"  {line}" for line in (*self.changes, *self.not_compared)]
        if any(change.interval for change in self.changes):
            lines.append("  95% intervals of B/A by Welch's t on logarithms")
            if min(len(a.runs), len(b.runs)) == 1:
                lines[-1] += ", as if the single run scattered as the others do"
        return lines


def compare(a: Side, b: Side) -> Comparison:
    """Compares two sides, with one run or more each."""
    _require_comparable(a, b)
    divisions = {side.task.get("division") for side in (a, b)} - {None}
    changes, not_compared = [], []
    for figure in FIGURES:
        of_a, of_b = (
            np.array([run[figure.key] for run in side.runs.values() if figure.key in run])
            for side in (a, b)
        )
        if not of_a.size or not of_b.size:
            continue
        # An open run may have another target or model; only its rate can be compared.
        if figure.key != SAMPLES_PER_SECOND and len(divisions) > 1:
            words = f"{a.task['division']} and {b.task['division']}"
            not_compared.append(f"{figure.label}: not compared, the divisions differ ({words})")
        else:
            changes.append(_change(figure, of_a, of_b))
    if not changes:
        raise ValueError(f"{a.name} and {b.name} have no figure in common: nothing to compare")
    return Comparison(a=a, b=b, changes=tuple(changes), not_compared=tuple(not_compared))


def _other_task(a: Side, b: Side) -> list[str]:
    return [name for name in a.task if name in b.task and a.task[name] != b.task[name]]


def _require_comparable(a: Side, b: Side) -> None:
    measured = [
        sorted((run[TIME_TO_TRAIN], run.get(SAMPLES_PER_SECOND, 0)) for run in side.runs.values())
        for side in (a, b)
    ]
    # Resubmitted results share logs: every interval would contain "no change", and mean nothing.
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


def intervals_of_logarithms(a: np.ndarray, b: np.ndarray) -> Any:
    """Returns the 95% intervals of log(B) - log(A), with their ends `low` and `high`.

    Args:
      a, b: positive figures, [..., runs]; thousands of groups can be asked about at once.

    The ends are NaN or equal where the runs do not scatter.
    """
    # A single run adds nothing to the pooled variance: it is assumed to scatter as the group. With
    # more runs Welch's test is used, because two systems may scatter differently.
    is_single = min(a.shape[-1], b.shape[-1]) == 1
    test = stats.ttest_ind(np.log(b), np.log(a), axis=-1, equal_var=is_single)
    return test.confidence_interval(LEVEL)


def _interval(a: np.ndarray, b: np.ndarray) -> tuple[float, float] | None:
    # Equal figures, such as counts of samples, do not show how they would scatter.
    if len(a) == len(b) == 1 or max(np.ptp(np.log(x)) for x in (a, b)) < _LEAST_SCATTER:
        return None
    # scipy warns of figures that are nearly equal.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        ends = intervals_of_logarithms(a, b)
    low, high = np.exp(np.clip(ends, -700, 700))  # larger powers would overflow
    return float(low), float(high)


def _change(figure: Figure, of_a: np.ndarray, of_b: np.ndarray) -> Change:
    interval = _interval(of_a, of_b)
    # Geometric means: run times scatter by a factor, and B/A is then its interval's middle.
    a, b = (math.exp(np.log(values).mean()) for values in (of_a, of_b))
    if interval is None:
        verdict = "no interval, so no verdict: the figures of each are equal"
        if len(of_a) == len(of_b) == 1:
            verdict = "one run of each: no interval, so no verdict; two of each are the least"
    elif interval[0] <= 1 <= interval[1]:
        verdict = "not distinguishable"
    else:
        verdict = _difference_in_words(figure, b / a, *interval)
    return Change(figure=figure, a=a, b=b, interval=interval, verdict=verdict)


def _difference_in_words(figure: Figure, ratio: float, low: float, high: float) -> str:
    if ratio >= _MANY_TIMES:
        words = figure.if_more.format("much")
        return f"B {words}: {ratio:.3g} times A's {figure.unit} ({low:.3g} to {high:.3g})"
    # Percent of A's figure, without a sign: the words give the direction.
    ends = sorted((abs(low - 1), abs(high - 1)))
    words = (figure.if_less if ratio < 1 else figure.if_more).format(f"{abs(ratio - 1):.1%}")
    return f"B {words} ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})"


def _about(label: str, side: Side) -> str:
    runs = f"{len(side.runs)} {'run' if len(side.runs) == 1 else 'runs'}"
    if side.left_out:
        runs += f", {len(side.left_out)} left out ({in_words(side.left_out)})"
    if side.unknown:
        runs += f"; {side.unknown}"
    return f"{label}: {side.name}: {runs}"


def _far_off(label: str, side: Side) -> Iterator[str]:
    """A line about each run with a figure far from those of the others of its side."""
    named: dict[str, str] = {}
    for figure in FIGURES:
        values = {name: run[figure.key] for name, run in side.runs.items() if figure.key in run}
        unit = " minutes" if figure.unit == "minutes" else ""
        for name in far_off(values):
            median = _in_digits(statistics.median(values.values()))
            words = f"{figure.label} {_in_digits(values[name])}{unit}, the median is {median}"
            named.setdefault(name, words)
    for name, words in named.items():
        yield f"FAR OFF in {label}: {name}: {words}"


def _ratio(value: float) -> str:
    return f"{value:.3f}" if 0.01 < value < 100 else f"{value:.2g}"


def _in_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def judge(change: Change, threshold: float) -> tuple[int, str]:
    """Returns the exit code and its words; a threshold of 0.03 is 3%."""
    asked = f"verdict on {change.figure.label}, slower by {100 * threshold:.3g}% or more"
    if change.interval is None:
        return EXIT_CANNOT_TELL, f"{asked}: cannot tell, there is no interval"
    # The threshold is a share of A's figure: minutes rise, samples/s fall.
    sign = -1 if change.figure.key == SAMPLES_PER_SECOND else 1
    slowdown = sign * (change.ratio - 1)
    ends = sorted(sign * (end - 1) for end in change.interval)
    # B is surely slower, and probably by so much; the interval may include smaller losses.
    if slowdown >= threshold and ends[0] > 0:
        return EXIT_SLOWER, f"{asked}: yes"
    if ends[1] < threshold:
        return 0, f"{asked}: no"
    return EXIT_CANNOT_TELL, f"{asked}: cannot tell, more runs are needed"


def share_of(text: str) -> float:
    """Returns the share that a percentage says, for argparse."""
    match = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)%", text, re.ASCII)
    if not match or not 0 < float(match[1]) < 100:
        raise argparse.ArgumentTypeError(f"{text!r}: give a percentage, such as 3%")
    return float(match[1]) / 100


@ends_in_one_line("compare")
def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a comparison; returns the exit code that the module lists."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_results.compare")
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    parser.add_argument(
        "--fail_if_slower", type=share_of, metavar="3%", help="exit code 3 if B is, 4 if unknown"
    )
    parser.add_argument(
        "--figure", choices=(TIME_TO_TRAIN, SAMPLES_PER_SECOND), default=TIME_TO_TRAIN,
        help="the one on which --fail_if_slower rests",
    )  # fmt: skip
    options = parser.parse_args(expanded_arguments(arguments))
    compared = compare(read_side(options.a), read_side(options.b))
    code, words = 0, ""
    if options.fail_if_slower:
        code, words = judge(compared.change_of(options.figure), options.fail_if_slower)
    print("\n".join(filter(None, [*compared.lines(), words])))
    return code


if __name__ == "__main__":
    sys.exit(main())
