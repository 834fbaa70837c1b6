"""One whole run, from top to bottom: agree, check, build, compile, then train against the clock."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from mlperf_bert import signals
from mlperf_bert.checkpoints import names
from mlperf_bert.files import paths
from mlperf_bert.input import pipeline
from mlperf_bert.messages import Progress
from mlperf_bert.mlperf import killed, ledger, results
from mlperf_bert.mlperf.energy import Energy
from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.mlperf.timed_run import Run
from mlperf_bert.training import (
    agreement,
    build,
    checks,
    checks_of_data,
    header,
    loop,
)
from mlperf_bert.training.agreement import Team
from mlperf_bert.training.budget import TimeBudget
from mlperf_bert.training.build import Parts
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.origin import Origin
from mlperf_bert.training.output import run_logs
from mlperf_bert.training.profiling import StepProfiler
from mlperf_bert.training.reporting import MetricsWriter, Result, StartUp, process_start_time
from mlperf_bert.training.saves import Saves
from mlperf_bert.training.setup import Setup


def train(config: RunConfig) -> Result | None:
    """Trains until the target, the last step or a signal.

    A run that is refused for bad input leaves nothing behind. Of several processes only the chief
    writes anything, and returns a result.

    Raises:
      ValueError: bad configuration, checkpoint or data, with a line for everything that is wrong.
      FloatingPointError: the loss is no longer finite.
      signals.Interrupted: a signal came; the checkpoint is saved.
    """
    start_time = process_start_time()
    start_up = StartUp(start_time)
    start_up.done("imports")
    team = agreement.agree(config)
    with team.failures_reported():
        setup = checks.prepare(config, goes_on=team.goes_on, say=team.say)
        origin = Origin(setup, team.output, goes_on=team.goes_on) if team.is_chief else None
        if origin:
            team.output.provenance = origin.summary()
            team.output.inputs = origin.inputs()
        start_up.done("checks")
        with signals.StopRequest() as stop_request:
            outcome = _train(setup, team, start_up, stop_request)
            if origin:
                origin.record()
                team.publish()
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
    setup: Setup, team: Team, start_up: StartUp, stop_request: signals.StopRequest
) -> loop.Outcome:
    config, log_path = setup.config, team.log_path()
    log = MlperfLog(log_path, echo=False)
    try:
        header.write(log, setup, team)
        parts = build.build(setup, team)
        team.say(parts.steps_are)
        start_up.done("model")
        loads_weights = team.goes_on or config.init_checkpoint
        build.warm_up(parts, setup, keeps_weights=not loads_weights)
        start_up.done("compilation")
        build.load_weights(parts, setup, team)
        start_up.done("weights")
        if not team.resumes:
            table = names.weights(setup.bert_config.num_hidden_layers)
            log.weights_initialization([weight.tf1_name for weight in table])
        log.init_stop()
        stop_request.defer()
        with log.run(meter=config.energy_meter() if team.is_chief else None) as run:
            team.on_loss.callback(run.stop_unless_stopped)
            checks_of_data.check_at_first_touch(run, log, setup, say=team.say)
            team.record("running")  # first: a log without run.json counts as another run's
            if team.is_chief:
                for path in run_logs(team.output.path):
                    killed.close_log(path)
            log.commit()
            with _loop_with_outputs(setup, team, parts, stop_request, run) as training:
                start_up.done("data")
                team.say(start_up)
                outcome = training.run(run)
    except FloatingPointError:
        _end(team, "aborted", log_path)
        raise
    except BaseException:
        with contextlib.suppress(OSError):  # keep the first error
            team.publish()
        raise
    finally:
        log.discard()
    _end(team, outcome.status, log_path)
    return outcome


def _end(team: Team, status: str, log_path: Path | None) -> None:
    """Writes run.json with what the run took; prints it, for a resumed run also the sum."""
    if log_path:
        team.output.energy = _energy_of(run_logs(team.output.path))
        team.say(f"energy: {_energy_of([log_path]) or 'unknown'}")
        if team.resumes:
            team.say(f"energy since the run was first started: {team.output.energy}")
    team.record(status)


def _energy_of(logs: Sequence[paths.Location]) -> Energy | None:
    """What logs of a run say together; a damaged one makes the sum unknown, not the run."""
    try:
        return results.energy_of_pieces(logs)
    except (ValueError, OSError) as error:
        return Energy(unknown=str(error))


def _time_budget(setup: Setup, team: Team, parts: Parts, progress: Progress) -> TimeBudget:
    config = setup.config
    return TimeBudget(
        seconds=config.time_budget,
        before=team.time_spent,
        num_train_steps=config.num_train_steps,
        num_warmup_steps=config.num_warmup_steps + config.start_warmup_step,
        evaluation_interval_steps=config.schedule.evaluation_interval_steps,
        steps_per_update=config.steps_per_update,
        batch_size=config.train_batch_size,
        of_chief=parts.trainer.of_chief,
        progress=progress,
    )


@contextlib.contextmanager
def _bad_input_named(setup: Setup, run: Run) -> Iterator[None]:
    """As the input pipeline's own; its first look at the files is waiting for input."""
    with contextlib.ExitStack() as stack:
        with run.ledger.spent(ledger.INPUT_WAIT):
            stack.enter_context(
                pipeline.bad_input_named(
                    [*setup.files, *setup.eval_files],
                    setup.limits,
                    packed=setup.files if setup.config.pack_sequences else (),
                )
            )
        yield


