"""The outer loop: train up to the next step at which an event wants the host, then let events act.

It knows only events. What a run does, and in which order, is the list of events in run.py. Steps
are micro-batches; samples are steps times the size of a micro-batch.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

# How training ends: the target is reached; no steps or no time are left; a signal asked for it.
REACHED, OVER, STOPPED = "reached", "over", "stopped"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """What one device call has trained."""

    step_before: int
    """The step before the call."""
    step: int
    """The step after it."""
    figures: np.ndarray
    """Float32 [steps, figures], one row for each step; of pre-training, `STEP_FIGURES`."""
    seconds: float
    """How long the call took."""


class Event:
    """Something that a run does between two device calls; every method may be left out.

    An event that ends the run returns how: REACHED, OVER or STOPPED. An exception of an event ends
    it at once: no other event acts, and none `end`s.
    """

    def next(self, step: int) -> int | None:
        """The first step after `step` at which a device call must end; None if any step will do.

        The same on all processes of a run, or they would make device calls of different lengths;
        only what is written differs.
        """

    def begin(self, step: int) -> str | None:
        """Acts before the first step; `step` is where the run begins or resumes."""

    def at(self, trained: Trained) -> str | None:
        """Acts after a device call if it is due: the call may have ended for another event.

        An event that stands behind the one that ends the run does not see the last call.
        """

    def end(self, step: int, ending: str) -> str | None:
        """Acts after the last call; may return another ending."""


def train(
    train_steps: Callable[[int], tuple[np.ndarray, float]], events: Sequence[Event], *, step: int
) -> tuple[int, str]:
    """Trains from `step` on until an event ends the run.

    Args:
      train_steps: trains a number of steps; returns their figures [steps, figures] and the seconds.
      events: act in this order. The first that ends the run is the last that acts; then all `end`.
      step: of the checkpoint from which the run resumes; 0 for a new run.

    Returns: the last step, and how the run ended.
    """
    # Lazy: events behind one that ends the run do not begin. So a run that was killed after its
    # last step opens no block.
    ending = next(filter(None, (event.begin(step) for event in events)), None)
    while ending is None:
        # The list is never empty, because LastStep names a step.
        stop = min(wish for event in events if (wish := event.next(step)) is not None)
        figures, seconds = train_steps(stop - step)
        trained = Trained(step_before=step, step=stop, figures=figures, seconds=seconds)
        step = stop
        # Lazy again: events after the one that ends the run do not act.
        ending = next(filter(None, (event.at(trained) for event in events)), None)
    # All of them, whichever ended the run: each may have a block, a file or a thread to close. The
    # last evaluation may still reach the target: events that stand later then see that ending.
    for event in events:
        ending = event.end(step, ending) or ending
    return step, ending


def next_multiple(step: int, every: int) -> int:
    """The first multiple of `every` after `step`."""
    return (step // every + 1) * every
