"""Programs of a model of six weights: exported by TensorFlow, run by jax, they compute the same.

CPU, seconds. BERT's own programs are in test_jax_runtime.py and tests/portable, in minutes.
"""

import dataclasses

import jax
import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.ledger import Ledger
from mlperf_bert.model import pretrainer
from mlperf_bert.optimization.config import OptimizerConfig
from mlperf_bert.optimization.optimizers import (
    GradientAggregationOptimizer,
    WarmupPolynomialDecay,
    create_optimizer,
)
from mlperf_bert.programs import jax_step, jax_trainer, on_devices, program
from mlperf_bert.programs.config import FIGURES
from mlperf_bert.programs.steps import Evaluator, Trainer

pytestmark = pytest.mark.usefixtures("compiles_quickly", "named")
TOLERANCE = {"rtol": 1e-6, "atol": 1e-7}


class Model(tf.Module):
    """What trainer and evaluator ask of a model: weights, and the generator of dropout."""

    fused = True

    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable([[0.5, -0.25], [0.125, 1.0]], name="kernel")
        self.bias = tf.Variable([0.25, 0.75], name="bias")
        self.dropout_generator = tf.random.Generator.from_seed(3)


class SmallTrainer(Trainer):
    """Whose loss is of products; each step drops one of the two columns."""

    def gradients_of(self, features, dropout_seed, num_predictions, num_examples):
        kept = tf.cast(tf.stack([dropout_seed[0] % 2 == 0, dropout_seed[0] % 2 != 0]), tf.float32)
        rows = tf.cast(features["input_ids"], tf.float32)
        with tf.GradientTape() as tape:
            made = kept * (rows @ self.model.kernel) + self.model.bias
            weighted = tf.reduce_sum(made * made, 1) * tf.reduce_sum(
                features["masked_lm_weights"], 1
            )
            first = tf.reduce_sum(weighted) / num_predictions
            second = tf.reduce_sum(made) / num_examples
            loss = first + second
        gradients = tape.gradient(loss, self.variables_to_train)
        return tf.stack([loss, first, second]), gradients


class SmallEvaluator(Evaluator):
    """Whose totals are sums of the batch times the first weight."""

    def totals(self, features, example_weights):
        sums = [tf.reduce_sum(tf.cast(each, tf.float32)) for each in features.values()]
        counts = tf.stack([*sums, tf.reduce_sum(example_weights)] * 2)
        return tf.reshape(counts, [6]) * self.model.kernel[0, 0]


@pytest.fixture
def named(monkeypatch):
    """The weights have the names of their variables: BERT's names are a table."""

    def weights_of(variables):
        for each in variables:
            yield each, program._given(each.name, each, program.WEIGHT, initial=0.5)

    monkeypatch.setattr(program, "weights_of", weights_of)
    monkeypatch.setattr(
        jax_trainer.pretrainer, "trained_variables", lambda model: [model.kernel, model.bias]
    )


def trainer_of(steps_per_update: int = 2) -> Trainer:
    rates = WarmupPolynomialDecay(learning_rate=0.1, num_train_steps=20, num_warmup_steps=0)
    with pretrainer.one_replica().scope():
        model = Model()
        optimizer = GradientAggregationOptimizer(
            create_optimizer(OptimizerConfig(name="lamb"), rates),
            [model.kernel, model.bias],
            steps_per_update=steps_per_update,
        )
    return SmallTrainer(model=model, optimizer=optimizer, batch_size=3)


def mesh():
    return jax_step.mesh_of(jax.devices("cpu")[:1])


def batches(number: int = 4, rows: int = 3):
    rng = np.random.default_rng(5)
    for _ in range(number):
        ids = rng.integers(1, 4, [rows, 2])
        yield {
            "input_ids": tf.constant(ids, tf.int32),
            "input_mask": tf.constant(ids > 1, tf.int32),
            "masked_lm_weights": tf.constant(rng.integers(0, 2, [rows, 5]), tf.float32),
        }


def all_weights(trainer) -> np.ndarray:
    return np.concatenate([each.numpy().ravel() for each in trainer.variables_to_train])


