"""From the logits of windows to one answer for each question, and its score.

Legend: F=windows, S=sequence length.
Source: Devlin et al., arXiv 1810.04805, sections 4.2 and 4.3, and the code published with it. Where
nothing can be predicted, that code predicts the word "empty"; here the prediction is an empty text.
The scores are those of SQuAD's script for 2.0, which tf-models has. Questions of SQuAD 1.1 are
scored by it too: the older script differs only where nothing is left of an answer after
normalization, such as of "The".
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from official.nlp.tools import squad_evaluate_v2_0

from mlperf_bert.finetuning.splits import Split
from mlperf_bert.finetuning.squad_tokens import piece_of


class Prediction(NamedTuple):
    """What is predicted for a question."""

    text: str
    null_odds: float | None
    """The score of no answer less that of the best answer; None if a question always has one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """Which answers are considered."""

    max_answer_length: int = 30
    """In tokens."""
    n_best_size: int = 20
    """So many starts and ends of each window are combined."""
    null_score_diff_threshold: float | None = 0.0
    """An answer is predicted unless the null odds are above; None: there is always an answer."""


def predict(split: Split, outputs: np.ndarray, *, rules: Rules) -> dict[str, Prediction]:
    """Question id -> prediction.

    Args:
      split: its features as `squad_features.encode` returns them, not for training.
      outputs: [F, S, 2] float32, the logits of a start and of an end at each position; finite.
    """
    examples, features = split.examples, split.features
    bounds = np.searchsorted(features["example_index"], np.arange(len(examples) + 1))
    return {
        example.question_id: _predict_one(
            example.context,
            {name: array[begin:end] for name, array in features.items()},
            outputs[begin:end].astype(np.float64),
            rules,
        )
        for example, begin, end in zip(examples, bounds, bounds[1:])
    }


def _predict_one(
    context: str, features: Mapping[str, np.ndarray], outputs: np.ndarray, rules: Rules
) -> Prediction:
    windows, starts, ends = _valid_spans(features, outputs, rules)
    start_logits, end_logits = outputs[windows, starts, 0], outputs[windows, ends, 1]
    text = ""
    # [CLS] as the answer, of the window that is least sure that there is none.
    odds = float(sum(min(outputs[:, 0].tolist(), key=sum, default=(0.0, 0.0))))
    if len(windows):
        best = np.argmax(start_logits + end_logits)  # the first of equal ones
        begin = features["char_starts"][windows[best], starts[best]]
        text = piece_of(context, int(begin), int(features["char_ends"][windows[best], ends[best]]))
        odds = odds - float(start_logits[best]) - float(end_logits[best])
    if rules.null_score_diff_threshold is None:
        return Prediction(text, None)
    return Prediction(text if odds <= rules.null_score_diff_threshold else "", odds)


def _valid_spans(
    features: Mapping[str, np.ndarray], outputs: np.ndarray, rules: Rules
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Window, start and end of the spans to consider.

    Of each window the n best starts and ends are combined. Both lie in the context, the start in
    the window with the most context around it, and the end not before it or too far away.
    """
    # Stable: of equal logits, the field takes the earlier position first.
    best = np.argsort(-outputs, axis=1, kind="stable")[:, : rules.n_best_size]
    starts, ends = best[:, :, None, 0], best[:, None, :, 1]
    window = np.arange(len(outputs))[:, None, None]
    is_context = features["char_starts"] >= 0
    is_valid = is_context[window, ends] & features["is_max_context"][window, starts]
    is_valid &= (starts <= ends) & (ends - starts < rules.max_answer_length)
    windows, rows, columns = np.nonzero(is_valid)
    return windows, best[windows, rows, 0], best[windows, columns, 1]


def scores(
    answers: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    *,
    null_odds: Mapping[str, float],
) -> dict[str, float]:
    """Percentages: "exact", "f1" and "total", the number of questions.

    With null odds also those of the questions that have an answer (HasAns_) and of those that have
    none (NoAns_), and the best that could be reached by predicting no answer above a threshold
    (best_exact, best_f1) with these thresholds. As in the official script, a prediction that is
    empty already stays so: to look at all thresholds, give predictions that always answer.

    Args:
      answers: question id -> annotated answers; none if the question is impossible.
      predictions: question id -> answer, or an empty text.
      null_odds: question id -> score of no answer, less that of the best answer; none of SQuAD 1.1.
    """
    asked = [
        {"id": question_id, "answers": [{"text": text} for text in texts]}
        for question_id, texts in answers.items()
    ]
    dataset = [{"paragraphs": [{"qas": asked}]}]
    # Without the odds: from 1 on, it would take them for "no answer".
    found = squad_evaluate_v2_0.evaluate(dataset, predictions)
    if not null_odds:
        return {name: found[name] for name in ("exact", "f1", "total")}
    of_thresholds = squad_evaluate_v2_0.evaluate(dataset, predictions, null_odds)
    best = ("final_exact", "final_exact_thresh", "final_f1", "final_f1_thresh")
    return {
        **{name: value for name, value in found.items() if not name.startswith(("final_", "pr_"))},
        **{name.replace("final", "best"): of_thresholds[name] for name in best},
    }