@contextlib.contextmanager
def _loop_with_outputs(
    setup: Setup, team: Team, parts: Parts, stop_request: signals.StopRequest, run: Run
) -> Iterator[loop.TrainingLoop]:
    """Opens input and outputs, and closes the outputs at the end; a bad record is named."""
    config, step = setup.config, int(parts.trainer.step.numpy())
    output_dir = team.output.path if team.is_chief else None
    batches = build.training_batches(parts, setup, team)
    with (
        contextlib.closing(
            MetricsWriter(output_dir, resumed_step=step if team.resumes else None)
        ) as metrics,
        Progress(
            total=config.num_train_steps * config.train_batch_size,
            initial=step * config.train_batch_size,
            unit="samples",
            description="training",
            silent=not team.is_chief,
        ) as progress,
        contextlib.closing(StepProfiler(config.profile_steps, output_dir)) as profiler,
        _bad_input_named(setup, run),
        Saves(
            parts.state if team.is_chief else None,
            flush=metrics.flush,
            publish=team.publish,
            asynchronous=config.saves_while_training,
        ) as saves,
    ):
        team.on_loss.callback(saves.wait)

        def publish() -> None:
            metrics.flush()
            team.publish()

        if step == 0 and not setup.eval_files:
            with run.ledger.spent(ledger.SAVING):
                saves.save(0)  # for the offline evaluation
        training = loop.TrainingLoop(
            trainer=parts.trainer,
            batches=batches,
            schedule=config.schedule,
            target_accuracy=config.target_accuracy,
            learning_rate_at=lambda step: float(parts.rates.at_step(step)),
            evaluate=lambda spent: parts.evaluator.evaluate(setup.evaluation_batches(), spent),
            saves=saves,
            publish=publish,
            metrics=metrics,
            progress=progress,
            profiler=profiler,
            budget=_time_budget(setup, team, parts, progress),
            stop_request=stop_request,
            samples_at_success=team.samples_at_success,
        )
        yield training
    team.say(f"where the time went: {ledger.in_words(run.ledger.read())}")
    if config.pack_sequences and training.num_rows:
        share = training.num_real_tokens / (training.num_rows * config.shape.max_seq_length)
        team.say(f"packing: {share:.1%} of the tokens of {training.num_rows} rows were real")
