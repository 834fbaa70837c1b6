"""A or B: which of two groups of runs is faster, by how much, and how sure that is.

    python -m mlperf_results.compare A B

(`nearest.py` is something else: which published results a system is shown beside.) A and B are
what run_logs.py finds: logs, metrics.jsonl, output directories of runs, campaigns, folders of runs,
vendors' folders; or names of published results, ROUND/ORG/SYSTEM. A campaign whose runs alternate
holds both: give it alone.

    python -m mlperf_results.compare A --write_baseline=baseline.json
    python -m mlperf_results.compare B --baseline=baseline.json --fail_if_slower=3%

Each figure is a ratio B/A of means of the runs, with a 95% interval. Percentages are of A's figure:
"4.1% faster" is 4.1% fewer minutes, or 4.1% more samples/s. The methods (intervals.py):

- Welch's t on logarithms, for two groups of two runs or more.
- paired t on log ratios, for runs that alternated, from three pairs on.
- of one run against a group, Student's t with the group's scatter for both; of one run against one
  nothing but the ratio.
- the studentized bootstrap of the ratio of means, for the parts of the time, which add up to the
  whole; from five runs of each on. No verdict of the exit code rests on it.

Each interval is for itself: of four figures of equal systems, up to one comparison in five has one
that looks different. The exit code rests on one figure alone, --figure.

Exit codes: 0 compared; with --fail_if_slower: not slower by so much, the interval excludes it.
1 bad input. 3 slower by so much or more, and the interval excludes that nothing changed.
4 cannot tell: more runs are needed.
"""

