"""Steps run by jax are TensorFlow's: devices, dropout, waits. CPU, a minute.

The recorded recipes are in test_trajectories.py, options of an exported step in
tests/portable/test_program.py, whole runs in test_disturbances.py.
"""

import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.programs import jax_trainer
from mlperf_bert.programs.config import STEP_FIGURES
from tests.helpers import starts
from tests.training import by_jax, saved_states
from tests.training.small_trainer import batches_of, make_trainer

pytestmark = pytest.mark.usefixtures("compiles_quickly")

TASK = {"num_hidden_layers": 1}
ONE_LAYER = {"config": {"num_hidden_layers": 1}}
WAIT = STEP_FIGURES.index("input_wait_seconds")


@pytest.fixture(scope="module")
def with_dropout():
    """Of LAMB, compiled once for what follows; whoever trains with it puts its own state."""
    return by_jax.of_devices(make_trainer(compilation=by_jax.COMPILED, dropout=0.1, **ONE_LAYER))


@pytest.mark.gate
def test_one_device_trains_and_drops_as_tensorflow_does(task, with_dropout):
    """Losses and counts of six steps, in two calls, and the weights after them."""
    # What is recomputed is fused, as with jax: the layers of tf-models draw other dropout.
    expected = make_trainer(recompute="attention", dropout=0.1, **ONE_LAYER)
    every = []
    for trainer in (with_dropout, expected):
        batches = iter(batches_of(task))
        figures = [np.asarray(trainer.train(batches, tf.constant(n))) for n in (4, 2)]
        every.append(np.concatenate(figures)[:, :WAIT])
    np.testing.assert_allclose(*every, rtol=0, atol=1e-5)
    assert len(set(every[0][:, 0])) == 6
    with_dropout.fetch_state()
    assert int(with_dropout.step) == int(expected.step) == 6
    for one, other in zip(
        with_dropout.variables_to_train, expected.variables_to_train, strict=True
    ):
        if "key/bias" not in one.name:  # their gradient is zero up to rounding
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-4, err_msg=one.name)


@pytest.mark.gate
def test_training_on_does_not_change_the_copy(task, with_dropout, tmp_path):
    batches = iter(batches_of(task))
    saved_states.assert_copies_are_the_checkpoints(with_dropout, batches, tmp_path)


# Of jax's devices. Each device has its own number of predictions, 4 to 24 a step.

# With a usual epsilon LAMB learns the same from the mean of gradients as from their sum.
LAMB = {"optimizer": "lamb", "learning_rate": 0.005, "log_epsilon": -1, "train_batch_size": 8}
LAMB |= {"num_train_steps": 40, "num_warmup_steps": 4, "start_warmup_step": 0}
LAMB |= {"steps_per_update": 2}
OF_REPLICAS = {"replica_sum": 2, "replica_mean": 4}  # devices


def case(name: str, devices: int, flags: dict = LAMB, **more) -> dict:
    return {"name": name, "flags": flags, "devices": devices, "evaluates": False, **more}


CASES = [
    *(case(f"{number} devices", number, evaluates=True) for number in (1, 2)),
    case("packed", 2, LAMB | {"pack_sequences": True}),
    case("unpacked", 1, unpacked="packed"),
]
for name, number in OF_REPLICAS.items():
    flags = LAMB | {"normalization": name}
    CASES.append(case(name, number, flags))
    CASES.append(case(f"{name} in turn", 1, flags, imitated_replicas=number))


@pytest.fixture(scope="module")
def found(task, tmp_path_factory, starts_compile_quickly) -> dict:
    """What one process with four virtual devices made of all cases."""
    folder = tmp_path_factory.mktemp("devices")
    plan, output = folder / "plan.json", folder / "found.json"
    plan.write_text(json.dumps(CASES))
    command = [sys.executable, "tests/training/by_jax.py", task, plan, output]
    xla_flags = f"--xla_force_host_platform_device_count=4 {starts_compile_quickly}"
    environment = {**os.environ, "XLA_FLAGS": xla_flags}
    starts.run(command, env=environment, check=True, seconds=900)
    return json.loads(output.read_text())


