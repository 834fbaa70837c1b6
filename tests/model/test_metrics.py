"""The figures of an evaluation, from the totals of its batches."""

import dataclasses

import pytest

from mlperf_bert.model.metrics import EPSILON, Evaluation, Totals


def test_totals_are_divided_once_and_a_batch_may_have_no_predictions():
    full = Totals(
        masked_lm_correct=3.0, masked_lm_loss=8.0, num_predictions=4.0,
        next_sentence_correct=1.0, next_sentence_loss=1.0, num_examples=2.0,
    )  # fmt: skip
    short = Totals(0.0, 0.0, 0.0, next_sentence_correct=1.0, next_sentence_loss=0.5, num_examples=1)
    found = Evaluation.from_totals([[*full], [*short]])
    expected = {
        "masked_lm_accuracy": 3 / 4,
        "masked_lm_loss": 8 / 4,
        "next_sentence_accuracy": 2 / 3,
        "next_sentence_loss": 1.5 / 3,
        "loss": (8 / (4 + EPSILON) + 1 / 2 + 0.5) / 2,  # each batch counts alike
        "num_examples": 3,
    }
    assert dataclasses.asdict(found) == pytest.approx(expected, rel=1e-12)
    assert Evaluation.from_totals([[*short]]).masked_lm_accuracy == 0
