"""A task made ready: its examples read, encoded and checked once for all runs of a sweep."""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from mlperf_bert.data import casing, vocabulary
from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.finetuning import weights
from mlperf_bert.finetuning.config import FinetuningConfig, Task
from mlperf_bert.finetuning.glue import TRAIN
from mlperf_bert.finetuning.splits import Split
from mlperf_bert.finetuning.weights import Source


class Start(NamedTuple):
    """What all tasks begin with."""

    source: Source
    tokenizer: Tokenizer


def start(config: FinetuningConfig) -> Start:
    """Finds the model and reads the vocabulary.

    Raises:
      ValueError: they are not there, do not belong together, or --max_seq_length does not fit.
    """
    source = weights.find(
        config.checkpoint, bert_config_file=config.bert_config_file, vocab_file=config.vocab_file
    )
    longest = source.config.max_position_embeddings
    if config.max_seq_length > longest:
        raise ValueError(
            f"--max_seq_length={config.max_seq_length}: the model has {longest} positions; give "
            f"4 to {longest}"
        )
    words = vocabulary.read_fitting(
        source.vocab_file, source.config.vocab_size, of="the configuration"
    )
    do_lower_case = casing.lower_casing(source.vocab_file, config.do_lower_case)
    for doubt in casing.doubts(source.vocab_file, words, do_lower_case=do_lower_case):
        print(f"warning: {doubt}", file=sys.stderr)
    tokenizer = Tokenizer(source.vocab_file, do_lower_case=do_lower_case)
    return Start(source, tokenizer)


def splits_needed(task: Task, config: FinetuningConfig) -> tuple[str, ...]:
    """Those that the command will use."""
    return (TRAIN, *task.eval_splits, *(predicted_splits(task) if config.do_predict else ()))


def predicted_splits(task: Task) -> tuple[str, ...]:
    """The test sets; of a task that publishes none, the dev set."""
    return task.test_splits or task.eval_splits


class Prepared:
    """A task with its model's start; splits are read and encoded at their first use."""

    def __init__(self, task: Task, start: Start):
        self.task, self.start = task, start
        self._splits: dict[str, Split] = {}

    def split(self, name: str) -> Split:
        """A split.

        Raises:
          ValueError: as `Task.read`, or it is empty.
        """
        if name not in self._splits:
            examples: Sequence[Any] = self.task.read(name)
            features = self.task.encode(examples, self.start.tokenizer, is_training=name == TRAIN)
            if not len(features["input_ids"]):
                raise ValueError(
                    f"{self.task.name}: no examples of {name}: its file holds no text; copy it "
                    "here again"
                )
            self._splits[name] = Split(examples=examples, features=features)
            print(f"{self.task.name}: {len(examples):,} examples of {name}", file=sys.stderr)
        return self._splits[name]
