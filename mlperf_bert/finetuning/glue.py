"""The tasks of GLUE (Wang et al., arXiv 1804.07461), from the files as they are published.

WNLI and the diagnostics set are left out, as in the BERT paper: on WNLI no system was better
than always answering with the most frequent class. The metrics are scikit-learn's and scipy's.
Shapes: F=features (of GLUE one for each example, of SQuAD one for each window), S=sequence.
"""

import contextlib
import dataclasses
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from sklearn import metrics

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.files import paths, whole
from mlperf_bert.finetuning.splits import Features, Split

TRAIN = "train"
_TEST = "test"
_LOWEST_SCORE, _HIGHEST_SCORE = 0.0, 5.0  # of STS-B
_COLA_COLUMNS = ("source", "label", "original_label", "sentence")
_INFERENCE = ("entailment", "not_entailment")
_F1_FIRST = ("f1", "accuracy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """A sentence or a pair of them; the label is a class, a score, or absent in test sets."""

    index: str
    """As the server wants it back."""
    text_a: str
    text_b: str | None
    label: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueTask:
    """One task of GLUE; `squad.SquadTask` has the same name, splits, main metric and methods."""

    name: str
    """As in --task."""
    data_dir: str = ""
    max_seq_length: int = 128
    folder: str
    """In `data_dir`."""
    sentences: tuple[str, ...]
    """Columns of one sentence or two."""
    label_column: str = "label"
    labels: tuple[str, ...] = ("0", "1")
    """In the order of the classes; empty: a score."""
    metric_names: tuple[str, ...] = ("accuracy",)
    """Runs are compared by the first, on the first of the dev sets."""
    eval_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = (_TEST,)
    """Those without labels."""
    answer_files: tuple[str, ...] = ()
    """One for each test split, as the server names them; empty: FOLDER.tsv."""
    index_column: str = "index"
    names_without_header: tuple[str, ...] | None = None
    """Columns of train and dev, where these have no line with them."""
    skips_incomplete: bool = False

    @property
    def main_metric(self) -> str:
        """A key of what `metrics` returns."""
        return self.metric_names[0]

    @property
    def predicted_splits(self) -> tuple[str, ...]:
        """Those to which --do_predict writes answers."""
        return self.test_splits

    @property
    def num_labels(self) -> int:
        """Outputs of the head; 1 for a score, by regression."""
        return len(self.labels) or 1

    def read(self, split: str) -> list[Example]:
        """Reads SPLIT.tsv.

        Lines that lack columns are skipped and counted where GLUE has such; not in a test set,
        whose answers need a row for each.

        Raises:
          ValueError: as `table_rows`, a column is missing or too much, or a label is unknown.
        """
        is_test = split in self.test_splits
        needed = {*self.sentences, self.index_column if is_test else self.label_column}
        path = paths.location(self.data_dir) / self.folder / f"{split}.tsv"
        rows = table_rows(path, None if is_test else self.names_without_header)
        examples: list[Example] = []
        num_skipped = 0
        for where, names, values in rows:
            row = dict(zip(names, values))
            lacks = not needed <= row.keys()
            if lacks and (missing := needed.difference(names)):
                raise ValueError(
                    f"{path} line 1: no column {min(missing)!r} in {' | '.join(names)!r:.100}; "
                    "give the file as GLUE publishes it"
                )
            if lacks and self.skips_incomplete and not is_test:
                num_skipped += 1
            elif lacks or any(values[len(names) :]):  # tabs at the end are no values
                raise ValueError(
                    f"{where}: {len(values)} columns, expected {len(names)}, with "
                    f"{', '.join(sorted(needed))}; correct or remove the line"
                )
            else:
                examples.append(self._example(row, len(examples), None if is_test else where))
        if not examples:
            raise ValueError(f"{path}: no examples; copy the file here again")
        if num_skipped:
            print(f"{path}: skipped {num_skipped} lines without all columns", file=sys.stderr)
        return examples

    def _example(self, row: dict[str, str], number: int, where: str | None) -> Example:
        """Of a row in a file and line `where`; None for a test set, which has no labels."""
        a, *b = (row[column] for column in self.sentences)
        return Example(
            index=str(number) if where else row[self.index_column],
            text_a=a,
            text_b=b[0] if b else None,
            label=self._label(where, row[self.label_column].strip()) if where else None,
        )

    def _label(self, where: str, value: str) -> float:
        if value in self.labels:
            return self.labels.index(value)
        expected = f"one of {', '.join(self.labels)}"
        if not self.labels:
            expected = f"a number from {_LOWEST_SCORE:g} to {_HIGHEST_SCORE:g}"
            with contextlib.suppress(ValueError):
                if _LOWEST_SCORE <= (score := float(value)) <= _HIGHEST_SCORE:
                    return score
        raise ValueError(
            f"{where}: {self.label_column} is {value!r:.80}, expected {expected}; correct or "
            "remove the line"
        )

    def encode(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, is_training: bool
    ) -> Features:
        """One feature for each example; `labels` where all have one."""
        sentences = ((example.text_a, example.text_b) for example in examples)
        features = encode(sentences, tokenizer, max_seq_length=self.max_seq_length)
        labels = [example.label for example in examples]
        if None not in labels:
            features["labels"] = np.array(labels, np.int32 if self.labels else np.float32)
        return features

    def metrics(self, split: Split, outputs: np.ndarray) -> dict[str, float]:
        """The metrics that GLUE reports, in percent, of float32 logits [F, num_labels]."""
        return compute(self.metric_names, split.features["labels"], self._predictions(outputs))

    def _predictions(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.argmax(axis=-1) if self.labels else outputs[:, 0]

    def write_predictions(
        self, split: Split, outputs: np.ndarray, *, name: str, folder: Path
    ) -> list[paths.Location]:
        """Writes the answers to the test split of this name as GLUE's server takes them."""
        names = self.answer_files or (f"{self.folder}.tsv",)
        path: paths.Location = folder / names[self.test_splits.index(name)]
        answers = [self._answer(found) for found in self._predictions(outputs)]
        lines = [f"{one.index}\t{answer}" for one, answer in zip(split.examples, answers)]
        whole.write_whole(path, "".join(f"{line}\n" for line in ["index\tprediction", *lines]))
        return [path]

    def _answer(self, prediction: float) -> str:
        if self.labels:
            return self.labels[int(prediction)]
        return f"{min(max(float(prediction), _LOWEST_SCORE), _HIGHEST_SCORE):.3f}"


def table_rows(
    path: paths.Location, names: Sequence[str] | None
) -> Iterator[tuple[str, Sequence[str], list[str]]]:
    r"""File and line, names of the columns and values of every line that is not blank.

    Read by hand, not by the csv module: quotation marks are text here, and csv takes a "\r" within
    a sentence for the end of the line.

    Args:
      path: a file, local or in a bucket.
      names: of all columns, where the file has no line with them.

    Raises:
      ValueError: no such file, or it is not UTF-8.
    """
    try:
        content = whole.read_regular_file(path)
    except FileNotFoundError as error:
        raise ValueError(
            f"{path}: no such file; --data_dir takes the folder of the unpacked GLUE, which holds "
            f"{path.parent.name}/{path.name} for this task"
        ) from error
    # MRPC's files begin with a byte order mark.
    text = whole.decode(content, str(path)).removeprefix(whole.BYTE_ORDER_MARK)
    for number, line in enumerate(text.split("\n"), start=1):
        values = line.removesuffix("\r").split("\t")
        if names is None:
            names = values
        elif line.strip("\r\t "):
            yield f"{path} line {number}", names, values


_TASKS = (
    GlueTask(
        name="cola",
        folder="CoLA",
        sentences=("sentence",),
        metric_names=("matthews",),
        names_without_header=_COLA_COLUMNS,
    ),
    GlueTask(name="sst2", folder="SST-2", sentences=("sentence",)),
    GlueTask(
        name="mrpc",
        folder="MRPC",
        sentences=("#1 String", "#2 String"),
        label_column="Quality",
        metric_names=_F1_FIRST,
    ),
    GlueTask(
        name="stsb",
        folder="STS-B",
        sentences=("sentence1", "sentence2"),
        label_column="score",
        labels=(),
        metric_names=("spearman", "pearson"),
    ),
    GlueTask(
        name="qqp",
        folder="QQP",
        sentences=("question1", "question2"),
        label_column="is_duplicate",
        index_column="id",
        skips_incomplete=True,
        metric_names=_F1_FIRST,
    ),
    GlueTask(
        name="mnli",
        folder="MNLI",
        sentences=("sentence1", "sentence2"),
        label_column="gold_label",
        labels=("contradiction", "entailment", "neutral"),
        eval_splits=("dev_matched", "dev_mismatched"),
        test_splits=("test_matched", "test_mismatched"),
        answer_files=("MNLI-m.tsv", "MNLI-mm.tsv"),
    ),
    GlueTask(name="qnli", folder="QNLI", sentences=("question", "sentence"), labels=_INFERENCE),
    GlueTask(name="rte", folder="RTE", sentences=("sentence1", "sentence2"), labels=_INFERENCE),
)
_BY_NAME = {task.name: task for task in _TASKS}
NAMES = tuple(_BY_NAME)


def create(name: str, data_dir: str, **options: Any) -> GlueTask:
    """A task of GLUE, over the folder that holds those of all tasks; `options` are fields of it."""
    return dataclasses.replace(_BY_NAME[name], data_dir=data_dir, **options)


def _correlation(function: Callable) -> Callable[[np.ndarray, np.ndarray], float]:
    """A correlation that is 0 where it is not defined: one side is constant, or a single pair."""

    def correlate(labels: np.ndarray, predictions: np.ndarray) -> float:
        if len(labels) < 2:
            return 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of constant input
            found = float(function(labels, predictions)[0])
        return 0.0 if math.isnan(found) else found

    return correlate


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": metrics.accuracy_score,
    "f1": lambda labels, predictions: metrics.f1_score(labels, predictions, zero_division=0),
    "matthews": metrics.matthews_corrcoef,
    "pearson": _correlation(stats.pearsonr),
    "spearman": _correlation(stats.spearmanr),
}
"""Name -> function of labels [F] and predictions [F], at most 1; f1 is that of class 1."""


