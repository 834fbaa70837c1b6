"""Fine-tuning on SQuAD 1.1 and 2.0: the answer to a question is a span of its context.

The test set is hidden: what is handed in are predictions of the dev set, scored here as there.

Legend: F=windows, S=sequence length.
Source: Devlin et al., arXiv 1810.04805, sections 4.2 and 4.3, and the code published with it. Where
nothing can be predicted, that code predicts the word "empty"; here the prediction is an empty text.
The scores are those of SQuAD's script for 2.0, which tf-models has. Questions of SQuAD 1.1 are
scored by it too: the older script differs only where nothing is left of an answer after
normalization, such as of "The".
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
    SquadExample,
    piece_of,
    read_examples,
    words_of_answer,
)

_VERSIONS = {"squad1": "1.1", "squad2": "2.0"}
NAMES = tuple(_VERSIONS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadTask:
    """SQuAD in the form that fine-tuning takes; the defaults are the field's."""

    name: str
    """squad1 or squad2."""
    data_dir: str
    """The folder of train-v1.1.json and dev-v1.1.json, or of those of v2.0."""
    max_seq_length: int = 384
    doc_stride: int = 128
    """From the start of a window to that of the next, in tokens."""
    max_query_length: int = 64
    """Tokens of a question; the rest is cut off."""
    max_answer_length: int = 30
    """In tokens."""
    n_best_size: int = 20
    """So many starts and ends of each window are combined."""
    main_metric = "f1"
    eval_splits = ("dev",)
    test_splits = ()

    @property
    def has_impossible(self) -> bool:
        """Whether a question may have no answer; then null odds are predicted too."""
        return self.name == "squad2"

    def read(self, split: str) -> list[SquadExample]:
        """The questions of "train" or "dev"; for training only those whose answer is found.

        Raises:
          ValueError: as `squad_reading.read_examples`, or no answer is found.
        """
        path = paths.location(self.data_dir) / f"{split}-v{_VERSIONS[self.name]}.json"
        examples = read_examples(path, has_impossible=self.has_impossible)
        if split != "train":
            return examples
        # As in the field: an answer that is not at its offset cannot be trained on.
        kept = [one for one in examples if not one.answers or words_of_answer(one)]
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
        texts, null_odds = self.predict(split, outputs)
        answers = {one.question_id: [each.text for each in one.answers] for one in split.examples}
        return scores(answers, texts, null_odds=null_odds)

    def write_predictions(
        self, split: Split, outputs: np.ndarray, *, name: str, folder: paths.Location
    ) -> list[paths.Location]:
        """Writes predictions.json and, for 2.0, null_odds.json, which SQuAD's script takes.

        It has one split to score, so that its `name` is in none of theirs. Returns their paths.
        """
        texts, null_odds = self.predict(split, outputs)
        files: dict[paths.Location, Mapping] = {folder / "predictions.json": texts}
        if null_odds:
            files[folder / "null_odds.json"] = null_odds
        paths.make_folder(folder)
        for path, content in files.items():
            write_whole(path, json.dumps(content, indent=4) + "\n")
        return list(files)

    def predict(self, split: Split, outputs: np.ndarray) -> tuple[dict[str, str], dict[str, float]]:
        """Question id -> answer, and question id -> null odds, of 2.0 only.

        Null odds are the score of no answer less that of the best one; above 0 none is given.

        Args:
          split: its features as `squad_features.encode` returns them, not for training.
          outputs: [F, S, 2] float32, the logits of a start and of an end at each position; finite.
        """
        texts, null_odds = {}, {}
        examples, features = split.examples, split.features
        bounds = np.searchsorted(features["example_index"], np.arange(len(examples) + 1))
        for example, begin, end in zip(examples, bounds, bounds[1:]):
            windows = {name: array[begin:end] for name, array in features.items()}
            text, odds = self._predict_one(
                example.context, windows, outputs[begin:end].astype(np.float64)
            )
            texts[example.question_id] = text
            if self.has_impossible:
                null_odds[example.question_id] = odds
                texts[example.question_id] = text if odds <= 0 else ""
        return texts, null_odds

    def _predict_one(
        self, context: str, features: Mapping[str, np.ndarray], outputs: np.ndarray
    ) -> tuple[str, float]:
        """The best answer, an empty text if there is none to consider, and the null odds."""
        windows, starts, ends = self._valid_spans(features, outputs)
        # [CLS] as the answer, of the window that is least sure that there is none.
        odds = float(sum(min(outputs[:, 0].tolist(), key=sum, default=(0.0, 0.0))))
        if not len(windows):
            return "", odds
        start_logits, end_logits = outputs[windows, starts, 0], outputs[windows, ends, 1]
        best = np.argmax(start_logits + end_logits)  # the first of equal ones
        begin = features["char_starts"][windows[best], starts[best]]
        text = piece_of(context, int(begin), int(features["char_ends"][windows[best], ends[best]]))
        return text, odds - float(start_logits[best]) - float(end_logits[best])

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
    answers: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    *,
    null_odds: Mapping[str, float],
) -> dict[str, float]:
    """Percentages: "exact", "f1" and "total", the number of questions.

    With null odds, which 1.1 has not, also those of the questions that have an answer (HasAns_) and
    of those that have none (NoAns_), and the best that could be reached by predicting no answer
    above a threshold (best_exact, best_f1). As in the official script, a prediction that is empty
    already stays so.

    Args:
      answers: question id -> annotated answers; none if the question is impossible.
      predictions, null_odds: as `SquadTask.predict`.
    """
    asked = [
        {"id": question_id, "answers": [{"text": text} for text in texts]}
        for question_id, texts in answers.items()
    ]
    dataset = [{"paragraphs": [{"qas": asked}]}]
    # Without the odds: from 1 on, it would take them for "no answer".
    plain = squad_evaluate_v2_0.evaluate(dataset, predictions)
    if not null_odds:
        return {name: plain[name] for name in ("exact", "f1", "total")}
    of_thresholds = squad_evaluate_v2_0.evaluate(dataset, predictions, null_odds)
    best = ("final_exact", "final_exact_thresh", "final_f1", "final_f1_thresh")
    return {
        **{name: value for name, value in plain.items() if not name.startswith(("final_", "pr_"))},
        **{name.replace("final", "best"): of_thresholds[name] for name in best},
    }
