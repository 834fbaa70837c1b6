"""The tasks of GLUE (Wang et al., arXiv 1804.07461), from the files as they are published.

WNLI and the diagnostics set are left out, as in the BERT paper: on WNLI no system was better
than always answering with the most frequent class. The metrics are scikit-learn's and scipy's.
Shapes: F=features, one for each example, S=sequence.
"""

import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from sklearn import metrics

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.files import whole
from mlperf_bert.finetuning.splits import Features, Split

_LOWEST_SCORE, _HIGHEST_SCORE = 0.0, 5.0  # the bounds of STS-B
_COLA_COLUMNS = ("source", "label", "original_label", "sentence")
_INFERENCE = ("entailment", "not_entailment")
_F1_FIRST = ("f1", "accuracy")
# Test split -> the suffix of its answers' file, after the name of the task's folder.
_ANSWERS = {"test": "", "test_matched": "-m", "test_mismatched": "-mm"}


class Example(NamedTuple):
    """A sentence or a pair of them; the label is a class, a score, or absent in test sets."""

    text_a: str
    text_b: str | None
    label: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueTask:
    """One task of GLUE; `squad.SquadTask` has the same name, splits, main metric and methods."""

    name: str
    """The value of --task."""
    data_dir: str = ""
    max_seq_length: int = 128
    folder: str
    """The folder of the task within `data_dir`."""
    sentences: tuple[str, ...]
    """Columns of one sentence or two."""
    label_column: str = "label"
    labels: tuple[str, ...] = ("0", "1")
    """The labels in the order of the classes; empty: a score."""
    metric_names: tuple[str, ...] = ("accuracy",)
    """Runs are compared by the first, on the first of the dev sets."""
    eval_splits: tuple[str, ...] = ("dev",)
    names_without_header: tuple[str, ...] | None = None
    """Columns of train and dev, if these files have no header line."""
    skips_incomplete: bool = False

    @property
    def main_metric(self) -> str:
        """A key of what `metrics` returns."""
        return self.metric_names[0]

    @property
    def predicted_splits(self) -> tuple[str, ...]:
        """Test sets, which have no labels; --do_predict writes answers to them."""
        return tuple(split.replace("dev", "test") for split in self.eval_splits)

    @property
    def num_labels(self) -> int:
        """Outputs of the head; 1 for a score, by regression."""
        return len(self.labels) or 1

    def read(self, split: str) -> list[Example]:
        """Reads SPLIT.tsv.

        Lines that lack columns are skipped and counted where GLUE has such lines; a test set may
        have none, because its answers need a row for each.
        """
        path = Path(self.data_dir, self.folder, f"{split}.tsv")
        is_test = split in self.predicted_splits
        needed = {*self.sentences, *([] if is_test else [self.label_column])}
        rows = [row for row in enumerate(_lines(path), start=1) if "".join(row[1]).strip()]
        names: Sequence[str] = () if is_test else self.names_without_header or ()
        if rows and not names:
            _, names = rows.pop(0)
        if rows and (missing := needed.difference(names)):
            raise ValueError(
                f"{path} line 1: no column {min(missing)!r} in {' | '.join(names)!r:.100}; give "
                "the file as GLUE publishes it"
            )
        examples, num_skipped = [], 0
        for number, values in rows:
            where, row = f"{path} line {number}", dict(zip(names, values))
            if needed <= row.keys() and not any(values[len(names) :]):  # tabs are no values
                a, *b = (row[column] for column in self.sentences)
                label = None if is_test else self._label(row, where)
                examples.append(Example(a, b[0] if b else None, label))
            elif self.skips_incomplete and not is_test and len(values) < len(names):
                num_skipped += 1
            else:
                raise ValueError(
                    f"{where}: {len(values)} columns, expected {len(names)}, with "
                    f"{', '.join(sorted(needed))}; correct or remove the line"
                )
        if not examples:
            raise ValueError(f"{path}: no examples; copy the file here again")
        if num_skipped:
            print(f"{path}: skipped {num_skipped} lines without all columns", file=sys.stderr)
        return examples

    def _label(self, row: dict[str, str], where: str) -> float:
        value = row[self.label_column].strip()
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
        """One feature for each example; with `labels` if every example has one.

        The longer of two sentences is cut first, by a token at a time, from its end. The second
        sentence and its [SEP] are segment 1; no second sentence (None) has no second [SEP].
        """
        begin, end = (tokenizer.vocabulary[token] for token in ("[CLS]", "[SEP]"))
        shape = len(examples), self.max_seq_length
        names = ("input_ids", "input_mask", "segment_ids")
        features = {name: np.zeros(shape, np.int32) for name in names}
        for number, (a, b, _) in enumerate(examples):
            num_special = 2 if b is None else 3
            first, second = cut(
                tokenizer.tokenize(a),
                tokenizer.tokenize(b or ""),
                at_most=self.max_seq_length - num_special,
            )
            ids = [begin, *first, end] + ([] if b is None else [*second, end])
            features["input_ids"][number, : len(ids)] = ids
            features["input_mask"][number, : len(ids)] = 1
            features["segment_ids"][number, len(first) + 2 : len(ids)] = 1
        labels = [example.label for example in examples]
        if None not in labels:
            features["labels"] = np.array(labels, np.int32 if self.labels else np.float32)
        return features

    def metrics(self, split: Split, outputs: np.ndarray) -> dict[str, float]:
        """The metrics that GLUE reports, in percent, of float32 logits [F, num_labels]."""
        labels, predictions = split.features["labels"], self._predictions(outputs)
        return {
            name: 100.0 * float(METRICS[name](labels, predictions)) for name in self.metric_names
        }

    def _predictions(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.argmax(axis=-1) if self.labels else outputs[:, 0]

    def write_predictions(
        self, split: Split, outputs: np.ndarray, *, name: str, folder: Path
    ) -> Path:
        """Writes the answers to the test split of this name as GLUE's server takes them."""
        path = folder / f"{self.folder}{_ANSWERS[name]}.tsv"
        lines = ["index\tprediction"]
        for number, prediction in enumerate(self._predictions(outputs)):
            score = min(max(float(prediction), _LOWEST_SCORE), _HIGHEST_SCORE)
            answer = self.labels[int(prediction)] if self.labels else f"{score:.3f}"
            lines.append(f"{number}\t{answer}")
        whole.write_whole(path, "".join(f"{line}\n" for line in lines))
        return path


def _lines(path: Path) -> list[list[str]]:
    r"""The values of every line.

    The csv module would take a "\r" within a sentence for the end of the line; and quotation marks
    are text here.
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
    return [line.removesuffix("\r").split("\t") for line in text.split("\n")]


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
    """A correlation that is 0 where it is not defined, because one side is constant."""

    def correlate(labels: np.ndarray, predictions: np.ndarray) -> float:
        with warnings.catch_warnings(action="ignore"):
            return np.nan_to_num(function(labels, predictions)[0])

    return correlate


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": metrics.accuracy_score,
    "f1": lambda labels, predictions: metrics.f1_score(labels, predictions, zero_division=0),
    "matthews": metrics.matthews_corrcoef,
    "pearson": _correlation(stats.pearsonr),
    "spearman": _correlation(stats.spearmanr),
}
"""Name -> function of labels [F] and predictions [F], at most 1; f1 is that of class 1."""


def cut(first: list[int], second: list[int], *, at_most: int) -> tuple[list[int], list[int]]:
    """Cuts the longer one until both have `at_most` tokens; of two equally long, the second."""
    # Each may have half of the room and what the other leaves; an odd token goes to the first.
    half = at_most // 2
    num_second = max(half, at_most - len(first))
    num_first = max(at_most - half, at_most - len(second))
    return first[:num_first], second[:num_second]
