"""One whole run, from top to bottom: check, build, compile, then train against the clock.

Before it, its processes have agreed; see workers.py.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mlperf_bert.checkpoints import names
from mlperf_bert.checkpoints.state import Saves
from mlperf_bert.input import pipeline
from mlperf_bert.messages import ERROR, WARNING, Progress
from mlperf_bert.mlperf import ledger, rules
from mlperf_bert.mlperf.log import MlperfLog, TimedRun
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.programs.steps import counted_steps
from mlperf_bert.signals import StopRequest
from mlperf_bert.training import build, checks, events, loop, reporting
from mlperf_bert.training.build import Parts
from mlperf_bert.training.checks import Setup
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.loop import Event
from mlperf_bert.training.observers import Observer
from mlperf_bert.training.output import Origin
from mlperf_bert.training.reporting import MetricsWriter, Outcome, StartUp
from mlperf_bert.training.workers import Team

if TYPE_CHECKING:  # a run without a budget does not load it
    from mlperf_bert.training.time_budget import TimeBudget


def train(
    config: RunConfig, team: Team, start_up: StartUp, observers: Sequence[Observer] = ()
) -> Outcome | None:
    """Trains until the target, the last step or a signal.

    A run that is refused for bad input leaves nothing behind. Only the chief of several processes
    writes anything, and returns how it ended.

    Args:
      config: of the run.
      team: its processes, as `workers.agree`; they are released.
      start_up: counts the time since the start of the process.
      observers: further events, the same on all processes.

    Raises:
      ValueError: bad configuration, checkpoint or data, with a line for everything that is wrong.
      FloatingPointError: the loss is no longer finite.
      signals.Interrupted: a signal came; the checkpoint is saved.
    """
    # From now on the others wait for this process: without a report they would not end.
    with team.failures_reported():
        setup = checks.inspect(config, goes_on=team.goes_on, connected=team.devices)
        checks.check_disk(setup)
        setup.findings.require_none()
        origin = None
        if team.is_chief:
            for finding in setup.findings:
                print(finding, flush=True)
            origin = Origin(setup, team.output, goes_on=team.goes_on)
        start_up.done("checks")
        with StopRequest() as stop_request:
            # All that can be refused has been: from here on a run leaves something behind.
            outcome = _train(setup, team, origin, start_up, stop_request, observers)
            if origin:
                # After the last line of the logs and metrics, of which it has digests.
                origin.record()
                team.publish()
            # Last: once the lock is gone, another process may write here.
            team.release()
    return outcome if team.is_chief else None


def _train(
    setup: Setup,
    team: Team,
    origin: Origin | None,
    start_up: StartUp,
    stop_request: StopRequest,
    observers: Sequence[Observer],
) -> Outcome:
    config, log = setup.config, MlperfLog(team.log_path())
    try:
        # In memory until `commit` below: a run that is refused before it leaves no log.
        reporting.log_header(log, setup, team, origin.summary if origin else {})
        # Built and compiled before the clock starts, on synthetic batches: the rules let no real
        # record be read before run_start.
        parts = build.build(setup, team)
        start_up.done("model")
        _compile(setup, team, parts)
        start_up.done("compilation")
        build.load_weights(parts, setup, team)
        start_up.done("weights")
        # The first log of a resumed run has named its weights.
        if not team.resumes:
            table = names.weights(setup.bert_config.num_hidden_layers)
            log.weights_initialization([weight.tf1_name for weight in table])
        log.init_stop()
        # From here on a signal waits for the end of a device call, so that a step is whole.
        stop_request.defer()
        with (
            log.run(meter=config.energy_meter() if team.is_chief else None) as run,
            # The data are touched for the first time, before the log is on disk: what is refused
            # here leaves none, and the division can still be changed.
            pipeline.checked_input(
                setup.files,
                setup.limits,
                eval_files=setup.eval_files,
                packs=config.pack_sequences,
                time=run.ledger,
            ) as num_examples,
        ):
            if setup.eval_files:
                # Without --max_eval_steps it limits nothing: as many batches as examples.
                limit = (config.max_eval_steps or num_examples) * config.eval_batch_size
                run.eval_samples(min(num_examples, limit))
                if issue := rules.departure_of_evaluation(num_examples):
                    team.say(f"The evaluation is not that of the closed division: {issue}")
                    log.declare_open()
            # Before the log: without run.json it counts as another run's, and it is open too and
            # would be closed as the logs of killed processes are.
            if origin:
                origin.begin(team.seed)
            log.commit()
            outcome = _train_against_the_clock(
                setup, team, parts, stop_request, run, start_up, observers
            )
    except FloatingPointError:
        # An end, not an interruption: the same command would diverge again.
        if origin:
            origin.end("aborted", team.seed)
        raise
    except BaseException:
        # Whoever resumes the run elsewhere needs its log and metrics up to here.
        with contextlib.suppress(OSError):  # keep the first error
            team.publish()
        raise
    finally:
        # Of a run that was refused no file is left; any other's is closed.
        log.discard()
    if origin:
        origin.end(outcome.status, team.seed)
    return outcome


def _compile(setup: Setup, team: Team, parts: Parts) -> None:
    """Says what jax's programs take of the devices; raises ValueError if they do not fit.

    Then executes all programs once.
    """
    config = setup.config
    if setup.devices.mesh and config.emulate_step_seconds is None:
        from mlperf_bert.training import fit  # no other runtime loads jax

        finding = fit.finding_of(setup, parts.trainer, parts.evaluator)
        if finding.level == ERROR:
            raise ValueError(finding.text)
        team.say(finding if finding.level == WARNING else finding.text)
    # Compiled before the weights are there: its steps then change random ones, and no copy of
    # weights has to be kept meanwhile.
    loads_weights = team.goes_on or config.init_checkpoint
    build.warm_up(parts, setup, keeps_weights=not loads_weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs:
    """Where a run writes while it trains; open until it ends."""

    metrics: MetricsWriter
    progress: Progress
    profile: events.Profile
    saves: Saves


@contextlib.contextmanager
def _opened(setup: Setup, team: Team, parts: Parts, *, step: int) -> Iterator[Outputs]:
    """Opens the outputs, only on the chief those that are files."""
    config, output_dir = setup.config, team.output.path if team.is_chief else None
    # They close from the last to the first: the last checkpoint still flushes the metrics.
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
        contextlib.closing(
            events.Profile(config.profile_steps, output_dir, parts.trainer.profiled)
        ) as profile,
        Saves(
            parts.state if team.is_chief else None,
            flush=metrics.flush,
            publish=team.publish,
            asynchronous=config.saves_while_training,
        ) as saves,
    ):
        yield Outputs(metrics=metrics, progress=progress, profile=profile, saves=saves)


def list_of_events(
    config: RunConfig,
    run: TimedRun,
    *,
    team: Team,
    parts: Parts,
    outputs: Outputs,
    evaluate: Callable[[], Evaluation],
    stop_request: StopRequest,
    observers: Sequence[Observer] = (),
) -> list[Event]:
    """What a run does between its device calls, in this order.

    The first event that ends the run is the last that acts. Then every one ends, also in this
    order: a step at which the time was over is saved before it is evaluated.
    """
    limit = _time_limit(config, run, team, parts, outputs.progress)
    blocks = events.Blocks(
        run,
        batch_size=config.train_batch_size,
        every=config.evaluation_interval_steps,
        last_step=config.num_train_steps,
    )
    evaluation = _evaluation(config, run, team, outputs, blocks, limit, evaluate, observers)
    in_order: list[Event | None] = [
        # First: no NaN is saved or evaluated.
        events.RequireFinite(),
        # Before the evaluation: a run that can no longer save does not begin one.
        events.RequireSaved(outputs.saves),
        # Before the evaluation, whose seconds belong to the line after it.
        events.Log(
            outputs.metrics,
            outputs.progress,
            run,
            every=config.log_every_steps,
            batch_size=config.train_batch_size,
            learning_rate_at=lambda step: float(parts.rates.at_step(step)),
            more=limit.fields if limit else dict,
            packed_length=config.shape.max_seq_length if config.pack_sequences else None,
            say=team.say,
        ),
        outputs.profile,
        evaluation,
        # After the evaluation, which observers compare, and which takes time of the limit.
        *observers,
        limit,
        events.LastStep(config.num_train_steps, longest_call_steps=config.iterations_per_loop),
        # After what may end the run: only one that goes on begins another block.
        blocks,
        # After the evaluation: the time to the target does not count the checkpoint of its step.
        events.Save(outputs.saves, run, every=config.save_checkpoints_steps),
        # After the save: killed in this evaluation, a run has no time left to train the step again.
        evaluation and events.EvaluateAtEnd(evaluation),
        # Last: a run that ends anyway is not interrupted, and its `end` raises.
        events.StopOnSignal(stop_request, parts.trainer.any_process),
    ]
    return [event for event in in_order if event]


def _time_limit(
    config: RunConfig, run: TimedRun, team: Team, parts: Parts, progress: Progress
) -> "TimeBudget | None":
    if config.time_budget is None:
        return None
    from mlperf_bert.training.time_budget import TimeBudget

    return TimeBudget(
        run=run,
        seconds=config.time_budget,
        before=team.time_spent,
        num_train_steps=config.num_train_steps,
        # The warm-up starts at step 0 or before, and ends as many steps earlier.
        num_warmup_steps=config.num_warmup_steps + config.start_warmup_step,
        evaluation_interval_steps=config.evaluation_interval_steps,
        steps_per_update=config.steps_per_update,
        batch_size=config.train_batch_size,
        of_chief=parts.trainer.of_chief,
        progress=progress,
    )


def _evaluation(
    config: RunConfig,
    run: TimedRun,
    team: Team,
    outputs: Outputs,
    blocks: events.Blocks,
    limit: "TimeBudget | None",
    evaluate: Callable[[], Evaluation],
    observers: Sequence[Observer],
) -> events.Evaluate | None:
    if config.evaluation_interval_steps is None:
        return None

    def report(step: int, evaluation: Evaluation) -> None:
        samples = step * config.train_batch_size
        figures = dataclasses.asdict(evaluation) | (limit.fields() if limit else {})
        outputs.metrics.write("eval", step=step, samples=samples, **figures)
        outputs.progress.line(
            f"after {samples:,} samples: masked-LM accuracy {evaluation.masked_lm_accuracy:.4f} "
            f"(target {config.target_accuracy}), loss {evaluation.loss:.4f}"
        )
        for observer in observers:
            if words := observer.evaluated(step, evaluation):
                outputs.progress.line(f"  {words}")
        # At once, also in a bucket: evaluations are rare, and what a user waits for.
        outputs.metrics.flush()
        team.publish()

    return events.Evaluate(
        run,
        blocks,
        every=config.evaluation_interval_steps,
        last_step=config.num_train_steps,
        target=config.target_accuracy,
        batch_size=config.train_batch_size,
        evaluate=evaluate,
        report=report,
        postponed=limit.is_spent if limit else lambda step: False,
        reached_at=team.samples_at_success,
    )


def train_by_events(
    config: RunConfig,
    run: TimedRun,
    in_order: Sequence[Event],
    train_steps: Callable[[int], tuple[np.ndarray, float]],
    *,
    step: int,
) -> Outcome:
    """Trains from `step` on; returns how it ended, with the accuracy of the last evaluation."""
    run.samples = step * config.train_batch_size  # if nothing is left to train
    step, ending = loop.train(train_steps, in_order, step=step)
    evaluations = [event.accuracy for event in in_order if isinstance(event, events.Evaluate)]
    return Outcome(
        status="success" if ending == loop.REACHED else "aborted",
        accuracy=next(iter(evaluations), None),
        samples=step * config.train_batch_size,
    )


def _train_against_the_clock(
    setup: Setup,
    team: Team,
    parts: Parts,
    stop_request: StopRequest,
    run: TimedRun,
    start_up: StartUp,
    observers: Sequence[Observer],
) -> Outcome:
    """Opens input and outputs, and trains."""
    config, step = setup.config, int(parts.trainer.step.numpy())
    batches, evaluation = build.all_batches(parts, setup, team)
    with _opened(setup, team, parts, step=step) as outputs:
        if step == 0 and not setup.eval_files:
            with run.ledger.counting(ledger.SAVING):
                outputs.saves.save(0)  # for the offline evaluation
        start_up.done("data")
        team.say(start_up)
        in_order = list_of_events(
            config,
            run,
            team=team,
            parts=parts,
            outputs=outputs,
            evaluate=lambda: parts.evaluator.evaluate(evaluation, run.ledger),
            stop_request=stop_request,
            observers=observers,
        )
        train_steps = counted_steps(parts.trainer, batches, run.ledger)
        outcome = train_by_events(
            config, run, in_order, outputs.profile.around(train_steps), step=step
        )
    team.say(f"where the time went: {ledger.in_words(run.ledger.read())}")
    return outcome