def assert_same(found: dict, name: str, expected: str) -> None:
    losses = [found[each]["losses"] for each in (name, expected)]
    assert len(losses[0]) == 20
    np.testing.assert_allclose(*losses, rtol=1e-6, atol=0, err_msg=name)


@pytest.mark.gate
def test_two_devices_compute_what_one_does(found):
    """Four in two processes, and three, do in test_faults.py."""
    assert_same(found, "2 devices", "1 devices")
    evaluations = [found[name]["evaluation"] for name in ("1 devices", "2 devices")]
    assert evaluations[0] == pytest.approx(evaluations[1], rel=1e-6)
    assert evaluations[0][0] == 45  # which two do not divide


@pytest.mark.gate
@pytest.mark.parametrize("name", OF_REPLICAS)
def test_the_modes_of_the_reference_are_what_its_replicas_would_do_in_turn(found, name):
    assert_same(found, name, f"{name} in turn")
    difference = np.subtract(found[name]["losses"], found["1 devices"]["losses"])
    assert np.abs(difference).max() > 1e-3  # another computation than the global one


@pytest.mark.gate
def test_packed_batches_of_several_devices_are_those_of_their_examples(found):
    assert found["empty rows"] > 5  # one device has fewer rows than the other
    assert_same(found, "packed", "unpacked")


@pytest.mark.gate
def test_every_device_drops_others(found):
    (one, other), (third, fourth) = found["dropout"]["drawn"]
    assert len({*map(tuple, (one, other, third, fourth))}) == 4
    first, second, mixed, turned = found["dropout"]["losses"]
    assert abs(first - second) > 0.01
    # On the same examples each device has the loss of its own seed.
    assert mixed == turned == pytest.approx((first + second) / 2, rel=1e-6)


@pytest.fixture
def second_of_three(monkeypatch):
    """A trainer on the two devices of the second of three processes; gathers what `others` say."""
    monkeypatch.setattr(jax_trainer.jax, "process_count", lambda: 3)
    monkeypatch.setattr(jax_trainer.jax, "process_index", lambda: 1)
    trainer = object.__new__(jax_trainer.JaxTrainer)
    trainer._num_local, trainer.others = 2, []
    trainer._trainer = SimpleNamespace(dropout_seeds=lambda n: tf.range(2 * n))
    stats = [{"bytes_limit": 5}, {"bytes_limit": 4}]
    devices = [SimpleNamespace(memory_stats=lambda each=each: each) for each in stats]
    trainer.mesh = SimpleNamespace(size=6, local_devices=devices)
    monkeypatch.setattr(
        jax_trainer.multihost_utils,
        "process_allgather",
        lambda own: np.array([[trainer.others[0]], own, [trainer.others[1]]]),
    )
    return trainer


def test_a_process_takes_its_own_share(second_of_three):
    """Of seeds, of an evaluation's batch and of the examples: the second third."""
    assert second_of_three._own_seeds().tolist() == [4, 5, 6, 7]
    batch, weights = {"ids": tf.range(12)}, tf.range(12) * 10
    own = jax_trainer.JaxEvaluator._own(second_of_three, batch, weights)
    assert {name: value.tolist() for name, value in own.items()} == {
        "ids": [4, 5, 6, 7],
        "example_weights": [40, 50, 60, 70],
    }
    asked = []

    def make(context):
        asked.append(context)
        rows = [[1, 2], [3], [4, 5], [6]]
        types = {"ids": tf.TensorSpec([None, 1], tf.int32)}
        each = ({"ids": np.array(row, np.int32)[:, None]} for row in rows)
        return tf.data.Dataset.from_generator(lambda: each, output_signature=types)

    drawn = [each["ids"].numpy().ravel().tolist() for each in second_of_three.batches(make)]
    assert drawn == [[1, 2, 3, 0], [4, 5, 6, 0]]  # a row of one device is without an example
    [context] = asked
    assert (context.num_input_pipelines, context.input_pipeline_id) == (3, 1)
    assert context.num_replicas_in_sync == 6


