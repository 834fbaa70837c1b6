"""Precision, compilation and packing change how a step is computed, not what. CPU, a minute."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.input import packing, pipeline
from mlperf_bert.model import encoder
from mlperf_bert.model.pretrainer import trained_variables
from mlperf_bert.programs.config import NO_COMPILATION
from tests.helpers.gradients import assert_bfloat16_is_near, require_sums_in_float32
from tests.training import generated_task
from tests.training.configurations import run_config
from tests.training.small_trainer import (
    BATCH_SIZE,
    PASSES,
    STEP,
    assert_same,
    batches_of,
    losses_and_gradients,
    make_trainer,
)


@pytest.fixture(scope="module")
def of_eight() -> dict:
    """A batch that is packed into five rows, and the losses and gradients of tf-models' layers."""
    random, shape = np.random.default_rng(1), generated_task.SHAPE
    batch = {n: each.numpy() for n, each in pipeline.synthetic_batch(shape, batch_size=8).items()}
    lengths = np.array([32, 9, 20, 30, 12, 5, 7, 11])
    batch["input_mask"] = np.int32(np.arange(32) < lengths[:, None])
    for name, limit in (("input_ids", 40), ("segment_ids", 2)):
        batch[name] = np.int32(random.integers(0, limit, [8, 32]) * batch["input_mask"])
    batch["masked_lm_weights"] = np.float32(np.arange(6) < lengths[:, None] // 5)
    own = np.int32(batch["masked_lm_weights"])
    batch["masked_lm_positions"] = np.int32(random.integers(0, lengths[:, None], [8, 6]) * own)
    batch["masked_lm_ids"] = np.int32(random.integers(0, 40, [8, 6]) * own)
    batch["next_sentence_labels"] = np.int32(np.arange(8)[:, None] % 2)
    alike = {name: tf.constant(each) for name, each in batch.items()}
    packed = packing.assemble(alike, tf.constant([0, 1, 1, 2, 3, 3, 3, 4]))
    return {False: alike, True: packed, "found": losses_and_gradients(trainer_of_relu(), alike)}


def trainer_of_relu(**flags):
    return make_trainer(config={"hidden_act": "relu"}, **flags)


@pytest.mark.parametrize(
    "flags, again",
    [
        ({"pack_sequences": True}, []),
        ({"recompute": "attention"}, ["_attend"] * 2),
        ({"recompute": "blocks", "pack_sequences": True}, ["_block"] * 2),
        ({"precision": "bfloat16"}, []),
        ({"normalization": "replica_sum"}, []),
    ],
)
def test_each_option_has_the_losses_and_gradients_of_tf_models(of_eight, monkeypatch, flags, again):
    told, recomputed, expected = [], encoder.recomputed, of_eight["found"]

    def noted(function, *inputs):
        told.append(function.__name__)
        return recomputed(function, *inputs)

    monkeypatch.setattr(encoder, "recomputed", noted)
    batch = of_eight["pack_sequences" in flags]
    trainer = trainer_of_relu(**flags)
    found = losses_and_gradients(trainer, batch)
    assert told == again
    if "normalization" in flags:  # each replica clips its own
        norm = np.sqrt(sum(np.sum(np.square(each)) for each in expected[1]))
        expected = expected[0], [each / norm for each in expected[1]]
        assert norm > 1.1
    if "precision" in flags:
        assert 1e-5 < abs(found[0][0] - expected[0][0]) < 0.1
        return
    assert_same(found, expected, tolerance=1e-5)
    empty = batch | {"masked_lm_weights": 0 * batch["masked_lm_weights"]}
    assert losses_and_gradients(trainer, empty)[0][1] == 0


@pytest.mark.gate
def test_a_packed_batch_has_the_losses_and_gradients_of_its_examples(task):
    unpacked = next(iter(batches_of(task)))
    lengths = tf.reduce_sum(unpacked["input_mask"], axis=1)
    predictions = tf.math.count_nonzero(unpacked["masked_lm_weights"], axis=1, dtype=tf.int32)
    [order], [rows] = packing.plan(
        lengths,
        predictions,
        batch_size=BATCH_SIZE,
        max_seq_length=generated_task.SHAPE.max_seq_length,
        max_predictions=packing.predictions_per_row(generated_task.SHAPE.max_predictions_per_seq),
    )
    packed = packing.assemble({n: tf.gather(v, order) for n, v in unpacked.items()}, rows)
    assert len(packed["input_ids"]) < BATCH_SIZE
    expected = losses_and_gradients(make_trainer(), unpacked)
    trainer = make_trainer(pack_sequences=True)
    assert_same(losses_and_gradients(trainer, unpacked), expected, tolerance=1e-5)
    assert_same(losses_and_gradients(trainer, packed), expected, tolerance=1e-5)
    # Nothing crosses from one example of a row to another: this is what would change it.
    mixed = {**packed, "block_ids": packed["input_mask"]}
    assert abs(losses_and_gradients(trainer, mixed)[0][0] - expected[0][0]) > 1e-4


@pytest.mark.all
@pytest.mark.parametrize("compilation", [PASSES, STEP], ids=["passes", "step"])
def test_compiled_steps_compute_the_same(task, compilation):
    """Of compiled passes, the default, the command line shows it in test_trajectories.py."""
    batches = batches_of(task).take(3)
    plain, fast = make_trainer(), make_trainer(compilation=compilation)
    features = next(iter(batches))
    expected = losses_and_gradients(plain, features)
    assert_same(losses_and_gradients(fast, features), expected, tolerance=1e-5)
    for variable, value in zip(fast.variables_to_train, plain.variables_to_train):
        variable.assign(value)
    losses = [t.train(iter(batches), tf.constant(3)).numpy()[:, 0] for t in (plain, fast)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=0, atol=1e-5)


@pytest.mark.gate
@pytest.mark.parametrize(
    "compilation",
    [NO_COMPILATION, PASSES, pytest.param(STEP, marks=pytest.mark.all)],
    ids=["nothing", "passes", "step"],
)
def test_every_gradient_in_bfloat16_is_near_float32s(task, compilation):
    """Biases too, of both heads as well, which TensorFlow adds up in bfloat16 on a CPU."""
    if not compilation.step:  # XLA sums in float32 everywhere
        require_sums_in_float32()
    options = {"batch_size": 100, "config": {"initializer_range": 0.03}}
    features = next(iter(batches_of(task, batch_size=100)))
    exact = make_trainer(**options)
    trainer = make_trainer(precision="bfloat16", compilation=compilation, **options)
    if not compilation.step:  # as in a run: as a graph TensorFlow joins products and biases
        trainer._gradients_of = tf.function(trainer._gradients_of, autograph=False)
    kept = [*trainer.model.variables, *trainer.optimizer.optimizer.variables()]
    assert {v.dtype for v in kept if v.dtype.is_floating} == {tf.float32}
    names = [variable.name for variable in exact.variables_to_train]
    for part in ("predictions", "next_sentence/pooler", "next_sentence/logits", "value/bias"):
        assert any(part in name for name in names), names
    (_, found), (_, expected) = (losses_and_gradients(t, features) for t in (trainer, exact))
    assert_bfloat16_is_near(names, found, expected)


@pytest.mark.all
@pytest.mark.parametrize("pack_sequences", [False, True])
def test_one_trace_made_before_the_run_serves_all_of_it(task, pack_sequences):
    trainer = make_trainer(compilation=PASSES, dropout=0.1, pack_sequences=pack_sequences)
    before = [variable.numpy() for variable in trained_variables(trainer.model)]
    synthetic = pipeline.synthetic_batches(
        generated_task.SHAPE, batch_size=BATCH_SIZE, pack_sequences=pack_sequences
    )
    trainer.warm_up(synthetic)
    for variable, value in zip(trained_variables(trainer.model), before):
        assert np.array_equal(variable.numpy(), value)
    iterator = trainer.batches(lambda _: batches_of(task, pack_sequences=pack_sequences))
    for num_steps in (1, 7, 3):
        assert np.isfinite(trainer.train(iterator, tf.constant(num_steps)).numpy()).all()
    assert trainer.train.experimental_get_tracing_count() == 1


ON_CPUS = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"
PASSES_ALONE = "passes between the matrix products: matrix products on a CPU are faster outside XLA"


@pytest.mark.parametrize(
    "flags, of_environment, told",
    [
        ({"jit_compile": "auto"}, "", f"the {PASSES_ALONE}"),
        ({"jit_compile": "true"}, "", "the whole step: --jit_compile=true"),
        ({"runtime": "jax"}, "", "the whole step: jax always compiles it"),
        *(
            ({"jit_compile": "false"}, variable, "nothing: --jit_compile=false")
            for variable in (
                "", "--tf_xla_auto_jit=2", "--tf_xla_cpu_global_jit", f"{ON_CPUS}=false",
                "--tf_xla_cpu_global_jit --tf_xla_auto_jit=0", f"{ON_CPUS} --tf_xla_auto_jit=0",
            )
        ),
        *(
            ({"jit_compile": "false"}, variable, f"clusters of operations: TF_XLA_FLAGS={variable}")
            for variable in (
                ON_CPUS, f"{ON_CPUS}=true", "--tf_xla_cpu_global_jit --tf_xla_auto_jit=1",
            )
        ),
    ],
)  # fmt: skip
def test_what_is_compiled_is_told(flags, of_environment, told):
    found = dataclasses.replace(run_config(**flags), tf_xla_flags=of_environment).compilation
    assert str(found) == f"XLA compiles {told}"


def test_passes_are_programs_and_a_whole_step_on_gpus_has_barriers():
    assert PASSES.each_pass and not PASSES.whole_step and STEP.whole_step
    by_jax, on_gpus = (run_config(runtime="jax", num_gpus=n).compilation for n in (0, 1))
    assert by_jax.whole_step and not by_jax.barriers and on_gpus.barriers


SEED = tf.constant([3, 4])
COMPILED = {"false": NO_COMPILATION, "auto": PASSES, "true": STEP}
# Of the norm of all gradients. Where XLA compiles the whole step in bfloat16, it leaves roundings
# out, and others where it computes a second time.
TOLERANCES = {("bfloat16", "true"): 1e-4}


@pytest.mark.parametrize(
    "precision, jit_compile",
    [
        pytest.param("float32", "false", marks=pytest.mark.gate),
        pytest.param("float32", "auto", marks=pytest.mark.all),
        pytest.param("float32", "true", marks=pytest.mark.all),
        *(pytest.param("bfloat16", each, marks=pytest.mark.all) for each in COMPILED),
    ],
)
def test_losses_and_gradients_are_those_without_recomputation(task, precision, jit_compile):
    """With dropout, on packed rows."""
    features = next(iter(batches_of(task, pack_sequences=True)))
    options = {"precision": precision, "pack_sequences": True, "dropout": 0.1}
    compilation = COMPILED[jit_compile]
    found = {}
    for recompute in ("none", "attention", "blocks"):
        trainer = make_trainer(compilation=compilation, recompute=recompute, **options)
        if not compilation.step:  # as a graph, for eager steps keep and merge nothing
            trainer._gradients_of = tf.function(trainer._gradients_of)
        found[recompute] = losses_and_gradients(trainer, features, SEED)
    tolerance = TOLERANCES.get((precision, jit_compile), 1e-6)
    for recompute in ("attention", "blocks"):
        assert_same(found[recompute], found["none"], tolerance=tolerance, rtol=1e-6, atol=0)
        if precision == "bfloat16" and jit_compile != "true":
            for one, other in zip(found[recompute][1], found["none"][1]):
                np.testing.assert_array_equal(one, other)
    others, _ = losses_and_gradients(trainer, features, SEED + 1)
    assert abs(others[0] - found["none"][0][0]) > 1e-4  # other dropout would have been seen
