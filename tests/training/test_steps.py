"""What a step counts, waits for, adds up and leaves behind, mostly by stand-ins. CPU, seconds."""

import itertools
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from mlperf_bert.checkpoints import names
from mlperf_bert.input import pipeline
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.ledger import Ledger
from mlperf_bert.optimization.optimizers import (
    GradientAggregationOptimizer,
    WarmupPolynomialDecay,
)
from mlperf_bert.programs import jax_step, program, tf_trainer
from mlperf_bert.programs.config import STEP_FIGURES
from tests.mlperf.example_log import Clock
from tests.training import generated_task
from tests.training.small_trainer import BATCH_SIZE, batches_of, make_trainer, slowed


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """Moves when a stand-in sleeps."""
    clock = Clock()
    monkeypatch.setattr(tf_trainer, "monotonic", clock)
    monkeypatch.setattr(tf_trainer, "sleep", clock.pass_by)
    return clock


def test_a_trainer_that_sleeps_waits_for_its_input_alone(clock):
    others = ("state", "variables_to_train", "put_state", "fetch_state", "batches", "gather")
    wrapped = SimpleNamespace(step=tf.Variable(5), warm_up=pytest.fail, profiling=None)
    vars(wrapped).update({name: object() for name in others})
    asleep = tf_trainer.SleepingTrainer(wrapped, 2.0)
    asleep.warm_up(None)
    input_seconds = (0.25, 0.5, 0.0)
    batches = (clock.pass_by(seconds) for seconds in input_seconds)
    figures = asleep.train(batches, tf.constant(3)).numpy()
    expected = np.zeros((3, len(STEP_FIGURES)))
    expected[:, STEP_FIGURES.index("input_wait_seconds")] = input_seconds
    np.testing.assert_array_equal(figures, expected)
    assert int(wrapped.step) == 8 and clock.now == 106.75
    assert all(getattr(asleep, name) is getattr(wrapped, name) for name in others)


def test_a_call_counts_its_own_seconds_of_computing_and_waiting(clock):
    time = Ledger(clock=clock)
    with time.counting(ledger.EVALUATION_COMPUTE):
        clock.pass_by(64)

    def train(_, num_steps):
        clock.pass_by(10 * int(num_steps))
        return np.full((int(num_steps), len(STEP_FIGURES)), 0.25)

    train_steps = tf_trainer.timed_train_steps(SimpleNamespace(train=train), iter([]), time)
    assert train_steps(2)[1] == 20
    figures, seconds = train_steps(4)
    assert seconds == 40 and figures.shape == (4, len(STEP_FIGURES))
    spent = {kind: value for kind, value in time.read().items() if value}
    assert spent == {
        ledger.EVALUATION_COMPUTE: 64,
        ledger.COMPUTE: 60 - 6 * 0.25,
        ledger.INPUT_WAIT: 6 * 0.25,
    }


@pytest.mark.parametrize("keeps_weights", [True, False])
def test_a_warm_up_tries_every_shape_and_leaves_no_trace(monkeypatch, keeps_weights):
    generator = tf.random.Generator.from_seed(3)
    weight, step, told, drawn = tf.Variable(1.5), tf.Variable(0, dtype=tf.int64), [], []
    monkeypatch.setattr(tf_trainer.pretrainer, "random_generators", lambda _: [generator])
    state = generator.state.numpy()

    def train(batches, num_steps):
        drawn.extend(len(batch) for batch in itertools.islice(batches, int(num_steps)))
        generator.uniform([4])
        weight.assign(9.0)
        step.assign_add(int(num_steps))

    trainer = SimpleNamespace(
        model=SimpleNamespace(variables=[weight]),
        optimizer=SimpleNamespace(steps_per_update=2, reset=lambda: told.append("reset")),
        train=train,
        step=step,
    )
    shapes = tf.data.Dataset.from_generator(
        lambda: (np.zeros(rows, np.int32) for rows in (1, 2, 3)),
        output_signature=tf.TensorSpec([None], tf.int32),
    ).apply(tf.data.experimental.assert_cardinality(3))
    tf_trainer.Trainer.warm_up(trainer, shapes, keeps_weights=keeps_weights)
    # Three shapes in whole updates of two steps.
    assert drawn == [1, 2, 3, 1]
    assert told == ["reset"] and int(step) == 0
    assert float(weight) == (1.5 if keeps_weights else 9.0)
    np.testing.assert_array_equal(generator.state, state)


