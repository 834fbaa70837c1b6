"""Offline evaluation: each checkpoint once, oldest first, during or after training.

Long because what is evaluated depends on where the training stands.
"""

import dataclasses
import json
import re
import shutil
import types
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from mlperf_bert.checkpoints import reading
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.convert.saving import weights_by_tf1_name, write_name_based
from mlperf_bert.files.locks import DirectoryLock
from mlperf_bert.input.pipeline import ExampleShape
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.model.pretrainer import build_pretrainer, trained_variables
from mlperf_bert.training import offline
from mlperf_bert.training.config import Cluster, RunConfig
from mlperf_bert.training.evaluations import (
    RESULTS_LINES,
    RESULTS_TEXT,
    data_of,
    read_evaluations,
    record_evaluation,
)
from mlperf_bert.training.output import OutputDirectory
from tests.checkpoints.stored_weights import read_weights
from tests.helpers import starts, tiny_examples
from tests.training.configurations import run_config
from tests.training.small_runs import training_to_evaluate

TASK = {"num_hidden_layers": 1}
ALIKE = Evaluation(**dict.fromkeys(Evaluation.__annotations__, 0.5))


def lines_of(output) -> list[dict]:
    lines = (output / RESULTS_LINES).read_text().splitlines()
    return [json.loads(line) for line in lines]


def configuration(task, output, **changed) -> RunConfig:
    config = run_config(
        bert_config_file=str(task / "bert_config.json"),
        input_file=str(task / "eval.tfrecord"),
        output_dir=str(output),
        max_seq_length=32,
        max_predictions_per_seq=6,
        eval_batch_size=7,
        num_train_steps=30,
    )
    return dataclasses.replace(config, **changed)


@pytest.fixture
def all_alike(monkeypatch):
    """Every checkpoint has the same figures; none is read."""
    evaluator = (lambda prefix: ALIKE, "1 files")
    monkeypatch.setattr(offline, "_evaluator", lambda config: nullcontext(evaluator))


@pytest.mark.usefixtures("all_alike")
def test_the_first_trained_checkpoint_that_reaches_the_target_is_the_last(tmp_path):
    """The initial weights do not count, and another call evaluates nothing."""
    for step in (0, 10, 20):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    for _ in range(2):
        offline.evaluate_checkpoints(configuration(tmp_path, tmp_path, target_accuracy=0.5))
        assert [line["step"] for line in lines_of(tmp_path)] == [0, 10]


def finished_run(output: Path, *steps: int) -> Path:
    """A directory with these checkpoints, of which only the names are there."""
    output.mkdir()
    OutputDirectory(str(output), {}).record(status="aborted", seed=1)
    for step in steps:
        (output / f"model.ckpt-{step}.index").touch()
    return output


@pytest.mark.usefixtures("all_alike")
def test_of_a_finished_run_the_named_checkpoint_or_all_of_them_once(tmp_path, capsys):
    output = finished_run(tmp_path / "out", 0, 10, 20, 30)
    for last, steps in ((20, [20]), (30, [20, 0, 10, 30]), (30, [20, 0, 10, 30])):
        offline.evaluate_checkpoints(configuration(tmp_path, output, num_train_steps=last))
        assert [line["step"] for line in lines_of(output)] == steps
    assert "nothing new to evaluate" in capsys.readouterr().err
    text = (output / RESULTS_TEXT).read_text().splitlines()
    assert text[0] == "global_step = 30" and text == sorted(text)


@pytest.mark.usefixtures("all_alike")
def test_beside_a_training_it_sleeps_until_there_is_more(tmp_path, monkeypatch, capsys):
    output, slept, comes = tmp_path / "out", [], iter([[], [0, 10], [], [30, 40]])
    output.mkdir()  # the training is not there yet

    def sleep(seconds):
        slept.append(seconds)
        for step in next(comes):
            (output / f"model.ckpt-{step}.index").touch()

    monkeypatch.setattr(offline, "time", types.SimpleNamespace(sleep=sleep))
    looked = lambda place: looks.append(place) or offline.saved_checkpoints(place)  # noqa: E731
    looks = []
    monkeypatch.setattr(offline, "complete_checkpoints", looked)
    monkeypatch.setattr(offline, "_is_running", lambda _: True)
    offline.evaluate_checkpoints(configuration(tmp_path, output))
    assert [line["step"] for line in lines_of(output)] == [0, 10, 30]
    for _ in range(2):  # the one behind its last step, and then none: it does not wait for more
        offline.evaluate_checkpoints(configuration(tmp_path, output))
        assert [line["step"] for line in lines_of(output)] == [0, 10, 30, 40]
    assert slept == [offline.SECONDS_BETWEEN_LOOKS] * 4
    assert len(looks) > 4  # none that is half written
    assert capsys.readouterr().err.count("waiting for the checkpoints of a training") == 1


