"""Trainers whose steps jax runs, on so many of its CPU devices; beside them those of TensorFlow.

    python tests/training/by_jax.py TASK PLAN.json OUTPUT.json

trains the cases of a plan on virtual devices, which XLA_FLAGS has to ask for before jax starts.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import tensorflow as tf

from mlperf_bert.programs import jax_step
from mlperf_bert.programs.jax_trainer import JaxEvaluator, JaxTrainer
from mlperf_bert.programs.tf_trainer import Evaluator, Trainer
from tests.input import unpacking
from tests.training import generated_task, recorded_cases, small_trainer
from tests.training.configurations import run_config

COMPILED = run_config(runtime="jax").compilation


def of_devices(trainer: Trainer, number: int = 1, *, step_identity: str = "") -> JaxTrainer:
    """The same trainer, its steps run by so many devices of jax."""
    mesh = jax_step.mesh_of(jax.devices("cpu")[:number])
    return JaxTrainer(trainer, mesh, step_identity=step_identity)


def evaluator_of(trainer: JaxTrainer) -> Evaluator:
    """As a run makes it: it evaluates the state that is on the devices."""
    evaluator = Evaluator(model=trainer.model)
    return JaxEvaluator(evaluator, trainer.mesh, trainer.arrays)


def trainer_of(task: dict, flags: dict, *, devices: int = 1) -> JaxTrainer:
    """As `recorded_cases.make_trainer` makes TensorFlow's."""
    trainer = recorded_cases.make_trainer(task, flags | {"runtime": "jax"})
    return of_devices(trainer, devices, step_identity=json.dumps(flags))


def trained(task: dict, case: dict, trainers: dict[str, JaxTrainer]) -> dict[str, list]:
    """Losses of twenty steps of a case, and the evaluation after them where the case has one.

    A case that is `unpacked` trains, on one device, on the examples of that packed case's batches.
    `trainers` takes what was compiled.
    """
    if "imitated_replicas" in case:
        trainer = recorded_cases.make_trainer(task, case["flags"])
        return {"losses": recorded_cases.imitate_replicas(task, case, trainer)}
    of_same = json.dumps([case["devices"], case["flags"]])
    if of_same not in trainers:
        trainers[of_same] = trainer_of(task, case["flags"], devices=case["devices"])
    trainers[case["name"]] = trainer = trainers[of_same]
    trainer.step.assign(0)
    trainer.put_state()
    packed = trainers.get(case.get("unpacked", ""), trainer)
    packs = packed is not trainer or "pack_sequences" in case["flags"]
    size = case["flags"]["train_batch_size"]
    batches = recorded_cases.batches_of(task, packed, batch_size=size, pack_sequences=packs)
    if packed is not trainer:
        batches = map(unpacked, batches)
    figures = np.concatenate([trainer.train(batches, tf.constant(n)) for n in (13, 7)])
    losses = figures[:, 0].tolist()
    if not case["evaluates"]:
        return {"losses": losses}
    found = recorded_cases.evaluation(task, trainer, evaluator_of(trainer))
    totals = [found.num_examples, found.masked_lm_accuracy, found.loss]
    return {"losses": losses, "evaluation": totals}


def unpacked(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The examples of a packed batch, each in a row of its own."""
    batch = {name: value.numpy() for name, value in batch.items()}
    examples = unpacking.unpack(batch, generated_task.SHAPE)
    return {
        name: tf.constant(
            np.stack([example[name] for example in examples]).reshape(len(examples), -1),
            tf.float32 if name == "masked_lm_weights" else tf.int32,
        )
        for name in generated_task.SHAPE.lengths()
    }


def dropped(folder: Path) -> dict[str, list]:
    """Losses of one step of two devices that have the same examples, by the seeds of the two.

    `drawn` has those that the trainer draws for two steps.
    """
    trainer = small_trainer.make_trainer(
        compilation=COMPILED, dropout=0.5, normalization="replica_mean",
        config={"num_hidden_layers": 1},
    )  # fmt: skip
    trainer = of_devices(trainer, 2)
    half = next(iter(small_trainer.batches_of(folder, batch_size=4)))
    twice = {name: tf.concat([value, value], 0) for name, value in half.items()}
    trainer.train(iter([twice]), tf.constant(1))  # compiles
    drawn = [trainer._own_seeds().reshape(2, 2).tolist() for _ in range(2)]

    def loss(*seeds: Sequence[int]) -> float:
        trainer._own_seeds = lambda: np.concatenate(seeds).astype(np.int32)
        trainer.put_state()
        return float(trainer.train(iter([twice]), tf.constant(1))[0, 0])

    one, other = drawn[0]
    return {
        "drawn": drawn,
        "losses": [loss(one, one), loss(other, other), loss(one, other), loss(other, one)],
    }


def empty_rows(task: dict, trainer: JaxTrainer) -> int:
    """How many rows without examples fill up the batches of twenty steps."""
    batches = recorded_cases.batches_of(task, trainer, batch_size=8, pack_sequences=True)
    masks = [next(batches)["input_mask"].numpy() for _ in range(20)]
    return int(sum((mask.sum(axis=1) == 0).sum() for mask in masks))


def main() -> None:
    """Runs the cases one after the other."""
    folder, plan, output = map(Path, sys.argv[1:])
    # A half that several numbers of devices share is exported once.
    (kept := output.with_name("kept")).mkdir()
    jax.config.update("jax_compilation_cache_dir", f"{kept}/by jax")
    task, trainers = generated_task.files_of(folder) | {"eval_batch_size": 12}, {}
    found = {case["name"]: trained(task, case, trainers) for case in json.loads(plan.read_text())}
    found["empty rows"] = empty_rows(task, trainers["packed"])
    found["dropout"] = dropped(folder)
    output.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
