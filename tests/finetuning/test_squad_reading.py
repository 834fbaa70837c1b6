"""SQuAD's files: taken as published, or refused in one line that names the file. CPU, seconds."""

import json

import pytest
from hypothesis import given

from mlperf_bert.finetuning.squad import SquadTask
from tests.helpers.fuzzing import damaged, seeded

ANSWER = {"text": "Denver Broncos", "answer_start": 4}
QUESTION = {"id": "1", "question": "Who won?", "answers": [ANSWER]}
OTHER = QUESTION | {"id": "2", "answers": [ANSWER, ANSWER]}
CONTEXT = "The Denver Broncos won."
VERSIONS = {"squad1": "1.1", "squad2": "2.0"}
PUBLISHED = "; take the file as it is published"
BAD_TEXT = r"damaged \(a text or an answer_start of question '1' is none\)"


def file_of(*questions, context=CONTEXT) -> dict:
    paragraph = {"context": context, "qas": list(questions)}
    return {"version": "1.1", "data": [{"title": "Final", "paragraphs": [paragraph]}]}


def written(folder, content, name="squad1", split="train") -> SquadTask:
    path = folder / f"{split}-v{VERSIONS[name]}.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return SquadTask(name=name, data_dir=str(folder))


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("split", ["train", "dev"])
def test_whole_files_are_read(name, split, tmp_path):
    one, other = written(tmp_path, file_of(QUESTION, OTHER), name, split).read(split)
    assert (one.question_id, one.question, one.context) == ("1", "Who won?", CONTEXT)
    assert [(answer.text, answer.start) for answer in one.answers] == [("Denver Broncos", 4)]
    assert len(other.answers) == 2


@pytest.mark.parametrize("value", [{"is_impossible": True}, {"answers": []}], ids=str)
def test_impossible_questions_belong_to_squad_2(value, tmp_path):
    content = file_of(QUESTION, {"id": "2", "question": "Who lost?", **value})
    task = written(tmp_path, content, "squad2")
    assert [len(example.answers) for example in task.read("train")] == [1, 0]
    with pytest.raises(ValueError, match=rf"no question, or one without an answer\){PUBLISHED}$"):
        written(tmp_path, content).read("train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"data": [', r"damaged \(not JSON \(.*"),
        ({}, r"damaged \(lacks 'data'\)"),
        (file_of(), r"damaged \(no question, or one without an answer\)"),
        (file_of({"id": "2", "question": "Who?"}), r"damaged \(lacks 'answers'\)"),
        (file_of(QUESTION, context=["a"]), BAD_TEXT),
        (file_of(QUESTION | {"answers": [ANSWER | {"answer_start": -1}]}), BAD_TEXT),
    ],
)
def test_refused(content, message, tmp_path):
    with pytest.raises(ValueError, match=rf"/dev-v2.0.json: {message}{PUBLISHED}$"):
        written(tmp_path, content, "squad2", "dev").read("dev")


def test_no_answer_at_its_offset_and_no_such_file(tmp_path):
    with pytest.raises(ValueError, match="no answer is at its answer_start; correct the offsets"):
        written(tmp_path, file_of(QUESTION, context="Nothing")).read("train")
    message = r"v2.0.json: no such file; --data_dir takes the folder with SQuAD's dev-v2.0.json$"
    with pytest.raises(ValueError, match=message):
        SquadTask(name="squad2", data_dir=str(tmp_path)).read("dev")


@pytest.mark.parametrize("name", VERSIONS)
def test_damaged_files_are_read_or_refused_in_one_line(name, tmp_path):
    num_refused = 0

    @seeded(200)
    @given(damaged(file_of(QUESTION, OTHER)))
    def attempt(content):
        nonlocal num_refused
        task = written(tmp_path, content, name, "dev")
        try:
            assert task.read("dev")
        except ValueError as error:
            num_refused += 1
            [line] = str(error).splitlines()
            assert line.isprintable() and "dev-v" in line and len(line) < 500

    attempt()
    assert num_refused > 50
