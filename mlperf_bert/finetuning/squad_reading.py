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


def read_examples(
    path: paths.Location, *, has_impossible: bool, is_training: bool
) -> list[SquadExample]:
    """The questions of a file, in its order.

    With `has_impossible` (SQuAD 2.0) a question may be marked is_impossible or have no answer.
    Every other question needs an answer: to train on, or to be scored by.

    Raises:
      ValueError: no such file, not JSON, or not as published; the message names the file.
    """

    def parsed(content: dict) -> list[tuple[dict, SquadExample]]:
        return [
            (question, _example(question, paragraph["context"]))
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]

    questions = json_text.read_record(path, parsed, remedy=_REMEDY)
    if questions is None:
        raise ValueError(
            f"{path}: no such file; --data_dir takes the folder with SQuAD's {path.name}"
        )
    if not questions:
        raise ValueError(f"{path}: no question; {_REMEDY}")
    seen: set[str] = set()
    for question, example in questions:
        where = f"{path}: question {example.question_id[:80]!r}"
        is_marked = bool(question.get("is_impossible"))
        if is_marked and not has_impossible:
            raise ValueError(f"{where} is_impossible, as in SQuAD 2.0; use --task=squad2 for it")
        if is_marked and example.answers:
            raise ValueError(f"{where} is_impossible, and has answers; remove one of the two")
        # In 2.0 an empty list says that there is none; no list at all, that answers are missing.
        is_answered = example.answers or (has_impossible and (is_marked or "answers" in question))
        if not is_answered:
            use = "train on" if is_training else "compare with; take the published dev file"
            raise ValueError(f"{where} has no answer to {use}")
        # Predictions go by the id: those of a repeated one would be lost.
        if not is_training and example.question_id in seen:
            raise ValueError(f"{where} stands there twice; give each its own id")
        seen.add(example.question_id)
    return [example for _, example in questions]


def _example(question: dict, context: str) -> SquadExample:
    answers = tuple(
        Answer(text=answer["text"], start=answer["answer_start"])
        for answer in question.get("answers", ())
    )
    example = SquadExample(
        question_id=question["id"],
        question=question["question"],
        context=context,
        answers=answers,
    )
    texts = (example.question_id, example.question, context, *(one.text for one in answers))
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"a text of question {example.question_id!r:.80} is none")
    if not all(type(one.start) is int and one.start >= 0 for one in answers):
        raise ValueError(f"answer_start of question {example.question_id!r:.80} is no offset")
    return example