def compute(
    names: tuple[str, ...], labels: np.ndarray, predictions: np.ndarray
) -> dict[str, float]:
    """The metrics of these names, in percent, as papers report them."""
    return {name: 100.0 * float(METRICS[name](labels, predictions)) for name in names}


def encode(
    pairs: Iterable[tuple[str, str | None]], tokenizer: Tokenizer, *, max_seq_length: int
) -> Features:
    """Input_ids, input_mask and segment_ids, int32 [F, S].

    The longer of two sentences is cut first, by a token at a time, from its end. The second
    sentence and its [SEP] are segment 1; no second sentence (None) has no second [SEP].
    """
    begin, end = (tokenizer.vocabulary[token] for token in ("[CLS]", "[SEP]"))
    rows = []
    for a, b in pairs:
        num_special = 2 if b is None else 3
        first, second = cut(
            tokenizer.tokenize(a), tokenizer.tokenize(b or ""), at_most=max_seq_length - num_special
        )
        rows.append(([begin, *first, end], [] if b is None else [*second, end]))
    names = ("input_ids", "input_mask", "segment_ids")
    features = {name: np.zeros((len(rows), max_seq_length), np.int32) for name in names}
    for number, (first, second) in enumerate(rows):
        length = len(first) + len(second)
        features["input_ids"][number, :length] = first + second
        features["input_mask"][number, :length] = 1
        features["segment_ids"][number, len(first) : length] = 1
    return features


def cut(first: list[int], second: list[int], *, at_most: int) -> tuple[list[int], list[int]]:
    """Cuts the longer one until both have `at_most` tokens; of two equally long, the second."""
    # Each may have half of the room, the first its odd token too, and what the other leaves.
    half = at_most // 2
    num_second = max(half, at_most - len(first))
    num_first = max(at_most - half, at_most - len(second))
    return first[:num_first], second[:num_second]