WEIGHT = {"name": "w", "shape": [], "dtype": "float32", "role": "weight"}
HALVES = (
    jax_step.ExportedProgram(b"backward", {"outputs": [{"name": "losses"}, {"name": "w/gradient"}],
                                "num_examples": 5.0}),
    jax_step.ExportedProgram(b"change", {"outputs": [WEIGHT]}),
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
    monkeypatch.setattr(jax_step, "as_callable", lambda part, _: programs[part.content])
    step = jax_step.many_devices(*HALVES, normalization=normalization)
    batch = {
        "masked_lm_weights": np.array([[1, 1, 1], [0, 1, 0]], np.float32),
        "sum": np.array([6, 20], np.float32),
        "own": np.array([1, 3], np.float32),
    }
    state = {"w": np.float32(1), "constant": np.float32(7)}
    losses, changed = jax.vmap(step, in_axes=(None, 0), axis_name=jax_step.DEVICE_AXIS)(
        state, batch
    )
    np.testing.assert_allclose(losses, [[loss, example_loss]] * 2)
    assert {name: each.tolist() for name, each in changed.items()} == {
        "w": [1 - gradient] * 2,
        "constant": [7.0] * 2,
    }


def test_totals_of_an_evaluation_are_added_up_over_the_devices(monkeypatch):
    monkeypatch.setattr(jax_step, "as_callable", lambda part, _: lambda values: ([values["x"]], {}))
    step = jax_step.one_device(HALVES[0], of=2)
    batch = {"x": np.array([[1, 5], [3, 7]], np.float32)}
    totals, changed = jax.vmap(step, in_axes=(None, 0), axis_name=jax_step.DEVICE_AXIS)({}, batch)
    assert totals.tolist() == [[4, 12]] * 2 and changed == {}


def test_a_program_needs_its_inputs_its_work_and_the_results_that_replace_nothing():
    memory = SimpleNamespace(
        argument_size_in_bytes=1000,
        temp_size_in_bytes=100,
        output_size_in_bytes=30,
        alias_size_in_bytes=20,
    )
    compiled = SimpleNamespace(memory_analysis=lambda: memory)
    assert jax_step.needed_bytes(compiled) == 1110


def test_the_state_of_both_halves_is_what_nobody_gives_them_once():
    weight = {"name": "w", "role": "weight", "shape": [2, 3], "dtype": "float32"}
    counter = {"name": "step", "role": "counter", "shape": [], "dtype": "int64"}
    given = [{"name": role, "role": role} for role in jax_step.GIVEN]
    halves = [jax_step.ExportedProgram(b"", {"inputs": [weight, counter, *given]})]
    state = jax_step.state_inputs([*halves, jax_step.ExportedProgram(b"", {"inputs": [weight]})])
    assert state == {"w": weight, "step": counter} and jax_step.num_bytes(state) == 32


@pytest.mark.parametrize("normalization", ["global", "replica_sum"])
def test_what_replicas_have_clipped_is_not_clipped_again(normalization):
    told = []
    optimizer = SimpleNamespace(
        steps_per_update=1, step=lambda gradients, *, clips: told.append(clips)
    )
    count = tf.Variable(0, dtype=tf.int64)
    trainer = SimpleNamespace(normalization=normalization, optimizer=optimizer, step=count)
    tf_trainer.Trainer.apply(trainer, [])
    assert told == [normalization == "global"] and int(count) == 1


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
    found = program._replaced_inputs({"mhlo.input_output_alias": text})
    assert found == {1: 8, 0: 3, 10: 12}
    assert program._replaced_inputs({}) == {}


def test_batches_have_static_shapes(task):
    evaluation = pipeline.evaluation_batches(
        [str(task / "eval.tfrecord")], generated_task.LIMITS, batch_size=BATCH_SIZE
    )
    for dataset in (batches_of(task), evaluation):
        for spec in tf.nest.flatten(dataset.element_spec):
            assert spec.shape.is_fully_defined() and spec.shape[0] == BATCH_SIZE


def pause_seconds(step_seconds: float) -> float:
    """A sleep beside which a step takes little."""
    return max(0.5, 30 * step_seconds)


def waits(trainer, batches, num_steps: int) -> tuple[list[float], float]:
    """Each step's wait for its batch, and how long all steps took; in seconds."""
    began = time.monotonic()
    history = trainer.train(iter(batches), tf.constant(num_steps)).numpy()
    return history[:, -1].tolist(), time.monotonic() - began


@pytest.mark.gate
def test_a_sleep_in_the_input_is_waited_for_whatever_is_computed_meanwhile():
    trainer = make_trainer(config={"num_hidden_layers": 1})
    batch = pipeline.synthetic_batch(generated_task.SHAPE, batch_size=BATCH_SIZE)
    fast = tf.data.Dataset.from_tensors(batch).repeat()
    waits(trainer, fast, 2)
    pause = pause_seconds(min(waits(trainer, fast, 6)[1] for _ in range(3)) / 6)

    def what_is_there_is_not_waited_for() -> bool:
        without, seconds = waits(trainer, fast, 6)
        return sum(without) < 0.5 * seconds

    def a_sleep_is() -> bool:
        slept: list[float] = []
        found, _ = waits(trainer, slowed(fast, pause, slept), 4)
        return 0.9 <= sum(found) / sum(slept[:4]) < 1.1  # a step hides as much as it takes

    def what_is_made_ahead_is_there() -> bool:
        """The first batches; the next is made while a step computes."""
        ahead = iter(slowed(fast, pause, []).prefetch(3))
        next(ahead)
        time.sleep(6 * pause)
        found = trainer.train(ahead, tf.constant(7)).numpy()[:, -1]
        return max(found[:3]) < 0.2 * pause and min(found[5:]) > 0.4 * pause

    # A busy machine lets a step or a batch wait for its turn, but not in each of so many turns.
    for holds in (what_is_there_is_not_waited_for, a_sleep_is, what_is_made_ahead_is_there):
        assert any(holds() for _ in range(20)), holds


@pytest.mark.parametrize("clips_late, moved", [(False, [0.3, 0.4]), (True, [0.6, 0.8])])
def test_each_micro_batch_is_clipped_or_their_mean(clips_late, moved):
    """Of (0, 0) and (6, 8) with the norms 0 and 10; the norm of their mean is 5."""
    weight = tf.Variable([1.0, 2.0])
    descent = tf_keras.optimizers.legacy.SGD(1.0)
    made = GradientAggregationOptimizer(
        descent, [weight], steps_per_update=2, clip_after_allreduce=clips_late
    )
    for number in (1, 2):  # nothing of an update is left for the next
        for gradient in ([0.0, 0.0], [6.0, 8.0]):
            made.step([tf.constant(gradient)], clips=True)
        made.update()
        np.testing.assert_allclose([1.0, 2.0] - weight.numpy(), number * np.array(moved), rtol=1e-5)
        assert not made.accumulators[0].numpy().any()


@pytest.mark.parametrize("late, here, moved", [
    (False, False, [6.0, 8.0]), (True, False, [0.6, 0.8]), (False, True, [0.6, 0.8]),
    (True, True, [0.6, 0.8]),
])  # fmt: skip
def test_without_aggregation_a_gradient_is_clipped_after_the_all_reduce_too(late, here, moved):
    weight = tf.Variable([0.0, 0.0])
    made = GradientAggregationOptimizer(
        tf_keras.optimizers.legacy.SGD(1.0), [weight], clip_after_allreduce=late
    )
    made.step([tf.constant([6.0, 8.0])], clips=here)
    np.testing.assert_allclose(-weight.numpy(), moved, rtol=1e-6)


def test_an_update_takes_the_rate_of_its_last_micro_batch():
    schedule = WarmupPolynomialDecay(
        learning_rate=1.0, num_train_steps=20, num_warmup_steps=8, steps_per_update=4
    )
    rates = [float(schedule(update)) for update in range(5)]
    assert rates == pytest.approx([3 / 8, 7 / 8, 9 / 20, 5 / 20, 1 / 20])


@pytest.mark.parametrize("start", [0, -3])
def test_the_last_step_of_the_warm_up_is_below_the_peak(start):
    schedule = WarmupPolynomialDecay(
        learning_rate=1.0, num_train_steps=20, num_warmup_steps=8, start_warmup_step=start
    )
    end = 8 + start
    rates = [float(schedule.at_step(step)) for step in (end - 1, end, end + 1)]
    assert rates == pytest.approx([7 / 8, 1 - end / 20, 1 - (end + 1) / 20])
