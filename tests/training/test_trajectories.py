"""Twenty steps of training equal the reference's, for five recipes. CPU, about a minute.

The oracle: losses and weights that the reference computed in its own stack from the same initial
checkpoint on the same examples, in file order and without dropout (golden/README.md in shared).
"""

import json

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.checkpoints import initial, names
from mlperf_bert.data import input_pipeline
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import build_pretrainer
from mlperf_bert.optimization.aggregation import GradientAggregationOptimizer
from mlperf_bert.optimization.optimizers import ADAMW, OptimizerConfig, create_optimizer
from mlperf_bert.optimization.schedules import WarmupPolynomialDecay
from mlperf_bert.training.evaluation import Evaluator
from mlperf_bert.training.steps import Trainer

CASES = ["g1_lamb", "g2_lamb_rcp8192", "g3_lamb_accum4", "g4_adamw", "g5_lamb_poly"]
# The reference's AdamW reads its step counter while the same step increases it: a race, seen by
# printing the rate of every step in its own stack. When the recorded run's last step lost it, that
# step's rate was the one of step 20, which is 0; so its final weights are those after 19 updates.
NUM_UPDATES_IN_RECORDED_WEIGHTS = {"g4_adamw": 19}
SHAPE = input_pipeline.ExampleShape(max_seq_length=128, max_predictions_per_seq=20)


@pytest.fixture(scope="module")
def golden(shared):
    return shared / "golden"


def make_trainer(golden, flags: dict) -> Trainer:
    """A trainer as the flags of a golden case describe it, at the initial checkpoint."""
    config = BertConfig.from_json_file(golden / "bert_config.json")
    model = build_pretrainer(config, seed=0)
    schedule = WarmupPolynomialDecay(
        learning_rate=flags["learning_rate"],
        num_train_steps=flags["num_train_steps"],
        num_warmup_steps=flags["num_warmup_steps"],
        start_warmup_step=flags["start_warmup_step"],
        poly_power=flags.get("poly_power", 1.0),
        steps_per_update=flags.get("steps_per_update", 1),
    )
    lamb = OptimizerConfig(
        weight_decay_rate=flags.get("lamb_weight_decay_rate", 0.01),
        beta_1=flags.get("lamb_beta_1", 0.9),
        beta_2=flags.get("lamb_beta_2", 0.999),
    )
    optimizer = GradientAggregationOptimizer(
        create_optimizer(lamb if flags["optimizer"] == "lamb" else ADAMW, schedule),
        steps_per_update=flags.get("steps_per_update", 1),
        clip_after_allreduce=flags.get("clip_by_global_norm_after_gradient_allreduce", False),
    )
    trainer = Trainer(
        model=model,
        optimizer=optimizer,
        strategy=tf.distribute.get_strategy(),
        batch_size=flags["train_batch_size"],
    )
    initial.load_initial_weights(
        trainer.variables_to_train,
        str(golden / "init" / "model.ckpt-28252"),
        num_hidden_layers=config.num_hidden_layers,
    )
    return trainer


def batches_of(golden, flags: dict):
    """The training examples in file order."""
    dataset = input_pipeline.training_batches(
        [str(golden / "train.tfrecord")], SHAPE, batch_size=flags["train_batch_size"], seed=None
    )
    return iter(dataset)


def evaluate(golden, trainer: Trainer) -> dict:
    batches = input_pipeline.evaluation_batches(
        [str(golden / "eval.tfrecord")], SHAPE, batch_size=14
    )
    evaluator = Evaluator(model=trainer.model, strategy=trainer.strategy)
    return vars(evaluator.evaluate(batches))


def assert_evaluations_equal(found: dict, expected: dict) -> None:
    for name, value in expected.items():
        tolerance = 1e-6 if name.endswith("accuracy") else 1e-5
        assert found[name] == pytest.approx(value, abs=tolerance), name


@pytest.mark.parametrize("name", CASES)
def test_losses_weights_and_evaluation(golden, name):
    recorded = json.loads((golden / "trajectories.json").read_text())
    case = recorded["trajectories"][name]
    before = initial.read_weights(str(golden / "init" / "model.ckpt-28252"))

    num_steps = len(case["losses"])
    num_updates = NUM_UPDATES_IN_RECORDED_WEIGHTS.get(name, num_steps)
    trainer, batches = make_trainer(golden, case["flags"]), batches_of(golden, case["flags"])

    losses = [trainer.train(batches, tf.constant(num_updates)).numpy()[:, 0]]
    after = initial.weights_by_tf1_name(trainer.variables_to_train, num_hidden_layers=2)
    losses.append(trainer.train(batches, tf.constant(num_steps - num_updates)).numpy()[:, 0])

    np.testing.assert_allclose(np.concatenate(losses), case["losses"], rtol=0, atol=1e-5)
    assert after.keys() == case["final_weights"].keys()
    for weight, expected in case["final_weights"].items():
        change = np.linalg.norm((after[weight] - before[weight]).astype(np.float64))
        if weight.endswith("self/key/bias"):  # their gradient is zero up to rounding
            assert change == pytest.approx(expected["delta_l2"], abs=1e-5), weight
        else:
            assert change == pytest.approx(expected["delta_l2"], rel=1e-5), weight
    if f"{name}_step20" in recorded["evaluations"]:
        found = evaluate(golden, trainer)
        assert_evaluations_equal(found, recorded["evaluations"][f"{name}_step20"])


def test_evaluation_of_the_initial_checkpoint(golden):
    recorded = json.loads((golden / "trajectories.json").read_text())
    trainer = make_trainer(golden, recorded["trajectories"]["g1_lamb"]["flags"])
    assert_evaluations_equal(evaluate(golden, trainer), recorded["evaluations"]["init"])


def test_every_weight_decays_or_not_as_the_reference_decides_by_tf1_name(golden):
    recorded = json.loads((golden / "trajectories.json").read_text())
    trainer = make_trainer(golden, recorded["trajectories"]["g1_lamb"]["flags"])
    inner = trainer.optimizer.optimizer
    by_name = {names.our_name(v.name): v for v in trainer.variables_to_train}
    for weight in names.weights(2):
        expected = not any(part in weight.tf1_name for part in ("LayerNorm", "layer_norm", "bias"))
        assert inner._do_use_weight_decay(by_name[weight.our_name].name) == expected, weight
        assert inner._do_layer_adaptation(by_name[weight.our_name].name) == expected, weight
