"""Exact match and F1 of predicted answers, as SQuAD's own script computes them.

It is not on a package index, and other packages that have it need PyTorch or the network.
Questions of SQuAD 1.1 are scored by the script for 2.0, which differs from the older one only
where nothing is left of an answer after normalization, such as of "The".

Source: SQuAD's evaluate-v2.0.py.
"""

import collections
import itertools
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


def _scores(answers: Sequence[str], predicted: str) -> dict[str, float]:
    """The best match of all annotated answers; that of a question without one is empty."""
    found = normalized(predicted)
    expected = [text for text in map(normalized, answers) if text] or [""]
    return {
        "exact": float(found in expected),
        "f1": max(f1_of_words(text, found) for text in expected),
    }


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
    groups = {"": list(answers)}
    if null_odds is not None:
        groups["HasAns_"] = [name for name in answers if answers[name]]
        groups["NoAns_"] = [name for name in answers if not answers[name]]
    found: dict[str, float] = {}
    for prefix, names in groups.items():
        if names:
            for metric in ("exact", "f1"):
                total = sum(scores[name][metric] for name in names)
                found[prefix + metric] = 100 * total / len(names)
            found[f"{prefix}total"] = len(names)
    if null_odds is not None:
        # First nothing is answered, which is right for those without an answer; then one question
        # after the other, in the order of the odds, keeps its prediction.
        in_order = sorted(scores, key=null_odds.__getitem__)
        for metric in ("exact", "f1"):
            gains = (
                scores[name][metric] if answers[name] else -float(bool(predictions[name]))
                for name in in_order
            )
            reached = list(itertools.accumulate(gains, initial=float(len(groups["NoAns_"]))))
            best = max(range(len(reached)), key=reached.__getitem__)  # the first of equal ones
            found[f"best_{metric}"] = 100 * reached[best] / len(scores)
            found[f"best_{metric}_thresh"] = null_odds[in_order[best - 1]] if best else 0.0
    return found
