"""SQuAD's files as they are published: JSON of articles, paragraphs, questions and answers.

Source: Rajpurkar et al., arXiv 1606.05250 (1.1) and 1806.03822 (2.0).
"""

import dataclasses
from collections.abc import Iterator

from mlperf_bert.files import json_text, paths

_KINDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}
_KINDS |= {bool: "true or false"}


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
      ValueError: no such file, not JSON, or not as published; the message names the file, and the
        place in it, such as data[3].paragraphs[0].qas[2].
    """
    try:
        content = json_text.read_object(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(
            f"{path}: no such file; --data_dir takes the folder with SQuAD's {path.name}"
        ) from error
    try:
        return _examples(content, has_impossible=has_impossible, is_training=is_training)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _examples(content: dict, *, has_impossible: bool, is_training: bool) -> list[SquadExample]:
    examples: list[SquadExample] = []
    unanswered: list[str] = []  # their places
    seen: set[str] = set()
    for question, context, place in _questions(content):
        answers = _answers(question, place, has_impossible=has_impossible)
        example = SquadExample(
            question_id=_value(question, "id", str, place),
            question=_value(question, "question", str, place),
            context=context,
            answers=answers or (),
        )
        if answers is None:
            if is_training:
                raise ValueError(f"{place}: no answer to train on; add one, or remove the question")
            unanswered.append(place)
        # Predictions go by the id: those of a repeated one would be lost.
        if not is_training and example.question_id in seen:
            raise ValueError(f"{place}: another question has its id; give each its own")
        seen.add(example.question_id)
        examples.append(example)
    if not examples:
        raise ValueError("no question; take the file as it is published")
    if unanswered:
        raise ValueError(
            f"from {unanswered[0]} on, {len(unanswered):,} of {len(examples):,} questions have no "
            "answers to compare with; take the published dev file, which has them"
        )
    return examples


def _questions(content: dict) -> Iterator[tuple[dict, str, str]]:
    """Each question, its context, and its place."""
    for article, place in _items(content, "data", ""):
        for paragraph, place_of_paragraph in _items(article, "paragraphs", place):
            context = _value(paragraph, "context", str, place_of_paragraph)
            for question, place_of_question in _items(paragraph, "qas", place_of_paragraph):
                yield question, context, place_of_question


def _answers(question: dict, place: str, *, has_impossible: bool) -> tuple[Answer, ...] | None:
    """Empty if the question is impossible; None if it should have answers, and has none."""
    answers = None
    if "answers" in question:
        answers = tuple(
            Answer(
                text=_value(answer, "text", str, place_of_answer),
                start=_value(answer, "answer_start", int, place_of_answer),
            )
            for answer, place_of_answer in _items(question, "answers", place)
        )
        if any(answer.start < 0 for answer in answers):
            raise ValueError(f"{place}: answer_start must not be negative; correct the offset")
    if "is_impossible" in question and _value(question, "is_impossible", bool, place):
        if not has_impossible:
            raise ValueError(
                f"{place}: is_impossible in a file of SQuAD 1.1; use --task=squad2 for SQuAD 2.0"
            )
        if answers:
            raise ValueError(f"{place}: is_impossible, and has answers; remove one of the two")
        return ()
    return None if answers == () and not has_impossible else answers


def _items(holder: dict, key: str, place: str) -> Iterator[tuple[dict, str]]:
    """The objects of a list, each with its place."""
    name = f"{place}.{key}".removeprefix(".")
    for number, item in enumerate(_value(holder, key, list, place)):
        where = f"{name}[{number}]"
        if type(item) is not dict:
            raise ValueError(f"{where}: expected an object, got {_kind(item)}; correct it")
        yield item, where


def _value(holder: dict, key: str, kind: type, place: str):
    where = f"{place}: " if place else ""
    if key not in holder:
        raise ValueError(f'{where}no "{key}"; take the file as it is published')
    if type(value := holder[key]) is not kind:
        raise ValueError(f'{where}"{key}" must be {_KINDS[kind]}, got {_kind(value)}; correct it')
    return value


def _kind(value: object) -> str:
    return _KINDS.get(type(value), type(value).__name__)
