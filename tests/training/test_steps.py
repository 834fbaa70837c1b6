"""What a step counts, waits for, adds up and leaves behind, by stand-ins that compute nothing."""

import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.checkpoints import names
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.ledger import Ledger
from mlperf_bert.programs import jax_step, program, stablehlo, steps
from mlperf_bert.programs.config import FIGURES


class Clock:
    """Moves when a stand-in sleeps."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(steps, "monotonic", clock)
    monkeypatch.setattr(steps, "sleep", clock.sleep)
    return clock


def test_a_trainer_that_sleeps_waits_for_its_input_alone(clock):
    wrapped = SimpleNamespace(step=tf.Variable(5), warm_up=pytest.fail, batch_size=8)
    asleep = steps.Asleep(wrapped, 2.0)
    asleep.warm_up(None)
    input_seconds = (0.25, 0.5, 0.0)
    batches = (clock.sleep(seconds) for seconds in input_seconds)
    figures = asleep.train(batches, tf.constant(3)).numpy()
    expected = np.zeros((3, len(FIGURES)))
    expected[:, FIGURES.index("input_wait_seconds")] = input_seconds
    np.testing.assert_array_equal(figures, expected)
    assert int(wrapped.step) == 8 and clock.now == 106.75 and asleep.batch_size == 8


def test_a_call_counts_its_own_seconds_of_computing_and_waiting(clock):
    time = Ledger(clock=clock)
    with time.counting(ledger.EVALUATION_COMPUTE):
        clock.sleep(64)

    def train(_, num_steps):
        clock.sleep(10 * int(num_steps))
        return np.full((int(num_steps), len(FIGURES)), 0.25)

    train_steps = steps.counted_steps(SimpleNamespace(train=train), iter([]), time)
    assert train_steps(2)[1] == 20
    figures, seconds = train_steps(4)
    assert seconds == 40 and figures.shape == (4, len(FIGURES))
    spent = {kind: value for kind, value in time.read().items() if value}
    assert spent == {
        ledger.EVALUATION_COMPUTE: 64,
        ledger.COMPUTE: 60 - 6 * 0.25,
        ledger.INPUT_WAIT: 6 * 0.25,
    }


@pytest.mark.parametrize("keeps_weights", [True, False])
def test_a_warm_up_tries_every_shape_on_every_replica_and_leaves_no_trace(
    monkeypatch, keeps_weights
):
    generator = tf.random.Generator.from_seed(3)
    weight, step, told, drawn = tf.Variable(1.5), tf.Variable(0, dtype=tf.int64), [], []
    monkeypatch.setattr(steps.pretrainer, "random_generators", lambda _: [generator])
    state = generator.state.numpy()

    def train(batches, num_steps):
        drawn.extend(len(batch) for batch in itertools.islice(batches, 2 * int(num_steps)))
        generator.uniform([4])
        weight.assign(9.0)
        step.assign_add(int(num_steps))

    trainer = SimpleNamespace(
        model=SimpleNamespace(variables=[weight]),
        strategy=SimpleNamespace(num_replicas_in_sync=2),
        optimizer=SimpleNamespace(steps_per_update=2, reset=lambda: told.append("reset")),
        batches=lambda make: iter(make(None)),
        train=train,
        step=step,
    )
    shapes = tf.data.Dataset.from_generator(
        lambda: (np.zeros(rows, np.int32) for rows in (1, 2, 3)),
        output_signature=tf.TensorSpec([None], tf.int32),
    ).apply(tf.data.experimental.assert_cardinality(3))
    steps.Trainer.warm_up(trainer, shapes, keeps_weights=keeps_weights)
    # Three shapes in whole updates of two steps, each step of two replicas.
    assert drawn == [1, 1, 2, 2, 3, 3, 1, 1]
    assert told == ["reset"] and int(step) == 0
    assert float(weight) == (1.5 if keeps_weights else 9.0)
    np.testing.assert_array_equal(generator.state, state)


WEIGHT = {"name": "w", "shape": [], "dtype": "float32", "role": "weight"}
HALVES = (
    jax_step.Part(b"backward", {"outputs": [{"name": "losses"}, {"name": "w/gradient"}],
                                "num_examples": 5.0}),
    jax_step.Part(b"change", {"outputs": [WEIGHT]}),
)  # fmt: skip


@pytest.mark.parametrize(
    "normalization, loss, example_loss, gradient",
    [
        # Sums of 6 and 20, of 3 and 1 predictions; 5 examples on each device; gradients 1 and 3.
        ("global", (6 + 20) / 4, (6 + 20) / 10, 4.0),
        ("replica_sum", (6 / 3 + 20 / 1) / 2, (6 / 5 + 20 / 5) / 2, 4.0),
        ("replica_mean", (6 / 3 + 20 / 1) / 2, (6 / 5 + 20 / 5) / 2, 2.0),
    ],
)
def test_devices_divide_and_add_up_as_the_normalization_says(
    monkeypatch, normalization, loss, example_loss, gradient
):
    def backward(values):
        losses = values["sum"] / jax.numpy.stack(
            [values["num_predictions"], values["num_examples"]]
        )
        return [losses, values["w"] * values["own"]], {}

    programs = {
        b"backward": backward,
        b"change": lambda values: ([], {"w": values["w"] - values["w/gradient"]}),
    }
    monkeypatch.setattr(jax_step, "function", lambda part, _: programs[part.content])
    step = jax_step.many_devices(*HALVES, normalization=normalization)
    batch = {
        "masked_lm_weights": np.array([[1, 1, 1], [0, 1, 0]], np.float32),
        "sum": np.array([6, 20], np.float32),
        "own": np.array([1, 3], np.float32),
    }
    state = {"w": np.float32(1), "constant": np.float32(7)}
    losses, changed = jax.vmap(step, in_axes=(None, 0), axis_name=jax_step.EACH)(state, batch)
    np.testing.assert_allclose(losses, [[loss, example_loss]] * 2)
    assert {name: each.tolist() for name, each in changed.items()} == {
        "w": [1 - gradient] * 2,
        "constant": [7.0] * 2,
    }


def test_a_program_needs_its_inputs_its_work_and_the_results_that_replace_nothing():
    memory = SimpleNamespace(
        argument_size_in_bytes=1000,
        temp_size_in_bytes=100,
        output_size_in_bytes=30,
        alias_size_in_bytes=20,
    )
    compiled = SimpleNamespace(memory_analysis=lambda: memory)
    assert jax_step.needed_bytes(compiled) == 1110


def test_weights_begin_as_berts_do():
    initial = {each.tf1_name: program._initial(each.tf1_name) for each in names.weights(1)}
    ones = [name for name, value in initial.items() if value == 1.0]
    zeros = [name for name, value in initial.items() if value == 0.0]
    assert len(ones) == 4 and all(name.endswith("LayerNorm/gamma") for name in ones)
    assert all(name.rpartition("/")[2] in ("beta", "bias", "output_bias") for name in zeros)
    normal = initial.keys() - {*ones, *zeros}
    tables = {f"{kind}_embeddings" for kind in ("word", "position", "token_type")}
    last = {name.rpartition("/")[2] for name in normal}
    assert last == tables | {"kernel", "output_weights"}


def test_variables_that_change_are_read_from_what_tensorflow_says():
    alias = "{{alias = {{must_alias, parameter_number = {} : i64}}, output_index = array<i64{}>}}"
    text = f"[{alias.format(8, ': 1')}, {alias.format(3, '')}, {alias.format(12, ': 10')}]"
    found = stablehlo._replaced_inputs({"mhlo.input_output_alias": text})
    assert found == {1: 8, 0: 3, 10: 12}
    assert stablehlo._replaced_inputs({}) == {}
