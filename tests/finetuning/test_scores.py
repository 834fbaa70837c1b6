"""What is ours of the scores: where a correlation is not defined, and thresholds of SQuAD 2.0."""

import numpy as np
import pytest

from mlperf_bert.finetuning import glue, squad_answers


def score(name, labels, predictions):
    return glue.compute((name,), np.array(labels), np.array(predictions))[name]


def test_scores_are_percentages():
    # Of class 1: 2 true positives, 1 false positive, 1 false negative, 1 true negative.
    labels, predictions = [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]
    assert score("accuracy", labels, predictions) == pytest.approx(60.0)
    assert score("f1", labels, predictions) == pytest.approx(100 * 2 * 2 / (2 * 2 + 1 + 1))
    assert score("f1", labels, [0, 0, 0, 0, 0]) == score("matthews", labels, [1] * 5) == 0.0


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_a_correlation_that_is_not_defined_is_zero(name):
    assert score(name, [1.0, 2.0, 3.0], [4.0, 4.0, 4.0]) == 0.0
    assert score(name, [1.0], [4.0]) == 0.0
    assert score(name, [1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(100.0)


def test_the_best_threshold_by_hand():
    """Up to 1 two questions are right; of the others, one has no answer and one is wrong."""
    answers = {"a": ["x"], "b": ["y"], "c": [], "d": ["z"]}
    predictions = {"a": "x", "b": "y", "c": "w", "d": "v"}
    odds = {"a": -2.0, "b": 1.0, "c": 1.5, "d": 3.0}
    found = squad_answers.scores(answers, predictions, null_odds=odds)
    assert found["exact"] == 50 and found["best_exact"] == found["best_f1"] == 75
    assert found["best_exact_thresh"] == found["best_f1_thresh"] == 1.0
    assert (found["HasAns_total"], found["NoAns_total"]) == (3, 1)
    without = squad_answers.scores(answers, predictions, null_odds={})
    assert without == {name: found[name] for name in ("exact", "f1", "total")}
