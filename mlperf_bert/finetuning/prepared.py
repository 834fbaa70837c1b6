"""A task made ready: its examples read, encoded and checked once for all runs of a sweep."""

import dataclasses
import functools
import hashlib
import sys
from collections.abc import Sequence
from typing import Any

from mlperf_bert.data import casing, vocabulary
from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.finetuning import tasks, weights
from mlperf_bert.finetuning.config import FinetuningConfig
from mlperf_bert.finetuning.task import TRAIN, Features, Task
from mlperf_bert.finetuning.weights import Source
from mlperf_bert.messages import Problems

_SPECIAL_TOKENS_OF_A_PAIR = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """Examples and their features."""

    examples: Sequence[Any]
    features: Features

    @property
    def num_features(self) -> int:
        """The number of features; in GLUE that of the examples."""
        return len(self.features["input_ids"])


@dataclasses.dataclass(frozen=True)
class Start:
    """What all tasks begin with."""

    source: Source
    tokenizer: Tokenizer

    @functools.cached_property
    def weights_sha256(self) -> str:
        """See `weights.digest`."""
        return weights.digest(self.source)


def start(config: FinetuningConfig) -> Start:
    """Finds the model and reads the vocabulary.

    Raises:
      ValueError: they are not there, do not belong together, or --max_seq_length does not fit.
    """
    source = weights.find(
        config.checkpoint, bert_config_file=config.bert_config_file, vocab_file=config.vocab_file
    )
    longest = source.config.max_position_embeddings
    if not _SPECIAL_TOKENS_OF_A_PAIR < config.max_seq_length <= longest:
        raise ValueError(
            f"--max_seq_length={config.max_seq_length}: the model has {longest} positions; give "
            f"{_SPECIAL_TOKENS_OF_A_PAIR + 1} to {longest}"
        )
    words = vocabulary.read_fitting(
        source.vocab_file, source.config.vocab_size, of="the configuration"
    )
    do_lower_case = casing.lower_casing(source.vocab_file, config.do_lower_case)
    for doubt in casing.doubts(
        source.vocab_file, words, do_lower_case=do_lower_case, model=source.name
    ):
        print(f"warning: {doubt}", file=sys.stderr)
    return Start(source, Tokenizer(source.vocab_file, do_lower_case=do_lower_case))


def check_files(names: Sequence[str], config: FinetuningConfig) -> None:
    """Reads the files of several tasks before the first is trained, and keeps nothing.

    Raises:
      ValueError: with a line for each task whose files are bad.
    """
    problems = []
    for name in names:
        try:
            task = tasks.create(name, config)
            for split in splits_needed(task, config):
                task.read(split)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise Problems(problems)


def splits_needed(task: Task, config: FinetuningConfig) -> tuple[str, ...]:
    """Those that the command will use."""
    return (TRAIN, *task.eval_splits, *(predicted_splits(task) if config.do_predict else ()))


def predicted_splits(task: Task) -> tuple[str, ...]:
    """The test sets; of a task that publishes none, the dev set."""
    return task.test_splits or task.eval_splits


class Prepared:
    """A task with its model's start; splits are read and encoded at their first use."""

    def __init__(self, task: Task, begun: Start, *, max_seq_length: int):
        self.task = task
        self._begun = begun
        self._max_seq_length = max_seq_length
        self._splits: dict[str, Split] = {}
        self._digests: dict[str, str] = {}

    @property
    def source(self) -> Source:
        """The pre-trained model."""
        return self._begun.source

    @property
    def weights_sha256(self) -> str:
        """The digest of the pre-trained model."""
        return self._begun.weights_sha256

    def split(self, name: str) -> Split:
        """A split.

        Raises:
          ValueError: as `Task.read` and `Task.require_scorable`, or it is empty.
        """
        if name not in self._splits:
            examples = self.task.read(name)
            if name in self.task.eval_splits:
                self.task.require_scorable(examples, split=name)
            features = self.task.encode(
                examples,
                tokenizer=self._begun.tokenizer,
                max_seq_length=self._max_seq_length,
                is_training=name == TRAIN,
            )
            if not len(features["input_ids"]):
                raise ValueError(
                    f"{self.task.name}: no examples of {name}: its file holds no text; copy it "
                    "here again"
                )
            self._splits[name] = Split(examples=examples, features=features)
            print(
                f"{self.task.name}: {len(examples):,} examples of {name}",
                file=sys.stderr,
            )
        return self._splits[name]

    def digest(self, name: str) -> str:
        """The SHA-256 of a split: of its features, and of its examples with their answers."""
        if name not in self._digests:
            split, digest = self.split(name), hashlib.sha256()
            for feature, values in sorted(split.features.items()):
                digest.update(feature.encode() + values.tobytes())
            for example in split.examples:
                digest.update(repr(example).encode())
            self._digests[name] = digest.hexdigest()
        return self._digests[name]
