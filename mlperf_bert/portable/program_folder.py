"""Writes a folder with a training step as a program, and scripts that run it without the project.

signature.json         inputs, outputs and cost of every program, flags, commit and versions
step.stablehlo         packed, one for each number of rows of the batches: step-12.stablehlo, ...
gradients.stablehlo    the same, and update.stablehlo: the halves of a step of several devices
evaluation.stablehlo   with --evaluation
batches.npz            real batches: "training/0/input_ids", "evaluation/0/input_ids", ...
weights.npz            the initial checkpoint; without one the weights are drawn from the seed
run_step.py            runs and compiles the programs, with jax_step.py: copies
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from mlperf_bert.checkpoints import reading
from mlperf_bert.data import software
from mlperf_bert.files import paths, whole
from mlperf_bert.files.json_text import write_record
from mlperf_bert.input import checked, pipeline
from mlperf_bert.messages import lasting
from mlperf_bert.options import option
from mlperf_bert.portable import flop, run_step
from mlperf_bert.portable.run_step import EVALUATION, GRADIENTS, TRAINING, UPDATE
from mlperf_bert.programs import jax_step, program
from mlperf_bert.programs.config import LOSSES, Compilation
from mlperf_bert.programs.tf_trainer import Evaluator, Trainer
from mlperf_bert.training import build
from mlperf_bert.training.setup import Setup

_LICENCE = "Apache-2.0, as the project that exported it; the weights have that of their checkpoint"
# The most that results may differ by, relative where they are above 1.
_TOLERANCE = {"float32": 1e-5, "tf32": 1e-3, "bfloat16": 1e-2}
_EXPORT = Compilation(passes=True, exported=True, reason="its user compiles it")
_COPIES = ("portable/run_step.py", "programs/jax_step.py")

Batch = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the folder will hold besides the programs of a training step."""

    evaluation: bool = option(False, "Also export the evaluation step.")
    data_parallel: bool = option(True, "Also export the halves of a step of many devices.")
    barriers: bool = option(True, "Tell XLA what to keep: for GPUs. Give --nobarriers for TPUs.")
    num_batches: int = option(8, "Real batches to write into the folder.", at_least=1)
    num_recorded_steps: int = option(
        3, "Steps that TensorFlow runs, to compare with; 0 where memory is short.", at_least=0
    )


def write(setup: Setup, output_dir: str, wanted: Wanted) -> str:
    """Exports the programs of a run into a new folder; returns what it holds, in one line."""
    _require_exportable(setup)
    config = setup.config
    seed = config.seed or 0
    output = paths.require_local(output_dir, flag="output_dir")
    if output.exists():
        raise ValueError(f"--output_dir={output_dir}: exists; give a folder that is not there yet")
    holds_weights = bool(config.init_checkpoint or wanted.num_recorded_steps)
    with contextlib.nullcontext() if holds_weights else _weights_not_set():
        compilation = dataclasses.replace(_EXPORT, barriers=wanted.barriers)
        _, trainer = build.build_trainer(
            config, setup.bert_config, seed=seed, compilation=compilation
        )
    evaluator = Evaluator(model=trainer.model)
    batches = _training_batches(setup, wanted)
    evaluation = _evaluation_batches(setup, wanted)
    with whole.folder_written_beside(output) as folder:
        parts = _parts(trainer, evaluator, batches, evaluation, wanted)
        programs = [_write_program(setup, folder, *part) for part in parts]
        arrays = {
            f"{kind}/{number}/{name}": values.numpy()
            for kind, several in ((TRAINING, batches), (EVALUATION, evaluation))
            for number, batch in enumerate(several)
            for name, values in batch.items()
        }
        np.savez(folder / run_step.BATCHES, **arrays)
        if stored := setup.initial_checkpoint:
            reading.load_initial_weights(trainer.variables_to_train, stored)
            weights = program.weights_of(trainer.variables_to_train)
            values = {value["name"]: variable.numpy() for variable, value in weights}
            np.savez(folder / run_step.WEIGHTS, **values)
        elif wanted.num_recorded_steps:
            # Weights are drawn as run_step.py draws them.
            told = {"seed": seed, "initializer_range": setup.bert_config.initializer_range}
            with lasting("drawing the weights as run_step.py does"):
                for variable, value in program.weights_of(trainer.variables_to_train):
                    variable.assign(run_step.drawn(value, told))
        # TensorFlow has no kernels; its losses are as far from the program's as bfloat16 rounds.
        fused = trainer.model.fused
        trainer.model.fused = getattr(fused, "without_kernels", fused)
        recorded = {
            EVALUATION: _evaluate(evaluator, evaluation) if wanted.num_recorded_steps else [],
            TRAINING: _train(trainer, batches[: wanted.num_recorded_steps]),
        }
        signature = _signature(setup, wanted, programs, recorded)
        write_record(folder / run_step.SIGNATURE, signature)
        for file in map(Path(__file__).parents[1].joinpath, _COPIES):
            (folder / file.name).write_bytes(file.read_bytes())
    return (
        f"{output}: {len(programs)} program{'s' * (len(programs) != 1)}, {len(batches)} batches, "
        f"losses of {wanted.num_recorded_steps} steps recorded; run it with its run_step.py"
    )


