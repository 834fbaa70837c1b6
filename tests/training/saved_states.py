"""Compares copies of a training's state with TensorFlow's own checkpoints of it.

    python -m tests.training.saved_states TASK OUTPUT

compares them on two logical devices, which have to be made before TensorFlow starts.
"""

import sys
from pathlib import Path

import tensorflow as tf

from mlperf_bert.checkpoints.state import RunState
from mlperf_bert.programs.steps import Trainer
from tests.training import distributed_losses, generated_task


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


def main() -> None:
    """Trains on two replicas, with aggregated gradients."""
    folder, output = map(Path, sys.argv[1:])
    task = generated_task.files_of(folder)
    flags = {
        "optimizer": "lamb",
        "learning_rate": 0.001,
        "train_batch_size": 8,
        "steps_per_update": 4,
        "num_train_steps": 40,
        "num_warmup_steps": 0,
        "start_warmup_step": 0,
    }
    case = {"flags": flags, "compiled": False, "normalization": "global"}
    trainer = distributed_losses.make_trainer(task, case, distributed_losses.make_strategy(2))
    batches = distributed_losses.batches_of(task, trainer)
    assert_copies_are_the_checkpoints(trainer, batches, output)


if __name__ == "__main__":
    main()
