"""Twenty steps of training equal the reference's, for five recipes. CPU, about a minute.

Two oracles, both losses and weights that the reference computed in its own stack, in file order and
without dropout: `golden` on real text (in shared), and `generated` on a task made from a seed.
"""

import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.checkpoints import initial, names
from mlperf_bert.convert import saving
from mlperf_bert.input import pipeline
from mlperf_bert.input.pipeline import ExampleShape
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import build_pretrainer
from mlperf_bert.optimization.aggregation import GradientAggregationOptimizer
from mlperf_bert.optimization.config import ADAMW, OptimizerConfig
from mlperf_bert.optimization.optimizers import WarmupPolynomialDecay, create_optimizer
from mlperf_bert.training.steps import Evaluator, Trainer
from tests.checkpoints.stored_weights import read_weights
from tests.helpers import starts
from tests.training import generated_task

CASES = ["g1_lamb", "g2_lamb_rcp8192", "g3_lamb_accum4", "g4_adamw", "g5_lamb_poly"]


@dataclasses.dataclass(frozen=True)
class Oracle:
    """A task, and what the reference made of it."""

    folder: Path
    checkpoint: str
    shape: ExampleShape
    eval_batch_size: int
    trajectories: dict
    evaluations: dict
    num_updates_in_weights: dict

    @property
    def config(self) -> BertConfig:
        return BertConfig.from_json_file(self.folder / "bert_config.json")

    def delta_l2(self, name: str) -> dict[str, float]:
        """L2 norm of every weight's change, by TF1 name."""
        case = self.trajectories[name]
        if "delta_l2" in case:
            return case["delta_l2"]
        return {weight: values["delta_l2"] for weight, values in case["final_weights"].items()}


@pytest.fixture(
    scope="module", params=[pytest.param("golden", marks=pytest.mark.gate), "generated"]
)
def oracle(request, tmp_path_factory) -> Oracle:
    if request.param == "golden":
        folder = request.getfixturevalue("shared") / "golden"
        recorded = json.loads((folder / "trajectories.json").read_text())
        return Oracle(
            folder=folder,
            checkpoint=str(folder / "init" / "model.ckpt-28252"),
            shape=ExampleShape(max_seq_length=128, max_predictions_per_seq=20),
            eval_batch_size=14,
            trajectories=recorded["trajectories"],
            evaluations=recorded["evaluations"],
            # The reference's AdamW reads its step counter while the same step increases it: a
            # race, seen by printing the rate of every step in its own stack. When the recorded
            # run's last step lost it, that step's rate was the one of step 20, which is 0; so its
            # final weights are those after 19 updates.
            num_updates_in_weights={"g4_adamw": 19},
        )
    folder = tmp_path_factory.mktemp("generated") / "task"
    generated_task.write_task(folder)
    recorded = json.loads(Path(__file__).with_name("reference_trajectories.json").read_text())
    return Oracle(
        folder=folder,
        checkpoint=str(folder / "init" / "model.ckpt-0"),
        shape=generated_task.SHAPE,
        eval_batch_size=9,
        trajectories=recorded["trajectories"],
        evaluations=recorded["evaluations"],
        num_updates_in_weights={},
    )


def make_trainer(oracle: Oracle, name: str, *, recompute: str = "none") -> Trainer:
    """A trainer as the flags of a case describe it, at the initial checkpoint."""
    flags = oracle.trajectories[name]["flags"]
    model = build_pretrainer(oracle.config, seed=0, recompute=recompute)
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
        oracle.checkpoint,
        num_hidden_layers=oracle.config.num_hidden_layers,
    )
    return trainer


def batches_of(oracle: Oracle, name: str):
    """The training examples in file order."""
    dataset = pipeline.training_batches(
        [str(oracle.folder / "train.tfrecord")],
        oracle.shape.for_model(oracle.config),
        batch_size=oracle.trajectories[name]["flags"]["train_batch_size"],
        seed=None,
    )
    return iter(dataset)


def assert_evaluation_equals(oracle: Oracle, trainer: Trainer, expected: dict) -> None:
    batches = pipeline.evaluation_batches(
        [str(oracle.folder / "eval.tfrecord")],
        oracle.shape.for_model(oracle.config),
        batch_size=oracle.eval_batch_size,
    )
    found = Evaluator(model=trainer.model, strategy=trainer.strategy).evaluate(batches)
    for name, value in expected.items():
        tolerance = 1e-6 if name.endswith("accuracy") else 1e-5
        assert getattr(found, name) == pytest.approx(value, abs=tolerance), name


QUICK = ("g1_lamb", "g3_lamb_accum4", "g4_adamw")
AGGREGATED = "g3_lamb_accum4"  # also recomputed, and as an exported program


