"""Programs of a model of six weights: exported by TensorFlow, run by jax, they compute the same.

CPU, seconds. BERT's own programs are in test_jax_runtime.py and tests/portable, in minutes.
"""

import dataclasses
import json
import os
import re
import runpy
import sys
import types

import jax
import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.data.validity import ExampleShape
from mlperf_bert.input import pipeline
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.ledger import Ledger
from mlperf_bert.model import pretrainer
from mlperf_bert.optimization.config import OptimizerConfig
from mlperf_bert.optimization.optimizers import (
    GradientAggregationOptimizer,
    WarmupPolynomialDecay,
    create_optimizer,
)
from mlperf_bert.portable import flop, program_folder, run_step
from mlperf_bert.programs import device_state, jax_step, jax_trainer, program
from mlperf_bert.programs.config import STEP_FIGURES
from mlperf_bert.programs.tf_trainer import Evaluator, Trainer
from mlperf_bert.training import build, checks
from tests.training.configurations import TINY, record, run_config

pytestmark = pytest.mark.usefixtures("compiles_quickly", "named")
TOLERANCE = {"rtol": 1e-6, "atol": 1e-7}


class Model(tf.Module):
    """What trainer and evaluator ask of a model: weights, and the generator of dropout."""

    fused = True

    def __init__(self, width: int):
        super().__init__()
        rows = [[0.5, -0.25], [0.125, 1.0]] * (width // 2)
        self.kernel = tf.Variable(rows, name="kernel")
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
        counted = [features["input_ids"], features["input_mask"], example_weights]
        counts = tf.stack([tf.reduce_sum(tf.cast(each, tf.float32)) for each in counted] * 2)
        return tf.reshape(counts, [6]) * self.model.kernel[0, 0]


@pytest.fixture
def named(monkeypatch):
    """The weights have the names of their variables: BERT's names are a table."""

    def weights_of(variables):
        for each in variables:
            yield each, program._value(each.name, each, program.WEIGHT, initial=0.5)

    monkeypatch.setattr(program, "weights_of", weights_of)
    monkeypatch.setattr(
        jax_trainer.pretrainer, "trained_variables", lambda model: [model.kernel, model.bias]
    )


def trainer_of(steps_per_update: int = 2, width: int = 2) -> Trainer:
    rates = WarmupPolynomialDecay(learning_rate=0.1, num_train_steps=20, num_warmup_steps=0)
    with pretrainer.one_replica().scope():
        model = Model(width)
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
    assert 4 * 6 * (3 + (steps_per_update > 1)) + 2 * 8 <= trainer.state_bytes < needed
    trainer.warm_up([first])
    assert int(trainer.step) == 0
    types = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in first.items()}
    figures = []
    for each in (expected, trainer):
        drawn = iter(tf.data.Dataset.from_generator(batches, output_signature=types))
        figures.append(np.concatenate([each.train(drawn, tf.constant(n)) for n in (3, 1)]))
    np.testing.assert_allclose(*[each[:, :-1] for each in figures], **TOLERANCE)
    assert figures[0].shape == (4, len(STEP_FIGURES)) and (figures[1][:, -1] >= 0).all()
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
    assert figures[:, STEP_FIGURES.index("num_rows")].tolist() == [3, 5, 3]
    needed = [jax_step.needed_bytes(trainer._compiled[rows]) for rows in (3, 5)]
    assert trainer.compile([]) == needed[1] > needed[0] and len(trainer._compiled) == 2


def test_the_halves_of_a_step_are_the_step():
    """As several devices call them, whose counts and gradients are added up between the two."""
    expected, trainer = trainer_of(), trainer_of()
    [batch] = batches(1)
    parts = [program.of_gradients(trainer, batch), program.of_update(trainer)]
    backward, change = map(jax_step.as_callable, parts)
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
    names = ["kernel:0/gradient", "bias:0/gradient"]
    given = [value["name"] for value in parts[1].entry["inputs"] if value["role"] == "gradient"]
    assert given == names and [v["name"] for v in parts[0].entry["outputs"]] == ["losses", *names]
    expected.apply(found[1])
    nothing, changed = change(state | dict(zip(names, gradients)))
    assert nothing == []
    for variable, value in program.state_of(expected):
        if value["name"] in changed:
            np.testing.assert_allclose(changed[value["name"]], variable, **TOLERANCE)
        else:
            np.testing.assert_array_equal(state[value["name"]], variable)
    assert {"global_step", "kernel:0/grad_accum"} <= changed.keys()