@pytest.mark.usefixtures("all_alike")
def test_the_checkpoint_that_a_training_saves_at_its_end_is_evaluated(tmp_path, monkeypatch):
    output, answers = finished_run(tmp_path / "out", 10), iter([True, True, True])

    def is_running(_):
        if not (runs := next(answers, False)):
            (output / "model.ckpt-20.index").touch()
        return runs

    monkeypatch.setattr(offline, "time", types.SimpleNamespace(sleep=lambda _: None))
    monkeypatch.setattr(offline, "complete_checkpoints", offline.saved_checkpoints)
    monkeypatch.setattr(offline, "_is_running", is_running)
    offline.evaluate_checkpoints(configuration(tmp_path, output))
    assert [line["step"] for line in lines_of(output)] == [10, 20]


def test_the_examples_are_those_of_eval_input_file_where_it_is_given(task, monkeypatch):
    """As with all flags of a training; the batch has to fit the devices."""
    monkeypatch.setattr(offline, "model_to_evaluate", lambda *_: (None, None))
    own = {"input_file": "/none", "eval_input_file": str(task / "eval.tfrecord")}
    with offline._evaluator(given := configuration(task, task, **own)) as (_, data):
        assert data == data_of(given, [own["eval_input_file"]])
    of_two = types.SimpleNamespace(num_replicas=2)
    monkeypatch.setattr(offline.devices, "create", lambda _: of_two)
    with pytest.raises(ValueError, match=r"^--eval_batch_size=7 cannot be shared by 2 replicas"):
        offline._evaluator(given).__enter__()


def test_no_more_batches_are_evaluated_than_wanted(task, monkeypatch):
    model = types.SimpleNamespace(trainable_variables=[])
    counter = types.SimpleNamespace(evaluate=lambda batches: sum(1 for _ in batches))
    monkeypatch.setattr(offline, "model_to_evaluate", lambda *_: (model, counter))
    monkeypatch.setattr(offline.reading, "load_weights", lambda *_: None)
    for wanted, evaluated in ((None, 7), (2, 2)):  # of 45 examples
        with offline._evaluator(configuration(task, task, max_eval_steps=wanted)) as (one, data):
            assert one(f"{task}/init/model.ckpt-0") == evaluated
            assert data.endswith("the first 14 examples") == bool(wanted)


def test_all_figures_of_a_run_are_of_one_evaluation(task, tmp_path, monkeypatch):
    """The same content elsewhere is the same; other content, or a part of it, is refused."""
    model = types.SimpleNamespace(trainable_variables=[])
    counter = types.SimpleNamespace(evaluate=lambda batches: ALIKE)
    monkeypatch.setattr(offline, "model_to_evaluate", lambda *_: (model, counter))
    monkeypatch.setattr(offline, "_load", lambda *_: None)
    monkeypatch.setattr(offline, "StoredCheckpoint", str)
    output = finished_run(tmp_path / "out", 10)
    shutil.copy(task / "eval.tfrecord", tmp_path / "copy")
    shutil.copy(task / "train.tfrecord", tmp_path / "other")
    (halves := tmp_path / "halves").mkdir()
    for name in ("a", "b"):
        shutil.copy(task / "eval.tfrecord", halves / name)

    def evaluate_all(path: Path, **changed) -> None:
        config = configuration(task, output, input_file=str(path), **changed)
        offline.evaluate_checkpoints(config)

    evaluate_all(task / "eval.tfrecord")
    for step in (20, 30):
        (output / f"model.ckpt-{step}.index").touch()
    for path, changed in (
        (tmp_path / "other", {}),
        (halves / "*", {}),
        (task / "eval.tfrecord", {"max_eval_steps": 2}),
    ):
        with pytest.raises(ValueError, match=r"out: its figures are of other evaluation .* remove"):
            evaluate_all(path, **changed)
    assert read_evaluations(output).keys() == {10}
    evaluate_all(tmp_path / "copy", max_eval_steps=5, eval_batch_size=9)  # all 45 examples
    assert read_evaluations(output).keys() == {10, 20, 30}
    (output / RESULTS_LINES).unlink()
    evaluate_all(halves / "*")
    assert read_evaluations(output).keys() == {10, 20, 30}
    for old, new in (("a", "z"), ("b", "c")):
        (halves / old).rename(halves / new)
    evaluate_all(halves / "*")
    # A run that has evaluated itself says in run.json on what.
    other = finished_run(tmp_path / "online", 10)
    data = data_of(configuration(task, other), [str(task / "eval.tfrecord")])
    inputs = {"eval_input_file": data}
    OutputDirectory(str(other), {}).record(status="aborted", seed=1, inputs=inputs)
    offline.evaluate_checkpoints(configuration(task, other))
    (other / RESULTS_LINES).unlink()
    with pytest.raises(ValueError, match=r"online: its figures .* without run.json, into another"):
        offline.evaluate_checkpoints(configuration(task, other, input_file=str(tmp_path / "other")))


