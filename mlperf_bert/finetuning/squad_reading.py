"""SQuAD's files as they are published: JSON of articles, paragraphs, questions and answers.

Source: Rajpurkar et al., arXiv 1606.05250.
"""

import dataclasses
import functools
import re
from bisect import bisect_right

from mlperf_bert.files import json_text, paths

_REMEDY = "take the file as it is published"
# Quirk of the field: of all white space, these five separate the words of a context.
_SPACES = " \t\r\n\u202f"
_WORD = re.compile(f"[^{_SPACES}]+")
_GAP = re.compile(f"[{_SPACES}]+")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """An annotated answer."""

    text: str
    start: int
    """Its first character in the context, counted in code points."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SquadExample:
    """A question on a context."""

    question_id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    """In the file's order."""


def read_examples(path: paths.Location) -> list[SquadExample]:
    """The questions of a file, in its order.

    Every question needs an answer: to train on, or to be scored by.

    Raises:
      ValueError: no such file, not JSON, not as published, or of SQuAD 2.0; the message names the
        file.
    """

    def parsed(content: dict) -> list[SquadExample]:
        examples = [
            _example(question, paragraph["context"])
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
        if not examples:
            raise ValueError("no question")
        return examples

    if (examples := json_text.read_record(path, parsed, remedy=_REMEDY)) is None:
        raise ValueError(
            f"{path}: no such file; --data_dir takes the folder with SQuAD's {path.name}"
        )
    if num_without := sum(not one.answers for one in examples):
        raise ValueError(
            f"{path}: {num_without:,} of {len(examples):,} questions have no answer, as in SQuAD "
            "2.0; give the file of SQuAD 1.1"
        )
    return examples


def _example(question: dict, context: str) -> SquadExample:
    listed = [] if question.get("is_impossible") else question["answers"]
    answers = tuple(Answer(text=one["text"], start=one["answer_start"]) for one in listed)
    texts = (question["id"], question["question"], context, *(one.text for one in answers))
    offsets_fit = all(type(one.start) is int and one.start >= 0 for one in answers)
    if not offsets_fit or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"a text or an answer_start of question {question['id']!r:.80} is none")
    return SquadExample(
        question_id=question["id"], question=question["question"], context=context, answers=answers
    )


@functools.lru_cache(maxsize=1)  # the questions of a context follow each other
def words_of(context: str) -> list[re.Match[str]]:
    """The words of a context, split at white space."""
    return list(_WORD.finditer(context))


def piece_of(context: str, start: int, end: int) -> str:
    """The characters from `start` to before `end`, white space between words as one space."""
    return _GAP.sub(" ", context[start:end])


def words_of_answer(example: SquadExample) -> tuple[int, int] | None:
    """The first and the last word of the first answer; None if it is not there.

    As in the field, an offset that is wrong by some characters is right if the answer is within
    the words that it leads to.
    """
    if example.answers[0].start >= len(example.context):
        return None
    answer, words = example.answers[0], words_of(example.context)
    last_character = min(answer.start + len(answer.text), len(example.context)) - 1
    first = bisect_right(words, answer.start, key=re.Match.start) - 1
    last = bisect_right(words, last_character, key=re.Match.start) - 1
    text = " ".join(answer.text.split())
    if first < 0 or not text or text not in " ".join(word[0] for word in words[first : last + 1]):
        return None
    return first, last
