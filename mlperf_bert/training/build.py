"""Builds a run from what the checks have made: model, programs, checkpoints and input.

Reads no data.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterator

import tensorflow as tf

from mlperf_bert.checkpoints import reading
from mlperf_bert.checkpoints.state import RunState, newest_checkpoint
from mlperf_bert.input import pipeline
from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.model import pretrainer
from mlperf_bert.model.config import BertConfig
from mlperf_bert.optimization.optimizers import (
    GradientAggregationOptimizer,
    WarmupPolynomialDecay,
    create_optimizer,
)
from mlperf_bert.programs.config import Compilation
from mlperf_bert.programs.contract import EvaluatorContract, PretrainerContract
from mlperf_bert.programs.tf_trainer import Evaluator, SleepingTrainer, Trainer
from mlperf_bert.signals import StopRequest
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.evaluations import read_evaluations
from mlperf_bert.training.output import Origin
from mlperf_bert.training.reporting import StartUp
from mlperf_bert.training.setup import Setup
from mlperf_bert.training.workers import Team


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
    """What computes the steps of a run, and a synthetic batch of every shape that it is given."""

    rates: WarmupPolynomialDecay
    trainer: PretrainerContract
    """The trainer; its weights are random until `load_weights`."""
    evaluator: EvaluatorContract
    synthetic_batches: tf.data.Dataset
    """One batch of every shape that training will use, for one replica."""
    synthetic_evaluation_batch: tf.data.Dataset | None
    """One batch, whose shape all batches of an evaluation have; None without evaluation."""

    def warm_up(self, *, keeps_weights: bool) -> None:
        """Compiles all programs that are not compiled yet, and executes each once."""
        self.trainer.warm_up(self.synthetic_batches, keeps_weights=keeps_weights)
        if self.synthetic_evaluation_batch:
            self.evaluator.evaluate(self.synthetic_evaluation_batch)


def build_programs(setup: Setup, *, seed: int) -> Programs:
    """Builds the trainer and the evaluator for the run's runtime."""
    config, evaluation_batch = setup.config, None
    if setup.eval_files:
        size = config.eval_batch_size
        batch = pipeline.synthetic_batch(config.shape, batch_size=size)
        evaluation_batch = tf.data.Dataset.from_tensors((batch, tf.ones([size])))
    synthetic_batches = pipeline.synthetic_batches(
        config.shape, batch_size=setup.replica_batch_size, pack_sequences=config.pack_sequences
    )
    rates, by_tensorflow = build_trainer(
        config, setup.bert_config, seed=seed, compilation=config.compilation
    )
    evaluating = Evaluator(model=by_tensorflow.model)
    trainer: PretrainerContract = by_tensorflow
    evaluator: EvaluatorContract = evaluating
    if mesh := setup.devices.mesh:
        from mlperf_bert.programs import jax_trainer  # no other runtime loads jax

        trainer = by_jax = jax_trainer.JaxTrainer(
            by_tensorflow, mesh, step_identity=setup.step_identity
        )
        evaluator = jax_trainer.JaxEvaluator(
            evaluating, mesh, by_jax.arrays, step_identity=setup.step_identity
        )
    if config.emulate_step_seconds is not None:
        trainer = SleepingTrainer(trainer, config.emulate_step_seconds)
    return Programs(
        rates=rates,
        trainer=trainer,
        evaluator=evaluator,
        synthetic_batches=synthetic_batches,
        synthetic_evaluation_batch=evaluation_batch,
    )