@pytest.mark.gate
def test_a_given_checkpoint_is_evaluated_where_there_is_no_run(task, tmp_path):
    given, output = f"{task}/init/model.ckpt-0", tmp_path / "new" / "out"
    told = offline.evaluate(configuration(task, output, init_checkpoint=given, max_eval_steps=2))
    assert re.fullmatch(
        rf"{given}: masked-LM accuracy 0\.\d{{5}}, loss \d\.\d{{5}}, on 14 examples; see "
        rf"{output}/eval_results\.txt", told,
    )  # fmt: skip
    text = (output / RESULTS_TEXT).read_text()
    assert "global_step = 0\n" in text and "num_examples = 14\n" in text
    [line] = lines_of(output)
    assert line["checkpoint"] == given and line["num_examples"] == 14
    assert read_evaluations(output) == {}  # it is not one of a run
    assert not list(output.glob(".*"))
    with pytest.raises(ValueError, match=r"/none/model\.ckpt-1: no such checkpoint"):
        absent = configuration(task, tmp_path / "none", init_checkpoint="/none/model.ckpt-1")
        offline.evaluate(absent)
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("all_alike")
def test_the_given_checkpoint_of_a_run_is_evaluated_alone(tmp_path, capsys):
    output = finished_run(tmp_path / "out", 0, 10, 20, 30)
    own = f"{tmp_path}/./out/model.ckpt-20"
    for _ in range(2):
        offline.evaluate(configuration(tmp_path, output, init_checkpoint=own))
        assert [line["step"] for line in lines_of(output)] == [20]
    capsys.readouterr()
    offline.evaluate(configuration(tmp_path, output, init_checkpoint="init/model.ckpt-0"))
    assert "its checkpoints are evaluated, not --init_checkpoint=" in capsys.readouterr().err
    assert [line["step"] for line in lines_of(output)] == [20, 0, 10, 30]


@pytest.mark.gate
def test_a_run_draws_the_head_that_its_checkpoint_lacks(task, tmp_path, capsys):
    """From its seed, whatever the warm-up has made of it; an evaluation says that it is random."""
    weights = read_weights(str(task / "init" / "model.ckpt-0"))
    held = {n: value for n, value in weights.items() if "seq_relationship" not in n}
    given, output = str(tmp_path / "given"), tmp_path / "out"
    write_name_based(given, held)
    flags = (f"--init_checkpoint={given}", "--num_train_steps=1", "--seed=7")
    done = starts.run(training_to_evaluate(task, output, *flags, "--jit_compile=false"), check=True)
    assert "drawn, for it lacks them: next-sentence head\n" in done.stdout
    model = build_pretrainer(BertConfig.from_json_file(task / "bert_config.json"), seed=7)
    drawn = weights_by_tf1_name(trained_variables(model))
    initial = StoredCheckpoint(str(output / "model.ckpt-0"))
    for weight, variable in reading.weights_of(trained_variables(model)).items():
        value = weight.to_tf1(initial.read(weight, tuple(variable.shape)))
        expected = held.get(weight.tf1_name, drawn[weight.tf1_name])
        assert np.array_equal(value, expected), weight.tf1_name
    alone = configuration(task, tmp_path / "alone", init_checkpoint=given)
    offline.evaluate(alone)
    told = f"{given} has no next-sentence head: drawn at random; the masked-LM"
    assert told in capsys.readouterr().err
    write_name_based(given, {n: each for n, each in held.items() if "predictions" not in n})
    with pytest.raises(ValueError, match="given: has no masked-LM head, no next-sentence head; a "):
        offline.evaluate(alone)


