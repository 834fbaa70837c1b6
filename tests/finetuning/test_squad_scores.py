"""Exact match, F1 and thresholds equal those of SQuAD's script for 2.0. CPU, seconds.

Oracle: transformers' copy of that script, and one case worked out by hand.
"""

import math
import random
from types import SimpleNamespace

import pytest
from transformers.data.metrics.squad_metrics import squad_evaluate

from mlperf_bert.finetuning import squad_answers

WORDS = "the The a An cat Cat. dog dog's — ... Ähre x\u00a0y İ theater a-the U.S.".split(" ")
WORDS += ["\u2019s", "東京", "(1990)", "\n", "cat"]


def phrase(rng):
    return rng.choice([" ", "  ", "-", ""]).join(rng.choices(WORDS, k=rng.randint(1, 4)))


def generated(seed, *, has_impossible):
    rng = random.Random(seed)
    answers, predictions, odds = {}, {}, {}
    for number in range(60):
        name = f"q{rng.random()}"
        is_impossible = has_impossible and rng.random() < 0.4
        answers[name] = [] if is_impossible else [phrase(rng) for _ in range(rng.randint(1, 3))]
        guess = rng.choice([*answers[name], phrase(rng)])
        predictions[name] = "" if has_impossible and rng.random() < 0.3 else guess
        # Some are equal: then the order of the questions decides.
        odds[name] = float(rng.choice([number % 5, rng.gauss(0, 3)]))
    return answers, predictions, odds


@pytest.mark.parametrize("has_impossible", [False, True])
def test_equal_to_the_official_script(has_impossible):
    for seed in range(60):
        answers, predictions, odds = generated(seed, has_impossible=has_impossible)
        questions = [
            SimpleNamespace(qas_id=name, answers=[{"text": text} for text in texts])
            for name, texts in answers.items()
        ]
        expected = squad_evaluate(
            questions, predictions, odds, no_answer_probability_threshold=math.inf
        )
        found = squad_answers.scores(answers, predictions, null_odds=odds)
        assert found == pytest.approx(dict(expected))
        assert list(found) == list(expected)
        without_odds = squad_answers.scores(answers, predictions, null_odds={})
        assert without_odds == {key: found[key] for key in ("exact", "f1", "total")}


def test_the_best_threshold_by_hand():
    """Up to 1 two questions are right; of the others, one has no answer and one is wrong."""
    answers = {"a": ["x"], "b": ["y"], "c": [], "d": ["z"]}
    predictions = {"a": "x", "b": "y", "c": "w", "d": "v"}
    odds = {"a": -2.0, "b": 1.0, "c": 1.5, "d": 3.0}
    found = squad_answers.scores(answers, predictions, null_odds=odds)
    assert found["exact"] == 50 and found["best_exact"] == found["best_f1"] == 75
    assert found["best_exact_thresh"] == found["best_f1_thresh"] == 1.0
    assert (found["HasAns_total"], found["NoAns_total"]) == (3, 1)