def build_trainer(
    config: RunConfig, bert_config: BertConfig, *, seed: int, compilation: Compilation
) -> tuple[WarmupPolynomialDecay, Trainer]:
    """Builds the learning rate, and the trainer with its model and its optimizer."""
    with pretrainer.one_replica().scope():
        model = pretrainer.build_pretrainer(
            bert_config,
            seed=seed,
            precision=config.precision,
            compile_passes=compilation.passes,
            sums_of_vectors=compilation.each_pass,
            barriers=compilation.barriers,
            pack_sequences=config.pack_sequences,
            recompute=config.recompute,
            kernels=config.kernels == "triton",
        )
        variables = pretrainer.trained_variables(model)
        rates = WarmupPolynomialDecay(
            learning_rate=config.learning_rate,
            num_train_steps=config.num_train_steps,
            num_warmup_steps=config.num_warmup_steps,
            start_warmup_step=config.start_warmup_step,
            poly_power=config.poly_power,
            steps_per_update=config.steps_per_update,
        )
        inner = create_optimizer(config.optimizer, rates, compiled=compilation.each_pass)
        optimizer = GradientAggregationOptimizer(
            inner,
            variables,
            steps_per_update=config.steps_per_update,
            clip_after_allreduce=config.clip_by_global_norm_after_gradient_allreduce,
            whole_step=compilation.whole_step,
        )
    trainer = Trainer(
        model=model,
        optimizer=optimizer,
        batch_size=config.train_batch_size,
        normalization=config.normalization,
        compilation=compilation,
    )
    return rates, trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that training uses, built once from a `Setup`; none is replaced until it ends."""

    setup: Setup
    team: Team
    origin: Origin | None
    """The run's inputs and its records; only the chief has them, others None."""
    log: MlperfLog
    """Held in memory until `commit`: a run that is refused before then leaves no log."""
    programs: Programs
    state: RunState
    """What a checkpoint holds."""
    start_up: StartUp
    stop_request: StopRequest

    def finish(self, status: str) -> None:
        """Writes how the run ended; only an interrupted run does not come here."""
        # Comes after the last line of logs and metrics, because the records have their digests.
        if self.origin:
            self.origin.end(status)
            self.team.publish()


def state_of(setup: Setup, team: Team, trainer: PretrainerContract) -> RunState:
    """The state that checkpoints of the run hold, with the rules for which of them stay."""
    config = setup.config
    return RunState(
        config.output_dir,
        parts=trainer.state,
        keep_checkpoint_max=config.keep_checkpoint_max,
        disposable=functools.partial(_disposable, setup, team),
        fetch=trainer.fetch_state,
    )


def _disposable(setup: Setup, team: Team, steps: Collection[int]) -> Collection[int]:
    """The steps whose checkpoints may go; in runs without evaluation, only evaluated ones."""
    if setup.eval_files:
        return steps
    try:
        return set(steps) & read_evaluations(team.output.location).keys()
    except (ValueError, OSError) as error:
        team.say(f"warning: no checkpoint is removed: {error}")
        return ()


def load_weights(run: Run) -> None:
    """Restores the newest checkpoint of a resumed run, or loads the initial checkpoint."""
    if run.team.has_checkpoint:
        step, path = newest_checkpoint(run.state.directory)
        # A process that sees other files would train weights that differ from the chief's.
        if step != run.team.latest_step:
            raise ValueError(
                f"--output_dir: this process finds the checkpoint of step {step}, the chief that "
                f"of {run.team.latest_step}; give a directory that all processes share"
            )
        run.state.restore(path)
    elif stored := run.setup.initial_checkpoint:
        reading.load_initial_weights(run.programs.trainer.variables_to_train, stored)
    run.programs.trainer.put_state()


def evaluation_batches(setup: Setup) -> tf.data.Dataset:
    """The batches of an evaluation."""
    config = setup.config
    return pipeline.evaluation_batches(
        setup.eval_files,
        setup.limits,
        batch_size=config.eval_batch_size,
        max_batches=config.max_eval_steps,
    )


def all_batches(run: Run) -> tuple[Iterator, tf.data.Dataset | None]:
    """The batches of the training, from the step reached on, and those of an evaluation, if any.

    Checkpoints hold the position in the training input. A run of one process restores it if the
    files have the same names. Otherwise the input is read again up to it.
    """
    setup, team = run.setup, run.team
    config = setup.config
    # Made once: each iteration over it begins with the first example.
    eval_batches = evaluation_batches(setup) if setup.eval_files else None

    def iterator_from(step: int):
        def own_batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
            """This process's share of the input."""
            workers = context.num_input_pipelines
            return pipeline.training_batches(
                setup.files,
                setup.limits,
                batch_size=context.get_per_replica_batch_size(config.train_batch_size),
                # The chief's seed: all processes must shuffle alike, or they would share examples.
                seed=team.seed if config.shuffle else None,
                deterministic=config.deterministic,
                num_workers=workers,
                worker=context.input_pipeline_id,
                # Every worker has read an equal part of the examples.
                first_example=step * config.train_batch_size // workers,
                pack_sequences=config.pack_sequences,
                num_parallel_files=config.num_parallel_files,
            )

        return run.programs.trainer.batches(own_batches)

    iterator = None if team.cluster else iterator_from(0)
    # A new run has nothing to restore: it begins with this iterator.
    if iterator is None or not run.state.restore_input(iterator):
        iterator = iterator_from(int(run.programs.trainer.step.numpy()))
    run.state.attach_input(iterator)
    return iterator, eval_batches
