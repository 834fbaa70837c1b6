"""SQuAD's files: taken as published, or refused in one line that names the place. CPU, seconds."""

import json

import pytest
from hypothesis import given

from mlperf_bert.finetuning.squad import SquadTask
from tests.helpers.damaged_json import damaged
from tests.helpers.fuzzing import seeded

ANSWER = {"text": "Denver Broncos", "answer_start": 4}
QUESTION = {"id": "1", "question": "Who won?", "answers": [ANSWER]}
OTHER = QUESTION | {"id": "2", "answers": [ANSWER, ANSWER]}
PARAGRAPH = {"context": "The Denver Broncos won.", "qas": [QUESTION, OTHER]}
WHOLE = {"version": "1.1", "data": [{"title": "Final", "paragraphs": [PARAGRAPH]}]}
IMPOSSIBLE = {"is_impossible": True, "answers": [], "plausible_answers": [ANSWER]}
PLACE = ["data", 0, "paragraphs", 0, "qas", 1]
Q = r"data\[0\].paragraphs\[0\].qas\[1\]"
TASKS = {"squad1": "1.1", "squad2": "2.0"}
SPLITS = ["train", "dev"]


def written(folder, content, name="squad1", split="train"):
    path = folder / f"{split}-v{TASKS[name]}.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return SquadTask(name=name, data_dir=str(folder))


def changed(place, value):
    """The whole file with another value at a place; ... removes the key."""
    content = json.loads(json.dumps(WHOLE))  # no object stands there twice
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return content


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("split", SPLITS)
def test_whole_files_are_read(name, split, tmp_path):
    one, other = written(tmp_path, WHOLE, name, split).read(split)
    assert (one.question_id, one.question, one.context) == ("1", "Who won?", PARAGRAPH["context"])
    assert [(answer.text, answer.start) for answer in one.answers] == [("Denver Broncos", 4)]
    assert len(other.answers) == 2


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("value", [IMPOSSIBLE, {"is_impossible": True}, {"answers": []}], ids=str)
def test_impossible_questions(split, value, tmp_path):
    question = {"id": "2", "question": "Who lost?", **value}
    task = written(tmp_path, changed(PLACE, question), "squad2", split)
    assert [len(example.answers) for example in task.read(split)] == [1, 0]


REFUSED = {
    "no data": (changed(["data"], ...), 'no "data"; take the file as it is published'),
    "data": (changed(["data"], {}), '"data" must be a list, got an object; correct it'),
    "nothing": (changed(["data"], []), "no question; take the file as it is published"),
    "no qas": (changed(PLACE[:-1], []), "no question; take"),
    "article": (changed(PLACE[:2], 1), r"data\[0\]: expected an object, got a whole number"),
    "no paragraphs": (changed(PLACE[:3], ...), r'data\[0\]: no "paragraphs"; take'),
    "paragraph": (changed(PLACE[:4], None), r"data\[0\].paragraphs\[0\]: expected an object"),
    "no context": (
        changed([*PLACE[:4], "context"], ...),
        r'data\[0\].paragraphs\[0\]: no "context"; take the file as it is published',
    ),
    "context": (
        changed([*PLACE[:4], "context"], ["a"]),
        r'data\[0\].paragraphs\[0\]: "context" must be a text, got a list; correct it',
    ),
    "question": (changed(PLACE, "2"), rf"{Q}: expected an object, got a text; correct it"),
    "no id": (changed([*PLACE, "id"], ...), rf'{Q}: no "id"; take'),
    "id": (changed([*PLACE, "id"], 2), rf'{Q}: "id" must be a text, got a whole number; correct'),
    "no question": (changed([*PLACE, "question"], ...), rf'{Q}: no "question"; take'),
    "answers": (changed([*PLACE, "answers"], "x"), rf'{Q}: "answers" must be a list, got a text'),
    "text": (
        changed([*PLACE, "answers", 1, "text"], ...),
        rf'{Q}.answers\[1\]: no "text"; take the file as it is published',
    ),
    "fraction": (
        changed([*PLACE, "answers", 0, "answer_start"], 1.5),
        rf'{Q}.answers\[0\]: "answer_start" must be a whole number, got float; correct it',
    ),
    "true": (
        changed([*PLACE, "answers", 0, "answer_start"], True),
        rf'{Q}.answers\[0\]: "answer_start" must be a whole number, got true or false; correct it',
    ),
    "negative": (
        changed([*PLACE, "answers", 1, "answer_start"], -1),
        rf"{Q}: answer_start must not be negative; correct the offset",
    ),
    "possibly": (
        changed([*PLACE, "is_impossible"], "no"),
        rf'{Q}: "is_impossible" must be true or false, got a text; correct it',
    ),
    "not JSON": (b'{"data": [', r"not JSON \("),
    "list": (b"[]", "expected a JSON object, got list"),
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind, split, name, tmp_path):
    content, message = REFUSED[kind]
    task = written(tmp_path, content, name, split)
    with pytest.raises(ValueError, match=rf"/{split}-v{TASKS[name]}.json: {message}") as error:
        task.read(split)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("value", [[], ...])
