"""One whole run, from top to bottom: check, build, compile, then train against the clock.

Before `train` is called, the processes have agreed (workers.py). build.py makes what it uses.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mlperf_bert.checkpoints import names
from mlperf_bert.checkpoints.state import Saves
from mlperf_bert.input import checked
from mlperf_bert.messages import ERROR, WARNING, Progress, lasting
from mlperf_bert.mlperf import ledger, rules
from mlperf_bert.mlperf.log import MlperfLog, TimedRun
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.programs.tf_trainer import timed_train_steps
from mlperf_bert.signals import StopRequest
from mlperf_bert.tensorflow_import import lines_left_out
from mlperf_bert.training import build, checks, events, loop, reporting, workers
from mlperf_bert.training.build import Run
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.loop import Event
from mlperf_bert.training.output import Origin
from mlperf_bert.training.reporting import MetricsWriter, Outcome, StartUp
from mlperf_bert.training.time_budget import TimeBudget
from mlperf_bert.training.workers import Team


def train(config: RunConfig, team: Team, start_up: StartUp) -> Outcome | None:
    """Trains until the target, the last step or a signal.

    A run that is refused for bad input leaves nothing behind. Only the chief of several processes
    writes anything, and returns how it ended.

    Args:
      config: of the run.
      team: its processes, as `workers.agree`; they are released.
      start_up: counts the time since the start of the process.

    Raises:
      ValueError: bad configuration, checkpoint or data, with a line for everything that is wrong.
      FloatingPointError: the loss is not finite.
      signals.Interrupted: a signal came; the checkpoint is saved.
    """
    # From now on the other processes wait for this one: without its report they never end.
    with team.ending_together():
        setup = checks.inspect(config, has_checkpoint=team.has_checkpoint, connected=team.devices)
        checks.check_saving(setup)
        setup.findings.require_none()
        origin = None
        if team.is_chief:
            for finding in setup.findings:
                print(finding, flush=True)
            team.output.require_same_devices(setup.num_replicas)
            origin = Origin(setup, team.output, seed=team.seed)
        start_up.done("checks")
        # All refusals come before this line: from here on a run leaves something behind.
        with StopRequest() as stop_request, _log_of(team) as log:
            # This comes before the model, as in the rules: `init_start` is the first line.
            reporting.log_header(log, setup, team, origin.summary if origin else {})
            programs = build.build_programs(setup, seed=team.seed)
            run = Run(
                setup=setup,
                team=team,
                origin=origin,
                log=log,
                programs=programs,
                state=build.state_of(setup, team, programs.trainer),
                start_up=start_up,
                stop_request=stop_request,
            )
            start_up.done("model")
            outcome = _train(run)
            run.finish(outcome.status)
            # Released last: without the lock another process may write here.
            team.output.release()
    return outcome if team.is_chief else None


@contextlib.contextmanager
def _log_of(team: Team) -> Iterator[MlperfLog]:
    """The log of a run; if the run is refused, no file is left of it."""
    log = MlperfLog(team.log_path())
    try:
        yield log
    except BaseException:
        # A resumed run on another host needs its log and metrics up to here.
        with contextlib.suppress(OSError):  # keep the first error
            team.publish()
        raise
    finally:
        log.discard()


def _train(run: Run) -> Outcome:
    """Goes from the model to the end of the clock, in the order that the rules ask for."""
    setup, team, log = run.setup, run.team, run.log
    config = setup.config
    # Compiled before the clock starts, on synthetic batches: the rules let no real record be read
    # before run_start.
    _compile(run)
    run.start_up.done("compilation")
    build.load_weights(run)
    run.start_up.done("weights")
    # In a resumed run, the first log has named the weights.
    if not team.was_started_before:
        table = names.weights(setup.bert_config.num_hidden_layers)
        log.weights_initialization([weight.tf1_name for weight in table])
    log.init_stop()
    # From here on a signal waits for the end of a device call, so that a step is whole.
    run.stop_request.defer()
    try:
        with (
            log.run(meter=config.energy_meter() if team.is_chief else None) as timed,
            # The data are touched for the first time, before the log is on disk: what is refused
            # here leaves none, and the division can still be changed.
            checked.checked_input(
                setup.files,
                setup.limits,
                eval_files=setup.eval_files,
                packs=config.pack_sequences,
                time=timed.ledger,
            ) as num_examples,
        ):
            if setup.eval_files:
                _log_evaluation_samples(run, timed, num_examples)
            # run.json comes before the log: without it the log would count as another run's, and
            # would be closed like the logs of killed processes.
            if run.origin:
                run.origin.begin()
            log.commit()
            return _train_against_the_clock(run, timed)
    except FloatingPointError:
        # This is an end, not an interruption: the same command would diverge again.
        run.finish("aborted")
        raise


@lasting("compiling and trying out every step")
def _compile(run: Run) -> None:
    """Says how steps are computed, and what jax's programs take of the devices.

    Then executes all programs once, on synthetic batches of all shapes that the run will use.
    """
    config = run.setup.config
    sleep_seconds = config.emulate_step_seconds
    steps_are = f"computing in {config.precision}; {config.compilation}"
    if sleep_seconds is not None:
        steps_are = f"not a result: each step sleeps for {sleep_seconds} s"
    run.team.say(steps_are)
    # Compiled before the weights are there: its steps then change random ones, and no copy of
    # weights has to be kept meanwhile.
    initial = run.setup.initial_checkpoint
    loads_weights = run.team.has_checkpoint or (initial and not initial.lacking_heads)
    if run.setup.devices.mesh and sleep_seconds is None:
        from mlperf_bert.training import fit  # no other runtime loads jax

        finding = fit.finding_of(run.programs)
        if finding.level == ERROR:
            raise ValueError(finding.text)
        run.team.say(finding if finding.level == WARNING else finding.text)
    with lines_left_out(workers.GLOO, of=1) if run.team.cluster else contextlib.nullcontext():
        run.programs.warm_up(keeps_weights=not loads_weights)


def _log_evaluation_samples(run: Run, timed: TimedRun, num_examples: int) -> None:
    """Logs how many examples an evaluation has; too few or too many open the division."""
    config = run.setup.config
    # Without --max_eval_steps the limit is no limit: as many batches as examples.
    limit = (config.max_eval_steps or num_examples) * config.eval_batch_size
    timed.eval_samples(min(num_examples, limit))
    if departure := rules.departure_of_evaluation(num_examples):
        run.team.say(f"The evaluation is not that of the closed division: {departure}")
        run.log.declare_open()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs:
    """The outputs of a run while it trains; open until it ends."""

    metrics: MetricsWriter
    progress: Progress
    profile: events.Profile
    saves: Saves


@contextlib.contextmanager
def _outputs_of(run: Run, *, step: int) -> Iterator[Outputs]:
    """Opens the outputs, only on the chief those that are files."""
    config, team = run.setup.config, run.team
    output_dir = team.output.path if team.is_chief else None
    # They close from the last to the first: the last checkpoint still flushes the metrics.
    with (
        contextlib.closing(
            MetricsWriter(output_dir, resumed_step=step if team.was_started_before else None)
        ) as metrics,
        Progress(
            total=config.num_train_steps * config.train_batch_size,
            initial=step * config.train_batch_size,
            unit="samples",
            description="training",
            silent=not team.is_chief,
        ) as progress,
        contextlib.closing(
            events.Profile(config.profile_steps, output_dir, run.programs.trainer.profiling)
        ) as profile,
        Saves(
            run.state if team.is_chief else None,
            flush=metrics.flush,
            publish=team.publish,
            asynchronous=config.saves_while_training,
        ) as saves,
    ):
        yield Outputs(metrics=metrics, progress=progress, profile=profile, saves=saves)


def list_of_events(
    run: Run, timed: TimedRun, outputs: Outputs, evaluate: Callable[[], Evaluation]
) -> list[Event]:
    """What a run does between its device calls, in this order.

    The first event that ends the run is the last that acts. Then every one ends, also in this
    order: a step at which the time was over is saved before it is evaluated.
    """
    config, team = run.setup.config, run.team
    metrics, progress = outputs.metrics, outputs.progress
    time_budget = _time_budget_of(run, timed, progress)
    blocks = events.Blocks(config, timed)
    evaluate_event = None
    if config.evaluation_interval_steps:
        evaluate_event = events.Evaluate(
            config=config,
            timed=timed,
            blocks=blocks,
            evaluate_weights=evaluate,
            metrics=metrics,
            progress=progress,
            publish=team.publish,
            time_budget=time_budget,
            samples_at_target=team.samples_at_target,
        )
    in_order: list[Event | None] = [
        # First, so that a profile has nothing but device calls.
        outputs.profile,
        # No NaN is saved or evaluated.
        events.RequireFinite(),
        # Before the evaluation: a run that cannot save does not begin one.
        events.RequireSaved(outputs.saves),
        # Before the evaluation, whose seconds belong to the line after it.
        events.Log(
            config=config,
            timed=timed,
            metrics=metrics,
            progress=progress,
            rates=run.programs.rates,
            time_budget=time_budget,
            say=team.say,
        ),
        evaluate_event,
        # After the evaluation, which takes time of the budget.
        time_budget,
        events.LastStep(config.num_train_steps, longest_call_steps=config.iterations_per_loop),
        # After the events that may end the run: only a run that continues begins a block.
        blocks,
        # After the evaluation: the time to the target does not count the checkpoint of its step.
        events.Save(outputs.saves, timed, every=config.save_checkpoints_steps),
        # After the save: if killed in this evaluation, the run could not train the step again.
        evaluate_event and events.EvaluateAtEnd(evaluate_event),
        # Last: a run that ends anyway is not interrupted, and this event's `end` raises.
        events.StopOnSignal(run.stop_request, run.programs.trainer.gather),
    ]
    return [event for event in in_order if event]


def _time_budget_of(run: Run, timed: TimedRun, progress: Progress) -> TimeBudget | None:
    config = run.setup.config
    if config.time_budget is None:
        return None
    return TimeBudget(
        config=config,
        timed=timed,
        earlier_seconds=run.team.spent_seconds,
        gather=run.programs.trainer.gather,
        progress=progress,
    )


def train_by_events(
    config: RunConfig,
    timed: TimedRun,
    in_order: Sequence[Event],
    train_steps: Callable[[int], tuple[np.ndarray, float]],
    *,
    step: int,
) -> Outcome:
    """Trains from `step` on; returns how it ended, with the accuracy of the last evaluation."""
    timed.samples = step * config.train_batch_size  # if nothing is left to train
    step, ending = loop.train(train_steps, in_order, step=step)
    evaluations = [event.accuracy for event in in_order if isinstance(event, events.Evaluate)]
    return Outcome(
        status="success" if ending == loop.REACHED else "aborted",
        accuracy=next(iter(evaluations), None),
        samples=step * config.train_batch_size,
    )


def _train_against_the_clock(run: Run, timed: TimedRun) -> Outcome:
    """Opens input and outputs, and trains."""
    trainer, evaluator = run.programs.trainer, run.programs.evaluator
    step = int(trainer.step.numpy())
    batches, eval_batches = build.all_batches(run)
    with _outputs_of(run, step=step) as outputs:
        if step == 0 and not run.setup.eval_files:
            with timed.ledger.counting(ledger.SAVING):
                outputs.saves.save(0)  # the offline evaluation needs it
        run.start_up.done("data")
        run.team.say(run.start_up)
        in_order = list_of_events(
            run, timed, outputs, lambda: evaluator.evaluate(eval_batches, timed.ledger)
        )
        train_steps = timed_train_steps(trainer, batches, timed.ledger)
        outcome = train_by_events(run.setup.config, timed, in_order, train_steps, step=step)
    run.team.say(f"where the time went: {ledger.in_words(timed.ledger.read())}")
    if shift := run.log.clock_shift_seconds():
        run.team.say(reporting.clock_shift_in_words(shift))
    return outcome
