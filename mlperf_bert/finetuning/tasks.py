"""All tasks by name."""

from typing import TYPE_CHECKING

from mlperf_bert.finetuning import glue
from mlperf_bert.finetuning.squad import SquadTask
from mlperf_bert.finetuning.squad_features import NUM_SPECIAL_TOKENS
from mlperf_bert.finetuning.task import Task

if TYPE_CHECKING:  # whose choices are these tasks
    from mlperf_bert.finetuning.config import FinetuningConfig

ALL_OF_GLUE = "glue"
SQUAD = ("squad1", "squad2")
NAMES = (*glue.NAMES, *SQUAD)


def create(name: str, config: "FinetuningConfig") -> Task:
    """A task over the files in `data_dir`.

    Raises:
      ValueError: the windows of SQuAD would not overlap.
    """
    if name in glue.NAMES:
        return glue.create(name, config.data_dir)
    room = config.max_seq_length - config.max_query_length - NUM_SPECIAL_TOKENS
    if config.doc_stride >= room:
        raise ValueError(
            f"--doc_stride={config.doc_stride}: windows would not overlap, because "
            f"--max_seq_length={config.max_seq_length} less --max_query_length="
            f"{config.max_query_length} and {NUM_SPECIAL_TOKENS} special tokens is {room}; lower "
            "--doc_stride or --max_query_length, or raise --max_seq_length"
        )
    return SquadTask(
        name=name,
        data_dir=config.data_dir,
        doc_stride=config.doc_stride,
        max_query_length=config.max_query_length,
    )


def names_of(task: str) -> tuple[str, ...]:
    """The tasks that a --task stands for."""
    return glue.NAMES if task == ALL_OF_GLUE else (task,)


def usual_max_seq_length(task: str) -> int:
    """The field's: contexts of SQuAD are longer than GLUE's sentences."""
    return 384 if task in SQUAD else 128