@pytest.mark.usefixtures("all_alike")
@pytest.mark.parametrize(
    ("name", "step"), [("model.ckpt-120", 120), ("model.ckpt", 0), ("best-7-old", 0)]
)
def test_a_given_checkpoint_has_the_step_of_its_name(tmp_path, monkeypatch, capsys, name, step):
    """Where there is no run; what a run would need instead is told first."""
    given, output, opened = f"{tmp_path}/{name}", tmp_path / "new", []
    monkeypatch.setattr(offline, "StoredCheckpoint", opened.append)
    told = offline.evaluate(configuration(tmp_path, output, init_checkpoint=given))
    assert told == (
        f"{given}: masked-LM accuracy 0.50000, loss 0.50000, on 0.5 examples; see "
        f"{output}/{RESULTS_TEXT}"
    )
    assert f"global_step = {step}\n" in (output / RESULTS_TEXT).read_text() and opened == [given]
    assert [(line["step"], line["checkpoint"]) for line in lines_of(output)] == [(step, given)]
    assert capsys.readouterr().err == (
        f"{output} holds no run: --init_checkpoint={given} is evaluated; to wait for the "
        "checkpoints of a training, leave it out\n"
    )
    assert not list(output.glob(".*"))


def test_an_evaluation_of_several_processes_is_refused(task, tmp_path):
    of_two = configuration(task, tmp_path, cluster=Cluster(2, 0, 2, 1, 0))
    with pytest.raises(ValueError, match=r"^--do_eval without --do_train runs in one process; uns"):
        offline._evaluator(of_two).__enter__()


def test_an_evaluation_draws_the_next_sentence_head_that_is_missing(tmp_path, capsys):
    model = build_pretrainer(BertConfig(**tiny_examples.TINY | {"num_hidden_layers": 1}), seed=7)
    variables = trained_variables(model)
    drawn = weights_by_tf1_name(variables)
    held = {name: value + 1 for name, value in drawn.items() if "seq_relationship" not in name}
    write_name_based(given := str(tmp_path / "given"), held)
    offline._load(model, StoredCheckpoint(given))
    loaded = weights_by_tf1_name(variables)
    assert all(np.array_equal(loaded[name], held.get(name, drawn[name])) for name in drawn)
    told = capsys.readouterr().err
    assert told.startswith(f"{given} has no next-sentence head: drawn at random; the masked-LM acc")


@pytest.mark.parametrize("begins", [False, True])
def test_an_evaluator_waits_for_a_training_that_begins(task, tmp_path, begins):
    output = tmp_path / "out"
    lock = DirectoryLock(output)
    assert not begins or lock.acquire()
    assert offline._holds_a_run(output) == begins
    lock.release()


@pytest.mark.gate
def test_bad_input_is_named_and_nothing_recorded(task, tmp_path):
    output = finished_run(tmp_path / "out")
    for path in (task / "init").glob("model.ckpt-0.*"):
        shutil.copy(path, output / path.name.replace("-0.", "-30.", 1))
    other = tmp_path / "bert_config.json"
    config = json.loads((task / "bert_config.json").read_text())
    other.write_text(json.dumps(config | {"intermediate_size": 24}))
    with pytest.raises(ValueError, match=r"model\.ckpt-30: not a checkpoint of this architecture"):
        offline.evaluate_checkpoints(configuration(task, output, bert_config_file=str(other)))
    with pytest.raises(ValueError, match="max_position_embeddings"):
        shape = ExampleShape(max_seq_length=1024, max_predictions_per_seq=6)
        offline.evaluate_checkpoints(configuration(task, output, shape=shape))
    with pytest.raises(ValueError, match=r"eval\.tfrecord.*max_predictions_per_seq"):
        shape = ExampleShape(max_seq_length=32, max_predictions_per_seq=7)
        offline.evaluate_checkpoints(configuration(task, output, shape=shape))
    damaged = tmp_path / "eval.tfrecord"
    content = bytearray((task / "eval.tfrecord").read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(ValueError, match=r"eval\.tfrecord: record \d+ at byte \d+ is damaged"):
        offline.evaluate_checkpoints(configuration(task, output, input_file=str(damaged)))
    data = output / "model.ckpt-30.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model\.ckpt-30: cannot be read"):
        offline.evaluate_checkpoints(configuration(task, output))
    assert not read_evaluations(output)


