"""SQuAD's files are read, refused in one line that names the file, trained on. CPU, seconds."""

import json

import pytest

from mlperf_bert.finetuning import sweep
from mlperf_bert.finetuning.config import FinetuningConfig, usual_max_seq_length
from mlperf_bert.finetuning.squad import SquadTask
from tests.finetuning import generated_glue
from tests.finetuning.generated_glue import config_of

ANSWER = {"text": "Denver Broncos", "answer_start": 4}
QUESTION = {"id": "1", "question": "Who won?", "answers": [ANSWER]}
OTHER = QUESTION | {"id": "2", "answers": [ANSWER, ANSWER]}
CONTEXT = "The Denver Broncos won."
PUBLISHED = "; take the file as it is published"
BAD_TEXT = r"damaged \(a text or an answer_start of question '1' is none\)"


def file_of(*questions, context=CONTEXT) -> dict:
    paragraph = {"context": context, "qas": list(questions)}
    return {"version": "1.1", "data": [{"title": "Final", "paragraphs": [paragraph]}]}


def written(folder, content, split="train") -> SquadTask:
    path = folder / f"{split}-v1.1.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return SquadTask(data_dir=str(folder))


@pytest.mark.parametrize("split", ["train", "dev"])
def test_whole_files_are_read(split, tmp_path):
    one, other = written(tmp_path, file_of(QUESTION, OTHER), split).read(split)
    assert (one.question_id, one.question, one.context) == ("1", "Who won?", CONTEXT)
    assert [(answer.text, answer.start) for answer in one.answers] == [("Denver Broncos", 4)]
    assert len(other.answers) == 2


@pytest.mark.parametrize("split", ["train", "dev"])
@pytest.mark.parametrize("value", [{"is_impossible": True}, {"answers": []}], ids=str)
def test_a_file_of_squad_2_is_refused(value, split, tmp_path):
    content = file_of(QUESTION, {"id": "2", "question": "Who lost?", **value})
    message = (
        r"1.json: 1 of 2 questions have no answer, as in SQuAD 2.0; give the file of SQuAD 1.1$"
    )
    with pytest.raises(ValueError, match=message):
        written(tmp_path, content, split).read(split)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"data": [', r"damaged \(not JSON \(.*"),
        ({}, r"damaged \(lacks 'data'\)"),
        (file_of(), r"damaged \(no question\)"),
        (file_of({"id": "2", "question": "Who?"}), r"damaged \(lacks 'answers'\)"),
        (file_of(QUESTION, context=["a"]), BAD_TEXT),
        (file_of(QUESTION | {"answers": [ANSWER | {"answer_start": -1}]}), BAD_TEXT),
        (file_of(QUESTION | {"answers": [ANSWER | {"answer_start": "4"}]}), BAD_TEXT),
        (file_of("Who won?"), r"damaged \('str' object has no attribute 'get'\)"),
        ({"data": 1}, r"damaged \('int' object is not iterable\)"),
    ],
)
def test_refused(content, message, tmp_path):
    with pytest.raises(ValueError, match=rf"/dev-v1.1.json: {message}{PUBLISHED}$"):
        written(tmp_path, content, "dev").read("dev")


def test_no_answer_at_its_offset_and_no_such_file(tmp_path):
    with pytest.raises(ValueError, match="no answer is at its answer_start; correct the offsets"):
        written(tmp_path, file_of(QUESTION, context="Nothing")).read("train")
    message = r"v1.1.json: no such file; --data_dir takes the folder with SQuAD's dev-v1.1.json$"
    with pytest.raises(ValueError, match=message):
        SquadTask(data_dir=str(tmp_path)).read("dev")


def write_questions(folder, split: str, number: int) -> None:
    """So many articles, each with a question."""
    articles = []
    for each in range(number):
        context = " ".join([*["town", "of", "the"] * (each % 5), "red", "ship", "sails", "south"])
        answer = {"text": "red", "answer_start": context.index("red")}
        asked = {"id": f"q{each}", "question": "ship ?", "answers": [answer]}
        articles += file_of(asked, context=context)["data"]
    written(folder, {"version": "1.1", "data": articles}, split)


def options(folder, **changes) -> FinetuningConfig:
    """Of short windows."""
    usual = {"data_dir": str(folder), "max_seq_length": 16, "doc_stride": 4, "max_query_length": 4}
    return config_of(folder, task="squad1", **usual | changes)


@pytest.mark.gate
def test_a_model_without_pooler_answers_questions(tmp_path):
    generated_glue.write_model(tmp_path / "model", without="bert/pooler")
    write_questions(tmp_path, "train", 20)
    write_questions(tmp_path, "dev", 6)
    results = sweep.run(options(tmp_path, do_predict=True))
    assert results.line().startswith("RESULT,squad1,f1,")
    assert results.tasks["squad1"]["task_score"] is None
    assert {"exact", "f1"} <= results.tasks["squad1"]["runs"][0]["epochs"][-1]["dev"].keys()
    [path] = results.prediction_files
    assert path == tmp_path / "out" / "predictions" / "squad1" / "predictions.json"
    assert json.loads(path.read_text()).keys() == {f"q{number}" for number in range(6)}


def test_lengths_are_the_fields_and_windows_overlap(tmp_path):
    lengths = {"rte": 128, "glue": 128, "squad1": 384}
    assert {name: usual_max_seq_length(name) for name in lengths} == lengths

    def doc_stride(**changes) -> int:
        config = config_of(tmp_path, max_seq_length=384, data_dir="squad", **changes)
        return config.create("squad1").doc_stride

    assert doc_stride() == 128 and doc_stride(doc_stride=316) == 316
    with pytest.raises(ValueError, match=r"--doc_stride=317: windows would not .* is 317; lower"):
        doc_stride(doc_stride=317)


def test_what_cannot_be_scored_is_found_before_the_training(tmp_path):
    generated_glue.write_model(tmp_path / "model")
    write_questions(tmp_path, "train", 20)
    write_questions(tmp_path, "dev", 6)
    dev = tmp_path / "dev-v1.1.json"

    def refusal() -> str:
        with pytest.raises(ValueError) as error:
            sweep.run(options(tmp_path))
        assert not (tmp_path / "out").exists()
        return str(error.value)

    published = json.loads(dev.read_text())
    del published["data"][4]["paragraphs"][0]["qas"][0]["answers"]
    dev.write_text(json.dumps(published))
    assert refusal() == (f"{dev}: damaged (lacks 'answers'); take the file as it is published")
    write_questions(tmp_path, "dev", 6)
    for article in (content := json.loads(dev.read_text()))["data"]:
        article["paragraphs"][0]["context"] = ""
    dev.write_text(json.dumps(content))
    assert "squad1: no examples of dev: its file holds no text; copy it here" in refusal()
