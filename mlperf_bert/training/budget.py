"""A run that ends when its time is over: when to look at the clock, and how many steps that makes.

The clock is that of MLPerf: it runs from run_start on, through evaluations and checkpoints, and a
resumed run has used what the processes before it used. Only what comes after the last step, its
evaluation and its checkpoint, is not counted.

With --decay_over_budget the learning rate is that of a schedule whose end is estimated: the steps
so far divided by the share of the budget that they took. So at every estimate the rate has decayed
by the share of the time that is over, which is Cramming's rule, and in between it decays step by
step. There are about a hundred estimates a run, each logged before it takes effect. A resumed
run takes those that are in its logs at the same steps, so its learning rates are the same, bit by
bit.
Source: Geiping and Goldstein, arXiv 2212.14034.
"""

import dataclasses
from collections.abc import Callable, Sequence

from mlperf_bert.messages import Progress
from mlperf_bert.mlperf import budget
from mlperf_bert.mlperf.budget import Spent
from mlperf_bert.mlperf.ledger import Ledger
from mlperf_bert.mlperf.timed_run import Run

# A device call takes at most this share of what is left, so that steps that take longer than those
# before them overrun the end by little.
_CALL_SHARE = 0.9
_MAX_GROWTH = 2
"""A device call has at most so many times the steps that were measured before it."""
_NUM_ESTIMATES = 100
# After these the rate of steps is known well enough to say where the budget will end. The first
# steps are slow: the input begins.
_FORECAST_STEPS, _FORECAST_SHARE = 10, 0.25


