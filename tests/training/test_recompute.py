"""Recomputation changes what is kept for the backward pass, not what is computed. CPU, minutes."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.optimization.aggregation import GradientAggregationOptimizer
from mlperf_bert.optimization.config import OptimizerConfig
from mlperf_bert.optimization.optimizers import create_optimizer
from mlperf_bert.training.devices import NO_COMPILATION
from mlperf_bert.training.steps import Trainer
from tests.training.small_trainer import (
    BATCH_SIZE,
    CPU,
    PASSES,
    STEP,
    batches_of,
    make_trainer,
)

SEED = tf.constant([3, 4])
COMPILED = {"false": NO_COMPILATION, "auto": PASSES, "true": STEP}
# Of the norm of all gradients. Where XLA compiles the whole step in bfloat16, it leaves roundings
# out, and others where it computes a second time; unless a flag forbids it.
EXACT = "--xla_allow_excess_precision=false"
IS_EXACT = EXACT in os.environ.get("XLA_FLAGS", "")
TOLERANCES = {} if IS_EXACT else {("bfloat16", "true"): 1e-4}


def losses_and_gradients(trainer: Trainer, features):
    """As a graph, for eager steps keep and merge nothing."""
    compute = trainer._compute
    if not isinstance(compute, type(Trainer.train)):
        compute = tf.function(compute)
    num_predictions = tf.reduce_sum(features["masked_lm_weights"])
    losses, gradients = compute(features, SEED, num_predictions, float(BATCH_SIZE))
    return losses.numpy(), [gradient.numpy() for gradient in gradients]


def assert_same(found, expected, *, tolerance: float) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6, atol=0)
    scale = np.sqrt(sum(np.sum(np.square(gradient)) for gradient in expected[1]))
    for one, other in zip(found[1], expected[1]):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)


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
        trainer = make_trainer(task, compiled=compiled, recompute=recompute, **options)
        found[recompute] = losses_and_gradients(trainer, features)
    tolerance = TOLERANCES.get((precision, jit_compile), 1e-6)
    for recompute in ("attention", "blocks"):
        assert_same(found[recompute], found["none"], tolerance=tolerance)
        if precision == "bfloat16" and jit_compile != "true":
            for one, other in zip(found[recompute][1], found["none"][1]):
                np.testing.assert_array_equal(one, other)


@pytest.mark.soak
def test_whole_steps_in_bfloat16_are_equal_where_xla_leaves_no_rounding_out(repository):
    names = "test_losses_and_gradients_are_those_without and bfloat16-true"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", names, __file__]
    environment = {**os.environ, "XLA_FLAGS": EXACT}
    done = subprocess.run(words, cwd=repository, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("recompute", [pytest.param("attention", marks=pytest.mark.all), "blocks"])
def test_another_seed_would_have_been_seen(task, recompute):
    features = next(iter(batches_of(task)))
    trainer = make_trainer(task, dropout=0.1, recompute=recompute)
    num_predictions = tf.reduce_sum(features["masked_lm_weights"])
    one, other = (
        trainer._compute(features, seed, num_predictions, float(BATCH_SIZE))[0]
        for seed in (SEED, SEED + 1)
    )
    assert abs(float(one[0] - other[0])) > 1e-4


@pytest.mark.gate
@pytest.mark.parametrize("recompute", [pytest.param("attention", marks=pytest.mark.soak), "blocks"])
def test_updates_of_aggregated_steps_are_those_without(task, recompute):
    losses = []
    for choice in ("none", recompute):
        trainer = make_trainer(task, precision="bfloat16", dropout=0.1, recompute=choice)
        trainer = Trainer(
            model=trainer.model,
            optimizer=GradientAggregationOptimizer(
                create_optimizer(OptimizerConfig(), 0.01, compiled=False), steps_per_update=3
            ),
            strategy=CPU,
            batch_size=BATCH_SIZE,
        )
        trainer.model.dropout_generator.reset_from_seed(1)
        batches = iter(batches_of(task).take(9))
        losses.append(trainer.train(batches, tf.constant(9)).numpy()[:, 0])
    np.testing.assert_array_equal(losses[1], losses[0])
    assert abs(losses[0][8] - losses[0][0]) > 1e-3
