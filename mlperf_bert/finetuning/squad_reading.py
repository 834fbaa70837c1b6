"""SQuAD's files as they are published: JSON of articles, paragraphs, questions and answers.

Source: Rajpurkar et al., arXiv 1606.05250 (1.1) and 1806.03822 (2.0).
"""

import dataclasses

from mlperf_bert.files import json_text, paths

_REMEDY = "take the file as it is published"


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
    """In the file's order; empty if the question is impossible."""


def read_examples(path: paths.Location, *, has_impossible: bool) -> list[SquadExample]:
    """The questions of a file, in its order.

    With `has_impossible` (SQuAD 2.0) a question may be marked is_impossible or have no answer.
    Every other question needs an answer: to train on, or to be scored by.

    Raises:
      ValueError: no such file, not JSON, or not as published; the message names the file.
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
        for example in examples:
            if not (example.answers or has_impossible):
                raise ValueError(f"question {example.question_id!r:.80} has no answer")
        return examples

    if (found := json_text.read_record(path, parsed, remedy=_REMEDY)) is None:
        raise ValueError(
            f"{path}: no such file; --data_dir takes the folder with SQuAD's {path.name}"
        )
    return found


def _example(question: dict, context: str) -> SquadExample:
    # In 2.0 an empty list says that there is none; no list at all, that answers are missing.
    listed = [] if question.get("is_impossible") else question["answers"]
    answers = tuple(Answer(text=one["text"], start=one["answer_start"]) for one in listed)
    texts = (question["id"], question["question"], context, *(one.text for one in answers))
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"a text of question {question['id']!r:.80} is none")
    if not all(type(one.start) is int and one.start >= 0 for one in answers):
        raise ValueError(f"answer_start of question {question['id']!r:.80} is no offset")
    return SquadExample(
        question_id=question["id"],
        question=question["question"],
        context=context,
        answers=answers,
    )