def test_a_warm_up_tries_every_shape_on_every_device_and_leaves_no_trace(
    second_of_three, monkeypatch
):
    trainer, drawn = second_of_three, []
    generator = tf.random.Generator.from_seed(3)
    monkeypatch.setattr(jax_trainer.pretrainer, "random_generators", lambda _: [generator])
    state = generator.state.numpy()

    def train(batches, num_steps):
        drawn.extend(len(batch["ids"]) for batch in batches)
        generator.uniform([4])
        trainer.step.assign_add(int(num_steps))
        trainer._state = {"w": 1.0}

    trainer.model, trainer.step, trainer.others = None, tf.Variable(0, dtype=tf.int64), [0, 0]
    trainer.compile, trainer.train = lambda _: None, train
    trainer.warm_up([{"ids": tf.zeros([rows])} for rows in (1, 2)])
    assert drawn == [2, 4] and int(trainer.step) == 0 and not trainer._state
    np.testing.assert_array_equal(generator.state, state)


def test_processes_agree_on_what_is_least_and_longest(second_of_three):
    trainer = second_of_three
    trainer.others = [7, 6]
    assert trainer.usable_bytes() == 4  # of its own devices
    trainer.others = [7, 3]
    assert trainer.usable_bytes() == 3
    trainer._compiled, rows = {1: None, 2: None}, {"input_ids": np.ones([2, 3], int)}
    filled = trainer._pad_rows(rows)["input_ids"]
    assert filled.shape == (7, 3) and filled.sum() == 6 and filled[:2].all()
    trainer._compiled = {1: None}  # rows that are not packed are as many everywhere
    assert trainer._pad_rows(rows) is rows
    assert trainer.gather([0.5]).tolist() == [[7], [0.5], [3]]


@pytest.mark.parametrize(
    ("step_seconds", "input_seconds", "waits"),
    [
        (1.0, 0.25, [0.25, 0.0, 0.0, 0.0]),  # dispatched ahead
        (1.0, 3.0, [3.0, 3.0, 3.0, 3.0]),  # at the longest
        (0.0, 0.5, [0.5] * 4),
    ],
)
def test_a_step_waits_if_the_one_before_has_ended(
    monkeypatch, with_dropout, step_seconds, input_seconds, waits
):
    """By a clock that the input moves; steps are computed one after the other."""
    now, ends = [0.0], [0.0]

    class Result:
        def __init__(self):
            self.at = ends[0]

        def is_ready(self):
            return now[0] >= self.at

        def __array__(self, *_, **__):
            return np.zeros(3, np.float32)

    def batches():
        while True:
            now[0] += input_seconds
            yield {"input_mask": tf.ones([8, 4], tf.int32), "input_ids": tf.ones([8, 4], tf.int32)}

    def compiled(state, given):
        ends[0] = max(ends[0], now[0]) + step_seconds
        return Result(), state

    monkeypatch.setattr(jax_trainer, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        jax_trainer.jax,
        "device_get",
        lambda pairs: [(np.asarray(losses), np.asarray(counts)) for losses, counts in pairs],
    )
    monkeypatch.setattr(with_dropout, "_compiled_for", lambda batch: compiled)
    before = int(with_dropout.step)
    figures = with_dropout.train(batches(), tf.constant(4))
    assert int(with_dropout.step) == before + 4
    assert figures[:, WAIT].tolist() == waits
    assert figures[:, WAIT].sum() <= now[0]
    assert figures[:, STEP_FIGURES.index("num_real_tokens")].tolist() == [32] * 4