@pytest.mark.parametrize(
    ("status", "steps", "runs"),
    [
        (None, [], True),  # it has not begun
        (None, [10], False),  # checkpoints that were copied
        ("running", [10], True),
        ("aborted", [10], False),
        ("success", [], False),
    ],
)
def test_whether_a_training_may_save_more(tmp_path, status, steps, runs):
    if status:
        OutputDirectory(str(tmp_path), {}).record(status=status, seed=1)
    for step in steps:
        (tmp_path / f"model.ckpt-{step}.index").touch()
    assert offline._is_running(tmp_path) is runs


def test_two_evaluations_into_one_directory(task, tmp_path):
    lock = DirectoryLock(tmp_path, file_name=".eval.lock")
    assert lock.acquire()
    with pytest.raises(ValueError, match="another process evaluates its checkpoints; wait for it"):
        offline.evaluate_checkpoints(configuration(task, tmp_path))
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_was_reached_needs_no_end_of_the_training(tmp_path, monkeypatch):
    joined = []
    monkeypatch.setattr(
        offline.joining,
        "join",
        lambda logs, _, **given: joined.append(given | {"logs": logs}) or ("success", 160),
    )
    OutputDirectory(str(tmp_path), {}).record(status="running", seed=1)
    logs = [tmp_path / "bert.log", tmp_path / "bert.resumed-1.log"]
    for each in logs:
        each.touch()
    record_evaluation(tmp_path, 20, ALIKE)
    line = offline.write_result(str(tmp_path), target_accuracy=0.51)
    assert line == "no result log yet: the training is still running" and not joined
    line = offline.write_result(str(tmp_path), target_accuracy=0.5)
    assert line.startswith(f"{tmp_path}/bert.offline.log: success after 160 samples; division open")
    told = [(each["logs"], each["target_accuracy"], each["num_eval_samples"]) for each in joined]
    assert told == [(logs, 0.5, ALIKE.num_examples)] and ALIKE.num_examples == 0.5


def test_evaluations_of_different_sizes_are_no_result(tmp_path):
    """An evaluation has the same number of samples after every checkpoint."""
    OutputDirectory(str(tmp_path), {}).record(status="aborted", seed=1)
    (tmp_path / "bert.log").touch()
    for step, num_examples in ((0, 45), (10, 45), (20, 44)):
        record_evaluation(tmp_path, step, dataclasses.replace(ALIKE, num_examples=num_examples))
    line = offline.write_result(str(tmp_path), target_accuracy=0.72)
    assert line.startswith("no result log: the checkpoints were evaluated on 44 to 45 examples; ")
    assert str(tmp_path / RESULTS_LINES) in line


@pytest.mark.parametrize(
    ("has_log", "steps", "reason"),
    [
        (False, [10], ": {}/bert.log, the log of the training, is missing"),
        (True, [], ": no checkpoint has been evaluated"),
        (True, [10], ": {}/bert.log: is damaged"),
    ],
)
def test_why_there_is_no_result_is_told(tmp_path, monkeypatch, has_log, steps, reason):
    def join(*_, **__):
        raise ValueError(f"{tmp_path}/bert.log: is damaged")

    monkeypatch.setattr(offline.joining, "join", join)
    OutputDirectory(str(tmp_path), {}).record(status="aborted", seed=1)
    if has_log:
        (tmp_path / "bert.log").touch()
    for step in steps:
        record_evaluation(tmp_path, step, ALIKE)
    line = offline.write_result(str(tmp_path), target_accuracy=0.72)
    assert line == f"no result log{reason.format(tmp_path)}"


def test_no_training_directory(task, tmp_path):
    with pytest.raises(ValueError, match="no such directory; start the training first"):
        offline.evaluate_checkpoints(configuration(task, tmp_path / "none"))
