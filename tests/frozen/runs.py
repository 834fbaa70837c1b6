"""Whole runs of run_pretraining.py on the generated task, and what is recorded of each."""

import dataclasses
import re
from pathlib import Path

from tests.frozen import readers
from tests.helpers import starts
from tests.training import generated_task, small_runs

NUM_STEPS = 40
_DISTURBED = "tests/frozen/disturbed.py"


class Room:
    """A folder with the task, and the processes that run there."""

    def __init__(self, folder: Path):
        """Writes the task into the folder, once."""
        self.folder = folder
        self.task = folder / "task"
        if not self.task.exists():
            generated_task.write_task(self.task, **generated_task.SMALL)

    def command(self, output: Path, **changed) -> list[str]:
        """Trains 40 steps of 8 samples; evaluates after every 12th, saves after every 11th."""
        flags = {
            "learning_rate": 0.01,
            "num_train_steps": NUM_STEPS,
            "steps_per_update": 1,
            "eval_interval_samples": 8 * 12,
            "save_checkpoints_steps": 11,
            "log_every_steps": 4,
            "keep_checkpoint_max": 0,
        } | changed
        return small_runs.command(self.task, output, **flags)

    def end(self, command: list[str]) -> dict:
        """Runs a process, and says how it ended."""
        done = starts.run(command)
        return {"exit": done.returncode, "result": readers.printed_result(done.stdout)}


# An evaluation is logged after step 24; checkpoints are of steps 11, 22, 33 and 40.
_EVALUATION = r'"eval_accuracy".*"step_num": 24'
_FIRST_SAVE = r'"checkpoint_start".*"step_num": 11'
_WAITS = {"async_checkpoint": "false"}  # so that a kill finds the same checkpoints every time


@dataclasses.dataclass(frozen=True)
class Training:
    """A command, and the lines of the log at which its processes are killed; the last is not."""

    flags: dict = dataclasses.field(default_factory=dict)
    killed_at: tuple[str, ...] = ()


TRAININGS = {
    "plain": Training(),
    "killed_at_its_target": Training({"target_accuracy": 0.01, **_WAITS}, ('"run_stop"',)),
    # Killed before its first checkpoint, so that its metrics begin again, and after it.
    "aggregated_and_killed": Training(
        {
            "steps_per_update": 4,
            "max_eval_steps": 2,
            "start_warmup_step": -3,
            "poly_power": 0.5,
            "keep_checkpoint_max": 2,
            **_WAITS,
        },
        (_FIRST_SAVE, _EVALUATION),
    ),
    "packed": Training({"pack_sequences": True}),
    "diverged": Training({"learning_rate": 1e30, "num_warmup_steps": 0}),
}


def training_values(room: Room, name: str) -> dict:
    """One of TRAININGS: the same command again and again, until its process is not killed."""
    training, output = TRAININGS[name], room.folder / name
    python, *rest = room.command(output, **training.flags)
    disturbed = [[python, _DISTURBED, line, *rest] for line in training.killed_at]
    ends = [room.end(command) for command in (*disturbed, [python, *rest])]
    return {"processes": ends, **readers.run_values(output, root=room.folder)}


def offline_values(room: Room, name: str) -> dict:
    """A training without evaluation, and the evaluation of all its checkpoints after it."""
    output = room.folder / name
    # All are kept: none may go before it is evaluated.
    trains = room.command(output, eval_input_file="", keep_checkpoint_max=2)
    ends = [room.end(trains)]
    for target in (0.72, 0.01):
        flags = ["--eval_batch_size=20", f"--num_train_steps={NUM_STEPS}"]
        flags += [f"--target_accuracy={target}"]
        ends.append(room.end(small_runs.offline_evaluation(room.task, output, *flags)))
        if target == 0.72:
            values = readers.run_values(output, root=room.folder)
    reached = readers.log_values(output / readers.OFFLINE_LOG)
    return {"processes": ends, **values, "log_of_another_target": reached}


def check_values(room: Room, name: str) -> dict:
    """What --check says of a good command, and of one with mistakes; without the machine's own."""
    mistakes = {"eval_input_file": "none.tfrecord", "init_checkpoint": "none"}
    found = {}
    for kind, flags in (("good", {}), ("mistaken", mistakes)):
        done = starts.run([*room.command(room.folder / name, **flags), "--check"])
        lines = [line for line in done.stdout.splitlines() if not re.search(_OF_THE_MACHINE, line)]
        found[kind] = {"exit": done.returncode, "lines": lines}
    return readers.without_root(found, room.folder)


_OF_THE_MACHINE = r"^note: (energy|.*file caches)"