@pytest.mark.parametrize("steps_per_update", [1, 2])
def test_jax_trains_as_tensorflow_does(steps_per_update):
    """Losses and counts of four steps, in two calls, and all that a checkpoint holds after them."""
    expected, wrapped = trainer_of(steps_per_update), trainer_of(steps_per_update)
    trainer = jax_trainer.JaxTrainer(wrapped, mesh())
    [first] = batches(1)
    needed = trainer.compile([first])
    # 6 weights and 2 moments of each, sums of 6 gradients, two counters; and the batch beside them.
    state_bytes = 4 * 6 * (3 + (steps_per_update > 1)) + 2 * 8
    assert state_bytes <= trainer.state_bytes < needed
    trainer.warm_up([first])
    assert int(trainer.step) == 0
    types = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in first.items()}
    figures = []
    for each in (expected, trainer):
        drawn = iter(tf.data.Dataset.from_generator(batches, output_signature=types))
        figures.append(np.concatenate([each.train(drawn, tf.constant(n)) for n in (3, 1)]))
    np.testing.assert_allclose(*[each[:, :-1] for each in figures], **TOLERANCE)
    assert figures[0].shape == (4, len(FIGURES)) and (figures[1][:, -1] >= 0).all()
    assert (all_weights(trainer) == all_weights(trainer_of())).all()  # they are on the device
    trainer.fetch_state()
    states = [tf.nest.flatten(each.state["accumulators"]) for each in (expected, trainer)]
    states = [
        [*accumulators, each.step, *each.optimizer.optimizer.weights, *each.variables_to_train]
        for accumulators, each in zip(states, (expected, trainer))
    ]
    for one, other in zip(*states, strict=True):
        np.testing.assert_allclose(one, other, **TOLERANCE, err_msg=one.name)
    trainer.put_state()
    again = trainer.train(iter(list(batches(1))), tf.constant(1))
    assert again[0, 0] != figures[0][0, 0] and int(trainer.step) == 5


def test_a_batch_of_other_rows_is_compiled_when_it_comes():
    trainer = jax_trainer.JaxTrainer(trainer_of(), mesh())
    drawn = [*batches(1), *batches(1, rows=5), *batches(1)]
    figures = trainer.train(iter(drawn), tf.constant(3))
    assert figures[:, FIGURES.index("num_rows")].tolist() == [3, 5, 3]
    assert sorted(trainer._compiled) == [3, 5]


def test_the_halves_of_a_step_are_the_step():
    """As several devices call them, whose counts and gradients are added up between the two."""
    expected, trainer = trainer_of(), trainer_of()
    [batch] = batches(1)
    parts = [program.of_gradients(trainer, batch), program.of_update(trainer)]
    backward, change = map(jax_step.function, parts)
    state = {value["name"]: variable.numpy() for variable, value in program.state_of(trainer)} | {
        name: np.array(value["initial"], value["dtype"])
        for name, value in jax_step.state_inputs(parts).items()
        if value["role"] == program.CONSTANT
    }
    seed = expected.dropout_seeds(1)
    given = {name: value.numpy() for name, value in batch.items()} | {"seed": seed.numpy()}
    num_predictions = float(given["masked_lm_weights"].sum())
    given |= {"num_predictions": np.float32(num_predictions), "num_examples": np.float32(3)}
    (losses, *gradients), changed = backward(state | given)
    found = expected.gradients_of(batch, seed, num_predictions, 3.0)
    for one, other in zip((losses, *gradients), (found[0], *found[1]), strict=True):
        np.testing.assert_allclose(one, other, **TOLERANCE)
    assert changed == {}
    names = [value["name"] for value in parts[1].entry["inputs"] if value["role"] == "gradient"]
    assert names == ["kernel:0/gradient", "bias:0/gradient"]
    assert [value["name"] for value in parts[0].entry["outputs"]] == ["losses", *names]
    expected.apply(found[1])
    nothing, changed = change(state | dict(zip(names, gradients)))
    assert nothing == []
    for variable, value in program.state_of(expected):
        if value["name"] in changed:
            np.testing.assert_allclose(changed[value["name"]], variable, **TOLERANCE)
        else:
            np.testing.assert_array_equal(state[value["name"]], variable)
    assert {"global_step", "kernel:0/grad_accum"} <= changed.keys()


