"""SQuAD's files are read, refused in one line that names the file, trained on. CPU, seconds."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from mlperf_bert.finetuning import sweep, weights
from mlperf_bert.finetuning.config import FinetuningConfig, Setting
from mlperf_bert.finetuning.run import read_split
from mlperf_bert.finetuning.splits import Split
from mlperf_bert.finetuning.squad import SquadTask
from tests.finetuning import generated_glue
from tests.finetuning.generated_glue import config_of

ANSWER = {"text": "Denver Broncos", "answer_start": 4}
QUESTION = {"id": "1", "question": "Who won?", "answers": [ANSWER]}
OTHER = QUESTION | {"id": "2", "answers": [ANSWER, ANSWER]}
CONTEXT = "The Denver Broncos won."
PUBLISHED = '; take the file as it is published: {"version": "1.1", "data": [{"paragraphs": '


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
        r"1.json, version .*: 1 of 2 questions have no answer, such as '2', as in SQuAD 2.0; "
        r"give .* 1.1, or leave them out; what is only to be predicted belongs in test-v1.1.json$"
    )
    with pytest.raises(ValueError, match=message):
        written(tmp_path, content, split).read(split)


def answered(**changes) -> dict:
    return file_of(QUESTION | {"answers": [ANSWER | changes]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"data": [', "not JSON (Expecting value: "),
        (b'{"id": "1"}\n{"id": "2"}', "not JSON (Extra data: line 2"),
        (b'[{"id": "1"}]', "expected a JSON object, got list"),
        ({}, "lacks 'data'"),
        (file_of(), "no question"),
        (file_of({"id": "2", "answers": []}), "lacks 'question'"),
        (file_of(QUESTION, context=["a"]), "context of question '1' is ['a'], not a text"),
        (file_of(QUESTION | {"id": 7}), "id of question 7 is 7, not a text"),
        (answered(answer_start="4"), "answer_start of question '1' is '4', not a number"),
        (answered(answer_start=-1), "answer_start of question '1' is -1, not a number of 0 or mor"),
        (answered(text=None), "the text of an answer of question '1' is None, not a text"),
        (file_of("what?"), "a question is 'what?', not an object"),
        (  # as datasets have it
            file_of(QUESTION | {"answers": {"text": ["Denver"], "answer_start": [4]}}),
            "answers of question '1' is {'text': ['Denver'], 'answer_start': [4]}"[:60],
        ),
        ({"data": 1}, "'int' object is not iterable"),
    ],
)
def test_refused(content, message, tmp_path):
    with pytest.raises(ValueError) as error:
        written(tmp_path, content, "dev").read("dev")
    assert str(error.value).startswith(f"{tmp_path}/dev-v1.1.json: damaged ({message}")
    assert PUBLISHED in str(error.value)


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_an_id_of_two_questions_is_refused(split, tmp_path):
    """Else the answer to the last of them would count for all."""
    content = file_of(OTHER, QUESTION)
    content["data"] += file_of(QUESTION)["data"]  # of another article
    with pytest.raises(ValueError, match=r"json: 2 questions have the id '1', by which .* its own"):
        written(tmp_path, content, split).read(split)


def test_questions_without_answers_are_predicted(tmp_path):
    asked = {"id": "1", "question": "Who?"}
    task = written(tmp_path, file_of(QUESTION), "dev")
    assert task.predicted_splits == ("dev",)
    content = file_of(asked, asked | {"id": "2", "answers": []}, asked | {"id": "3"})
    assert written(tmp_path, content, "test").predicted_splits == ("dev", "test")
    assert [one.answers for one in task.read("test")] == [(), (), ()]


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


def test_answers_have_a_folder_of_their_own_and_a_file_for_each_split(tmp_path):
    """Of GLUE all tasks share one, as tests/finetuning/test_runs.py shows."""
    asked = {"id": "own", "question": "ship ?"}
    task = written(tmp_path, file_of(asked), "test")
    shapes = {"example_index": (0,)} | dict.fromkeys(("char_starts", "char_ends"), (0, 8))
    none = {name: np.zeros(shape, np.int32) for name, shape in shapes.items()}
    none["is_max_context"] = np.zeros([0, 8], bool)
    splits = {n: Split(examples=task.read("test"), features=none) for n in task.predicted_splits}
    best = SimpleNamespace(predictions=lambda names: ((n, np.zeros([0, 8, 2])) for n in names))
    files = sweep._predict(tmp_path / "out", task, splits, best)
    folder = tmp_path / "out" / "squad1"
    assert files == [folder / "predictions.json", folder / "predictions_test.json"]
    assert [json.loads(path.read_text()) for path in files] == [{"own": ""}] * 2


def test_squad_has_no_part_in_the_average_of_glue():
    setting = Setting(learning_rate=1e-3, seed=1)
    scores = {"dev/exact": 40.0, "dev/f1": 60.0, "dev/total": 6}
    run = SimpleNamespace(setting=setting, epochs=[scores], score=60.0, main_metric="dev/f1")
    record = sweep.record_of(SquadTask(data_dir=""), [run])
    assert (record["median"], record["task_score"]) == (60.0, None)


@pytest.mark.gate
def test_a_model_without_pooler_answers_questions(tmp_path):
    generated_glue.write_model(tmp_path / "model", without="bert/pooler")
    write_questions(tmp_path, "train", 20)
    write_questions(tmp_path, "dev", 6)
    asked = {"id": "own", "question": "ship ?"}
    written(tmp_path, file_of(asked, context="red ship sails south"), "test")
    records, (path, of_test) = sweep.run(options(tmp_path, do_predict=True))
    assert sweep.line(records).startswith("RESULT,squad1,f1,")
    assert {"dev/exact", "dev/f1"} <= records["squad1"]["runs"][0]["epochs"][-1].keys()
    assert path == tmp_path / "out" / "predictions" / "squad1" / "predictions.json"
    assert of_test == path.with_name("predictions_test.json")
    assert json.loads(of_test.read_text()).keys() == {"own"}
    assert json.loads(path.read_text()).keys() == {f"q{number}" for number in range(6)}


def test_lengths_are_the_fields_and_windows_overlap(tmp_path):
    config = config_of(tmp_path, max_seq_length=None)
    for name, length in {"rte": 128, "squad1": 384}.items():
        assert config.create(name).max_seq_length == length

    def doc_stride(**changes) -> int:
        config = config_of(tmp_path, max_seq_length=384, data_dir="squad", **changes)
        return config.create("squad1").doc_stride

    assert doc_stride() == 128 and doc_stride(doc_stride=316) == 316
    task = SquadTask(data_dir="")
    assert (task.max_answer_length, task.n_best_size) == (30, 20)  # as in the published code
    with pytest.raises(ValueError, match=r"--doc_stride=317: windows would not .* for 317 tokens"):
        doc_stride(doc_stride=317)


def test_only_the_training_split_is_labelled(tmp_path):
    generated_glue.write_model(tmp_path / "model")
    task = (config := options(tmp_path)).create("squad1")
    source = weights.find(config, [task])
    for split in ("train", "dev"):
        write_questions(tmp_path, split, 3)
        features = read_split(task, source, split).features
        assert (
            ("start_positions" in features) == ("char_starts" not in features) == (split == "train")
        )


def test_what_cannot_be_scored_is_found_before_the_training(tmp_path):
    generated_glue.write_model(tmp_path / "model")
    write_questions(tmp_path, "train", 20)
    written(tmp_path, file_of(QUESTION, context=""), "dev")
    with pytest.raises(ValueError, match="squad1: no examples of dev: its file holds no text; co"):
        sweep.run(options(tmp_path))
    assert not (tmp_path / "out").exists()