def test_a_question_without_answer_can_be_neither_trained_on_nor_scored(tmp_path, value):
    content = changed([*PLACE, "answers"], value)
    with pytest.raises(ValueError, match=rf"{Q}: no answer to train on; add one, or remove"):
        written(tmp_path, content).read("train")
    message = rf"{Q} on, 1 of 2 questions have no answers to compare with; take the published"
    with pytest.raises(ValueError, match=message):
        written(tmp_path, content, split="dev").read("dev")


def test_a_repeated_id_in_what_is_predicted(tmp_path):
    content = changed([*PLACE, "id"], "1")
    with pytest.raises(ValueError, match=rf"{Q}: another question has its id; give each its own"):
        written(tmp_path, content, split="dev").read("dev")
    assert len(written(tmp_path, content).read("train")) == 2


def test_impossible_questions_belong_to_squad_2(tmp_path):
    task = written(tmp_path, changed([*PLACE], OTHER | IMPOSSIBLE))
    with pytest.raises(ValueError, match=rf"{Q}: is_impossible in .* 1.1; use --task=squad2"):
        task.read("train")
    task = written(tmp_path, changed([*PLACE, "is_impossible"], True), "squad2")
    with pytest.raises(ValueError, match=rf"{Q}: is_impossible, and has answers; remove one"):
        task.read("train")


def test_no_answer_at_its_offset(tmp_path):
    content = changed(PLACE[:4], {"context": "Nothing", "qas": [QUESTION]})
    with pytest.raises(ValueError, match="no answer is at its answer_start; correct the offsets"):
        written(tmp_path, content).read("train")


def test_no_such_file(tmp_path):
    task = SquadTask(name="squad2", data_dir=str(tmp_path))
    message = r"v2.0.json: no such file; --data_dir takes the folder with SQuAD's dev-v2.0.json$"
    with pytest.raises(ValueError, match=message):
        task.read("dev")
    (tmp_path / "a file").touch()
    with pytest.raises(ValueError, match=message):
        SquadTask(name="squad2", data_dir=str(tmp_path / "a file")).read("dev")


@pytest.mark.parametrize("split", [pytest.param("train", marks=pytest.mark.all), "dev"])
@pytest.mark.parametrize("name", TASKS)
def test_damaged_files_are_read_or_refused_in_one_line(name, split, tmp_path):
    num_refused = 0

    @seeded(300)
    @given(damaged(WHOLE))
    def attempt(content):
        nonlocal num_refused
        task = written(tmp_path, content, name, split)
        try:
            assert task.read(split)
        except ValueError as error:
            num_refused += 1
            [line] = str(error).splitlines()
            assert line.isprintable() and f"{split}-v" in line and len(line) < 500

    attempt()
    assert num_refused > 100
