"""Fine-tuning on SQuAD 1.1: the answer to a question is a span of its context.

The test set is hidden: what is handed in are predictions of the dev set, scored here as there.

Legend: F=windows, S=sequence length.
Source: Devlin et al., arXiv 1810.04805, sections 4.2 and 4.3, and the code published with it. Where
nothing can be predicted, that code predicts the word "empty"; here the prediction is an empty text.
The scores are those of SQuAD's script for 2.0, which tf-models has: the one for 1.1 differs only
where nothing is left of an answer after normalization, such as of "The".
"""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from official.nlp.tools import squad_evaluate_v2_0

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.files import paths
from mlperf_bert.files.whole import write_whole
from mlperf_bert.finetuning import squad_features
from mlperf_bert.finetuning.splits import Features, Split
from mlperf_bert.finetuning.squad_reading import (
    TEST_NAME,
    SquadExample,
    piece_of,
    place_of_answer,
    read_examples,
)

NAME = "squad1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadTask:
    """SQuAD in the form that fine-tuning takes; the defaults are the field's."""

    data_dir: str
    """The folder of train-v1.1.json and dev-v1.1.json, and test-v1.1.json without answers."""
    max_seq_length: int = 384
    doc_stride: int = 128
    """From the start of a window to that of the next, in tokens."""
    max_query_length: int = 64
    """Tokens of a question; the rest is cut off."""
    max_answer_length: int = 30
    """In tokens."""
    n_best_size: int = 20
    """So many starts and ends of each window are combined."""
    name = NAME
    main_metric = "f1"
    eval_splits = ("dev",)

    @property
    def predicted_splits(self) -> tuple[str, ...]:
        """The dev set, and the user's own questions, if there are any."""
        has_test = paths.is_file(paths.location(self.data_dir) / TEST_NAME)
        return (*self.eval_splits, *(["test"] if has_test else []))

    def read(self, split: str) -> list[SquadExample]:
        """The questions of "train", "dev" or "test"; to train on only those whose answer is found.

        Raises:
          ValueError: as `squad_reading.read_examples`, or no answer is found.
        """
        path = paths.location(self.data_dir) / f"{split}-v1.1.json"
        examples = read_examples(path, needs_answers=path.name != TEST_NAME)
        if split != "train":
            return examples
        # As in the field: an answer that is not at its offset cannot be trained on.
        kept = [one for one in examples if place_of_answer(one)]
        if not kept:
            raise ValueError(f"{path}: no answer is at its answer_start; correct the offsets")
        if num_skipped := len(examples) - len(kept):
            print(
                f"{path}: {num_skipped:,} of {len(examples):,} questions left out: their answer is "
                "not at its answer_start",
                file=sys.stderr,
            )
        return kept

    def encode(
        self, examples: Sequence[SquadExample], tokenizer: Tokenizer, *, is_training: bool
    ) -> Features:
        """Rows of windows; see `squad_features.encode`, also for what it raises."""
        return squad_features.encode(
            examples,
            tokenizer,
            max_seq_length=self.max_seq_length,
            doc_stride=self.doc_stride,
            max_query_length=self.max_query_length,
            is_training=is_training,
        )

    def metrics(self, split: Split, outputs: np.ndarray) -> dict[str, float]:
        """Exact match and F1 in percent, of logits as in `predict`."""
        answers = {one.question_id: [each.text for each in one.answers] for one in split.examples}
        return scores(answers, self.predict(split, outputs))

    def write_predictions(
        self, split: Split, outputs: np.ndarray, *, name: str, folder: paths.Location
    ) -> list[paths.Location]:
        """Writes predictions.json, which SQuAD's script takes, or predictions_test.json.

        Returns the path.
        """
        path = folder / ("predictions.json" if name == "dev" else f"predictions_{name}.json")
        paths.make_folder(folder)
        write_whole(path, json.dumps(self.predict(split, outputs), indent=4) + "\n")
        return [path]

    def predict(self, split: Split, outputs: np.ndarray) -> dict[str, str]:
        """Question id -> answer.

        Args:
          split: its features as `squad_features.encode` returns them, not for training.
          outputs: [F, S, 2] float32, the logits of a start and of an end at each position; finite.
        """
        texts = {}
        examples, features = split.examples, split.features
        bounds = np.searchsorted(features["example_index"], np.arange(len(examples) + 1))
        for example, begin, end in zip(examples, bounds, bounds[1:]):
            windows = {name: array[begin:end] for name, array in features.items()}
            texts[example.question_id] = self._predict_one(
                example.context, windows, outputs[begin:end].astype(np.float64)
            )
        return texts

    def _predict_one(
        self, context: str, features: Mapping[str, np.ndarray], outputs: np.ndarray
    ) -> str:
        """The best answer; an empty text if there is none to consider."""
        windows, starts, ends = self._valid_spans(features, outputs)
        if not len(windows):
            return ""
        start_logits, end_logits = outputs[windows, starts, 0], outputs[windows, ends, 1]
        best = np.argmax(start_logits + end_logits)  # the first of equal ones
        begin = features["char_starts"][windows[best], starts[best]]
        return piece_of(context, int(begin), int(features["char_ends"][windows[best], ends[best]]))

    def _valid_spans(
        self, features: Mapping[str, np.ndarray], outputs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Window, start and end of the spans to consider.

        Of each window the n best starts and ends are combined. Both lie in the context, the start
        in the window with the most context around it, and the end not before it or too far away.
        """
        # Stable: of equal logits, the field takes the earlier position first.
        best = np.argsort(-outputs, axis=1, kind="stable")[:, : self.n_best_size]
        starts, ends = best[:, :, None, 0], best[:, None, :, 1]
        window = np.arange(len(outputs))[:, None, None]
        is_context = features["char_starts"] >= 0
        is_valid = is_context[window, ends] & features["is_max_context"][window, starts]
        is_valid &= (starts <= ends) & (ends - starts < self.max_answer_length)
        windows, rows, columns = np.nonzero(is_valid)
        return windows, best[windows, rows, 0], best[windows, columns, 1]


def scores(
    answers: Mapping[str, Sequence[str]], predictions: Mapping[str, str]
) -> dict[str, float]:
    """Percentages: "exact", "f1"; and "total", the number of questions.

    Args:
      answers: question id -> annotated answers.
      predictions: as `SquadTask.predict`.
    """
    asked = [
        {"id": question_id, "answers": [{"text": text} for text in texts]}
        for question_id, texts in answers.items()
    ]
    found = squad_evaluate_v2_0.evaluate([{"paragraphs": [{"qas": asked}]}], predictions)
    return {name: found[name] for name in ("exact", "f1", "total")}
