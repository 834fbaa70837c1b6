"""What a TPU needs, seen on a CPU: static shapes in the step, many steps in one call."""

import pytest
import tensorflow as tf

from mlperf_bert.input import pipeline
from mlperf_bert.programs.steps import Trainer
from tests.training import generated_task
from tests.training.small_trainer import BATCH_SIZE, batches_of, make_trainer

# XLA knows no others that make shapes out of values, or they leave the device.
DYNAMIC = {"Where", "Unique", "UniqueV2", "DynamicPartition", "NonZero", "PyFunc", "EagerPyFunc"}

# Also the warm-up of the rate, so that everything a TPU would run is traced.
AGGREGATES = {"steps_per_update": 2, "num_warmup_steps": 2}


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return make_trainer(**AGGREGATES, dropout=0.1)


# Its outputs are dimensions to sum over, which XLA takes from the static shapes of its inputs.
FOLDED = {"BroadcastGradientArgs"}


def operations(function) -> list[tf.Operation]:
    """All operations of a traced function, those inside loops and calls too."""
    inner = function.graph._functions.values() if hasattr(function.graph, "_functions") else []
    nested = [op for f in inner if hasattr(f, "graph") for op in f.graph.get_operations()]
    return [*function.graph.get_operations(), *nested]


def test_batches_have_static_shapes(task):
    evaluation = pipeline.evaluation_batches(
        [str(task / "eval.tfrecord")], generated_task.LIMITS, batch_size=BATCH_SIZE
    )
    for dataset in (batches_of(task), evaluation):
        for spec in tf.nest.flatten(dataset.element_spec):
            assert spec.shape.is_fully_defined() and spec.shape[0] == BATCH_SIZE


@pytest.mark.parametrize("part", ["step", "update"])
def test_what_a_replica_runs_has_static_shapes(trainer, task, part):
    @tf.function
    def step(features):
        return trainer.strategy.run(trainer._micro_step, args=(features,))

    @tf.function
    def update():
        trainer.strategy.run(trainer.update)

    given = {"step": [batches_of(task).element_spec], "update": []}[part]
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
