"""What a TPU needs, seen on a CPU: static shapes in the step, many steps in one call."""

import dataclasses

import pytest
import tensorflow as tf

from mlperf_bert.input import pipeline
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import build_pretrainer
from mlperf_bert.optimization.aggregation import GradientAggregationOptimizer
from mlperf_bert.optimization.config import OptimizerConfig
from mlperf_bert.optimization.optimizers import WarmupPolynomialDecay, create_optimizer
from mlperf_bert.training.steps import FIGURES, Trainer
from tests.training import generated_task

BATCH_SIZE = 4
# XLA knows no others that make shapes out of values, or they leave the device.
DYNAMIC = {"Where", "Unique", "UniqueV2", "DynamicPartition", "NonZero", "PyFunc", "EagerPyFunc"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("static") / "task"
    generated_task.write_task(folder, num_examples=48)
    return folder


def make_trainer(folder, *, dropout: float = 0.0) -> Trainer:
    """A trainer with aggregation, so that everything a TPU would run is traced."""
    config = dataclasses.replace(
        BertConfig.from_json_file(folder / "bert_config.json"),
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    rates = WarmupPolynomialDecay(
        learning_rate=1e-3,
        num_train_steps=20,
        num_warmup_steps=2,
        start_warmup_step=0,
        poly_power=1.0,
        steps_per_update=2,
    )
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = build_pretrainer(config, seed=1)
        optimizer = GradientAggregationOptimizer(
            create_optimizer(OptimizerConfig(), rates), steps_per_update=2
        )
    return Trainer(model=model, optimizer=optimizer, strategy=strategy, batch_size=BATCH_SIZE)


@pytest.fixture(scope="module")
def trainer(folder) -> Trainer:
    return make_trainer(folder, dropout=0.1)


def batches(folder, batch_size=BATCH_SIZE) -> tf.data.Dataset:
    return pipeline.training_batches(
        [str(folder / "train.tfrecord")], generated_task.LIMITS, batch_size=batch_size, seed=None
    )


# Its outputs are dimensions to sum over, which XLA takes from the static shapes of its inputs.
FOLDED = {"BroadcastGradientArgs"}


def operations(function) -> list[tf.Operation]:
    """All operations of a traced function, those inside loops and calls too."""
    inner = function.graph._functions.values() if hasattr(function.graph, "_functions") else []
    nested = [op for f in inner if hasattr(f, "graph") for op in f.graph.get_operations()]
    return [*function.graph.get_operations(), *nested]


def test_batches_have_static_shapes(folder):
    evaluation = pipeline.evaluation_batches(
        [str(folder / "eval.tfrecord")], generated_task.LIMITS, batch_size=BATCH_SIZE
    )
    for dataset in (batches(folder), evaluation):
        for spec in tf.nest.flatten(dataset.element_spec):
            assert spec.shape.is_fully_defined() and spec.shape[0] == BATCH_SIZE


@pytest.mark.parametrize("part", ["step", "update"])
def test_what_a_replica_runs_has_static_shapes(trainer, folder, part):
    @tf.function
    def step(features):
        return trainer.strategy.run(trainer._micro_step, args=(features,))

    @tf.function
    def update():
        trainer.strategy.run(trainer.update)

    given = {"step": [batches(folder).element_spec], "update": []}[part]
    traced = operations({"step": step, "update": update}[part].get_concrete_function(*given))
    assert len(traced) > 500
    assert not {op.type for op in traced} & DYNAMIC
    unknown = [
        f"{op.type} {op.name} {output.shape}"
        for op in traced
        if op.type not in FOLDED
        for output in op.outputs
        if output.dtype not in (tf.variant, tf.resource)
        if not output.shape.is_fully_defined()
    ]
    assert unknown == []


@pytest.mark.gate
def test_xla_compiles_the_step_to_the_same_losses(folder):
    plain, compiled = make_trainer(folder), make_trainer(folder)

    @tf.function(jit_compile=True)
    def step(features):
        return compiled.strategy.run(compiled._micro_step, args=(features,))

    given = batches(folder)
    expected = plain.train(iter(given), tf.constant(2)).numpy()
    found = [step(features).numpy() for features in given.take(2)]
    assert found[0].shape == (len(FIGURES) - 1,)  # all but the wait for the batch
    for one, other in zip(found, expected):
        assert one == pytest.approx(other[:-1], abs=1e-5)


@pytest.mark.all
def test_many_steps_in_one_call_are_the_steps_one_by_one(folder):
    together, singly = make_trainer(folder), make_trainer(folder)
    losses = together.train(iter(batches(folder)), tf.constant(8)).numpy()[:, :-1]
    iterator = iter(batches(folder))
    one_by_one = [singly.train(iterator, tf.constant(1)).numpy()[0, :-1] for _ in range(8)]
    assert (losses == one_by_one).all()  # all but how long each waited for its batch
    assert together.train.experimental_get_tracing_count() == 1