def test_each_of_several_devices_has_its_part_of_the_examples(monkeypatch):
    told, wrapped = [], trainer_of()
    wrapped.normalization = "replica_mean"
    trainer = jax_trainer.JaxTrainer(wrapped, mesh())
    trainer.mesh = types.SimpleNamespace(size=2, devices=np.array(jax.devices("cpu") * 2))
    monkeypatch.setattr(jax_step, "lowered", lambda *given: told.append(given))
    assert [rows for rows, _ in trainer.lowered([*batches(1)])] == [3]
    [(parts, *others)] = told
    assert [part.entry.get("num_examples") for part in parts] == [1.5, None]
    assert others == [jax.devices("cpu") * 2, "replica_mean"]


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
    by_jax = jax_trainer.JaxEvaluator(evaluator, mesh(), trainer.arrays if is_trained else None)
    features = next(batches())
    features = {name: features[name] for name in ("input_ids", "input_mask")}
    dataset = tf.data.Dataset.from_tensors((features, tf.constant([1.0, 1.0, 0.0]))).repeat(2)
    time, of_tensorflow = Ledger(), Ledger()
    found = by_jax.evaluate(dataset, time)
    if is_trained:
        trainer.fetch_state()
    expected = dataclasses.astuple(evaluator.evaluate(dataset, of_tensorflow))
    assert of_tensorflow.read()[ledger.EVALUATION_COMPUTE] > 0
    assert dataclasses.astuple(found) == pytest.approx(expected, rel=1e-6)
    spent = time.read()
    assert spent[ledger.EVALUATION_COMPUTE] > 0 and not spent[ledger.COMPUTE]
    # Beside the weights that it reads, 4 numbers: the batch, 2 * 3 * 2 and 3 numbers, at least.
    needed = jax_step.needed_bytes(by_jax._compiled)
    assert by_jax.compile(dataset.element_spec) == needed - 4 * 4 >= 4 * 15


def test_functions_change_variables_on_the_devices():
    total, scale = tf.Variable([1.0, 2.0]), tf.Variable(3.0)

    def add(batch):
        total.assign_add(tf.reduce_sum(batch["x"], 0))
        return total * scale

    def look(batch):
        return total + batch["x"]

    functions = device_state.CompiledFunctions(mesh(), [total, scale])
    assert functions.state_bytes == 12
    functions.put_state()
    batch = {"x": np.array([[1, 2], [3, 4]], np.float32)}
    assert functions.call(add, batch).tolist() == [15.0, 24.0]
    assert functions.call(add, batch).tolist() == [27.0, 42.0]
    assert functions.call(look, batch).tolist() == [[10.0, 16.0], [12.0, 18.0]]
    assert total.numpy().tolist() == [1.0, 2.0]
    functions.fetch_state()
    assert total.numpy().tolist() == [9.0, 14.0] and scale.numpy() == 3.0
    needed = jax_step.needed_bytes(functions._programs["add"][0])
    assert functions.compile(add, batch) == needed - 12 >= 4 * 4  # the batch
    functions.put_state()
    assert functions.usable_bytes() is None  # a CPU does not say it


def test_a_program_is_made_for_the_platform_of_its_devices():
    """Also where none is: jax takes no program of one platform for another."""
    [batch] = batches(1)
    part = program.of_training(trainer_of(), batch)
    values = part.entry["inputs"]
    given = {v["name"]: jax.ShapeDtypeStruct(v["shape"], v["dtype"]) for v in values}
    for platform in ("cuda", "tpu"):
        traced = jax.jit(jax_step.as_callable(part, platform)).trace(given)
        assert "stablehlo" in traced.lower(lowering_platforms=(platform,)).as_text()
        with pytest.raises(ValueError, match="platform"):
            traced.lower(lowering_platforms=("cpu",))


