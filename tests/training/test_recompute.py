"""Recomputation changes what is kept for the backward pass, not what is computed. CPU, minutes."""

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.programs.config import NO_COMPILATION
from tests.training.small_trainer import (
    PASSES,
    STEP,
    assert_same,
    batches_of,
    losses_and_gradients,
    make_trainer,
)

SEED = tf.constant([3, 4])
COMPILED = {"false": NO_COMPILATION, "auto": PASSES, "true": STEP}
# Of the norm of all gradients. Where XLA compiles the whole step in bfloat16, it leaves roundings
# out, and others where it computes a second time.
TOLERANCES = {("bfloat16", "true"): 1e-4}


@pytest.mark.all
@pytest.mark.parametrize("jit_compile", COMPILED)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_losses_and_gradients_are_those_without(task, precision, jit_compile):
    """With dropout, on packed rows."""
    features = next(iter(batches_of(task, pack_sequences=True)))
    options = {"precision": precision, "pack_sequences": True, "dropout": 0.1}
    compiled = COMPILED[jit_compile]
    found = {}
    for recompute in ("none", "attention", "blocks"):
        trainer = make_trainer(compiled=compiled, recompute=recompute, **options)
        if not compiled.step:  # as a graph, for eager steps keep and merge nothing
            trainer._compute = tf.function(trainer._compute)
        found[recompute] = losses_and_gradients(trainer, features, SEED)
    tolerance = TOLERANCES.get((precision, jit_compile), 1e-6)
    for recompute in ("attention", "blocks"):
        assert_same(found[recompute], found["none"], tolerance=tolerance, rtol=1e-6, atol=0)
        if precision == "bfloat16" and jit_compile != "true":
            for one, other in zip(found[recompute][1], found["none"][1]):
                np.testing.assert_array_equal(one, other)


def test_another_seed_would_have_been_seen(task):
    features = next(iter(batches_of(task)))
    trainer = make_trainer(dropout=0.1, recompute="blocks")
    (one, _), (other, _) = (losses_and_gradients(trainer, features, s) for s in (SEED, SEED + 1))
    assert abs(one[0] - other[0]) > 1e-4


@pytest.mark.gate
@pytest.mark.parametrize("recompute", [pytest.param("attention", marks=pytest.mark.soak), "blocks"])
def test_updates_of_aggregated_steps_are_those_without(task, recompute):
    losses = []
    for choice in ("none", recompute):
        options = {"precision": "bfloat16", "dropout": 0.1, "steps_per_update": 3}
        trainer = make_trainer(recompute=choice, **options)
        trainer.model.dropout_generator.reset_from_seed(1)
        batches = iter(batches_of(task).take(9))
        losses.append(trainer.train(batches, tf.constant(9)).numpy()[:, 0])
    np.testing.assert_array_equal(losses[1], losses[0])
    assert abs(losses[0][8] - losses[0][0]) > 1e-3
