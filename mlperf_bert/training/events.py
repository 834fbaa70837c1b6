"""Everything that a run does between device calls, as events of the loop; run.py orders them.

Nothing here needs TensorFlow until a profile is made, so that tests drive the events with a clock
and a stand-in trainer.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlperf_bert.messages import Progress, lasting
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.log import TimedRun
from mlperf_bert.programs.config import LOSSES, STEP_FIGURES
from mlperf_bert.signals import Interrupted, StopRequest
from mlperf_bert.training.config import ProfileWindow, RunConfig
from mlperf_bert.training.loop import (
    OVER,
    REACHED,
    STOPPED,
    Event,
    Trained,
    next_multiple,
)
from mlperf_bert.training.time_budget import TimeBudget

if TYPE_CHECKING:  # they import TensorFlow
    from mlperf_bert.checkpoints.state import Saves
    from mlperf_bert.model.metrics import Evaluation
    from mlperf_bert.optimization.optimizers import WarmupPolynomialDecay
    from mlperf_bert.training.reporting import MetricsWriter


def divergence(step: int, loss: float) -> Exception:
    """The error of a loss that is not finite, which says whether weights or training are the cause.

    At the first step the initial weights are bad: a ValueError. Later the training has diverged.
    """
    if step == 1:
        return ValueError(
            f"the loss of the first step is {loss}, before any weight has changed: the initial "
            "weights are too large for this model; check --init_checkpoint and --bert_config_file"
        )
    return FloatingPointError(
        f"the loss of step {step} is {loss}: training has diverged; lower --learning_rate or "
        "lengthen --num_warmup_steps"
    )


@dataclasses.dataclass
class RequireFinite(Event):
    """Ends the run when a loss is NaN or infinite, with an error of the step and its loss."""

    error: Callable[[int, float], Exception] = divergence

    def at(self, trained: Trained) -> None:
        """Looks at the loss of every step."""
        # The total is enough: if one of several losses is not finite, it is not either.
        for step, loss in enumerate(trained.figures[:, 0].tolist(), start=trained.step_before + 1):
            if not math.isfinite(loss):
                raise self.error(step, loss)


@dataclasses.dataclass(kw_only=True)
class Log(Event):
    """Writes a line of metrics every few steps, and advances the progress."""

    config: RunConfig
    timed: TimedRun
    """The run, whose ledger says what the time since the last line was spent on."""
    metrics: "MetricsWriter"
    progress: Progress
    rates: "WarmupPolynomialDecay"
    time_budget: TimeBudget | None
    """Adds its fields to each line; None without a time budget."""
    say: Callable[[str], None]
    """Prints at the end how full the rows were."""
    _logged: ledger.Seconds = dataclasses.field(
        default_factory=lambda: dict.fromkeys(ledger.KINDS, 0.0)
    )
    _num_real_tokens: int = 0
    _num_rows: int = 0

    def next(self, step: int) -> int:
        """The next step with a line."""
        return next_multiple(step, self.config.log_every_steps)

    def at(self, trained: Trained) -> None:
        """Counts; a call ends at the first line that it reaches, so that it has one at most."""
        figures, step = trained.figures, trained.step
        # Added up in float64: float32 counts whole numbers up to 16.8 million only.
        self._num_real_tokens += round(_column(figures, "num_real_tokens").sum(dtype=float))
        self._num_rows += round(_column(figures, "num_rows").sum(dtype=float))
        num_samples = (step - trained.step_before) * self.config.train_batch_size
        losses = figures[-1].tolist()
        if step % self.config.log_every_steps == 0:
            logged, self._logged = self._logged, self.timed.ledger.read()
            self.metrics.write(
                "train",
                step=step,
                samples=step * self.config.train_batch_size,
                **dict(zip(LOSSES, losses)),
                # The learning rate of the step just trained: rates count from step 0.
                learning_rate=float(self.rates.at_step(step - 1)),
                samples_per_second=num_samples / trained.seconds,
                **ledger.as_fields(ledger.difference(self._logged, logged)),
                **(self.time_budget.fields() if self.time_budget else {}),
            )
        self.progress.advance(num_samples, f"loss {losses[0]:.4f}")

    def end(self, step: int, ending: str) -> None:
        """Says how full the rows were."""
        if self.config.pack_sequences and self._num_rows:
            num_tokens = self._num_rows * self.config.shape.max_seq_length
            share = self._num_real_tokens / num_tokens
            self.say(f"packing: {share:.1%} of the tokens of {self._num_rows} rows were real")


def _column(figures: np.ndarray, name: str) -> np.ndarray:
    return figures[:, STEP_FIGURES.index(name)]


@dataclasses.dataclass
class Blocks(Event):
    """Logs the blocks of training between evaluations, as the rules name them."""

    config: RunConfig
    timed: TimedRun
    _is_open: bool = False

    def begin(self, step: int) -> None:
        """Opens the first block."""
        # The length is planned: a limit or a signal may end the block earlier.
        last_step = self.config.num_train_steps
        end = min(
            next_multiple(step, self.config.evaluation_interval_steps or last_step), last_step
        )
        size = self.config.train_batch_size
        self.timed.block_start(step * size, num_samples=(end - step) * size)
        self._is_open = True

    def at(self, trained: Trained) -> None:
        """Opens the next one after an evaluation."""
        # If the run is aborted, its log has this number.
        self.timed.samples = trained.step * self.config.train_batch_size
        if not self._is_open:
            self.begin(trained.step)

    def close(self, step: int) -> None:
        """Ends the block, if one is open."""
        if self._is_open:
            self.timed.block_stop(step * self.config.train_batch_size)
        self._is_open = False

    def end(self, step: int, ending: str) -> None:
        """Ends the last block; an interrupted run resumes within it."""
        # If the target was reached, the evaluation has closed the block.
        if ending == OVER:
            self.close(step)


@dataclasses.dataclass(kw_only=True)
class Evaluate(Event):
    """Evaluates when it is due, logs the accuracy, and ends the run at the target.

    A run that was killed after it had reached its target has only to evaluate again and to end.
    """

    config: RunConfig
    timed: TimedRun
    """Takes the accuracies."""
    blocks: Blocks
    """The blocks of a run: one ends before each evaluation."""
    evaluate_weights: "Callable[[], Evaluation]"
    """Evaluates the weights as they are."""
    metrics: "MetricsWriter"
    progress: Progress
    publish: Callable[[], None]
    """Uploads what is written, if it belongs in a bucket."""
    time_budget: TimeBudget | None
    """The limit of time; once that is over, an evaluation waits until the step is saved."""
    samples_at_target: float | None
    """The samples at which the run has reached its target before; None: it has not."""
    accuracy: float | None = None
    """The accuracy of the last evaluation."""
    _evaluated_step: int | None = None

    def next(self, step: int) -> int:
        """The next step with an evaluation."""
        return next_multiple(step, self._every)

    @property
    def _every(self) -> int:
        steps = self.config.evaluation_interval_steps
        assert steps  # without evaluation a run does not have this event
        return steps

    def begin(self, step: int) -> str | None:
        """Evaluates the step at which the target was reached before."""
        if self.samples_at_target == step * self.config.train_batch_size:
            return self.evaluate(step)
        return None

    def at(self, trained: Trained) -> str | None:
        """Evaluates if it is due."""
        step = trained.step
        # `next` does not name the last step: LastStep ends a call there.
        is_due = step % self._every == 0 or step == self.config.num_train_steps
        # With no time left, a run that is killed now could not train the step again.
        if not is_due or (self.time_budget and self.time_budget.is_spent(step)):
            return None
        # Closed first: the rules count the times of a block and an evaluation apart.
        self.blocks.close(step)
        return self.evaluate(step)

    def evaluate(self, step: int) -> str | None:
        """Evaluates the weights of `step`; REACHED stops the clock."""
        self._evaluated_step = step
        samples = step * self.config.train_batch_size
        self.timed.eval_start(samples)
        with lasting(f"evaluation after {samples:,} samples"):
            evaluation = self.evaluate_weights()
        self.timed.eval_stop(samples)
        accuracy = self.accuracy = evaluation.masked_lm_accuracy
        self.timed.eval_accuracy(accuracy, samples, step, num_eval_samples=evaluation.num_examples)
        self._report(step, evaluation)
        if accuracy < self.config.target_accuracy:
            return None
        # The clock stops here: what is saved afterwards is not part of the result.
        self.timed.succeed()
        return REACHED

    def _report(self, step: int, evaluation: "Evaluation") -> None:
        samples = step * self.config.train_batch_size
        figures = dataclasses.asdict(evaluation)
        if self.time_budget:
            figures |= self.time_budget.fields()
        self.metrics.write("eval", step=step, samples=samples, **figures)
        tell_of_evaluation(
            evaluation,
            when=f"after {samples:,} samples",
            target=self.config.target_accuracy,
            progress=self.progress,
        )
        # Published at once, also in a bucket: evaluations are rare, and users wait for them.
        self.metrics.flush()
        self.publish()

    def is_evaluated(self, step: int) -> bool:
        """Whether the weights of a step have been evaluated here."""
        return step == self._evaluated_step


def tell_of_evaluation(
    evaluation: "Evaluation", *, when: str, target: float, progress: Progress
) -> None:
    """Tells the user of an evaluation, during a training or after it."""
    progress.line(
        f"{when}: masked-LM accuracy {evaluation.masked_lm_accuracy:.4f} (target {target}), loss "
        f"{evaluation.loss:.4f}"
    )


@dataclasses.dataclass
class EvaluateAtEnd(Event):
    """Evaluates the last step unless that was done; stands behind the event that saves it."""

    evaluation: Evaluate

    def end(self, step: int, ending: str) -> str | None:
        """Evaluates the last step of a run that has no steps or time left."""
        if ending == OVER and not self.evaluation.is_evaluated(step):
            return self.evaluation.evaluate(step)
        return None


@dataclasses.dataclass
class LastStep(Event):
    """Ends the run at its last step; limits the steps of a device call."""

    last_step: int
    _: dataclasses.KW_ONLY
    longest_call_steps: int

    def begin(self, step: int) -> str | None:
        """A run that was killed at its end has no steps left."""
        return OVER if step >= self.last_step else None

    def next(self, step: int) -> int:
        """The end of the next device call, if nothing comes before."""
        return min(step + self.longest_call_steps, self.last_step)

    def at(self, trained: Trained) -> str | None:
        """Ends the run at its last step."""
        return OVER if trained.step >= self.last_step else None


@dataclasses.dataclass
class StopOnSignal(Event):
    """Ends the run after a signal to any of its processes; the step is saved before."""

    request: StopRequest
    gather: Callable[[Sequence[float]], np.ndarray]
    """What every process says: all of them call it at the same steps."""

    def at(self, trained: Trained) -> str | None:
        """Asks all processes, also without a signal here: all must end at the same step."""
        is_asked = float(self.request.signal_name is not None)
        return STOPPED if self.gather([is_asked]).any() else None

    def end(self, step: int, ending: str) -> None:
        """Raises Interrupted, after the events before this one have saved the step."""
        if ending == STOPPED:
            raise Interrupted(
                f"{self.request.signal_name or 'another process got a signal'} after step {step}: "
                "the checkpoint is saved; run the same command again to resume"
            )


@dataclasses.dataclass
class Profile(Event):
    """Runs the runtime's profiler during a window of steps; writes to `output_dir`/plugins/profile.

    TensorBoard's profile plugin reads this. A run that is resumed within the window profiles the
    rest of it, one that is resumed after it nothing.
    """

    window: ProfileWindow | None
    output_dir: Path | None
    """None: nothing is profiled, and device calls are as short as on the chief."""
    profiling: Callable[[str], contextlib.AbstractContextManager]
    """Profiles what happens within its context, into the folder that it is given."""
    _running: contextlib.ExitStack | None = None

    def next(self, step: int) -> int | None:
        """The first step after `step` at which the window begins or ends.

        The loop asks right before a device call, and the profile begins here. So it has nothing of
        what follows the call before, such as an evaluation.
        """
        if self.window is None:
            return None
        # Steps count from 1: after `first` - 1 of them the next one is `first`.
        is_within = self.window.first - 1 <= step < self.window.last
        if is_within and self.output_dir and not self._running:
            self._running = contextlib.ExitStack()
            self._running.enter_context(self.profiling(str(self.output_dir)))
        return next((s for s in (self.window.first - 1, self.window.last) if s > step), None)

    def at(self, trained: Trained) -> None:
        """Ends the profile with the window; stands first, before events that take time."""
        if self.window and trained.step >= self.window.last:
            self.close()

    def close(self) -> None:
        """Writes the profile so far, if the window has begun."""
        if self._running:
            self._running.close()
            self._running = None


@dataclasses.dataclass(frozen=True)
class RequireSaved(Event):
    """Ends the run when a checkpoint could not be written, before it evaluates or trains on."""

    saves: "Saves"

    def at(self, trained: Trained) -> None:
        """Raises OSError, if the writing has failed by now."""
        self.saves.require_no_failure()


@dataclasses.dataclass
class Save(Event):
    """Saves at its interval, and the last step, whatever ends the run."""

    saves: "Saves"
    timed: TimedRun
    _: dataclasses.KW_ONLY
    every: int
    _saved_step: int | None = None

    def begin(self, step: int) -> None:
        """Notes that the step where the run begins needs no saving."""
        self._saved_step = step

    def next(self, step: int) -> int:
        """The next step with a checkpoint."""
        return next_multiple(step, self.every)

    def at(self, trained: Trained) -> None:
        """Saves if it is due."""
        if trained.step % self.every == 0:
            self._save(trained.step)

    def end(self, step: int, ending: str) -> None:
        """Saves the last step unless it is saved, and waits until the checkpoint is complete."""
        # None: the run has ended before its first event, so that nothing was trained.
        if self._saved_step not in (step, None):
            self._save(step)
        with self.timed.ledger.counting(ledger.SAVING):
            self.saves.wait()

    def _save(self, step: int) -> None:
        with self.timed.ledger.counting(ledger.SAVING):
            self.saves.save(step, self.timed)
        self._saved_step = step
