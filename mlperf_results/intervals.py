"""How sure a ratio of two groups of runs is: the methods behind `compare`, as functions of numbers.

All are scipy's t on logarithms, because run times scatter by a factor. Welch's t for two groups of
two runs or more: two systems may scatter differently. One run against a group: the group's own
scatter, for both.
"""

import warnings
from typing import Any

import numpy as np
from scipy import special, stats

LEVEL = 0.95
POWER = 0.8
"""How often a difference is to be told, where a number of runs is named that tells it."""
_MOST_RUNS = 1000

WELCH = "Welch's t on logarithms"
PREDICTION = "t on logarithms, with the scatter of the group for the single run too"
NO_INTERVAL = "no interval"
_LEAST_SCATTER = 1e-5
"""Below it figures are equal: they differ by rounding, also of stamps to milliseconds."""


def of_logarithms(a: np.ndarray, b: np.ndarray) -> tuple[Any, str]:
    """Return the 95% interval of log(B) - log(A), with its ends `low` and `high`, and the method.

    Args:
      a, b: positive figures, [..., runs]; thousands of groups can be asked about at once.

    The ends are NaN or equal where the runs do not scatter.
    """
    # In the pooled variance a single run has no part: it is taken to scatter as the group.
    is_single = min(a.shape[-1], b.shape[-1]) == 1
    test = stats.ttest_ind(np.log(b), np.log(a), axis=-1, equal_var=is_single)
    return test.confidence_interval(LEVEL), PREDICTION if is_single else WELCH


def of_ratio(a: np.ndarray, b: np.ndarray) -> tuple[tuple[float, float] | None, str]:
    """Return the interval of B/A by the method that the runs allow, and its name.

    Args:
      a, b: positive figures of runs, one axis.
    """
    # Equal figures, such as counts of samples, say nothing of how they would scatter.
    if len(a) == len(b) == 1 or max(np.ptp(np.log(x)) for x in (a, b)) < _LEAST_SCATTER:
        return None, NO_INTERVAL
    # Of those that nearly are equal scipy warns.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        ends, method = of_logarithms(a, b)
    low, high = np.exp(np.clip(ends, -700, 700))  # no float is greater
    return (float(low), float(high)), method


def more_runs(a: np.ndarray, b: np.ndarray, *, difference: float) -> int | None:
    """Return how many more runs of each would tell a relative difference in four of five cases.

    Args:
      a, b: figures of the runs so far, one axis, two or more in one group at least.
      difference: 0.03 is 3%.

    None if more than a thousand would not do, or the runs do not scatter.
    """
    groups = [np.log(a), np.log(b)]
    known = [float(x.var(ddof=1)) for x in groups if len(x) > 1]
    # A single run is taken to scatter as the others do.
    variances = known if len(known) == len(groups) else known * 2
    if not sum(variances) > 0:
        return None
    counts = np.arange(_MOST_RUNS + 1)
    num_runs = [np.maximum(len(x) + counts, 2) for x in groups]
    parts = [v / n for v, n in zip(variances, num_runs, strict=True)]
    variance = np.sum(parts, axis=0)
    freedom = variance**2 / sum(p**2 / (n - 1) for p, n in zip(parts, num_runs, strict=True))
    limit = stats.t.ppf((1 + LEVEL) / 2, freedom)
    power = 1 - special.nctdtr(freedom, np.log1p(difference) / np.sqrt(variance), limit)
    # A single run has no scatter of its own yet: it takes a second one at the least.
    has_scatter = counts >= (2 - min(len(a), len(b)))
    enough = np.flatnonzero((power >= POWER) & has_scatter)
    return int(enough[0]) if len(enough) else None