@pytest.mark.parametrize(
    "name, recompute",
    [
        *(pytest.param(n, "none", marks=[] if n in QUICK else pytest.mark.gate) for n in CASES),
        *(pytest.param(n, "blocks", marks=pytest.mark.all) for n in CASES if n != AGGREGATED),
        pytest.param(AGGREGATED, "blocks", marks=pytest.mark.gate),
    ],
)
def test_losses_weights_and_evaluation(oracle, name, recompute):
    expected_losses = oracle.trajectories[name]["losses"]
    num_steps = len(expected_losses)
    num_updates = oracle.num_updates_in_weights.get(name, num_steps)
    trainer = make_trainer(oracle, name, recompute=recompute)
    batches = batches_of(oracle, name)

    losses = [trainer.train(batches, tf.constant(num_updates)).numpy()[:, 0]]
    layers = oracle.config.num_hidden_layers
    after = saving.weights_by_tf1_name(trainer.variables_to_train, num_hidden_layers=layers)
    losses.append(trainer.train(batches, tf.constant(num_steps - num_updates)).numpy()[:, 0])

    np.testing.assert_allclose(np.concatenate(losses), expected_losses, rtol=0, atol=1e-5)
    before, expected_changes = read_weights(oracle.checkpoint), oracle.delta_l2(name)
    assert num_steps == 20 and after.keys() == expected_changes.keys()
    # Recomputation goes with the fused encoder, whose roundings are others: with it the pooler's
    # bias of g5 on generated text is 1.1e-5 apart, with recomputation or without, 0.9e-5 otherwise.
    tolerance = 1e-5 if recompute == "none" else 2e-5
    for weight, expected in expected_changes.items():
        change = np.linalg.norm((after[weight] - before[weight]).astype(np.float64))
        if weight.endswith("self/key/bias"):  # their gradient is zero up to rounding
            assert change == pytest.approx(expected, abs=1e-5), weight
        else:
            assert change == pytest.approx(expected, rel=tolerance), weight
    if f"{name}_step20" in oracle.evaluations:
        assert_evaluation_equals(oracle, trainer, oracle.evaluations[f"{name}_step20"])


# Above, the trainer equals both oracles; the command line and the exported program are compared
# with the generated one, and with the golden one in the soak tests.
GENERATED_IN_CI = pytest.mark.parametrize(
    "oracle", ["generated", pytest.param("golden", marks=pytest.mark.soak)], indirect=True
)


def given_flags(oracle: Oracle, name: str, output_dir: Path) -> list[str]:
    """The flags of run_pretraining.py for a case."""
    flags = {
        "bert_config_file": oracle.folder / "bert_config.json",
        "input_file": oracle.folder / "train.tfrecord",
        "init_checkpoint": oracle.checkpoint,
        "output_dir": output_dir,
        **dataclasses.asdict(oracle.shape),
        **oracle.trajectories[name]["flags"],
    }
    return ["--noshuffle", *(f"--{name}={value}" for name, value in flags.items())]


@pytest.mark.gate
@GENERATED_IN_CI
def test_the_losses_from_the_command_line_alone(oracle, tmp_path):
    case = oracle.trajectories["g3_lamb_accum4"]
    given = given_flags(oracle, "g3_lamb_accum4", tmp_path / "out")
    command = [sys.executable, "run_pretraining.py", "--do_train", "--log_every_steps=1", *given]
    starts.run(command, check=True)
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    np.testing.assert_allclose(losses, case["losses"], rtol=0, atol=1e-5)
    printed = [re.search(r'"loss": ([\d.]+)', line)[1] for line in lines]
    assert np.mean([len(text.replace(".", "")) for text in printed]) > 7


@pytest.mark.gate
@GENERATED_IN_CI
@pytest.mark.parametrize(
    "name", [n if n == AGGREGATED else pytest.param(n, marks=pytest.mark.all) for n in CASES]
)
def test_the_losses_of_the_exported_program_under_jax(oracle, name, tmp_path):
    folder, figures = tmp_path / "step", tmp_path / "figures.json"
    given = [*given_flags(oracle, name, folder), "--num_batches=20", "--num_recorded_steps=0"]
    given += ["--nodata_parallel"]  # one device
    starts.run([sys.executable, "mlperf_bert/portable/export.py", *given], check=True)
    command = [sys.executable, "mlperf_bert/portable/run_step.py", folder, "--num_steps=20"]
    starts.run([*command, f"--output={figures}"], check=True)
    losses = [results[0] for results in json.loads(figures.read_text())["results"]]
    np.testing.assert_allclose(losses, oracle.trajectories[name]["losses"], rtol=0, atol=1e-5)


def test_evaluation_of_the_initial_checkpoint(oracle):
    assert_evaluation_equals(oracle, make_trainer(oracle, "g1_lamb"), oracle.evaluations["init"])


def test_every_weight_decays_or_not_as_the_reference_decides_by_tf1_name(oracle):
    trainer = make_trainer(oracle, "g1_lamb")
    inner = trainer.optimizer.optimizer
    by_name = {names.our_name(v.name): v for v in trainer.variables_to_train}
    for weight in names.weights(oracle.config.num_hidden_layers):
        expected = not any(part in weight.tf1_name for part in ("LayerNorm", "layer_norm", "bias"))
        assert inner._do_use_weight_decay(by_name[weight.our_name].name) == expected, weight
        assert inner._do_layer_adaptation(by_name[weight.our_name].name) == expected, weight
