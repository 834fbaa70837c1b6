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
        (file_of(QUESTION | {"answers": [ANSWER | {"answer_start": "4"}]}), BAD_TEXT),
        (file_of("Who won?"), r"damaged \('str' object has no attribute 'get'\)"),
        ({"data": 1}, r"damaged \('int' object is not iterable\)"),
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


def write_questions(folder, name: str, split: str, number: int) -> None:
    """So many articles, each with a question; of squad2 a third have no answer."""
    articles = []
    for each in range(number):
        context = " ".join([*["town", "of", "the"] * (each % 5), "red", "ship", "sails", "south"])
        answer = {"text": "red", "answer_start": context.index("red")}
        asked: dict = {"id": f"q{each}", "question": "ship ?", "answers": [answer]}
        if name == "squad2" and each % 3 == 0:
            asked |= {"answers": [], "is_impossible": True}
        articles += file_of(asked, context=context)["data"]
    written(folder, {"version": VERSIONS[name], "data": articles}, name, split)


def options(folder, name: str, **changes) -> FinetuningConfig:
    """Of short windows."""
    usual = {"data_dir": str(folder), "max_seq_length": 16, "doc_stride": 4, "max_query_length": 4}
    return config_of(folder, task=name, **usual | changes)


@pytest.mark.gate
@pytest.mark.parametrize("name", VERSIONS)
def test_a_model_without_pooler_answers_questions(tmp_path, name):
    generated_glue.write_model(tmp_path / "model", without="bert/pooler")
    write_questions(tmp_path, name, "train", 20)
    write_questions(tmp_path, name, "dev", 6)
    results = sweep.run(options(tmp_path, name, do_predict=True))
    assert results.line().startswith(f"RESULT,{name},f1,")
    assert results.tasks[name]["task_score"] is None
    assert {"exact", "f1"} <= results.tasks[name]["runs"][0]["epochs"][-1]["dev"].keys()
    folder = tmp_path / "out" / "predictions" / name
    answers = json.loads((folder / "predictions.json").read_text())
    assert answers.keys() == {f"q{number}" for number in range(6)}
    names = {path.name for path in results.prediction_files}
    assert names == {"predictions.json"} | ({"null_odds.json"} if name == "squad2" else set())


def test_lengths_are_the_fields_and_windows_overlap(tmp_path):
    lengths = {"rte": 128, "glue": 128, "squad1": 384, "squad2": 384}
    assert {name: usual_max_seq_length(name) for name in lengths} == lengths

    def doc_stride(**changes) -> int:
        config = config_of(tmp_path, max_seq_length=384, data_dir="squad", **changes)
        return config.create("squad1").doc_stride

    assert doc_stride() == 128 and doc_stride(doc_stride=316) == 316
    with pytest.raises(ValueError, match=r"--doc_stride=317: windows would not .* is 317; lower"):
        doc_stride(doc_stride=317)


@pytest.mark.parametrize("name", VERSIONS)
def test_what_cannot_be_scored_or_trained_on_is_found_before_the_training(tmp_path, name):
    generated_glue.write_model(tmp_path / "model")
    train, dev = (tmp_path / f"{split}-v{VERSIONS[name]}.json" for split in ("train", "dev"))
    write_questions(tmp_path, name, "train", 20)
    write_questions(tmp_path, name, "dev", 6)

    def refusal() -> str:
        with pytest.raises(ValueError) as error:
            sweep.run(options(tmp_path, name))
        assert not (tmp_path / "out").exists()
        return str(error.value)

    published = json.loads(dev.read_text())
    del published["data"][4]["paragraphs"][0]["qas"][0]["answers"]
    dev.write_text(json.dumps(published))
    assert refusal() == (f"{dev}: damaged (lacks 'answers'); take the file as it is published")
    write_questions(tmp_path, name, "dev", 6)
    if name == "squad2":
        for article in (content := json.loads(train.read_text()))["data"]:
            article["paragraphs"][0]["context"] = ""
            article["paragraphs"][0]["qas"][0] |= {"is_impossible": True, "answers": []}
        train.write_text(json.dumps(content))
        assert "squad2: no examples of train: its file holds no text; copy it here" in refusal()
