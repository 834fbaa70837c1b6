"""The event that ends a run when its time is over, as --time_budget says."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from mlperf_bert.messages import Progress
from mlperf_bert.mlperf.log import TimedRun
from mlperf_bert.options import duration
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.loop import OVER, Event, Trained


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
    gathered: Callable[[Sequence[float]], np.ndarray]
    """What every process says, the chief first."""
    progress: Progress
    _spent: float = 0.0
    """Seconds, by the chief's clock, at the last look."""

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
        """The end of the update: a longer device call could overrun the budget by its length."""
        return (step // self.config.steps_per_update + 1) * self.config.steps_per_update

    def is_spent(self, step: int) -> bool:
        """Whether the time is over and `step` ends an update, or the gradients would be lost."""
        # All processes ask at the same steps.
        self._spent = float(self.gathered([self._own_seconds()])[0][0])
        return self._spent >= self.seconds and step % self.config.steps_per_update == 0

    def at(self, trained: Trained) -> str | None:
        """Ends the run if the time is over."""
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