def test_what_is_no_program_is_named():
    part = jax_step.ExportedProgram(
        b"text", {"file": "step.stablehlo", "inputs": [], "outputs": []}
    )
    with pytest.raises(ValueError, match=r"^step\.stablehlo is not StableHLO$"):
        jax_step.as_callable(part)


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ({}, "0.96"),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}, "0.5"),
        ({"XLA_CLIENT_MEM_FRACTION": "0.5"}, None),
    ],
)
def test_jax_may_take_nearly_all_of_a_gpu_unless_the_user_says_otherwise(monkeypatch, given, share):
    for name in ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    runpy.run_path(jax_step.__file__)
    assert os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION") == share
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.96")  # so that it is restored


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_folder_of_programs_runs_and_agrees(tmp_path, monkeypatch, capsys, has_checkpoint):
    """All that the exporter writes, with the weights of a checkpoint or drawn from the seed."""
    shape = ExampleShape(max_seq_length=16, max_predictions_per_seq=4)
    rng = np.random.default_rng(2)
    records = b"".join(
        record(shape, input_ids=rng.integers(1, 4, 16), input_mask=np.ones(16, int),
               masked_lm_weights=np.float32([1, 1, 0, number % 2]))
        for number in range(12)
    )  # fmt: skip
    (tmp_path / "data").write_bytes(records)
    (tmp_path / "bert_config.json").write_text(json.dumps(dataclasses.asdict(TINY)))
    config = run_config(
        bert_config_file=f"{tmp_path}/bert_config.json", input_file=f"{tmp_path}/data",
        eval_input_file=f"{tmp_path}/data", output_dir=f"{tmp_path}/out", max_seq_length=16,
        max_predictions_per_seq=4, train_batch_size=3, eval_batch_size=5, num_train_steps=10,
        optimizer="lamb", seed=11, shuffle=has_checkpoint, num_parallel_files=3,
    )  # fmt: skip
    trainer, read, how, built = trainer_of(width=16), pipeline.training_batches, {}, {}
    monkeypatch.setattr(
        pipeline, "training_batches", lambda *of, **given: how.update(given) or read(*of, **given)
    )
    monkeypatch.setattr(
        build, "build_trainer", lambda *_, **given: built.update(given) or (None, trainer)
    )
    monkeypatch.setattr(program_folder, "Evaluator", SmallEvaluator)
    setup = checks.inspect(config)
    if has_checkpoint:
        loaded = lambda variables, _: [each.assign(each * 0 + 0.5) for each in variables]  # noqa: E731
        monkeypatch.setattr(program_folder.reading, "load_initial_weights", loaded)
        vars(setup)["initial_checkpoint"] = "opened"
    wanted = program_folder.Wanted(
        evaluation=True, data_parallel=True, barriers=has_checkpoint,
        num_batches=2, num_recorded_steps=3,
    )  # fmt: skip
    folder = tmp_path / "step"
    assert program_folder.write(setup, str(folder), wanted) == (
        f"{folder}: 4 programs, 3 batches, losses of 3 steps recorded; run it with its run_step.py"
    )
    names = ["signature.json", "batches.npz", "run_step.py", "jax_step.py"]
    names += [f"{name}.stablehlo" for name in ("step", "gradients", "update", "evaluation")]
    names += ["weights.npz"] * has_checkpoint
    assert sorted(each.name for each in folder.iterdir()) == sorted(names)
    signature = json.loads((folder / "signature.json").read_text())
    assert [(each["kind"], each.get("num_rows"), each.get("num_examples"), each.get("flop"))
            for each in signature["programs"]] == [
        ("training", 3, 3, flop.of_training_step(TINY, **SIZES, num_rows=3)),
        ("gradients", 3, 3, flop.of_training_step(TINY, **SIZES, num_rows=3)),
        ("update", None, None, None),
        ("evaluation", 5, 5, flop.of_forward_pass(TINY, **SIZES, num_rows=5)),
    ]  # fmt: skip
    assert (signature["seed"], signature["tolerance"], signature["precision"]) == (
        11, 1e-5, "float32",
    )  # fmt: skip
    of_batches = {"batch_size": 3, "pack_sequences": False, "num_parallel_files": 3}
    assert how == of_batches | {"seed": 11 if has_checkpoint else None}
    assert (built["seed"], built["compilation"].barriers) == (11, has_checkpoint)
    recorded = signature["recorded"]
    assert len({tuple(each["seed"]) for each in recorded["training"]}) == 3
    assert len({each["results"][0] for each in recorded["training"]}) == 3
    assert sum(len(each["results"]) for each in recorded["evaluation"]) == 2 * 6
    for kind, compared in (("training", 3), ("evaluation", 2)):
        words = ["run_step.py", str(folder), f"--kind={kind}", "--num_steps=3"]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            run_step.main()
        told = capsys.readouterr().out
        assert not ended.value.code and re.search("agrees +True", told), told
        assert re.search(f"compared_steps +{compared}$", told, re.MULTILINE)


SIZES = {"num_tokens": 16, "num_predictions": 4}