@dataclasses.dataclass(kw_only=True)
class TimeBudget:
    """What the loop asks after each device call; without `seconds` it never ends the run.

    All processes of a run go by the chief's clock.
    """

    seconds: float | None
    before: Spent
    """What earlier processes of this run have used."""
    num_train_steps: int
    """The run ends there at the latest."""
    num_warmup_steps: int
    """At what step the warm-up ends."""
    evaluation_interval_steps: int | None
    steps_per_update: int
    batch_size: int
    """Samples per step."""
    decay_to: Callable[[int], object] | None
    """Sets the step at which the learning rate has decayed to 0; None: the decay is over steps."""
    of_chief: Callable[[Sequence[float]], Sequence[float]]
    """Gives all processes the chief's values."""
    progress: Progress
    _spent: float = 0.0
    """Seconds, by the chief's clock, at the last look."""
    _step_seconds: float = 0.0
    """How long a step takes at the most, by the chief's clock; 0: not measured yet."""
    _trained_steps: int = 0
    """By this process, in `_trained_seconds`; the last call had `_last_step_seconds` a step."""
    _trained_seconds: float = 0.0
    _last_step_seconds: float = 0.0
    _has_forecast: bool = False
    _next_estimate: int = 0
    """The step of it."""

    def __post_init__(self):
        recorded = self.before.estimates if self.decay_to else ()  # else they determine nothing
        self._recorded = {each.step: each.num_train_steps for each in recorded}

    @property
    def is_used_up(self) -> bool:
        """Whether the processes before this one have used it up: nothing more is trained."""
        return self.seconds is not None and self.before.seconds >= self.seconds

    def begin(self, step: int) -> None:
        """Takes the last estimate up to `step`, at which the run begins or goes on."""
        if past := [recorded for recorded in self._recorded if recorded <= step]:
            self._apply(self._recorded[max(past)])
        self._next_estimate = self._after(step)
        if self.seconds is not None and self.is_used_up:
            self.progress.line(
                f"the time budget of {budget.in_words(self.seconds)} was used up before: nothing "
                "more is trained"
            )

    def next_stop(self, step: int, ledger: Ledger) -> int | None:
        """The step up to which a device call may go: one that does not overrun the budget.

        When nothing is left, that is the end of the update, where the run ends.
        """
        if self.seconds is None:
            return None
        self._look(ledger)
        most = 1.0
        if self._step_seconds:
            affordable = _CALL_SHARE * (self.seconds - self._spent) / self._step_seconds
            most = min(affordable, _MAX_GROWTH * self._trained_steps)
        end_of_update = (step // self.steps_per_update + 1) * self.steps_per_update
        stop = end_of_update if most < 0 else step + max(1, int(most))
        return min(stop, self._next_estimate)

    def trained(self, num_steps: int, seconds: float) -> None:
        """Takes the measure of a device call."""
        self._trained_steps += num_steps
        self._trained_seconds += seconds
        self._last_step_seconds = seconds / num_steps

    def is_spent(self, step: int, ledger: Ledger) -> bool:
        """Whether the time is over and `step` ends an update, or the gradients would be lost."""
        if self.seconds is None:
            return False
        self._look(ledger)
        return self._spent >= self.seconds and step % self.steps_per_update == 0

    def is_over(self, step: int, run: Run) -> bool:
        """Whether the run ends after `step`; makes an estimate if one is due."""
        if self.seconds is None:
            return False
        is_spent = self.is_spent(step, run.ledger)
        if step >= self._next_estimate:
            self._estimate(step, run)
        if not self._has_forecast:
            self._forecast(step)
        if not is_spent:
            return False
        self.progress.line(
            f"the time budget of {budget.in_words(self.seconds)} is over after "
            f"{budget.in_words(self._spent)} and {step:,} steps"
        )
        return True

    def fields(self, ledger: Ledger) -> dict[str, float]:
        """What a line of metrics says of the budget; nothing if there is none."""
        if self.seconds is None:
            return {}
        spent = self.before.seconds + sum(ledger.read().values())
        return {"time_budget_seconds": self.seconds, "time_budget_spent_seconds": spent}

    def _look(self, ledger: Ledger) -> None:
        """Reads the chief's clock."""
        own = self.before.seconds + sum(ledger.read().values())
        average = self._trained_seconds / max(1, self._trained_steps)
        slowest = max(average, self._last_step_seconds)
        self._spent, self._step_seconds = self.of_chief([own, slowest])

    def _estimate(self, step: int, run: Run) -> None:
        """Makes an estimate, or takes the one that is recorded for this step, and logs it."""
        assert self.seconds is not None
        if step not in self._recorded:
            # At least this step: then nothing is left, and the rate is 0.
            expected = max(step, step * self.seconds / max(self._spent, 1e-3))
            self._recorded[step] = round(min(expected, self.num_train_steps))
        expected_steps = self._recorded[step]
        run.time_budget_spent(step, seconds=self._spent, num_train_steps=expected_steps)
        self._apply(expected_steps)
        self._next_estimate = self._after(step)

    def _apply(self, num_train_steps: int) -> None:
        self.progress.expect(num_train_steps * self.batch_size)
        if self.decay_to:
            self.decay_to(num_train_steps)

    def _after(self, step: int) -> int:
        """The step of the first estimate after `step`: a recorded one, or a hundredth later.

        A new one comes after a whole update, for one update has one learning rate.
        """
        if later := [recorded for recorded in self._recorded if recorded > step]:
            return min(later)
        distance = self._recorded.get(max(self._recorded, default=0), 0) // _NUM_ESTIMATES
        num_updates = -(-(step + max(1, distance)) // self.steps_per_update)
        return num_updates * self.steps_per_update

    def _forecast(self, step: int) -> None:
        """Says once where the budget will end, and what will not be reached by then."""
        assert self.seconds is not None
        share = (self._spent - self.before.seconds) / self.seconds
        if self._trained_steps < _FORECAST_STEPS and share < _FORECAST_SHARE:
            return
        self._has_forecast = True
        fastest = min(self._trained_seconds / self._trained_steps, self._last_step_seconds)
        end = step + int(max(0.0, self.seconds - self._spent) / max(fastest, 1e-9))
        given = f"--time_budget={budget.in_words(self.seconds)}"
        self.progress.line(
            f"{given}: enough for at most about {end:,} steps, {end * self.batch_size:,} samples"
        )
        if self.evaluation_interval_steps and end < self.evaluation_interval_steps:
            self.progress.line(
                f"warning: {given} ends before the first evaluation, at step "
                f"{self.evaluation_interval_steps:,}: the run is evaluated once, at its end; give "
                "more time, or lower --eval_interval_samples"
            )
        if end < self.num_warmup_steps:
            self.progress.line(
                f"warning: {given} ends before the warm-up of the learning rate, at step "
                f"{self.num_warmup_steps:,}: the rate does not reach its peak; give more time, or "
                "lower --num_warmup_steps"
            )
