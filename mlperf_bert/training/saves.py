"""Checkpoints that do not stop the training: copied at the step, written by a thread.

TensorFlow's own tf.train.CheckpointOptions(enable_async=True) is not used: what its thread raises
comes out at the next save only, and it does not report when a checkpoint is complete.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from mlperf_bert.checkpoints.state import RunState
from mlperf_bert.mlperf.timed_run import Run


class Saves:
    """The checkpoints of a run, written one at a time.

    At the end of the context the last one is complete, or its failure is raised.
    """

    def __init__(
        self,
        state: RunState | None,
        *,
        flush: Callable[[], None],
        publish: Callable[[], None],
        asynchronous: bool,
    ):
        """Writes nothing yet.

        Args:
          state: what is saved; None: another process of the run saves it.
          flush: called before a checkpoint, by the thread of the training.
          publish: called before and after a checkpoint, by the thread that writes it.
          asynchronous: whether the training goes on while a checkpoint is written.
        """
        self._state = state
        self._flush = flush
        self._publish = publish
        self._asynchronous = asynchronous
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saves")
        self._writing: Future | None = None

    def __enter__(self) -> "Saves":
        return self

    def __exit__(self, kind, *exc_info) -> None:
        self._thread.shutdown(wait=True)
        if kind is None:  # else keep the first error
            self.wait()

    def save(self, step: int, run: Run | None = None) -> None:
        """Saves the state as it is now; logged in `run`, once the checkpoint before is complete.

        Raises:
          OSError: this checkpoint, or the one before, cannot be written.
        """
        self.wait()
        if run:
            run.checkpoint_start(step)
        self._flush()
        if self._asynchronous and self._state:
            self._writing = self._thread.submit(self._write, step, run, self._state.copy())
        else:
            self._write(step, run)

    def wait(self) -> None:
        """Waits until the last checkpoint is complete.

        Raises:
          OSError: it cannot be written.
        """
        if self._writing:
            self._writing.result()

    def require_no_failure(self) -> None:
        """Raises as `wait`, if the writing has failed by now; does not wait."""
        if self._writing and self._writing.done():
            self.wait()

    def _write(self, step: int, run: Run | None, copied: dict | None = None) -> None:
        """What a resumed run needs beside a checkpoint is there before the checkpoint is."""
        self._publish()
        if self._state:
            self._state.save(step, copied)
        if run:
            run.checkpoint_stop(step)
        self._publish()
