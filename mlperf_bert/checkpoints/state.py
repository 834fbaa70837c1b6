"""The whole state of a run, saved and restored, so that a killed run goes on as if nothing was.

State = weights, optimizer slots and update count, gradient accumulators, step, the random
generators of dropout, and the position in the input (with its shuffle buffer).
"""

import re

import tensorflow as tf

CHECKPOINT_NAME = "model.ckpt"


class RunState:
    """Saves to `directory` as model.ckpt-STEP and restores the newest."""

    def __init__(self, directory: str, *, parts: dict[str, object], keep_checkpoint_max: int):
        """Wraps the trackable `parts`; keeps that many checkpoints, 0 = all."""
        self._checkpoint = tf.train.Checkpoint(**parts)
        self._manager = tf.train.CheckpointManager(
            self._checkpoint,
            directory,
            max_to_keep=keep_checkpoint_max or None,
            checkpoint_name=CHECKPOINT_NAME,
        )
        self._restored: str | None = None

    @property
    def latest_step(self) -> int | None:
        """Step of the newest complete checkpoint, or None."""
        latest = self._manager.latest_checkpoint
        return step_of(latest) if latest else None

    def restore(self) -> None:
        """Restores everything but the input position from the newest checkpoint.

        Raises:
          ValueError: the checkpoint is damaged, or was made by another configuration.
        """
        self._restored = self._manager.latest_checkpoint
        try:
            status = self._checkpoint.restore(self._restored)
            status.assert_existing_objects_matched()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{self._restored}: cannot be restored ({reason}); remove its files to go on from "
                "the one before, or choose another --output_dir"
            ) from error

    def attach_input(self, iterator) -> None:
        """Adds the iterator over the input to the state, moved to where the run was."""
        if not isinstance(iterator, tf.data.Iterator):
            return  # a distributed iterator cannot be saved
        if self._restored:
            tf.train.Checkpoint(iterator=iterator).restore(self._restored).expect_partial()
        self._checkpoint.iterator = iterator

    def save(self, step: int) -> str:
        """Writes model.ckpt-`step`, complete or not at all; returns its path."""
        return self._manager.save(checkpoint_number=step)


def step_of(path: str) -> int:
    """The step in a checkpoint's name: ".../model.ckpt-600" -> 600."""
    return int(re.fullmatch(r".*-(\d+)", path).group(1))


def saved_checkpoints(directory: str) -> dict[int, str]:
    """Step -> path of every complete checkpoint, oldest first.

    TensorFlow renames the index file into place last: where it is, the data are.
    """
    pattern = f"{directory.rstrip('/')}/{CHECKPOINT_NAME}-*.index"
    paths = [path.removesuffix(".index") for path in tf.io.gfile.glob(pattern)]
    steps = {step_of(path): path for path in paths if re.search(r"-\d+$", path)}
    return dict(sorted(steps.items()))
