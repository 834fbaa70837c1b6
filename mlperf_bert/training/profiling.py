"""Runs TensorFlow's profiler during a window of steps."""

from pathlib import Path

import tensorflow as tf

from mlperf_bert.training.config import ProfileWindow


class StepProfiler:
    """Profiles the steps of a window, and writes to `output_dir`/plugins/profile.

    TensorBoard's profile plugin reads this. A run that is resumed within the window profiles the
    rest of it, one that is resumed after it nothing.
    """

    def __init__(self, window: ProfileWindow | None, output_dir: str | Path | None):
        """Without a window it does nothing; without a directory only `next_stop` works."""
        self._window = window
        self._output_dir = output_dir
        self._is_running = False

    def next_stop(self, step: int) -> int | None:
        """The first step after `step` at which the window begins or ends."""
        if self._window is None:
            return None
        return next((s for s in (self._window.first - 1, self._window.last) if s > step), None)

    def begin_if_due(self, step: int) -> None:
        """Starts profiling if the window begins after `step`; call it before the next step."""
        window = self._window
        if window is None or self._output_dir is None or self._is_running:
            return
        if window.first - 1 <= step < window.last:
            tf.profiler.experimental.start(str(self._output_dir))
            self._is_running = True

    def end_if_due(self, step: int) -> None:
        """Stops profiling if the window ends at `step`; call it after that step."""
        if self._is_running and self._window and step >= self._window.last:
            self.close()

    def close(self) -> None:
        """Writes the profile so far, if the window has begun."""
        if self._is_running:
            self._is_running = False
            tf.profiler.experimental.stop()
