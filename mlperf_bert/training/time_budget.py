"""The event that ends a run when its time is over, as --time_budget says."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from mlperf_bert.messages import Progress
from mlperf_bert.mlperf.log import TimedRun
from mlperf_bert.options import duration
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.loop import OVER, Event, Trained

# A device call takes at most these shares of what is left and of the whole budget, so that steps
# that become slower overrun the end by little.
_CALL_SHARE, _CALL_SHARE_OF_ALL = 0.9, 0.01
_MAX_GROWTH = 2
"""A device call has at most this many times the steps that were measured before it."""


@dataclasses.dataclass(kw_only=True)
class TimeBudget(Event):
    """Ends the run at the first update after its time. All processes use the chief's clock.

    That is the clock of MLPerf: it runs from run_start on, through evaluations and checkpoints, and
    a resumed run has used what the processes before it used, up to the last lines of their logs.
    Only what comes after the last step, its evaluation and its checkpoint, is not counted.
    """

    config: RunConfig
    """The configuration of the run, which has a `time_budget`."""
    timed: TimedRun
    """The run, whose ledger is the clock."""
    earlier_seconds: float
    """Seconds that earlier processes of this run have used."""
    gather: Callable[[Sequence[float]], np.ndarray]
    """What every process says, the chief first."""
    progress: Progress
    _spent: float = 0.0
    """Seconds, by the chief's clock, at the last look."""
    _step_seconds: float = 0.0
    """How long a step takes at the most, by the chief's clock; 0: not measured yet."""
    _trained_steps: int = 0
    """Steps of this process, in `_trained_seconds`; the last had `_last_step_seconds` each."""
    _trained_seconds: float = 0.0
    _last_step_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """The budget of the whole run."""
        budget = self.config.time_budget
        assert budget is not None  # without a budget a run does not have this event
        return budget

    def begin(self, step: int) -> str | None:
        """Nothing is trained if the processes before this one have used the time up."""
        # All processes have the chief's `earlier_seconds`: all of them end here, or none does.
        if self.earlier_seconds < self.seconds:
            return None
        self.progress.line(
            f"the time budget of {duration(self.seconds)} was used up before: nothing "
            "more is trained"
        )
        return OVER

    def next(self, step: int) -> int:
        """The step up to which a device call may go: one that does not overrun the budget.

        When nothing is left, that is the end of the update, where the run ends.
        """
        self._look()
        # Until a step is measured, a call has one step: a slow first step overruns by little.
        most = 1.0
        if self._step_seconds:
            left = _CALL_SHARE * (self.seconds - self._spent)
            affordable = min(left, _CALL_SHARE_OF_ALL * self.seconds) / self._step_seconds
            most = min(affordable, _MAX_GROWTH * self._trained_steps)
        end_of_update = (step // self.config.steps_per_update + 1) * self.config.steps_per_update
        # At least one step: a call without steps would never come to the end.
        return end_of_update if most < 0 else step + max(1, int(most))

    def is_spent(self, step: int) -> bool:
        """Whether the time is over and `step` ends an update, or the gradients would be lost."""
        self._look()
        return self._spent >= self.seconds and step % self.config.steps_per_update == 0

    def at(self, trained: Trained) -> str | None:
        """Ends the run if the time is over."""
        num_steps = trained.step - trained.step_before
        self._trained_steps += num_steps
        self._trained_seconds += trained.seconds
        self._last_step_seconds = trained.seconds / num_steps
        if not self.is_spent(trained.step):
            return None
        self.progress.line(
            f"the time budget of {duration(self.seconds)} is over after "
            f"{duration(self._spent)} and {trained.step:,} steps"
        )
        return OVER

    def fields(self) -> dict[str, float]:
        """The fields of the budget in a line of metrics."""
        return {
            "time_budget_seconds": self.seconds,
            "time_budget_spent_seconds": self._own_seconds(),
        }

    def _own_seconds(self) -> float:
        """The seconds used by the clock of this process."""
        return self.earlier_seconds + sum(self.timed.ledger.read().values())

    def _look(self) -> None:
        """Reads the chief's clock."""
        average = self._trained_seconds / max(1, self._trained_steps)
        # The longer time counts: an estimate that is too short would overrun the end.
        slowest = max(average, self._last_step_seconds)
        of_chief = self.gather([self._own_seconds(), slowest])[0]
        self._spent, self._step_seconds = of_chief.tolist()
