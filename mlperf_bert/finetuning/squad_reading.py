"""SQuAD's files as they are published: JSON of articles, paragraphs, questions and answers.

Source: Rajpurkar et al., arXiv 1606.05250.
"""

import collections
import functools
import re
from bisect import bisect_right
from pathlib import Path
from typing import Any, NamedTuple

from mlperf_bert.files import json_text

TEST_NAME = "test-v1.1.json"
_REMEDY = (
    'take the file as it is published: {"version": "1.1", "data": [{"paragraphs": [{"context": '
    '"...", "qas": [{"id": "1", "question": "...", "answers": [{"text": "...", "answer_start": '
    "0}]}]}]}]}"
)
# Quirk of the published code: of all white space, these five separate the words of a context.
_SPACES = " \t\r\n\u202f"
_KINDS = {str: "a text", int: "a number", bool: "true or false", list: "a list", dict: "an object"}
_WORD = re.compile(f"[^{_SPACES}]+")
_GAP = re.compile(f"[{_SPACES}]+")


class Answer(NamedTuple):
    """An annotated answer."""

    text: str
    start: int
    """The place of its first character in the context, in code points."""


class SquadExample(NamedTuple):
    """A question on a context."""

    question_id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    """All answers, in the file's order."""


def read_examples(path: Path, *, needs_answers: bool = True) -> list[SquadExample]:
    """The questions of a file, in its order.

    Args:
      path: of the file.
      needs_answers: every question must have one: to train on, or to be scored by.
    """
    if (read := json_text.read_record(path, _version_and_examples, remedy=_REMEDY)) is None:
        raise ValueError(
            f"{path}: no such file; --data_dir takes the folder with SQuAD's {path.name}"
        )
    version, examples = read
    counts = collections.Counter(one.question_id for one in examples)
    if repeated := [question_id for question_id, number in counts.items() if number > 1]:
        raise ValueError(
            f"{path}: {counts[repeated[0]]:,} questions have the id {repeated[0]!r:.80}, by which "
            "answers are told apart; give each question of the file an id of its own"
        )
    without = [one.question_id for one in examples if not one.answers]
    if without and needs_answers:
        raise ValueError(
            f"{path}, version {version!r:.20}: {len(without):,} of {len(examples):,} questions "
            f"have no answer, such as {without[0]!r:.80}, as in SQuAD 2.0; give the file of SQuAD "
            f"1.1, or leave them out; what is only to be predicted belongs in {TEST_NAME}"
        )
    return examples


def _version_and_examples(content: dict) -> tuple[object, list[SquadExample]]:
    """The version that the file says, and its questions."""
    examples = [
        _example(question, paragraph["context"])
        for article in content["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    if not examples:
        raise ValueError("no question")
    return content.get("version"), examples


def _example(question: dict, context: str) -> SquadExample:
    """A question of a file; raises ValueError, which names it, if it is not as published."""
    if not isinstance(question, dict):
        raise ValueError(f"a question is {question!r:.40}, not an object")
    asked = f"of question {question['id']!r:.80}"

    def require(value: object, kind: type, name: str) -> Any:
        if type(value) is not kind:
            raise ValueError(f"{name} {asked} is {value!r:.40}, not {_KINDS[kind]}")
        return value

    impossible = require(question.get("is_impossible") or False, bool, "is_impossible")
    listed = [] if impossible else require(question.get("answers") or [], list, "answers")
    answers = []
    for each in listed:
        answer = require(each, dict, "an answer")
        text = require(answer.get("text"), str, "the text of an answer")
        start = require(answer.get("answer_start"), int, "answer_start")
        if start < 0:
            raise ValueError(f"answer_start {asked} is {start}, not a number of 0 or more")
        answers.append(Answer(text, start))
    return SquadExample(
        question_id=require(question["id"], str, "id"),
        question=require(question["question"], str, "question"),
        context=require(context, str, "context"),
        answers=tuple(answers),
    )


@functools.lru_cache(maxsize=1)  # the questions of a context follow each other
def words_of(context: str) -> list[re.Match[str]]:
    """The words of a context, split at white space."""
    return list(_WORD.finditer(context))


def piece_of(context: str, start: int, end: int) -> str:
    """The characters from `start` to before `end`, white space between words as one space."""
    return _GAP.sub(" ", context[start:end])


def place_of_answer(example: SquadExample) -> tuple[int, int] | None:
    """The first answer's characters, from start to before end; None if it is not in the context.

    As in the published code, an offset may be wrong by some characters if the answer is within the
    words that it leads to; the nearest of several places counts.
    """
    (text, start), context = example.answers[0], example.context
    if not 0 <= start < len(context) or not (parts := text.split()):
        return None
    if context.startswith(text, start):
        return start, start + len(text)
    words = words_of(context)
    last_character = min(start + len(text), len(context)) - 1
    first = bisect_right(words, start, key=re.Match.start) - 1
    last = bisect_right(words, last_character, key=re.Match.start) - 1
    if first < 0:
        return None
    pattern = re.compile(_GAP.pattern.join(map(re.escape, parts)))
    matches = pattern.finditer(context, words[first].start(), words[last].end())
    nearest = min(matches, key=lambda match: abs(match.start() - start), default=None)
    return nearest and nearest.span()
