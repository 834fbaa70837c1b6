"""SQuAD's files: taken as published, or refused in one line that names the file. CPU, seconds."""

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


PUBLISHED = "; take the file as it is published"
REFUSED = {
    "no data": (changed(["data"], ...), r"damaged \(lacks 'data'\)" + PUBLISHED),
    "data": (changed(["data"], 3), r"damaged \('int' object is not iterable\)" + PUBLISHED),
    "nothing": (changed(["data"], []), "no question" + PUBLISHED),
    "no qas": (changed(PLACE[:-1], []), "no question" + PUBLISHED),
    "paragraph": (changed(PLACE[:4], None), r"damaged \(.*\)" + PUBLISHED),
    "no context": (changed([*PLACE[:4], "context"], ...), r"damaged \(lacks 'context'\)"),
    "context": (changed([*PLACE[:4], "context"], ["a"]), "damaged .a text of question '1' is none"),
    "no id": (changed([*PLACE, "id"], ...), r"damaged \(lacks 'id'\)"),
    "id": (changed([*PLACE, "id"], 2), "damaged .a text of question 2 is none"),
    "text": (changed([*PLACE, "answers", 1, "text"], ...), r"damaged \(lacks 'text'\)"),
    **{
        str(start): (
            changed([*PLACE, "answers", 0, "answer_start"], start),
            r"damaged \(answer_start of question '2' is no offset\)" + PUBLISHED,
        )
        for start in (1.5, True, -1)
    },
    "not JSON": (b'{"data": [', r"damaged \(not JSON \("),
    "list": (b"[]", r"damaged \(expected a JSON object, got list\)"),
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
    with pytest.raises(ValueError, match=r"question '2' has no answer to train on$"):
        written(tmp_path, content).read("train")
    message = r"question '2' has no answer to compare with; take the published dev file$"
    with pytest.raises(ValueError, match=message):
        written(tmp_path, content, split="dev").read("dev")


def test_a_repeated_id_in_what_is_predicted(tmp_path):
    content = changed([*PLACE, "id"], "1")
    with pytest.raises(ValueError, match="question '1' stands there twice; give each its own id"):
        written(tmp_path, content, split="dev").read("dev")
    assert len(written(tmp_path, content).read("train")) == 2


def test_impossible_questions_belong_to_squad_2(tmp_path):
    task = written(tmp_path, changed([*PLACE], OTHER | IMPOSSIBLE))
    with pytest.raises(ValueError, match=r"question '2' is_impossible, as in .* use --task=squad2"):
        task.read("train")
    task = written(tmp_path, changed([*PLACE, "is_impossible"], True), "squad2")
    with pytest.raises(ValueError, match="question '2' is_impossible, and has answers; remove one"):
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
