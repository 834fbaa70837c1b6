"""Compares copies of a training's state with TensorFlow's own checkpoints of it."""

from pathlib import Path

import tensorflow as tf

from mlperf_bert.checkpoints.state import RunState
from mlperf_bert.programs.tf_trainer import Trainer


def assert_copies_are_the_checkpoints(trainer: Trainer, batches, folder: Path) -> None:
    """Of several steps: what is written after more training is, byte for byte, TensorFlow's own."""
    at_once, later = (_state_of(trainer, folder / name) for name in ("at-once", "later"))
    for state in (at_once, later):
        state.attach_input(batches)
    for step in (2, 4, 6):
        trainer.train(batches, tf.constant(2))
        at_once.save(step)
        copied = later.copy()
        trainer.train(batches, tf.constant(2))
        later.save(step, copied)
    found, expected = _files(folder / "later"), _files(folder / "at-once")
    assert sorted(found) == sorted(expected) and len(found) == 6
    for name, content in expected.items():
        assert found[name] == content, name


def _state_of(trainer: Trainer, folder: Path) -> RunState:
    return RunState(
        str(folder), parts=trainer.state, keep_checkpoint_max=0, fetch=trainer.fetch_state
    )


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("model.ckpt-*")}
