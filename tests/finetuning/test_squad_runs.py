"""SQuAD through a whole run: windows, a model without pooler, answers of the dev set. Seconds."""

import json

import pytest

from mlperf_bert.finetuning import sweep
from mlperf_bert.finetuning.config import usual_max_seq_length
from tests.finetuning import generated_glue
from tests.finetuning.generated_glue import config_of


def write_squad(path, num_questions: int, *, version: str) -> None:
    entries = []
    for number in range(num_questions):
        words = [*["town", "of", "the"] * (number % 5), "red", "ship", "sails", "south"]
        context = " ".join(words)
        asked = {
            "id": f"q{number}",
            "question": "ship ?",
            "answers": [{"text": "red", "answer_start": context.index("red")}],
        }
        if version == "v2.0":
            asked["is_impossible"] = number % 3 == 0
            asked["answers"] = [] if number % 3 == 0 else asked["answers"]
        entries.append({"title": "t", "paragraphs": [{"context": context, "qas": [asked]}]})
    path.write_text(json.dumps({"version": version.removeprefix("v"), "data": entries}))


@pytest.mark.gate
@pytest.mark.parametrize(("name", "version"), [("squad1", "v1.1"), ("squad2", "v2.0")])
def test_a_model_without_pooler_answers_questions(tmp_path, name, version):
    generated_glue.write_model(tmp_path / "model", without="bert/pooler")
    (tmp_path / "data").mkdir()
    write_squad(tmp_path / "data" / f"train-{version}.json", 20, version=version)
    write_squad(tmp_path / "data" / f"dev-{version}.json", 6, version=version)
    changes = {"data_dir": str(tmp_path / "data"), "doc_stride": 4, "max_query_length": 4}
    config = config_of(tmp_path, task=name, max_seq_length=16, do_predict=True, **changes)
    results = sweep.run(config)
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


@pytest.mark.parametrize("name", ["squad1", "squad2"])
def test_what_cannot_be_scored_or_trained_on_is_found_before_the_training(tmp_path, name):
    version = {"squad1": "v1.1", "squad2": "v2.0"}[name]
    generated_glue.write_model(tmp_path / "model")
    train, dev = (tmp_path / f"{split}-{version}.json" for split in ("train", "dev"))
    write_squad(train, 20, version=version)
    write_squad(dev, 6, version=version)
    changes = {"data_dir": str(tmp_path), "doc_stride": 4, "max_query_length": 4}
    config = config_of(tmp_path, task=name, max_seq_length=16, **changes)

    def refusal() -> str:
        with pytest.raises(ValueError) as error:
            sweep.run(config)
        assert not (tmp_path / "out").exists()
        return str(error.value)

    published = json.loads(dev.read_text())
    del published["data"][4]["paragraphs"][0]["qas"][0]["answers"]
    dev.write_text(json.dumps(published))
    assert refusal() == (f"{dev}: damaged (lacks 'answers'); take the file as it is published")
    write_squad(dev, 6, version=version)
    if name == "squad2":
        for article in (content := json.loads(train.read_text()))["data"]:
            article["paragraphs"][0]["context"] = ""
            article["paragraphs"][0]["qas"][0] |= {"is_impossible": True, "answers": []}
        train.write_text(json.dumps(content))
        assert "squad2: no examples of train: its file holds no text; copy it here" in refusal()
