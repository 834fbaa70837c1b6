"""What a task is: its files, its features, its head, its metrics.

Shapes: F=features (of GLUE one for each example, of SQuAD one for each window), S=sequence.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.files.paths import Location

Features = dict[str, np.ndarray]
"""int32 input_ids, input_mask, segment_ids [F, S] and, where labelled, labels [F] (int32 classes or
float32 scores), or start_positions and end_positions [F]."""

TRAIN = "train"
CLASSES, SCORE, SPANS = "classes", "score", "spans"


class Task(Protocol):
    """One task, over the folder with its public files."""

    @property
    def name(self) -> str:
        """As in --task."""

    @property
    def head(self) -> str:
        """CLASSES, SCORE (a number, by regression) or SPANS (start and end of an answer)."""

    @property
    def num_labels(self) -> int:
        """Outputs of the head: classes; 1 for a score; 2 for spans."""

    @property
    def main_metric(self) -> str:
        """A key of what `metrics` returns."""

    @property
    def eval_splits(self) -> tuple[str, ...]:
        """The dev sets; runs are compared on the first."""

    @property
    def test_splits(self) -> tuple[str, ...]:
        """Those without labels; none where the test set is hidden."""

    def read(self, split: str) -> Sequence[Any]:
        """The examples of a split, from the public files.

        Raises:
          ValueError: a file is missing, empty or damaged, or a dev set lacks what `metrics`
            compares with; one line that says where.
        """

    def encode(
        self,
        examples: Sequence[Any],
        *,
        tokenizer: Tokenizer,
        max_seq_length: int,
        is_training: bool,
    ) -> Features:
        """The features of examples."""

    def metrics(
        self, examples: Sequence[Any], features: Features, outputs: np.ndarray
    ) -> dict[str, float]:
        """Scores in percent, of float32 logits [F, num_labels], or [F, S, 2] of spans."""

    def write_predictions(
        self,
        examples: Sequence[Any],
        features: Features,
        outputs: np.ndarray,
        *,
        split: str,
        folder: Path,
    ) -> list[Location]:
        """Writes the answers in the format of the task's server; returns the files."""
