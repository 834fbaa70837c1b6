"""How sure a ratio of two groups of runs is: the methods behind `compare`, as functions of numbers.

Welch's t on logarithms, for two groups of two runs or more: run times scatter by a factor, and two
systems may scatter differently. Paired t on log ratios, where runs alternate. One run against a
group: the group's own scatter, for both. The studentized bootstrap, for the ledger's parts, whose
means add up to the whole and which may be far from normal. The percentile bootstrap has no place:
of groups of five equal ones it calls an eighth different (benchmarks/comparing.py).

All take arrays of [..., runs] and work along the last axis, so that an oracle can ask them about
thousands of groups at once.

Sources: B. L. Welch, Biometrika 34 (1947); Efron and Tibshirani, An Introduction to the Bootstrap
(1993), chapter 12.5, the bootstrap-t.
"""

from dataclasses import dataclass

import numpy as np
from scipy import special  # scipy.stats, whose figures are the same, takes half a second more

LEVEL = 0.95
POWER = 0.8
"""How often a difference is to be told, where a number of runs is named that tells it."""
LEAST_PAIRS = 3
"""Two pairs have one degree of freedom, and counts of samples that are often the same."""
LEAST_RUNS_OF_BOOTSTRAP = 5
"""Of four pairs 1.6% of the resamples are one pair alone, which does not scatter: its distance is
infinite, and next to the 2.5% at which an interval ends."""
_NUM_RESAMPLES = 2000
_MOST_RUNS = 1000

WELCH = "Welch's t on logarithms"
PAIRED = "paired t on logarithms"
PREDICTION = "t on logarithms, with the scatter of the group for the single run too"
BOOTSTRAP = "studentized bootstrap of the ratio of means"
NO_INTERVAL = "no interval"


@dataclass(frozen=True)
class Estimate:
    """Differences of logarithms, B minus A, with the ends of their intervals; arrays, or scalars.

    The ends are NaN where the runs allow no interval.
    """

    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray


def welch(a: np.ndarray, b: np.ndarray) -> Estimate:
    """Compare the means of logarithms of two groups.

    Args:
      a, b: figures, positive, [..., runs] with two runs or more.
    """
    a, b = np.log(a), np.log(b)
    parts = [x.var(axis=-1, ddof=1) / x.shape[-1] for x in (a, b)]
    variance = parts[0] + parts[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom = variance**2 / sum(
            part**2 / (x.shape[-1] - 1) for part, x in zip(parts, (a, b), strict=True)
        )
    return _by_t(b.mean(axis=-1) - a.mean(axis=-1), variance, freedom)


def paired(a: np.ndarray, b: np.ndarray) -> Estimate:
    """Compare figures of which a[..., n] and b[..., n] were measured one after the other."""
    ratios = np.log(b) - np.log(a)
    num_pairs = ratios.shape[-1]
    return _by_t(ratios.mean(axis=-1), ratios.var(axis=-1, ddof=1) / num_pairs, num_pairs - 1)


def prediction(a: np.ndarray, b: np.ndarray) -> Estimate:
    """Compare a group with one run, which is taken to scatter as the group does."""
    a, b = np.log(a), np.log(b)
    group = a if a.shape[-1] > 1 else b
    num_runs = group.shape[-1]
    variance = group.var(axis=-1, ddof=1) * (1 + 1 / num_runs)
    return _by_t(b.mean(axis=-1) - a.mean(axis=-1), variance, num_runs - 1)


def _by_t(difference: np.ndarray, variance: np.ndarray, freedom: np.ndarray | int) -> Estimate:
    with np.errstate(invalid="ignore"):
        half = special.stdtrit(freedom, (1 + LEVEL) / 2) * np.sqrt(variance)
    # Equal figures, such as counts of samples, say nothing of how they would scatter.
    half = np.where(variance > 0, half, np.nan)
    return Estimate(difference, difference - half, difference + half)


def bootstrap(
    a: np.ndarray, b: np.ndarray, *, pairs: bool = False, studentized: bool = True
) -> Estimate:
    """Compare arithmetic means, which for parts of a time add up to the whole.

    Args:
      a, b: not negative, [..., runs]; with a mean of 0 there is no ratio, and all is NaN.
      pairs: whether a[..., n] and b[..., n] are drawn together.
      studentized: each resample's difference over its own standard error; else the percentiles of
        the differences, which are here to be measured and not to be used.
    """
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    rng = np.random.default_rng(0)  # so that the same runs always give the same words
    drawn_a = rng.integers(a.shape[-1], size=(_NUM_RESAMPLES, a.shape[-1]))
    drawn_b = drawn_a if pairs else rng.integers(b.shape[-1], size=(_NUM_RESAMPLES, b.shape[-1]))
    with np.errstate(invalid="ignore", divide="ignore"):
        difference, error = _log_ratio_of_means(a, b, pairs=pairs)
        of_resamples, errors = _log_ratio_of_means(a[..., drawn_a], b[..., drawn_b], pairs=pairs)
        if not studentized:
            return Estimate(difference, *np.quantile(of_resamples, ends, axis=-1))
        # A resample of one run alone has no error of its own: it lies outside on its side.
        distances = (of_resamples - difference[..., None]) / errors
        low, high = np.quantile(np.nan_to_num(distances), ends, axis=-1)
        return Estimate(difference, difference - high * error, difference - low * error)


def _log_ratio_of_means(
    a: np.ndarray, b: np.ndarray, *, pairs: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithm of mean(b) / mean(a), and its standard error by the delta method."""
    mean_a, mean_b = a.mean(axis=-1), b.mean(axis=-1)
    relative_a, relative_b = a / mean_a[..., None], b / mean_b[..., None]
    if pairs:
        variance = (relative_b - relative_a).var(axis=-1, ddof=1) / a.shape[-1]
    else:
        variance = (
            relative_a.var(axis=-1, ddof=1) / a.shape[-1]
            + relative_b.var(axis=-1, ddof=1) / b.shape[-1]
        )
    return np.log(mean_b / mean_a), np.sqrt(variance)


def more_runs(
    a: np.ndarray, b: np.ndarray, *, difference: float, pairs: bool = False
) -> int | None:
    """Return how many more runs of each would tell a relative difference in four of five cases.

    Args:
      a, b: figures of the runs so far, one axis, two or more in one group at least.
      difference: 0.03 is 3%.
      pairs: whether they are compared as pairs.

    None if more than a thousand would not do, or the runs do not scatter.
    """
    if pairs:
        variances = [float((np.log(b) - np.log(a)).var(ddof=1))]
    else:
        known = [float(np.log(x).var(ddof=1)) for x in (a, b) if len(x) > 1]
        variances = known if len(known) == 2 else [known[0]] * 2
    if not sum(variances) > 0:
        return None
    wanted = np.log1p(difference)
    counts = np.arange(_MOST_RUNS + 1)
    num_runs = [np.maximum(len(x) + counts, 2) for x in ((a,) if pairs else (a, b))]
    parts = [v / n for v, n in zip(variances, num_runs, strict=True)]
    variance = np.sum(parts, axis=0)
    freedom = variance**2 / sum(p**2 / (n - 1) for p, n in zip(parts, num_runs, strict=True))
    limit = special.stdtrit(freedom, (1 + LEVEL) / 2)
    power = 1 - special.nctdtr(freedom, wanted / np.sqrt(variance), limit)
    # A single run has no scatter of its own yet: it takes a second one at the least.
    has_scatter = counts >= (2 - min(len(a), len(b)))
    enough = np.flatnonzero((power >= POWER) & has_scatter)
    return int(enough[0]) if len(enough) else None
