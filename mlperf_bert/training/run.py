"""One whole run, from top to bottom: agree, check, build, compile, then train against the clock."""

import contextlib
import time

import tensorflow as tf

from mlperf_bert.checkpoints import names
from mlperf_bert.input import pipeline
from mlperf_bert.mlperf import killed
from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.mlperf.timed_run import Run
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.progress import Progress
from mlperf_bert.training import agreement, build, checks_of_data, header, loop, preflight
from mlperf_bert.training.agreement import Team
from mlperf_bert.training.build import Parts
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.findings import Setup
from mlperf_bert.training.output import Result, StartUp, process_start_time, run_logs
from mlperf_bert.training.profiling import StepProfiler
from mlperf_bert.training.reporting import MetricsWriter
from mlperf_bert.training.strategy import one_cpu


def train(config: RunConfig) -> Result | None:
    """Trains until the target, the last step or a signal.

    A run that is refused for bad input leaves nothing behind. Of several processes only the chief
    writes anything, and returns a result.

    Raises:
      ValueError: bad configuration, checkpoint or data, with a line for everything that is wrong.
      FloatingPointError: the loss is no longer finite.
      loop.Interrupted: a signal came; the checkpoint is saved.
    """
    start_time = process_start_time()
    start_up = StartUp(start_time)
    start_up.done("imports")
    team = agreement.agree(config)
    with team.failures_reported():
        setup = preflight.prepare(config, resumes=team.resumes, say=team.say)
        start_up.done("checks")
        with loop.StopRequest() as stop_request:
            outcome = _train(config, setup, team, start_up, stop_request)
            team.finish()
    if not team.is_chief:
        return None
    return Result(
        status=outcome.status,
        accuracy=outcome.accuracy,
        samples=outcome.step * config.train_batch_size,
        seed=team.seed,
        start_time=start_time,
        seconds=time.time() - start_time,
    )


def _train(
    config: RunConfig,
    setup: Setup,
    team: Team,
    start_up: StartUp,
    stop_request: loop.StopRequest,
) -> loop.Outcome:
    log = MlperfLog(team.log_path(), echo=False)
    try:
        header.write(log, config, setup, team)
        parts = build.build(config, setup, team)
        team.say(f"computing in {config.precision}; {parts.compiled}")
        start_up.done("model")
        loads_weights = team.goes_on or config.init_checkpoint
        build.warm_up(parts, config, setup, keeps_weights=not loads_weights)
        start_up.done("compilation")
        build.load_weights(parts, config, setup, team)
        start_up.done("weights")
        if not team.resumes:
            table = names.weights(setup.bert_config.num_hidden_layers)
            log.weights_initialization([weight.tf1_name for weight in table])
        log.init_stop()
        stop_request.defer()
        with log.run() as run:
            team.on_loss.callback(run.stop_unless_stopped)
            checks_of_data.check_at_first_touch(run, log, config, setup, say=team.say)
            team.record("running")  # first: a log without run.json counts as another run's
            if team.is_chief:
                killed.close_logs(run_logs(team.output.path))
            log.commit()
            outcome = _train_against_the_clock(
                run, config, setup, team, parts, start_up, stop_request
            )
    except FloatingPointError:
        team.record("aborted")
        raise
    finally:
        log.discard()
    team.record(outcome.status)
    return outcome


def _train_against_the_clock(
    run: Run,
    config: RunConfig,
    setup: Setup,
    team: Team,
    parts: Parts,
    start_up: StartUp,
    stop_request: loop.StopRequest,
) -> loop.Outcome:
    start_step = int(parts.trainer.step.numpy())
    own_output_dir = config.output_dir if team.is_chief else None

    def own_batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        """This process's share of the input; on one CPU the checkpoint restores the position."""
        workers = context.num_input_pipelines
        start_samples = 0 if one_cpu(setup.strategy) else start_step * config.train_batch_size
        return pipeline.training_batches(
            setup.files,
            setup.limits,
            batch_size=context.get_per_replica_batch_size(config.train_batch_size),
            seed=team.seed if config.shuffle else None,
            deterministic=config.deterministic,
            num_workers=workers,
            worker=context.input_pipeline_id,
            first_example=start_samples // workers,
            pack_sequences=config.pack_sequences,
        )

    def evaluate() -> Evaluation:
        return parts.evaluator.evaluate(
            pipeline.evaluation_batches(
                setup.eval_files,
                setup.limits,
                batch_size=config.eval_batch_size,
                max_batches=config.max_eval_steps,
            )
        )

    def save(step: int) -> None:
        if team.is_chief:
            parts.state.save(step)

    iterator = parts.trainer.batches(own_batches)
    parts.state.attach_input(iterator)
    with (
        contextlib.closing(
            MetricsWriter(own_output_dir, resumed_step=start_step if team.resumes else None)
        ) as metrics,
        contextlib.closing(
            Progress(
                total=config.num_train_steps * config.train_batch_size,
                initial=start_step * config.train_batch_size,
                unit="samples",
                description="training",
                silent=not team.is_chief,
            )
        ) as progress,
        contextlib.closing(StepProfiler(config.profile_steps, own_output_dir)) as profiler,
        pipeline.bad_input_named(
            [*setup.files, *setup.eval_files],
            setup.limits,
            packed=setup.files if config.pack_sequences else (),
        ),
    ):
        training = loop.TrainingLoop(
            trainer=parts.trainer,
            schedule=config.schedule,
            target_accuracy=config.target_accuracy,
            learning_rate_at=lambda step: float(parts.rates.at_step(step)),
            evaluate=evaluate,
            save=save,
            metrics=metrics,
            progress=progress,
            profiler=profiler,
            stop_request=stop_request,
        )
        if start_step == 0 and not setup.eval_files:
            save(0)  # for the offline evaluation
        start_up.done("data")
        team.say(start_up)
        outcome = training.run(iterator, run, start_step=start_step)
    if config.pack_sequences and training.num_rows:
        share = training.num_real_tokens / (training.num_rows * config.shape.max_seq_length)
        team.say(f"packing: {share:.1%} of the tokens of {training.num_rows} rows were real")
    return outcome