import argparse
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.logs import in_words
from mlperf_bert.submission.run_logs import require_free
from mlperf_results import intervals
from mlperf_results.sides import (
    MACHINE,
    Run,
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
TIME_TO_TRAIN, SAMPLES_PER_SECOND = "time_to_train", "samples_per_second"
_MOST_DIFFERENCES_SHOWN = 8
_MANY_TIMES = 2
"""Percentages are of no help from there on."""


@dataclass(frozen=True)
class Figure:
    """What is compared, and how it is spoken of."""

    label: str
    unit: str
    of: Callable[[Run], float | None]
    if_less: str
    """What B is or does if its figure is the smaller one; {} is the percentage."""
    if_more: str


FIGURES = {
    TIME_TO_TRAIN: Figure(
        "time to train", "minutes", lambda run: run.minutes, "is {} faster", "is {} slower"
    ),
    "samples_to_converge": Figure(
        "samples to converge",
        "samples",
        lambda run: run.samples_to_converge,
        "needs {} fewer samples",
        "needs {} more samples",
    ),
    SAMPLES_PER_SECOND: Figure(
        "samples/s",
        "samples/s",
        lambda run: run.samples_per_second,
        "is {} slower",
        "is {} faster",
    ),
    "energy": Figure(
        "energy",
        "kWh",
        lambda run: run.joules and run.joules / 3.6e6,
        "takes {} less energy",
        "takes {} more energy",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """How one figure, or one part of the time, differs between A and B."""

    figure: str
    """A key of FIGURES, or a kind of the ledger."""
    unit: str
    a: float
    """The mean of A's runs, geometric for figures and arithmetic for parts of the time."""
    b: float
    ratio: float | None
    """b / a; None if a is 0."""
    interval: tuple[float, float] | None
    """95%, of the ratio; None if the runs allow none."""
    num_runs: tuple[int, int]
    """Of A and of B that have the figure."""
    method: str
    """What the interval was computed by."""
    verdict: str
    """In words, subject first."""

    @property
    def is_told(self) -> bool:
        """Whether the interval excludes that nothing changed."""
        return self.interval is not None and not self.interval[0] <= 1 <= self.interval[1]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A against B: everything that is printed, as values."""

    a: Side
    b: Side
    changes: tuple[Change, ...]
    """In the order of FIGURES."""
    parts: tuple[Change, ...]
    """Of the time, the largest change first."""
    not_compared: tuple[str, ...]
    """A line about each figure that both have and that cannot be compared, with the reason."""
    other_machine: tuple[str, ...]
    """How the hardware differs, "NAME: OF A -> OF B"."""
    machine_is_known: bool
    """Whether anything of the hardware is recorded of both."""
    unlike: tuple[str, ...]
    """How software and flags differ."""
    task_differs: tuple[str, ...]

    def change_of(self, figure: str) -> Change:
        """Return the change of a figure.

        Raises:
          ValueError: it is not compared; says why.
        """
        if found := [change for change in self.changes if change.figure == figure]:
            return found[0]
        label = FIGURES[figure].label
        why = [line for line in self.not_compared if line.startswith(label)]
        raise ValueError(why[0] if why else f"{label}: A or B does not have it; choose --figure")


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
    for key, figure in FIGURES.items():
        of_a, of_b, pairs = _values(a, b, figure.of)
        if not of_a.size or not of_b.size:
            continue
        if why := _why_not(key, a, b):
            not_compared.append(f"{figure.label}: not compared, {why}")
            continue
        changes.append(_change(key, of_a, of_b, pairs=pairs, difference=difference))
    if not changes:
        raise ValueError(f"{a.name} and {b.name} have no figure in common: nothing to compare")
    known = [name for name in MACHINE if a.made_on.get(name) and b.made_on.get(name)]
    others = sorted((a.made_on.keys() & b.made_on.keys()) - set(MACHINE))
    return Comparison(
        a=a,
        b=b,
        changes=tuple(changes),
        parts=_parts(a, b),
        not_compared=tuple(not_compared),
        other_machine=tuple(differing(a, b, known)),
        machine_is_known=bool(known),
        unlike=tuple(differing(a, b, others)),
        task_differs=tuple(
            f"{name}: {a.task[name]} -> {b.task[name]}" for name in _differing_task(a, b)
        ),
    )


def _differing_task(a: Side, b: Side) -> list[str]:
    return [name for name in a.task if name in b.task and a.task[name] != b.task[name]]


def _require_comparable(a: Side, b: Side) -> None:
    measured = [
        sorted((run.minutes or 0, run.samples_per_second or 0) for run in side.runs)
        for side in (a, b)
    ]
    if measured[0] == measured[1]:
        raise ValueError(
            f"{a.name} and {b.name} are the same runs, time for time; give those of two systems"
        )
    for name in _differing_task(a, b):
        # A sample of another length, or through another model, is other work.
        if name in ("benchmark", "tokens", "weights"):
            raise ValueError(
                f"A and B differ in {name} ({a.task[name]} and {b.task[name]}): a sample of one is "
                "not the work of a sample of the other; compare runs of one task"
            )


def _why_not(figure: str, a: Side, b: Side) -> str:
    if figure == "energy":
        parts = [{run.measured_parts for run in side.runs if run.joules} for side in (a, b)]
        if parts[0] != parts[1] or len(parts[0]) > 1:
            return "not the same parts of the system were measured in all runs"
    if figure != SAMPLES_PER_SECOND and "division" in _differing_task(a, b):
        return f"the divisions differ ({a.task['division']} and {b.task['division']})"
    return ""


def _values(
    a: Side, b: Side, of: Callable[[Run], float | None]
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return a figure of the runs of both, and whether they are pairs, in the same order."""
    found: list[dict[str, float]] = []
    for side in (a, b):
        values = [(run.name, of(run)) for run in side.runs]
        found.append({name: value for name, value in values if value is not None})
    if a.alternates_in and a.alternates_in == b.alternates_in:
        both = [name for name in found[0] if name in found[1]]
        if len(both) >= intervals.LEAST_PAIRS:
            of_a, of_b = ([values[name] for name in both] for values in found)
            return np.array(of_a), np.array(of_b), True
    return np.array([*found[0].values()]), np.array([*found[1].values()]), False


def _change(key: str, a: np.ndarray, b: np.ndarray, *, pairs: bool, difference: float) -> Change:
    interval, method = _interval(a, b, pairs=pairs)
    mean_a, mean_b = np.log(a).mean(), np.log(b).mean()
    ratio = math.exp(mean_b - mean_a)
    return Change(
        figure=key,
        unit=FIGURES[key].unit,
        a=math.exp(mean_a),
        b=math.exp(mean_b),
        ratio=ratio,
        interval=interval,
        num_runs=(len(a), len(b)),
        method=method,
        verdict=_verdict(FIGURES[key], a, b, ratio, interval, pairs, difference),
    )


def _interval(
    a: np.ndarray, b: np.ndarray, *, pairs: bool
) -> tuple[tuple[float, float] | None, str]:
    """Return the interval of B/A, and its method."""
    if len(a) == len(b) == 1:
        return None, intervals.NO_INTERVAL
    if pairs:
        found, method = intervals.paired(a, b), intervals.PAIRED
    elif min(len(a), len(b)) > 1:
        found, method = intervals.welch(a, b), intervals.WELCH
    else:
        found, method = intervals.prediction(a, b), intervals.PREDICTION
    if np.isnan(found.low):
        return None, intervals.NO_INTERVAL
    low, high = np.exp(np.clip([found.low, found.high], -700, 700))  # no float is greater
    return (float(low), float(high)), method


def _verdict(
    figure: Figure,
    a: np.ndarray,
    b: np.ndarray,
    ratio: float,
    interval: tuple[float, float] | None,
    pairs: bool,
    difference: float,
) -> str:
    if interval is None:
        if len(a) == len(b) == 1:
            return "one run of each: no interval, so no verdict; two of each are the least"
        return "no interval, so no verdict: these runs do not scatter"
    low, high = interval
    if not low <= 1 <= high:
        if ratio >= _MANY_TIMES:
            words = figure.if_more.format("much")
            return f"B {words}: {ratio:.3g} times A's {figure.unit} ({low:.3g} to {high:.3g})"
        ends = sorted((abs(low - 1), abs(high - 1)))
        words = (figure.if_less if ratio < 1 else figure.if_more).format(f"{abs(ratio - 1):.1%}")
        return f"B {words} ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})"
    count = intervals.more_runs(a, b, difference=difference, pairs=pairs)
    told = f"{100 * difference:.3g}%"
    if count is None:
        return f"not distinguishable: not even 1,000 more runs of each would tell {told}"
    if count == 0:
        return f"not distinguishable: a difference of {told} would most likely have shown"
    runs = "1 more run" if count == 1 else f"{count} more runs"
    return f"not distinguishable: {runs} of each would tell a difference of {told}"


def _parts(a: Side, b: Side) -> tuple[Change, ...]:
    """Return the changes of the ledger's parts: of a million samples, or of a run."""
    by_samples = all(run.samples for side in (a, b) for run in side.runs if run.seconds)

    def seconds_of(kind: str) -> Callable[[Run], float | None]:
        def of(run: Run) -> float | None:
            if not run.seconds:
                return None
            return run.seconds[kind] * (1e6 / run.samples if by_samples and run.samples else 1)

        return of

    found = []
    for kind in ledger.KINDS:
        of_a, of_b, pairs = _values(a, b, seconds_of(kind))
        if of_a.size and of_b.size and (of_a.any() or of_b.any()):
            unit = "s per million samples" if by_samples else "s per run"
            found.append(_part(kind, unit, of_a, of_b, pairs=pairs))
    return tuple(sorted(found, key=lambda part: -abs(part.b - part.a)))


def _part(kind: str, unit: str, a: np.ndarray, b: np.ndarray, *, pairs: bool) -> Change:
    mean_a, mean_b = float(a.mean()), float(b.mean())
    interval = None
    # A part that some runs do not have at all is no factor of another.
    if min(len(a), len(b)) >= intervals.LEAST_RUNS_OF_BOOTSTRAP and min(a.min(), b.min()) > 0:
        estimate = intervals.bootstrap(a, b, pairs=pairs)
        interval = math.exp(estimate.low), math.exp(estimate.high)
    change = mean_b - mean_a
    verdict = f"B spends {number_in_words(abs(change))} s {'more' if change > 0 else 'less'}"
    if interval and interval[0] <= 1 <= interval[1]:
        verdict = "not distinguishable"
    return Change(
        figure=kind,
        unit=unit,
        a=mean_a,
        b=mean_b,
        ratio=mean_b / mean_a if mean_a else None,
        interval=interval,
        num_runs=(len(a), len(b)),
        method=intervals.BOOTSTRAP if interval else intervals.NO_INTERVAL,
        verdict=verdict,
    )


def lines(compared: Comparison) -> list[str]:
    """Return a comparison for a terminal."""
    found = [_about(label, side) for label, side in (("A", compared.a), ("B", compared.b))]
    if compared.other_machine:
        found.append("ON OTHER HOSTS, to which differences below may be due:")
        found += [f"  {line}" for line in compared.other_machine]
    elif not compared.machine_is_known:
        found.append("on which hosts they ran is not recorded of both")
    if compared.task_differs:
        found.append(f"ANOTHER TASK: {'; '.join(compared.task_differs)}")
    found += [f"unlike in {line}" for line in compared.unlike[:_MOST_DIFFERENCES_SHOWN]]
    if (more := len(compared.unlike) - _MOST_DIFFERENCES_SHOWN) > 0:
        found.append(f"unlike in {more} more")
    for change in compared.changes:
        found.append(f"  {_line(FIGURES[change.figure].label, change)}: {change.verdict}")
    found += [f"  {line}" for line in compared.not_compared]
    found += _methods("  ", compared.changes)
    if compared.parts:
        found.append(f"  where the seconds went, {compared.parts[0].unit}, largest change first:")
        for part in compared.parts:
            found.append(f"    {_line(part.figure.replace('_', ' '), part)}: {part.verdict}")
        found += _methods("    ", compared.parts)
    return found


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


def _line(label: str, change: Change) -> str:
    figures = f"{label}: {number_in_words(change.a)} -> {number_in_words(change.b)}"
    if change.unit not in (label, "samples") and not change.unit.startswith("s per"):
        figures += f" {change.unit}"
    return figures if change.ratio is None else f"{figures}, B/A {ratio_in_words(change)}"


def ratio_in_words(change: Change) -> str:
    """Return B/A with its interval, "0.945 (0.881 to 1.013)"; "-" if there is no ratio."""
    if change.ratio is None:
        return "-"
    words = _ratio(change.ratio)
    if change.interval:
        words += " ({} to {})".format(*map(_ratio, change.interval))
    return words


def _ratio(value: float) -> str:
    return f"{value:.3f}" if 0.01 < value < 100 else f"{value:.2g}"


def number_in_words(value: float) -> str:
    """Return a figure with four digits, or whole with commas."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def judge(change: Change, threshold: float) -> tuple[int, str]:
    """Return the exit code and its words.

    Args:
      change: of the figure that decides.
      threshold: relative, 0.03 is 3%.
    """
    label = FIGURES[change.figure].label
    asked = f"verdict on {label}, slower by {100 * threshold:.3g}% or more"
    if change.interval is None:
        return EXIT_CANNOT_TELL, f"{asked}: cannot tell, there is no interval"
    # Of A's figure: minutes rise, samples/s fall.
    sign = -1 if change.figure == SAMPLES_PER_SECOND else 1
    assert change.ratio is not None
    slowdown = sign * (change.ratio - 1)
    ends = sorted(sign * (end - 1) for end in change.interval)
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
    if given.baseline is not None:
        if len(given.sides) != 1:
            raise ValueError("--baseline is A: give B alone")
        return read_baseline(given.baseline), read_side(given.sides[0])
    names: Sequence[str] = given.sides
    if len(names) == 1:
        variants = read_alternating(names[0])
        if variants is None:
            raise ValueError(f"{names[0]}: give B too, or --baseline=FILE or --write_baseline=FILE")
        names = variants
    if len(names) != 2:
        raise ValueError(f"{len(names)} given: give A and B")
    if len({str(paths.resolve(paths.location(name))) for name in names}) == 1:
        raise ValueError(f"A and B are both {names[0]}; give two")
    return read_side(names[0]), read_side(names[1])


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
    given = parser.parse_args(paths.words_with_home(arguments))
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
        print("\n".join(lines(compared)))
        return 0
    code, words = judge(compared.change_of(given.figure), given.fail_if_slower)
    print("\n".join([*lines(compared), words]))
    return code


if __name__ == "__main__":
    sys.exit(main())
