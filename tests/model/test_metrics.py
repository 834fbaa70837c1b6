"""The figures of an evaluation, from the totals of its batches."""

import dataclasses
import math

import pytest
import tensorflow as tf

from mlperf_bert.model.metrics import EPSILON, Evaluation, Totals, batch_totals


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


def test_a_row_that_fills_up_a_batch_counts_nowhere():
    def totals(*weights):
        ones, logits = tf.ones([len(weights), 1]), tf.ones([len(weights), 2])
        labels = dict.fromkeys(("masked_lm_ids", "next_sentence_labels"), tf.cast(ones, tf.int32))
        labels["masked_lm_weights"] = ones
        return batch_totals(logits[:, None], logits, labels, tf.constant(weights)).numpy().tolist()

    assert totals(1.0, 1.0, 0.0) == pytest.approx(totals(1.0, 1.0))
    assert totals(1.0)[4] == pytest.approx(math.log(2))