def test_the_signature_has_the_role_and_the_first_value_of_each_input():
    [batch] = batches(1)
    entry = program.of_training(trainer_of(), batch).entry
    by_role: dict[str, dict] = {}
    for value in entry["inputs"]:
        by_role.setdefault(value["role"], {})[value["name"]] = value.get("initial")
    constants = by_role.pop(program.CONSTANT, {})
    assert all(isinstance(value, float) for value in constants.values())
    weights = ("kernel:0", "bias:0")
    assert by_role == {
        "batch": dict.fromkeys(batch),
        "seed": {"seed": None},
        "weight": dict.fromkeys(weights, 0.5),
        "slot": {f"{name}/adam_{slot}": 0.0 for name in weights for slot in "mv"},
        "accumulator": {f"{name}/grad_accum": 0.0 for name in weights},
        "counter": {"global_step": 0.0, "num_updates": 0.0},
    }
    first, *changed = entry["outputs"]
    assert first == {"name": "losses", "shape": [3], "dtype": "float32", "role": "result"}
    for value in changed:
        replaced = entry["inputs"][value["feeds"]]
        assert {**replaced, "feeds": value["feeds"]} == {**value, "initial": replaced["initial"]}
    assert entry["calls"] == [] and entry["stablehlo_version"].count(".") == 2


@pytest.mark.parametrize("is_trained", [False, True])
def test_jax_evaluates_as_tensorflow_does(is_trained):
    """The weights of the model, or those that a trainer has on the devices."""
    trainer = jax_trainer.JaxTrainer(trainer_of(), mesh())
    if is_trained:
        trainer.train(iter(list(batches())), tf.constant(4))
    evaluator = SmallEvaluator(model=trainer.model)
    given = trainer.on_devices if is_trained else None
    by_jax = jax_trainer.JaxEvaluator(evaluator, mesh(), given)
    features = next(batches())
    features = {name: features[name] for name in ("input_ids", "input_mask")}
    dataset = tf.data.Dataset.from_tensors((features, tf.constant([1.0, 1.0, 0.0]))).repeat(2)
    time = Ledger()
    found = by_jax.evaluate(dataset, time)
    if is_trained:
        trainer.fetch_state()
    expected = dataclasses.astuple(evaluator.evaluate(dataset))
    assert dataclasses.astuple(found) == pytest.approx(expected, rel=1e-6)
    spent = time.read()
    assert spent[ledger.EVALUATION_COMPUTE] > 0 and not spent[ledger.COMPUTE]
    # Beside the weights it takes the batch, 2 * 3 * 2 and 3 numbers, at least.
    assert by_jax.compile(dataset.element_spec) >= 4 * 15


def test_functions_change_variables_on_the_devices():
    total, scale = tf.Variable([1.0, 2.0]), tf.Variable(3.0)

    def add(batch):
        total.assign_add(tf.reduce_sum(batch["x"], 0))
        return total * scale

    def look(batch):
        return total + batch["x"]

    functions = on_devices.Functions(mesh(), [total, scale])
    assert functions.state_bytes == 12
    functions.put_state()
    batch = {"x": np.array([[1, 2], [3, 4]], np.float32)}
    assert functions.call(add, batch).tolist() == [15.0, 24.0]
    assert functions.call(add, batch).tolist() == [27.0, 42.0]
    assert functions.call(look, batch).tolist() == [[10.0, 16.0], [12.0, 18.0]]
    assert total.numpy().tolist() == [1.0, 2.0]
    functions.fetch_state()
    assert total.numpy().tolist() == [9.0, 14.0] and scale.numpy() == 3.0
    assert functions.compile(add, batch) >= 4 * 4  # the batch
    functions.put_state()
    assert functions.usable_bytes() is None  # a CPU does not say it