@contextlib.contextmanager
def _weights_not_set() -> Iterator[None]:
    """Variables made inside have a shape, but no memory until they are written."""

    def create(next_creator, *, initial_value, **rest):
        if callable(initial_value):
            with tf.Graph().as_default():
                value = initial_value()
            shape, dtype = value.shape.as_list(), value.dtype
            if value.shape.rank:  # counters and constants keep their values
                initial_value = lambda: tf.raw_ops.Empty(shape=shape, dtype=dtype)  # noqa: E731
        return next_creator(initial_value=initial_value, **rest)

    with tf.variable_creator_scope(create):
        yield


def _require_exportable(setup: Setup) -> None:
    """Refuses a run whose step no program can be: of one device, its rate from the step alone."""
    config = setup.config
    if (replicas := setup.devices.num_replicas) > 1:
        raise ValueError(
            f"a program is the step of one device, but this run has {replicas}; give "
            f"--num_gpus=0 --train_batch_size={config.train_batch_size // replicas}"
        )
    if config.time_budget is not None or config.emulate_step_seconds is not None:
        raise ValueError("--time_budget, --emulate_step_seconds: leave them out of a program")


def _evaluation_batches(setup: Setup, wanted: Wanted) -> list[Batch]:
    if not wanted.evaluation:
        return []
    if not setup.eval_files:
        raise ValueError("--evaluation needs --eval_input_file, for its batches")
    with checked.checked_input(setup.eval_files, setup.limits):
        batches = itertools.islice(build.evaluation_batches(setup), wanted.num_batches)
        return [{**batch, program.EXAMPLE_WEIGHTS: weights} for batch, weights in batches]


def _training_batches(setup: Setup, wanted: Wanted) -> list[Batch]:
    config = setup.config
    with checked.checked_input(setup.files, setup.limits, packs=config.pack_sequences):
        batches = pipeline.training_batches(
            setup.files,
            setup.limits,
            batch_size=config.train_batch_size,
            seed=(config.seed or 0) if config.shuffle else None,
            pack_sequences=config.pack_sequences,
            num_parallel_files=config.num_parallel_files,
        )
        needed = max(wanted.num_batches, wanted.num_recorded_steps)
        return list(itertools.islice(batches, needed))


