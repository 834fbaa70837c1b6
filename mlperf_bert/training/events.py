"""What a run does between device calls, each as an event of the loop; run.py puts them in order.

Nothing here needs TensorFlow until a profile is made, so that tests drive the events with a clock
and a stand-in trainer.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlperf_bert.messages import Progress
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.log import TimedRun
from mlperf_bert.programs.config import FIGURES, LOSSES
from mlperf_bert.signals import Interrupted, StopRequest
from mlperf_bert.training.config import ProfileWindow
from mlperf_bert.training.loop import (
    OVER,
    REACHED,
    STOPPED,
    Event,
    Trained,
    next_multiple,
)

if TYPE_CHECKING:  # they import TensorFlow
    from mlperf_bert.checkpoints.state import Saves
    from mlperf_bert.model.metrics import Evaluation
    from mlperf_bert.training.reporting import MetricsWriter


class RequireFinite(Event):
    """Ends the run when a loss is NaN or infinite; says whether weights or training are the cause.

    Raises:
      ValueError: the loss of the first step is not finite: the initial weights are bad.
      FloatingPointError: the loss of a later step is not: the training has diverged.
    """

    def at(self, trained: Trained) -> None:
        """Looks at the loss of every step."""
        # The total alone: if one of the two losses is not finite, it is not either.
        for step, loss in enumerate(trained.figures[:, 0].tolist(), start=trained.before + 1):
            if math.isfinite(loss):
                continue
            if step == 1:
                raise ValueError(
                    f"the loss of the first step is {loss}, before any weight has changed: the "
                    "initial weights are too large for this model; check --init_checkpoint and "
                    "--bert_config_file"
                )
            raise FloatingPointError(
                f"the loss of step {step} is {loss}: training has diverged; lower --learning_rate "
                "or lengthen --num_warmup_steps"
            )


class Log(Event):
    """Writes a line of metrics every so many steps, and advances the progress."""

    def __init__(
        self,
        metrics: "MetricsWriter",
        progress: Progress,
        run: TimedRun,
        *,
        every: int,
        batch_size: int,
        learning_rate_at: Callable[[int], float],
        more: Callable[[], dict[str, float]],
        packed_length: int | None,
        say: Callable[[str], None],
    ):
        """Writes nothing yet.

        Args:
          metrics: takes the lines.
          progress: counts samples.
          run: its ledger says where the time went since the last line.
          every: steps between lines.
          batch_size: samples of a step.
          learning_rate_at: the learning rate after so many steps.
          more: what else a line says, such as of the time limit.
          packed_length: tokens of a row; None: examples are not packed.
          say: prints a line, at the end, on how full the rows were.
        """
        self._metrics, self._progress, self._run = metrics, progress, run
        self._every, self._batch_size = every, batch_size
        self._learning_rate_at, self._more = learning_rate_at, more
        self._packed_length, self._say = packed_length, say
        self._logged: ledger.Seconds = dict.fromkeys(ledger.KINDS, 0.0)
        self._num_real_tokens = self._num_rows = 0

    def next(self, step: int) -> int:
        """The next step with a line."""
        return next_multiple(step, self._every)

    def at(self, trained: Trained) -> None:
        """Counts; a call ends at the first line that it reaches, so that it has one at most."""
        figures, step = trained.figures, trained.step
        # Added up in float64: float32 counts whole numbers up to 16.8 million only.
        self._num_real_tokens += round(_column(figures, "num_real_tokens").sum(dtype=float))
        self._num_rows += round(_column(figures, "num_rows").sum(dtype=float))
        num_samples = (step - trained.before) * self._batch_size
        losses = figures[-1].tolist()
        if step % self._every == 0:
            logged, self._logged = self._logged, self._run.ledger.read()
            self._metrics.write(
                "train",
                step=step,
                samples=step * self._batch_size,
                **dict(zip(LOSSES, losses)),
                # That of the step just trained: rates count from step 0.
                learning_rate=self._learning_rate_at(step - 1),
                samples_per_second=num_samples / trained.seconds,
                **ledger.as_fields(ledger.difference(self._logged, logged)),
                **self._more(),
            )
        self._progress.advance(num_samples, f"loss {losses[0]:.4f}")

    def end(self, step: int, ending: str) -> None:
        """Says how full the rows were."""
        if self._packed_length and self._num_rows:
            share = self._num_real_tokens / (self._num_rows * self._packed_length)
            self._say(f"packing: {share:.1%} of the tokens of {self._num_rows} rows were real")


def _column(figures: np.ndarray, name: str) -> np.ndarray:
    return figures[:, FIGURES.index(name)]


class Blocks(Event):
    """Logs the blocks of training between evaluations, as the rules name them."""

    def __init__(self, run: TimedRun, *, batch_size: int, every: int | None, last_step: int):
        """A block ends every `every` steps and at the last step; None: only there."""
        self._run, self._batch_size = run, batch_size
        self._every, self._last_step = every or last_step, last_step
        self._is_open = False

    def begin(self, step: int) -> None:
        """Opens the first block."""
        # Said beforehand: a limit or a signal may end the block earlier.
        end = min(next_multiple(step, self._every), self._last_step)
        num_samples = (end - step) * self._batch_size
        self._run.block_start(step * self._batch_size, num_samples=num_samples)
        self._is_open = True

    def at(self, trained: Trained) -> None:
        """Opens the next one after an evaluation."""
        # If the run is aborted, its log says so many.
        self._run.samples = trained.step * self._batch_size
        if not self._is_open:
            self.begin(trained.step)

    def close(self, step: int) -> None:
        """Ends the block, if one is open."""
        if self._is_open:
            self._run.block_stop(step * self._batch_size)
        self._is_open = False

    def end(self, step: int, ending: str) -> None:
        """Ends the last block; a run that was interrupted goes on within it."""
        # At the target the evaluation has closed it.
        if ending == OVER:
            self.close(step)


class Evaluate(Event):
    """Evaluates when it is due, logs the accuracy, and ends the run at the target.

    A run that was killed after it had reached its target has only to evaluate again and to end.
    """

    def __init__(
        self,
        run: TimedRun,
        blocks: Blocks,
        *,
        every: int,
        last_step: int,
        target: float,
        batch_size: int,
        evaluate: Callable[[], "Evaluation"],
        report: Callable[[int, "Evaluation"], None],
        postponed: Callable[[int], bool],
        reached_at: float | None,
    ):
        """Evaluates nothing yet.

        Args:
          run: takes the accuracies.
          blocks: of which one ends before each evaluation.
          every: steps between evaluations; there is one at the last step too.
          last_step: of the run.
          target: masked-LM accuracy at which the run ends.
          batch_size: samples of a step.
          evaluate: evaluates the weights as they are.
          report: called with step and evaluation, once they are logged.
          postponed: whether an evaluation waits until the step is saved. Once the time is over it
            does: killed meanwhile, the run would have no time left to train the step again.
          reached_at: the samples at which the run has reached its target before; None: it has not.
        """
        self._run, self._blocks = run, blocks
        self._every, self._last_step, self._target = every, last_step, target
        self._batch_size, self._reached_at = batch_size, reached_at
        self._evaluate, self._report, self._postponed = evaluate, report, postponed
        self._evaluated_step: int | None = None
        self.accuracy: float | None = None
        """The accuracy of the last evaluation."""

    def next(self, step: int) -> int:
        """The next step with an evaluation."""
        return next_multiple(step, self._every)

    def begin(self, step: int) -> str | None:
        """Evaluates the step at which the target was reached before."""
        if self._reached_at == step * self._batch_size:
            return self.evaluate(step)
        return None

    def at(self, trained: Trained) -> str | None:
        """Evaluates if it is due."""
        step = trained.step
        # The last step is no wish of `next`: LastStep ends a call there.
        is_due = step % self._every == 0 or step == self._last_step
        if not is_due or self._postponed(step):
            return None
        # First: the rules count the time of a block and of an evaluation apart.
        self._blocks.close(step)
        return self.evaluate(step)

    def evaluate(self, step: int) -> str | None:
        """Evaluates the weights of `step`; REACHED stops the clock."""
        self._evaluated_step = step
        samples = step * self._batch_size
        self._run.eval_start(samples)
        evaluation = self._evaluate()
        self._run.eval_stop(samples)
        accuracy = self.accuracy = evaluation.masked_lm_accuracy
        self._run.eval_accuracy(accuracy, samples, step, num_eval_samples=evaluation.num_examples)
        self._report(step, evaluation)
        if accuracy < self._target:
            return None
        # The clock stops here: what is saved afterwards is not part of the result.
        self._run.succeed()
        return REACHED

    def is_evaluated(self, step: int) -> bool:
        """Whether the weights of a step have been evaluated here."""
        return step == self._evaluated_step


class EvaluateAtEnd(Event):
    """Evaluates the last step if that was not done; it stands after what saves that step."""

    def __init__(self, evaluation: Evaluate):
        self._evaluation = evaluation

    def end(self, step: int, ending: str) -> str | None:
        """Evaluates what a run without steps or time left has trained."""
        if ending == OVER and not self._evaluation.is_evaluated(step):
            return self._evaluation.evaluate(step)
        return None


class LastStep(Event):
    """Ends the run at its last step; a device call has at most so many steps."""

    def __init__(self, last_step: int, *, longest_call_steps: int):
        self._last_step, self._longest_call_steps = last_step, longest_call_steps

    def begin(self, step: int) -> str | None:
        """A run that was killed at its end has no steps left."""
        return OVER if step >= self._last_step else None

    def next(self, step: int) -> int:
        """The end of the next device call, if nothing comes before."""
        return min(step + self._longest_call_steps, self._last_step)

    def at(self, trained: Trained) -> str | None:
        """Ends the run at its last step."""
        return OVER if trained.step >= self._last_step else None


class StopOnSignal(Event):
    """Ends the run after a signal to any of its processes; the step is saved before."""

    def __init__(self, request: StopRequest, any_process: Callable[[bool], bool]):
        """All processes call `any_process` at the same steps."""
        self._request, self._any_process = request, any_process

    def at(self, trained: Trained) -> str | None:
        """Asks all processes, with or without a signal here: they must end at the same step."""
        return STOPPED if self._any_process(self._request.signal_name is not None) else None

    def end(self, step: int, ending: str) -> None:
        """Raises Interrupted, once what stands before it has saved the step."""
        if ending == STOPPED:
            raise Interrupted(
                f"{self._request.signal_name or 'another process got a signal'} after step {step}: "
                "the checkpoint is saved; run the same command again to resume"
            )


class Profile(Event):
    """Runs the runtime's profiler during a window of steps; writes to `output_dir`/plugins/profile.

    TensorBoard's profile plugin reads this. A run that is resumed within the window profiles the
    rest of it, one that is resumed after it nothing.
    """

    def __init__(
        self,
        window: ProfileWindow | None,
        output_dir: Path | None,
        profiled: Callable[[str], contextlib.AbstractContextManager],
    ):
        """Without a directory it only makes the device calls as short as on the chief.

        `profiled` profiles what happens within its context, into the directory that it is given.
        """
        self._window, self._output_dir, self._profiled = window, output_dir, profiled
        self._step = 0
        self._running = contextlib.ExitStack()
        self._is_running = False

    def begin(self, step: int) -> None:
        """Takes the step before the first call."""
        self._step = step

    def next(self, step: int) -> int | None:
        """The first step after `step` at which the window begins or ends."""
        if self._window is None:
            return None
        return next((s for s in (self._window.first - 1, self._window.last) if s > step), None)

    def around(
        self, train_steps: Callable[[int], tuple[np.ndarray, float]]
    ) -> Callable[[int], tuple[np.ndarray, float]]:
        """The same device calls, profiled in the window: no evaluation is in the profile."""

        def profiled(num_steps: int) -> tuple[np.ndarray, float]:
            window = self._window
            # Steps count from 1: after `first` - 1 of them the next one is `first`.
            begins = window and self._output_dir and window.first - 1 <= self._step < window.last
            if begins and not self._is_running:
                self._running.enter_context(self._profiled(str(self._output_dir)))
                self._is_running = True
            trained = train_steps(num_steps)
            self._step += num_steps
            if window and self._step >= window.last:
                self.close()
            return trained

        return profiled

    def close(self) -> None:
        """Writes the profile so far, if the window has begun."""
        self._is_running = False
        self._running.close()


@dataclasses.dataclass(frozen=True)
class RequireSaved(Event):
    """Ends the run when a checkpoint could not be written, before it is evaluated or goes on."""

    saves: "Saves"

    def at(self, trained: Trained) -> None:
        """Raises OSError, if the writing has failed by now."""
        self.saves.require_no_failure()


class Save(Event):
    """Saves every so many steps, and the last step, whatever ends the run."""

    def __init__(self, saves: "Saves", run: TimedRun, *, every: int):
        self._saves, self._run, self._every = saves, run, every
        self._saved_step: int | None = None

    def begin(self, step: int) -> None:
        """The checkpoint with which the run goes on is there."""
        self._saved_step = step

    def next(self, step: int) -> int:
        """The next step with a checkpoint."""
        return next_multiple(step, self._every)

    def at(self, trained: Trained) -> None:
        """Saves if it is due."""
        if trained.step % self._every == 0:
            self._save(trained.step)

    def end(self, step: int, ending: str) -> None:
        """Saves what is not saved, and waits until the checkpoint is complete."""
        # None: the run has ended before its first event, so that nothing was trained.
        if self._saved_step not in (step, None):
            self._save(step)
        with self._run.ledger.counting(ledger.SAVING):
            self._saves.wait()

    def _save(self, step: int) -> None:
        with self._run.ledger.counting(ledger.SAVING):
            self._saves.save(step, self._run)
        self._saved_step = step
