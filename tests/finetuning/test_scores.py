"""Each metric against figures computed by hand. Seconds."""

import math

import numpy as np
import pytest

from mlperf_bert.finetuning import glue


def score(name, labels, predictions):
    return glue.compute((name,), np.array(labels), np.array(predictions))[name]


# Of class 1: 2 true positives, 1 false positive, 1 false negative, 1 true negative.
LABELS, PREDICTIONS = [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]


def test_classes():
    assert score("accuracy", LABELS, PREDICTIONS) == pytest.approx(60.0)
    assert score("f1", LABELS, PREDICTIONS) == pytest.approx(100 * 2 * 2 / (2 * 2 + 1 + 1))
    expected = 100 * (2 * 1 - 1 * 1) / math.sqrt((2 + 1) * (2 + 1) * (1 + 1) * (1 + 1))
    assert score("matthews", LABELS, PREDICTIONS) == pytest.approx(expected)
    assert score("matthews", LABELS, [1, 1, 1, 1, 1]) == 0.0
    assert score("f1", LABELS, [0, 0, 0, 0, 0]) == 0.0
    assert score("accuracy", [0, 2, 1], [0, 2, 2]) == pytest.approx(100 * 2 / 3)


def test_correlations():
    # Deviations (-1, 0, 1) and (-2, -1, 3): 5 / sqrt(2 * 14).
    assert score("pearson", [1.0, 2.0, 3.0], [0.0, 1.0, 5.0]) == pytest.approx(
        100 * 5 / math.sqrt(28)
    )
    # Ranks 1 2 3 4 and 2 1 3 4: 1 - 6 * 2 / (4 * 15).
    assert score("spearman", [1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 9.0, 70.0]) == pytest.approx(80.0)
    # Two equal values share rank 1.5: ranks 1.5 1.5 3 and 1 2 3.
    expected = 100 * 1.5 / math.sqrt(1.5 * 2.0)
    assert score("spearman", [0.0, 0.0, 1.0], [1.0, 2.0, 3.0]) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_a_correlation_that_is_not_defined_is_zero(name):
    assert score(name, [1.0, 2.0, 3.0], [4.0, 4.0, 4.0]) == 0.0
    assert score(name, [1.0], [4.0]) == 0.0