def _parts(
    trainer: Trainer, evaluator: Evaluator, batches: list[Batch], evaluation: list[Batch],
    wanted: Wanted,
) -> Iterator[tuple[str, str, Callable[[], jax_step.ExportedProgram]]]:  # fmt: skip
    """Yields each program's kind, name and exporter; a packed step for each number of rows.

    Only the shapes of a batch matter.
    """
    for rows, batch in sorted({len(each["input_ids"]): each for each in batches}.items()):
        after = f"-{rows}" if "block_ids" in batch else ""
        yield TRAINING, f"step{after}", partial(program.of_training, trainer, batch)
        if wanted.data_parallel:
            half = partial(program.of_gradients, trainer, batch)
            yield GRADIENTS, f"{GRADIENTS}{after}", half
    if wanted.data_parallel:
        yield UPDATE, UPDATE, partial(program.of_update, trainer)
    for batch in evaluation[:1]:
        features = {name: v for name, v in batch.items() if name != program.EXAMPLE_WEIGHTS}
        yield EVALUATION, EVALUATION, partial(program.of_evaluation, evaluator, features)


def _write_program(
    setup: Setup, folder: Path, kind: str, name: str, make: Callable[[], jax_step.ExportedProgram]
) -> dict:
    """Writes a program; returns what signature.json says of it."""
    with lasting(f"export of {name}"):
        part = make()
    file = f"{name}.stablehlo"
    (folder / file).write_bytes(part.content)
    entry: dict = {"file": file, "kind": kind}
    if kind != UPDATE:  # all others take a batch: its size, and FLOP of the products by formula
        config = setup.config
        shapes = {value["name"]: value["shape"] for value in part.entry["inputs"]}
        evaluates = kind == EVALUATION
        num_rows, num_tokens = shapes["input_ids"]
        num_predictions = shapes["masked_lm_positions"][1]
        sizes = {"num_rows": num_rows, "num_tokens": num_tokens, "num_predictions": num_predictions}
        of_products = flop.of_forward_pass if evaluates else flop.of_training_step
        entry["num_examples"] = config.eval_batch_size if evaluates else config.train_batch_size
        entry |= sizes | {"flop": of_products(setup.bert_config, **sizes)}
    return entry | part.entry


@lasting("evaluation by TensorFlow, to compare with")
def _evaluate(evaluator: Evaluator, batches: Sequence[Batch]) -> list[dict[str, list]]:
    """The totals of each batch, in the order of `metrics.Totals`."""
    totals = []
    for batch in batches:
        features = {name: v for name, v in batch.items() if name != program.EXAMPLE_WEIGHTS}
        batch_totals = evaluator.evaluate_batch(features, batch[program.EXAMPLE_WEIGHTS])
        totals.append({"results": batch_totals.numpy().tolist()})
    return totals


@lasting("steps by TensorFlow, to compare with")
def _train(trainer: Trainer, batches: Sequence[Batch]) -> list[dict[str, list]]:
    """Trains on each batch as run_pretraining.py does; returns seed and losses of each step."""
    generator = trainer.model.dropout_generator
    state = generator.state.numpy()
    seeds = [trainer.dropout_seeds(1).numpy().tolist() for _ in batches]
    generator.reset(state)
    steps = []
    for seed, batch in zip(seeds, batches):
        figures = trainer.train(iter(tf.data.Dataset.from_tensors(batch)), tf.constant(1))
        steps.append({"seed": seed, "results": figures[0, : len(LOSSES)].numpy().tolist()})
    return steps


def _signature(setup: Setup, wanted: Wanted, programs: list[dict], recorded: dict) -> dict:
    config = setup.config
    return {
        "format": run_step.FORMAT,
        "licence": _LICENCE,
        "made_with": software.made_with(),
        "input_files": setup.files,
        "init_checkpoint": config.init_checkpoint,
        "seed": config.seed or 0,
        "initializer_range": setup.bert_config.initializer_range,
        "precision": config.precision,
        "tolerance": _TOLERANCE[config.precision],
        "bert_config": dataclasses.asdict(setup.bert_config),
        "parameters": config.parameters(),
        "recorded": recorded,
        "programs": programs,
    }
