"""Exact match and F1 of predicted answers, as SQuAD's own script computes them.

It is not on a package index, and other packages that have it need PyTorch or the network.
Questions of SQuAD 1.1 are scored by the script for 2.0, which differs from the older one only
where nothing is left of an answer after normalization, such as of "The".

Source: SQuAD's evaluate-v2.0.py.
"""

import collections
import dataclasses
import re
import string
from collections.abc import Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """The text in lower case without punctuation, articles and runs of white space."""
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def f1_of_words(expected: str, predicted: str) -> float:
    """The harmonic mean of precision and recall of the words of two normalized texts, 0 to 1."""
    expected_words, predicted_words = expected.split(), predicted.split()
    if not expected_words or not predicted_words:
        return float(expected_words == predicted_words)
    common = collections.Counter(expected_words) & collections.Counter(predicted_words)
    num_same = common.total()
    if not num_same:
        return 0.0
    precision, recall = num_same / len(predicted_words), num_same / len(expected_words)
    return 2 * precision * recall / (precision + recall)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Scores:
    """The scores of one question."""

    exact: float
    f1: float
    has_answer: bool
    is_answered: bool


def _scores(answers: Sequence[str], predicted: str) -> _Scores:
    """The best match of all annotated answers; that of a question without one is empty."""
    found = normalized(predicted)
    expected = [text for text in map(normalized, answers) if text] or [""]
    return _Scores(
        exact=float(found in expected),
        f1=max(f1_of_words(text, found) for text in expected),
        has_answer=bool(answers),
        is_answered=bool(predicted),
    )


def evaluate(
    answers: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    *,
    null_odds: Mapping[str, float] | None,
) -> dict[str, float]:
    """Percentages: "exact", "f1" and "total", the number of questions.

    With null odds also those of the questions that have an answer (HasAns_) and of those that have
    none (NoAns_), and the best that could be reached by predicting no answer above a threshold
    (best_exact, best_f1) with these thresholds. As in the official script, a prediction that is
    empty already stays so: to look at all thresholds, give predictions that always answer.

    Args:
      answers: question id -> annotated answers; none if the question is impossible.
      predictions: question id -> answer, or an empty text.
      null_odds: question id -> score of no answer, less that of the best answer; SQuAD 2.0.
    """
    scores = {name: _scores(texts, predictions[name]) for name, texts in answers.items()}
    found = _means(list(scores.values()), "")
    if null_odds is not None:
        found |= _means([one for one in scores.values() if one.has_answer], "HasAns_")
        found |= _means([one for one in scores.values() if not one.has_answer], "NoAns_")
        in_order = [scores[name] for name in sorted(scores, key=null_odds.__getitem__)]
        thresholds = sorted(null_odds[name] for name in scores)
        for metric in ("exact", "f1"):
            best, threshold = _best_threshold(in_order, thresholds, metric)
            found |= {f"best_{metric}": best, f"best_{metric}_thresh": threshold}
    return found


def _means(scores: Sequence[_Scores], prefix: str) -> dict[str, float]:
    if not scores:
        return {}
    return {
        f"{prefix}exact": 100 * sum(one.exact for one in scores) / len(scores),
        f"{prefix}f1": 100 * sum(one.f1 for one in scores) / len(scores),
        f"{prefix}total": len(scores),
    }


def _best_threshold(
    scores: Sequence[_Scores], thresholds: Sequence[float], metric: str
) -> tuple[float, float]:
    """The best percentage, and the null odds above which no answer is predicted for it.

    First nothing is answered; then one question after the other, in the order of the odds, keeps
    its prediction.
    """
    current = best = float(sum(not one.has_answer for one in scores))
    best_threshold = 0.0
    for one, threshold in zip(scores, thresholds):
        if one.has_answer:
            current += getattr(one, metric)
        elif one.is_answered:
            current -= 1
        if current > best:
            best, best_threshold = current, threshold
    return 100 * best / len(scores), best_threshold
