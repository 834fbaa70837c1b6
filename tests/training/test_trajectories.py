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

from mlperf_bert.checkpoints import names
from mlperf_bert.convert import saving
from mlperf_bert.input import pipeline
from mlperf_bert.programs import jax_trainer
from mlperf_bert.programs.steps import Evaluator, Trainer
from tests.checkpoints.stored_weights import read_weights
from tests.helpers import starts
from tests.training import by_jax, recorded_cases
from tests.training.oracles import Oracle, oracle_of

CASES = ["g1_lamb", "g2_lamb_rcp8192", "g3_lamb_accum4", "g4_adamw", "g5_lamb_poly"]


@pytest.fixture(
    scope="module", params=[pytest.param("golden", marks=pytest.mark.gate), "generated"]
)
def oracle(request, tmp_path_factory) -> Oracle:
    return oracle_of(request, tmp_path_factory)


def make_trainer(oracle: Oracle, name: str, *, recompute: str = "none") -> Trainer:
    """A trainer as the flags of a case describe it, at the initial checkpoint."""
    case = {"flags": oracle.trajectories[name]["flags"], "recompute": recompute}
    case |= {"normalization": "global", "compiled": False}
    return recorded_cases.make_trainer(oracle.plan(), case)


def assert_evaluation_equals(
    oracle: Oracle, trainer: Trainer, expected: dict, evaluator: Evaluator | None = None
) -> None:
    found = recorded_cases.evaluation(oracle.plan(), trainer, evaluator)
    for name, value in expected.items():
        tolerance = 1e-6 if name.endswith("accuracy") else 1e-5
        assert getattr(found, name) == pytest.approx(value, abs=tolerance), name


QUICK = ("g1_lamb", "g4_adamw")
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
    trainer = make_trainer(oracle, name, recompute=recompute)
    # Recomputation goes with the fused encoder, whose roundings are others: with it the pooler's
    # bias of g5 on generated text is 1.1e-5 apart, with recomputation or without, 0.9e-5 otherwise.
    assert_trains_as_recorded(
        oracle, name, trainer, tolerance=1e-5 if recompute == "none" else 2e-5
    )


@pytest.mark.gate
@pytest.mark.parametrize(
    "oracle", ["generated", pytest.param("golden", marks=pytest.mark.all)], indirect=True
)
@pytest.mark.parametrize("name", CASES)
def test_losses_weights_and_evaluation_by_jax(oracle, name, monkeypatch):
    monkeypatch.setattr(jax_trainer, "_compiled", by_jax.compiled_quickly)
    trainer = by_jax.trainer_of_case(oracle.plan(), {"flags": oracle.trajectories[name]["flags"]})
    evaluator = by_jax.evaluator_of(trainer)
    trainer.warm_up(synthetic_batches(oracle, name))
    trainer.put_state()
    if f"{name}_step20" in oracle.evaluations:
        assert_evaluation_equals(oracle, trainer, oracle.evaluations["init"], evaluator)
    assert_trains_as_recorded(oracle, name, trainer, tolerance=2e-5, evaluator=evaluator)


def synthetic_batches(oracle: Oracle, name: str) -> tf.data.Dataset:
    """Those on which a run compiles the step of a case."""
    size = oracle.trajectories[name]["flags"]["train_batch_size"]
    return pipeline.synthetic_batches(oracle.shape, batch_size=size, pack_sequences=False)


def assert_trains_as_recorded(
    oracle: Oracle,
    name: str,
    trainer: Trainer,
    *,
    tolerance: float,
    evaluator: Evaluator | None = None,
) -> None:
    """Every loss, how far each weight has moved, to a relative tolerance, and the evaluation."""
    expected_losses = oracle.trajectories[name]["losses"]
    num_steps = len(expected_losses)
    num_updates = oracle.num_updates_in_weights.get(name, num_steps)
    size = oracle.trajectories[name]["flags"]["train_batch_size"]
    batches = recorded_cases.batches_of(oracle.plan(), trainer, batch_size=size)

    losses = [np.asarray(trainer.train(batches, tf.constant(num_updates)))[:, 0]]
    trainer.fetch_state()
    after = saving.weights_by_tf1_name(trainer.variables_to_train)
    if rest := num_steps - num_updates:
        losses.append(np.asarray(trainer.train(batches, tf.constant(rest)))[:, 0])

    np.testing.assert_allclose(np.concatenate(losses), expected_losses, rtol=0, atol=1e-5)
    before, expected_changes = read_weights(oracle.checkpoint), oracle.delta_l2(name)
    assert num_steps == 20 and after.keys() == expected_changes.keys()
    for weight, expected in expected_changes.items():
        change = np.linalg.norm((after[weight] - before[weight]).astype(np.float64))
        if weight.endswith("self/key/bias"):  # their gradient is zero up to rounding
            assert change == pytest.approx(expected, abs=1e-5), weight
        else:
            assert change == pytest.approx(expected, rel=tolerance), weight
    if f"{name}_step20" in oracle.evaluations:
        expected = oracle.evaluations[f"{name}_step20"]
        assert_evaluation_equals(oracle, trainer, expected, evaluator)


# Above, the trainer equals both oracles; the command line and the exported program are compared
# with the generated one, and with the golden one in `make test-all`.
GENERATED_IN_CI = pytest.mark.parametrize(
    "oracle", ["generated", pytest.param("golden", marks=pytest.mark.all)], indirect=True
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
@pytest.mark.parametrize(("name", "runtime"), [(AGGREGATED, "tensorflow"), ("g1_lamb", "jax")])
def test_the_losses_from_the_command_line_alone(oracle, tmp_path, name, runtime):
    case, evaluated = oracle.trajectories[name], oracle.evaluations.get(f"{name}_step20", {})
    given = [*given_flags(oracle, name, tmp_path / "out"), f"--runtime={runtime}"]
    if evaluated:
        given += [f"--eval_input_file={oracle.folder}/eval.tfrecord"]
        given += [f"--eval_batch_size={oracle.eval_batch_size}"]
        given += [f"--eval_interval_samples={20 * case['flags']['train_batch_size']}"]
    command = [sys.executable, "run_pretraining.py", "--do_train", "--log_every_steps=1", *given]
    starts.run(command, check=True)
    every = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    lines, last = [line for line in every if '"train"' in line], json.loads(every[-1])
    losses = [json.loads(line)["loss"] for line in lines]
    np.testing.assert_allclose(losses, case["losses"], rtol=0, atol=1e-5)
    printed = [re.search(r'"loss": ([\d.]+)', line)[1] for line in lines]
    assert np.mean([len(text.replace(".", "")) for text in printed]) > 7
    assert {figure: last[figure] for figure in evaluated} == pytest.approx(evaluated, abs=1e-5)


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
