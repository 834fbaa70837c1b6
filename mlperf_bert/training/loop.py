"""The outer loop in plain Python: train to the next event, log, evaluate, save, stop at the target.

Steps are micro-batches; samples are steps * micro-batch size.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

import tensorflow as tf

from mlperf_bert.messages import Progress
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.ledger import Ledger
from mlperf_bert.mlperf.timed_run import Run
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.signals import Interrupted, StopRequest
from mlperf_bert.training.budget import TimeBudget
from mlperf_bert.training.config import Schedule
from mlperf_bert.training.profiling import StepProfiler
from mlperf_bert.training.reporting import MetricsWriter
from mlperf_bert.training.saves import Saves
from mlperf_bert.training.steps import FIGURES, LOSSES, Trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the loop ended."""

    step: int
    accuracy: float | None
    """Masked-LM accuracy of the last evaluation."""
    reached_target: bool

    @property
    def status(self) -> str:
        """The status in MLPerf's logs."""
        return "success" if self.reached_target else "aborted"


@dataclasses.dataclass(kw_only=True)
class TrainingLoop:
    """Everything that the loop uses; `run` is the loop."""

    trainer: Trainer
    batches: Iterator
    """Global batches, as `Trainer.batches` makes them."""
    schedule: Schedule
    target_accuracy: float
    learning_rate_at: Callable[[int], float]
    evaluate: Callable[[Ledger], Evaluation]
    """Counts its seconds in the ledger."""
    saves: Saves
    publish: Callable[[], None]
    """Called after every evaluation, when it is logged."""
    metrics: MetricsWriter
    progress: Progress
    profiler: StepProfiler
    budget: TimeBudget
    stop_request: StopRequest
    samples_at_success: float | None = None
    """After how many samples the run has reached its target before; None: it has not."""
    num_real_tokens: int = 0
    """Tokens trained so far, without padding."""
    num_rows: int = 0
    """Rows trained so far."""
    _logged: ledger.Seconds = dataclasses.field(
        default_factory=lambda: dict.fromkeys(ledger.KINDS, 0.0)
    )
    """The run's seconds at the last line of metrics."""

    def run(self, run: Run) -> Outcome:
        """Trains from the trainer's step until the target, the last step, a time, or a signal.

        A run that was killed after its last step, or after it had reached its target, is evaluated
        and ends.

        Raises:
          FloatingPointError: a loss is NaN or infinite.
          ValueError: the loss of the first step is, before any weight has changed.
          Interrupted: a signal came; the checkpoint is saved.
        """
        began = step = int(self.trainer.step.numpy())
        accuracy = None
        run.samples = self._samples(step)
        self.budget.begin()
        if self.samples_at_success == run.samples:
            accuracy = self._evaluate(run, step)
            if accuracy >= self.target_accuracy:
                run.succeed()
                return Outcome(step=step, accuracy=accuracy, reached_target=True)
        is_over = self.budget.is_used_up or step >= self.schedule.num_train_steps
        is_evaluated = False
        if not is_over:
            self._start_block(run, step)
        while not is_over:
            step = self._train_to(self._next_stop(step, run.ledger), step, run.ledger)
            self.saves.require_no_failure()
            run.samples = self._samples(step)
            # Once the time is over the step is saved first: killed meanwhile, the run would have
            # no time left to train it again.
            is_evaluated = self.schedule.evaluation_is_due(step) and not self.budget.is_spent(
                step, run.ledger
            )
            if is_evaluated:
                run.block_stop(run.samples)
                accuracy = self._evaluate(run, step)
                if accuracy >= self.target_accuracy:
                    run.succeed()
                    self._save(run, step)
                    self._wait_for_saving(run)
                    return Outcome(step=step, accuracy=accuracy, reached_target=True)
            is_over = self.budget.is_over(step, run) or step >= self.schedule.num_train_steps
            if is_evaluated and not is_over:
                self._start_block(run, step)
            if step % self.schedule.save_checkpoints_steps == 0:
                self._save(run, step)
            if not is_over and self.trainer.any_process(self.stop_request.signal_name is not None):
                self._stop_for_signal(run, step)
        return self._end(run, step, accuracy, has_trained=step > began, is_evaluated=is_evaluated)

    def _end(
        self, run: Run, step: int, accuracy: float | None, *, has_trained: bool, is_evaluated: bool
    ) -> Outcome:
        """Saves what was trained, then evaluates it unless that was done."""
        if has_trained and not is_evaluated:
            run.block_stop(run.samples)
        if has_trained:
            self._save_last(run, step)
        if not is_evaluated and self.schedule.evaluation_interval_steps is not None:
            accuracy = self._evaluate(run, step)
        reached_target = accuracy is not None and accuracy >= self.target_accuracy
        if reached_target:
            run.succeed()
        return Outcome(step=step, accuracy=accuracy, reached_target=reached_target)

    def _samples(self, step: int) -> int:
        return step * self.trainer.batch_size

    def _next_stop(self, step: int, spent: Ledger) -> int:
        stops = (
            self.schedule.next_stop(step),
            self.profiler.next_stop(step),
            self.budget.next_stop(step, spent),
        )
        return min(stop for stop in stops if stop is not None)

    def _start_block(self, run: Run, step: int) -> None:
        num_steps = self.schedule.next_evaluation(step) - step
        run.block_start(self._samples(step), num_samples=self._samples(num_steps))

    def _train_to(self, stop: int, step: int, spent: Ledger) -> int:
        self.profiler.begin_if_due(step)
        before = spent.read()
        with spent.spent(ledger.COMPUTE):
            history = self.trainer.train(self.batches, tf.constant(stop - step)).numpy()
            waited = history[:, FIGURES.index("input_wait_seconds")].sum(dtype=float)
            spent.move(waited, source=ledger.COMPUTE, to=ledger.INPUT_WAIT)
        seconds = sum(ledger.difference(spent.read(), before).values())
        self.budget.trained(stop - step, seconds)
        self.profiler.end_if_due(stop)
        self.num_real_tokens += round(history[:, FIGURES.index("num_real_tokens")].sum(dtype=float))
        self.num_rows += round(history[:, FIGURES.index("num_rows")].sum(dtype=float))
        for offset, losses in enumerate(history.tolist()):
            require_finite(losses[0], step + offset + 1)
            if (step + offset + 1) % self.schedule.log_every_steps == 0:
                self.metrics.write(
                    "train",
                    step=step + offset + 1,
                    samples=self._samples(step + offset + 1),
                    **dict(zip(LOSSES, losses)),
                    learning_rate=self.learning_rate_at(step + offset),
                    samples_per_second=self._samples(stop - step) / seconds,
                    **self._seconds_since_the_last_line(spent),
                    **self.budget.fields(spent),
                )
        self.progress.advance(self._samples(stop - step), f"loss {history[-1][0]:.4f}")
        return stop

    def _seconds_since_the_last_line(self, spent: Ledger) -> dict[str, float]:
        """Where the time went; a device call ends at the first line that it reaches."""
        now, before = spent.read(), self._logged
        self._logged = now
        return ledger.as_fields(ledger.difference(now, before))

    def _evaluate(self, run: Run, step: int) -> float:
        samples = self._samples(step)
        run.eval_start(samples)
        found = self.evaluate(run.ledger)
        run.eval_stop(samples)
        run.eval_accuracy(
            found.masked_lm_accuracy, samples, step, num_eval_samples=found.num_examples
        )
        figures = {**dataclasses.asdict(found), **self.budget.fields(run.ledger)}
        self.metrics.write("eval", step=step, samples=samples, **figures)
        self.progress.line(
            f"after {samples:,} samples: masked-LM accuracy {found.masked_lm_accuracy:.4f} "
            f"(target {self.target_accuracy}), loss {found.loss:.4f}"
        )
        self.publish()
        return found.masked_lm_accuracy

    def _save(self, run: Run, step: int) -> None:
        with run.ledger.spent(ledger.SAVING):
            self.saves.save(step, run)

    def _save_last(self, run: Run, step: int) -> None:
        """Saves, unless this step was saved just now; afterwards the checkpoint is complete."""
        if step % self.schedule.save_checkpoints_steps:
            self._save(run, step)
        self._wait_for_saving(run)

    def _wait_for_saving(self, run: Run) -> None:
        with run.ledger.spent(ledger.SAVING):
            self.saves.wait()

    def _stop_for_signal(self, run: Run, step: int) -> None:
        self._save_last(run, step)
        raise Interrupted(
            f"{self.stop_request.signal_name or 'another process got a signal'} after step {step}: "
            "the checkpoint is saved; run the same command again to resume"
        )


def require_finite(loss: float, step: int) -> None:
    """Checks that a loss is finite; the error says whether weights or training are the cause.

    Raises:
      ValueError: the loss of the first step is not finite: the initial weights are bad.
      FloatingPointError: the loss of a later step is not: the training has diverged.
    """
    if math.isfinite(loss):
        return
    if step == 1:
        raise ValueError(
            f"the loss of the first step is {loss}, before any weight has changed: the initial "
            "weights are too large for this model; check --init_checkpoint and --bert_config_file"
        )
    raise FloatingPointError(
        f"the loss of step {step} is {loss}: training has diverged; lower --learning_rate or "
        "lengthen --num_warmup_steps"
    )
