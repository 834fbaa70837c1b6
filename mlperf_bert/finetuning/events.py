"""What a run does between its steps, each as an event of the loop; run.py puts them in order."""

import dataclasses
from collections.abc import Callable

from mlperf_bert.checkpoints.state import RunState
from mlperf_bert.messages import Progress
from mlperf_bert.training.loop import Event, Trained, next_multiple
from mlperf_bert.training.reporting import MetricsWriter

LOG_EVERY_STEPS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epochs:
    """The epochs of a run in steps; the last batch of each can be short."""

    number: int
    num_features: int
    batch_size: int

    @property
    def num_steps_each(self) -> int:
        """Steps of an epoch."""
        return -(-self.num_features // self.batch_size)

    @property
    def num_steps(self) -> int:
        """Steps of all epochs."""
        return self.number * self.num_steps_each

    def examples(self, step: int) -> int:
        """Examples trained after so many steps."""
        epochs, steps = divmod(step, self.num_steps_each)
        return epochs * self.num_features + steps * self.batch_size


@dataclasses.dataclass
class Log(Event):
    """Writes a line of metrics every ten steps, and advances the progress."""

    epochs: Epochs
    metrics: MetricsWriter
    progress: Progress

    def next(self, step: int) -> int:
        """The next step with a line."""
        return next_multiple(step, LOG_EVERY_STEPS)

    def at(self, trained: Trained) -> None:
        """Tells the loss of the last step."""
        [loss] = trained.figures[-1].tolist()
        samples = self.epochs.examples(trained.step)
        num_trained = samples - self.epochs.examples(trained.before)
        self.progress.advance(num_trained, f"loss {loss:.4f}")
        if trained.step % LOG_EVERY_STEPS == 0:
            self.metrics.write("train", step=trained.step, samples=samples, loss=loss)


@dataclasses.dataclass
class Evaluate(Event):
    """Evaluates at the end of each epoch."""

    epochs: Epochs
    scores: Callable[[], dict[str, float]]
    """Evaluates the weights as they are: split/metric -> value."""
    metrics: MetricsWriter
    say: Callable[[str], None]

    def next(self, step: int) -> int:
        """The end of the epoch."""
        return next_multiple(step, self.epochs.num_steps_each)

    def at(self, trained: Trained) -> None:
        """Evaluates if it is due."""
        epoch, rest = divmod(trained.step, self.epochs.num_steps_each)
        if rest:
            return
        found = self.scores()
        samples = self.epochs.examples(trained.step)
        self.metrics.write("eval", step=trained.step, samples=samples, epoch=epoch, **found)
        self.metrics.flush()  # before the checkpoint: a resumed run does not evaluate it again
        listed = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
        self.say(f"epoch {epoch}: {listed}")


@dataclasses.dataclass
class Save(Event):
    """Saves at the end of each epoch, every so many steps, and when a signal ends the run."""

    epochs: Epochs
    state: RunState
    every: int
    _saved_step: int | None = None

    def begin(self, step: int) -> None:
        """The checkpoint with which the run goes on is there."""
        self._saved_step = step

    def next(self, step: int) -> int:
        """The next step with a checkpoint."""
        return min(next_multiple(step, each) for each in (self.every, self.epochs.num_steps_each))

    def at(self, trained: Trained) -> None:
        """Saves if it is due."""
        if self.next(trained.before) == trained.step:
            self._save(trained.step)

    def end(self, step: int, ending: str) -> None:
        """Saves what is not saved."""
        if step != self._saved_step:
            self._save(step)

    def _save(self, step: int) -> None:
        self.state.save(step)
        self._saved_step = step
