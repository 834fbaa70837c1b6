"""The metrics of GLUE, by scikit-learn and scipy."""

import math
import warnings
from collections.abc import Callable

import numpy as np
from scipy import stats
from sklearn import metrics


def _correlation(function: Callable) -> Callable[[np.ndarray, np.ndarray], float]:
    """A correlation that is 0 where it is not defined: one side is constant, or a single pair."""

    def correlate(labels: np.ndarray, predictions: np.ndarray) -> float:
        if len(labels) < 2:
            return 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of constant input
            found = float(function(labels, predictions)[0])
        return 0.0 if math.isnan(found) else found

    return correlate


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": metrics.accuracy_score,
    "f1": lambda labels, predictions: metrics.f1_score(labels, predictions, zero_division=0),
    "matthews": metrics.matthews_corrcoef,
    "pearson": _correlation(stats.pearsonr),
    "spearman": _correlation(stats.spearmanr),
}
"""Name -> function of labels [F] and predictions [F], at most 1; f1 is that of class 1."""


def compute(
    names: tuple[str, ...], labels: np.ndarray, predictions: np.ndarray
) -> dict[str, float]:
    """The metrics of these names, in percent, as papers report them."""
    return {name: 100.0 * float(METRICS[name](labels, predictions)) for name in names}
