"""From the logits of windows to one answer for each question, with the n best ones, and its score.

Legend: F=windows, S=sequence length.
Source: Devlin et al., arXiv 1810.04805, sections 4.2 and 4.3, and the code published with it. Where
nothing can be predicted, that code predicts the word "empty"; here the prediction is an empty text.
The scores are those of SQuAD's script for 2.0, which tf-models has. Questions of SQuAD 1.1 are
scored by it too: the older script differs only where nothing is left of an answer after
normalization, such as of "The".
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from official.nlp.tools import squad_evaluate_v2_0

from mlperf_bert.finetuning.splits import Split
from mlperf_bert.finetuning.squad_tokens import piece_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A text that may be the answer; an empty one says that there is none."""

    text: str
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """The logarithm of its probability, up to a constant."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """What is predicted for a question."""

    text: str
    candidates: Sequence[Candidate]
    """The best first."""
    null_odds: float | None
    """The score of no answer less that of the best answer; None if a question always has one."""

    def n_best(self) -> list[dict[str, str | float]]:
        """The candidates for nbest_predictions.json; the softmax makes their probabilities."""
        largest = max(candidate.score for candidate in self.candidates)
        powers = [math.exp(candidate.score - largest) for candidate in self.candidates]
        return [
            {
                "text": candidate.text,
                "probability": power / sum(powers),
                "start_logit": candidate.start_logit,
                "end_logit": candidate.end_logit,
            }
            for candidate, power in zip(self.candidates, powers)
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """Which answers are considered."""

    max_answer_length: int = 30
    """In tokens."""
    n_best_size: int = 20
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
    answers = list(_best_answers(context, features, outputs, rules))
    if rules.null_score_diff_threshold is None:
        candidates = answers or [Candidate(text="", start_logit=0.0, end_logit=0.0)]
        return Prediction(text=candidates[0].text, candidates=candidates, null_odds=None)
    # [CLS] as the answer, of the window that is least sure that there is none.
    start_logit, end_logit = min(outputs[:, 0].tolist(), key=sum, default=(0.0, 0.0))
    null = Candidate(text="", start_logit=start_logit, end_logit=end_logit)
    odds = null.score
    if answers:
        odds = null.score - answers[0].start_logit - answers[0].end_logit
    is_answered = bool(answers) and odds <= rules.null_score_diff_threshold
    # Stable: of equal scores, an answer comes before none.
    ranked = sorted([*answers, null], key=lambda one: -one.score)
    kept = ranked[: rules.n_best_size]
    return Prediction(
        text=answers[0].text if is_answered else "",
        candidates=kept if null in kept else [*kept, null],
        null_odds=odds,
    )


def _best_answers(
    context: str, features: Mapping[str, np.ndarray], outputs: np.ndarray, rules: Rules
) -> Iterator[Candidate]:
    """At most `n_best_size` answers of different texts, the best first."""
    windows, starts, ends = _valid_spans(features, outputs, rules)
    start_logits, end_logits = outputs[windows, starts, 0], outputs[windows, ends, 1]
    begins, after_ends = features["char_starts"], features["char_ends"]
    seen: set[str] = set()
    for number in np.argsort(-(start_logits + end_logits), kind="stable"):
        window, start, end = windows[number], starts[number], ends[number]
        text = piece_of(context, int(begins[window, start]), int(after_ends[window, end]))
        if text in seen:
            continue
        if len(seen) == rules.n_best_size:
            return
        seen.add(text)
        yield Candidate(
            text=text, start_logit=float(start_logits[number]), end_logit=float(end_logits[number])
        )


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
