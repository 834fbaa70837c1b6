"""Whole runs on the tiny GLUE: resumed, swept, predicted, refused. CPU, two minutes.

Most train a stand-in for the model, whose answers are known. Long because all of its runs are of
one small GLUE.
"""

import collections
import dataclasses
import functools
import json
import re
import shutil
import signal
import statistics
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from mlperf_bert.checkpoints.state import RunState, newest_checkpoint
from mlperf_bert.files import locks
from mlperf_bert.finetuning import by_jax, glue, sweep, task_trainer, weights
from mlperf_bert.finetuning import model as task_model
from mlperf_bert.finetuning import run as run_module
from mlperf_bert.finetuning.config import Setting
from mlperf_bert.finetuning.run import TaskRun, read_split
from mlperf_bert.finetuning.squad import SquadTask
from mlperf_bert.finetuning.task_trainer import TaskTrainer
from mlperf_bert.messages import ERROR, NOTE, Finding
from mlperf_bert.optimization.optimizers import WarmupPolynomialDecay
from mlperf_bert.programs.contract import LocalState
from mlperf_bert.training.config import DeviceConfig
from mlperf_bert.training.reporting import MetricsWriter
from tests.finetuning import generated_glue
from tests.finetuning.generated_glue import MAX_SEQ_LENGTH, config_of
from tests.helpers import starts, waiting

ONE = Setting(learning_rate=1e-3, seed=1)
# Setting -> right answers of a dev set after each of three epochs. The median is best at 2e-5, and
# the best run is one of 1e-5.
NUM_RIGHT = {
    Setting(learning_rate=1e-5, seed=1): (2, 7, 4),
    Setting(learning_rate=1e-5, seed=2): (8, 1, 9),
    Setting(learning_rate=1e-5, seed=3): (9, 9, 1),
    Setting(learning_rate=2e-5, seed=1): (4, 3, 5),
    Setting(learning_rate=2e-5, seed=2): (1, 9, 3),
    Setting(learning_rate=2e-5, seed=3): (3, 2, 6),
}
SETTINGS = FIRST, BEST, *_, LAST = tuple(NUM_RIGHT)
NUM_EXAMPLES, BATCH_SIZE, EVAL_BATCH_SIZE, STEPS_PER_EPOCH = 37, 8, 4, 5
NUM_OF_DEV = {"dev_matched": 11, "dev_mismatched": 9}


class StandIn(LocalState):
    """In place of the trainer: its state is the step, and it answers as `NUM_RIGHT` says.

    `at` has what happens at the end of a step, or as its checkpoint is saved: once.
    """

    steps: list[tuple[Setting, int, list[int]]]
    calls: list[tuple]
    at: dict
    of_compiler: Finding | None

    def __init__(self, *, build_model, schedule):
        model = build_model()
        self.task = model.task
        self.setting = Setting(learning_rate=schedule.learning_rate, seed=model.seed)
        num_steps = 3 * STEPS_PER_EPOCH
        assert model.precision == "bfloat16"
        assert schedule == WarmupPolynomialDecay(
            learning_rate=schedule.learning_rate, num_train_steps=num_steps, num_warmup_steps=1
        )
        self.step = tf.Variable(0, dtype=tf.int64)
        self.state = {"step": self.step}
        self.on_device = None  # the step, as after `put_state`

    def put_state(self) -> None:
        self.on_device = int(self.step)

    def fetch_state(self) -> None:
        StandIn.calls.append(("fetch",))

    def compile_for(self, to_train, to_predict) -> Finding | None:
        return StandIn.of_compiler

    def train(self, rows_of_batches, num_steps) -> np.ndarray:
        assert num_steps == 1  # so that a signal need not wait
        rows, step = next(rows_of_batches), int(self.step.assign_add(1))
        self.on_device += 1
        StandIn.steps.append((self.setting, step, rows.tolist()))
        StandIn.at.pop((self.setting, step), lambda: None)()
        return np.array([[loss_of(rows)]], np.float32)

    def predictions(self, features, *, size) -> np.ndarray:
        assert (size, self.on_device) == (EVAL_BATCH_SIZE, self.step)
        num = len(features["input_ids"])
        classes = np.arange(num) + self.setting.seed
        if "labels" in features:
            num_right = NUM_RIGHT.get(self.setting, (5, 5, 5))
            is_right = np.arange(num) < num_right[int(self.step) // STEPS_PER_EPOCH - 1]
            classes = features["labels"] + ~is_right
        if not self.task.labels:
            return classes[:, None].astype(np.float32)
        return np.eye(self.task.num_labels, dtype=np.float32)[
            classes.astype(int) % self.task.num_labels
        ]


def loss_of(rows) -> float:
    return float(np.dot(rows, np.arange(1, len(rows) + 1)))


def test_the_loss_of_a_filled_up_batch_is_the_mean_of_its_examples(monkeypatch):
    """The last batch of an epoch has copies, which count for nothing."""
    monkeypatch.setattr(task_model, "trained_variables", lambda scale: [scale])
    monkeypatch.setattr(task_model, "forward", lambda scale, batch, training: scale)
    monkeypatch.setattr(task_model, "losses", lambda logits, batch: logits * batch["loss"])
    trainer = TaskTrainer(
        build_model=lambda: tf.Variable(2.0, name="scale"),
        schedule=WarmupPolynomialDecay(learning_rate=1e-3, num_train_steps=9, num_warmup_steps=0),
    )
    features = {"loss": np.array([1.0, 3.0, 9.0], np.float32)}
    batch = task_trainer.batch_of(features, np.array([0, 1]), 4)
    assert trainer.train(iter([batch]), 1).tolist() == [[4.0]]


@pytest.fixture
def stand_in(own, monkeypatch):
    """Three epochs of MNLI with unequal dev sets by the stand-in."""
    StandIn.steps, StandIn.calls, StandIn.at = [], [], {}
    StandIn.of_compiler = None
    save, flush = RunState.save, MetricsWriter.flush

    def saved(self, step, *more):
        StandIn.calls.append(("save", step))
        StandIn.at.pop((self.directory.rpartition("/")[2], step), lambda: None)()
        path = save(self, step, *more)
        assert StandIn.calls[-1] == ("fetch",)
        return path

    def flushed(self):
        StandIn.calls.append(("flush",))
        flush(self)

    monkeypatch.setattr(run_module, "TaskTrainer", StandIn)
    monkeypatch.setattr(task_trainer, "predictions", StandIn.predictions)
    monkeypatch.setattr(task_trainer, "batch_of", lambda features, rows, size: rows)
    monkeypatch.setattr(
        task_model, "build", lambda task, source, **given: SimpleNamespace(task=task, **given)
    )
    monkeypatch.setattr(RunState, "save", saved)
    monkeypatch.setattr(MetricsWriter, "flush", flushed)
    dev = own / "glue" / "MNLI" / "dev_mismatched.tsv"
    dev.write_bytes(b"\n".join(dev.read_bytes().split(b"\n")[:10]))

    def config(name: str, **changes):
        options = {"num_train_epochs": 3, "do_predict": True, "precision": "bfloat16"}
        options["eval_batch_size"] = EVAL_BATCH_SIZE
        given = {"task": "mnli", "settings": SETTINGS, "output_dir": str(own / name)}
        return config_of(own, **given | options | changes)

    return config


def epochs_of(setting: Setting) -> list[dict]:
    return [
        {f"{name}/accuracy": float(f"{100 * n / num:.9g}") for name, num in NUM_OF_DEV.items()}
        for n in NUM_RIGHT[setting]
    ]


def metrics_of(setting: Setting) -> list[dict]:
    """The lines of a run's metrics.jsonl; there is a training line every ten steps."""
    order = np.random.RandomState([setting.seed, 1]).permutation(NUM_EXAMPLES)
    lines = []
    for number, epoch in enumerate(epochs_of(setting), start=1):
        common = {"step": number * STEPS_PER_EPOCH, "samples": number * NUM_EXAMPLES}
        if number == 2:
            lines.append({"kind": "train", **common, "loss": loss_of(order[4 * BATCH_SIZE :])})
        lines.append({"kind": "eval", **common, "epoch": number, **epoch})
    return lines


def lines_of(path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()]


def results_in(folder) -> dict:
    return json.loads((folder / "results.json").read_text())


def test_the_figures_of_an_epoch_are_there_before_its_checkpoint(own, stand_in):
    """A run that is killed as it saves goes on behind the epoch: nobody evaluates it again."""
    config, seen = stand_in("order", settings=(LAST,), do_predict=False), []
    (own / "glue" / "MNLI" / "test_matched.tsv").unlink()  # of use to --do_predict alone
    metrics = own / "order" / "mnli" / LAST.folder / "metrics.jsonl"
    for step in (5, 10, 15):
        StandIn.at[LAST.folder, step] = lambda: seen.append(lines_of(metrics)[-1]["epoch"])
    sweep.run(config)
    assert seen == [1, 2, 3]


def test_a_sweep_reports_medians_and_keeps_the_best_checkpoint(own, stand_in, capsys):
    records, files = sweep.run(stand_in("out"))
    out = own / "out"
    for setting in SETTINGS:
        assert lines_of(out / "mnli" / setting.folder / "metrics.jsonl") == metrics_of(setting)
    kept = out / "mnli" / BEST.folder / "model.ckpt-15.index"
    assert [*out.rglob("model.ckpt-*.index")] == [kept]
    told = capsys.readouterr().err
    assert f"mnli, {FIRST}: epoch 2: dev_matched/accuracy 63.64, dev_mismatched/accuracy 77" in told
    expected = {
        "main_metric": "dev_matched/accuracy",
        "learning_rate": 2e-5,
        "median": epochs_of(SETTINGS[3])[2]["dev_matched/accuracy"],
        "best": epochs_of(BEST)[2]["dev_matched/accuracy"],
        "best_setting": {"learning_rate": 1e-5, "seed": 2},
        # The median over the seeds is the run of 5 right answers.
        "task_score": pytest.approx((500 / 11 + 500 / 9) / 2),
        "runs": [{**vars(setting), "epochs": epochs_of(setting)} for setting in SETTINGS],
        "predictions_of": {"learning_rate": 1e-5, "seed": 2},
    }
    assert results_in(out) == {"tasks": {"mnli": expected}, "glue_average": None}
    assert [line.split() for line in sweep.table(records).splitlines()] == [
        ["task", "metric", "learning", "rate", "seeds", "median", "best"],
        ["mnli", "accuracy", "1e-05", "3", "36.36", "81.82"],
        ["mnli", "accuracy", "2e-05*", "3", "45.45", "54.55"],
    ]
    assert sweep.line(records) == "RESULT,mnli,accuracy,45.455,learning_rate=2e-05,runs=6"
    names = ("contradiction", "entailment", "neutral")
    answers = [f"{n}\t{names[(n + BEST.seed) % 3]}" for n in range(6)]
    for path, name in zip(files, ("MNLI-m.tsv", "MNLI-mm.tsv"), strict=True):
        assert path == out / "predictions" / name
        assert path.read_text().splitlines() == ["index\tprediction", *answers]
    num_steps = len(StandIn.steps)

    # Nothing is trained twice, and other tasks stay in the results.
    assert sweep.run(stand_in("out")) == (records, files)
    assert capsys.readouterr().err.count("finished before: ") == len(SETTINGS) == 6
    other, _ = sweep.run(stand_in("out", task="cola", settings=SETTINGS[:1], do_predict=False))
    assert sweep.line(other) == "RESULT,cola,matthews,-31.053,learning_rate=1e-05,runs=1"
    assert list(results_in(out)["tasks"]) == ["cola", "mnli"]
    assert results_in(out)["tasks"]["mnli"] == expected
    assert len(StandIn.steps) == num_steps + 3 * STEPS_PER_EPOCH

    # Of a run that was not the best the answers cannot be given; the results say whose they are.
    with pytest.raises(ValueError, match="its checkpoint is gone, as that of a run that was not"):
        sweep.run(stand_in("out", settings=SETTINGS[:1]))
    found = results_in(out)["tasks"]["mnli"]
    assert found["best_setting"] == {"learning_rate": 1e-5, "seed": 1}
    assert found["predictions_of"] == {"learning_rate": 1e-5, "seed": 2}

    (out / "results.json").write_text('{"tasks": [1]}')
    num_steps = len(StandIn.steps)
    with pytest.raises(ValueError, match=r"results.json: damaged .*; remove it: the results"):
        sweep.run(stand_in("out", task="rte"))
    assert len(StandIn.steps) == num_steps


def test_a_loss_that_is_not_finite_is_neither_written_nor_saved(own, stand_in, monkeypatch):
    config, folder = stand_in("out", settings=(LAST,)), own / "out" / "mnli" / LAST.folder
    StandIn.at[LAST, 10] = lambda: monkeypatch.setitem(globals(), "loss_of", lambda rows: np.nan)
    told = f"{LAST}: the loss of step 10 is nan: training has diverged; lower --learning_rate .with"
    with pytest.raises(FloatingPointError, match=f"^mnli, {told} --sweep: leave this one out of "):
        sweep.run(config)
    assert lines_of(folder / "metrics.jsonl") == metrics_of(LAST)[:1]
    assert newest_checkpoint(str(folder))[0] == 5


def test_commands_that_write_results_at_the_same_time_wait_for_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "_PATIENCE_SECONDS", 0)
    waits = pytest.raises(ValueError, match="another process writes here; wait for it")
    with locks.held(tmp_path, file_name=".results.lock"), waits:
        sweep._write(tmp_path, "rte", {"task_score": 7.0})
    sweep._write(tmp_path, "rte", {"task_score": 7.0})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json"]


def test_of_a_sweep_that_is_extended_the_best_run_alone_keeps_its_checkpoint(own, stand_in):
    """Though an earlier command has finished it."""
    sweep.run(stand_in("out", settings=SETTINGS[:2]))
    sweep.run(stand_in("out"))
    assert {path.parent.name for path in (own / "out").rglob("model.ckpt-*")} == {BEST.folder}


def test_a_sweep_that_is_stopped_again_and_again_ends_as_one_that_is_not(
    own, stand_in, monkeypatch
):
    def stop(*_, **__):
        signal.raise_signal(signal.SIGTERM)

    def power_failure():
        raise RuntimeError("power failure")

    sweep.run(stand_in("whole"))
    trained = {(setting, step): rows for setting, step, rows in StandIn.steps}
    for setting in SETTINGS:  # every example once in every epoch, each time in another order
        orders = [
            [row for step in range(1, 6) for row in trained[setting, 5 * epoch + step]]
            for epoch in range(3)
        ]
        random = [np.random.RandomState([setting.seed, epoch]) for epoch in range(3)]
        assert orders == [each.permutation(NUM_EXAMPLES).tolist() for each in random]
    # On the disk first: a resumed run does not evaluate again.
    for number, call in enumerate(StandIn.calls):
        assert (call[0] == "save") == (StandIn.calls[number - 1] == ("flush",))

    StandIn.steps.clear()
    with monkeypatch.context() as patched:  # before the first step a signal interrupts at once
        patched.setattr(task_model, "build", stop)
        with pytest.raises(KeyboardInterrupt):
            sweep.run(stand_in("parts"))
    # The second run alone, in its second epoch: the others are trained before it goes on.
    second = stand_in("parts", settings=SETTINGS[1:2])
    for what, of, place, end, kept, status in [
        (second, BEST, (BEST, 8), stop, 5, "running"),
        (stand_in("parts"), FIRST, (FIRST, 5), stop, 5, "running"),
        # After the lines of step 10 and before its checkpoint.
        (stand_in("parts"), FIRST, (FIRST.folder, 10), power_failure, 5, "running"),
        # While the last checkpoint is saved: the sweep ends.
        (stand_in("parts"), LAST, (LAST.folder, 15), stop, 15, "success"),
    ]:
        StandIn.at[place] = end
        with pytest.raises((KeyboardInterrupt, RuntimeError)):
            sweep.run(what)
        folder = own / "parts" / "mnli" / of.folder
        assert newest_checkpoint(str(folder))[0] == kept and not StandIn.at
        record = json.loads((folder / "run.json").read_text())
        assert (record["status"], record["seed"]) == (status, of.seed)
    sweep.run(stand_in("parts"))
    times = collections.Counter((setting, step) for setting, step, _ in StandIn.steps)
    again = [(BEST, step) for step in (6, 7, 8)] + [(FIRST, step) for step in range(6, 11)]
    assert times == dict.fromkeys(trained, 1) | dict.fromkeys(again, 2)
    assert all(rows == trained[setting, step] for setting, step, rows in StandIn.steps)
    files = ["results.json", "predictions/MNLI-m.tsv", "predictions/MNLI-mm.tsv"]
    for name in [*files, *(f"mnli/{setting.folder}/metrics.jsonl" for setting in SETTINGS)]:
        assert (own / "parts" / name).read_bytes() == (own / "whole" / name).read_bytes(), name


def test_what_does_not_fit_the_device_is_refused_before_a_step(own, stand_in, capsys):
    StandIn.of_compiler = Finding(ERROR, "does not fit: lower --train_batch_size")
    with pytest.raises(ValueError, match=r"^does not fit: lower --train_batch_size$"):
        sweep.run(stand_in("large"))
    assert not StandIn.steps and not list((own / "large").rglob("run.json"))
    StandIn.of_compiler = Finding(NOTE, "a step takes 7 GiB")
    sweep.run(stand_in("small", settings=SETTINGS[:2]))
    assert capsys.readouterr().err.count("note: a step takes 7 GiB\n") == 1


def test_all_of_glue_is_one_table_and_an_average(own, stand_in):
    one = {"settings": SETTINGS[:1]}
    sweep.run(stand_in("out", task="rte", **one))
    records, files = sweep.run(stand_in("out", task="glue", **one))
    assert list(records) == list(glue.NAMES)
    assert len(StandIn.steps) == 8 * 15  # rte counts, and is not trained again
    content = results_in(own / "out")
    scores = []
    for task in content["tasks"].values():
        scores.append(statistics.mean(task["runs"][0]["epochs"][-1].values()))
        assert task["task_score"] == scores[-1]
    assert content["glue_average"] == pytest.approx(sum(scores) / 8)
    last = sweep.table(records).splitlines()[-1]
    assert last.split() == ["glue", "average", f"{sum(scores) / 8:.2f}"]
    assert sweep.line(records) == f"RESULT,glue,average,{sum(scores) / 8:.3f}"
    names = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE".split()
    found = [path.relative_to(own / "out").as_posix() for path in files]
    assert found == [f"predictions/{name}.tsv" for name in names]


def test_a_finished_run_is_that_of_its_model_and_its_data_only(own, stand_in):
    config = stand_in("out", task="rte", settings=SETTINGS[:1])
    sweep.run(config)
    values = json.loads((own / "model" / "bert_config.json").read_text())

    def new_weights():
        random = np.random.RandomState(4)
        generated_glue.write_initial_checkpoint(own / "model" / "model.ckpt-0", values, random)

    def changed(name: str):
        path = own / "glue" / "RTE" / f"{name}.tsv"
        path.write_bytes(path.read_bytes().replace(b"\tnot_entail", b"\tentail", 1))

    changed("test")
    sweep.run(config)
    assert len(StandIn.steps) == 15
    differing = []
    for change, what in [
        (lambda: changed("train"), "train_sha256"),
        (lambda: changed("dev"), "dev_sha256"),
        (new_weights, "weights_sha256"),
    ]:
        change()
        with pytest.raises(ValueError, match="holds another run") as error:
            sweep.run(config)
        differing.append(what)
        assert {each for each in differing if f"{each}: " in str(error.value)} == {*differing}


class StopAfter:
    """Asks a run to stop before the step after so many."""

    def __init__(self, num_steps: int):
        self._left = num_steps + 1  # it is asked once before the first

    def defer(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt


def run_of(folder, name="out", **changes) -> TaskRun:
    config = config_of(folder, output_dir=str(folder / name), **changes)
    task = config.create(config.task)
    source = weights.find(config, [task])
    splits = {name: read_split(task, source, name) for name in ("train", *task.eval_splits)}
    return TaskRun(config, task, source, splits, ONE)


def weights_of(folder) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder)))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "OBJECT_GRAPH" not in name and "save_counter" not in name
    }


@pytest.mark.gate
@pytest.mark.parametrize("runtime", ["tensorflow", "jax"])
def test_a_resumed_run_of_the_model_equals_one_that_was_not_interrupted(own, runtime):
    generated_glue.write_model(own / "model", dropout=0.1)
    whole, parts = (run_of(own, name, runtime=runtime) for name in ("whole", "parts"))
    whole.train(StopAfter(10**9))
    first = run_of(own, "parts", runtime=runtime)
    with pytest.raises(KeyboardInterrupt):
        first.train(StopAfter(7))  # in the second of two epochs
    other = {"tensorflow": "jax", "jax": "tensorflow"}[runtime]
    with pytest.raises(ValueError, match=rf"another run .runtime: {runtime} there, {other} here"):
        run_of(own, "parts", runtime=other).train(StopAfter(7))
    first._output.claim()
    with pytest.raises(ValueError, match="another process trains into it; wait for it"):
        parts.train(StopAfter(7))
    first._output.release()
    parts.train(StopAfter(10**9))
    assert parts.epochs == whole.epochs and len(parts.epochs) == 2
    lines = [(run.folder / "metrics.jsonl").read_text() for run in (whole, parts)]
    assert lines[0] == lines[1]
    first, second = weights_of(whole.folder), weights_of(parts.folder)
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def test_whatever_decides_a_result_makes_it_another_run(own):
    run = run_of(own)
    run.folder.mkdir(parents=True)
    run._output.record(status="success", seed=1)
    path = run.folder / "run.json"
    recorded = json.loads(path.read_text())
    parameters = recorded["parameters"]
    decides = """task checkpoint weights_sha256 bert_config.hidden_size max_seq_length precision
        runtime train_batch_size learning_rate num_train_epochs warmup_proportion train_sha256
        dev_sha256"""
    assert set(decides.split()) <= parameters.keys()
    for name in parameters:
        path.write_text(json.dumps({**recorded, "parameters": {**parameters, name: "other"}}))
        with pytest.raises(ValueError, match=rf"holds another run .{re.escape(name)}: other there"):
            run_of(own).is_finished()

    changed = {"train_batch_size": 4, "num_train_epochs": 5, "warmup_proportion": 0.2}
    changed |= {"precision": "tf32", "runtime": "jax"}
    for name, value in changed.items():
        found = run_of(own, **{name: value})._parameters()
        assert {each for each in parameters if found[each] != parameters[each]} == {name}
    run._config = dataclasses.replace(run._config, max_seq_length=None)  # the task has a default
    assert run._parameters()["max_seq_length"] == MAX_SEQ_LENGTH


def test_checkpoints_go_with_what_a_killed_process_has_left_of_one(own):
    run = run_of(own)
    (run.folder / "model.ckpt-9_temp").mkdir(parents=True)
    for name in ("checkpoint", "model.ckpt-5.index", "metrics.jsonl", "run.json"):
        (run.folder / name).touch()
    run.remove_checkpoints()
    assert {path.name for path in run.folder.iterdir()} == {"metrics.jsonl", "run.json"}


def test_examples_are_counted_within_an_epoch_and_batches_of_both_sizes_must_fit(own):
    run, given = run_of(own, eval_batch_size=4), []
    assert [run._num_samples(step) for step in (0, 4, 5, 7, 10)] == [0, 32, 37, 53, 74]
    run._require_fit(SimpleNamespace(compile_for=lambda *batches: given.extend(batches)))
    assert [len(batch["input_ids"]) for batch in given] == [8, 4]
    assert ["labels" in batch for batch in given] == [True, False]
    for device, longest in ((DeviceConfig(), 1), (DeviceConfig(num_gpus=1), 10)):
        *_, last = run_of(own, device=device)._events(None, None, None, None)
        assert last.longest_call_steps == longest


def test_with_jax_the_trainer_is_jaxs_and_its_state_is_saved(own, monkeypatch):
    by_jax_alone = SimpleNamespace(state={"step": tf.Variable(0)}, fetch_state=lambda: None)
    given = []
    monkeypatch.setattr(run_module, "TaskTrainer", lambda **_: "TensorFlow's")
    monkeypatch.setattr(by_jax, "JaxTaskTrainer", lambda *both: given.extend(both) or by_jax_alone)
    monkeypatch.setattr(by_jax.devices, "all_of_jax", lambda kind, cache_dir: [cache_dir, "more"])
    monkeypatch.setattr(by_jax.jax_step, "mesh_of", list)
    monkeypatch.setenv("HOME", "/home/me")
    trainer, state = run_of(own, runtime="jax", jax_compilation_cache_dir="~/of jax")._build()
    assert trainer is by_jax_alone
    assert (state.parts, state.fetch) == (trainer.state, trainer.fetch_state)
    assert given == ["TensorFlow's", ["/home/me/of jax"]]  # one device


def test_either_program_of_jax_takes_memory_beside_the_state(monkeypatch):
    program_bytes = {("update", "to train"): 100, ("logits", "to predict"): 10}
    trainer = SimpleNamespace(
        _trainer=SimpleNamespace(update="update", logits="logits"),
        compile=lambda *function_and_batch: program_bytes[function_and_batch],
        state_bytes=7,
    )
    monkeypatch.setattr(
        by_jax.fit, "memory_finding", lambda on, step, evaluation, remedy: (step(), evaluation())
    )
    assert by_jax.JaxTaskTrainer.compile_for(trainer, "to train", "to predict") == (107, 17)


def test_what_a_finished_run_has_left_is_its_result(own):
    run = run_of(own)
    run.folder.mkdir(parents=True)
    assert not run.is_finished()
    run._output.record(status="running", seed=1)
    assert not run.is_finished()
    run._output.record(status="success", seed=1)
    epoch = '{"kind": "eval", "step": 5, "dev/matthews": 5.0}\n'
    (run.folder / "metrics.jsonl").write_text('{"kind": "train", "loss": 1}\n' + 2 * epoch)
    assert run.is_finished() and run.epochs == [{"dev/matthews": 5.0}] * 2
    with pytest.raises(ValueError, match=r"holds another run .max_seq_length: 24 there, 20 here"):
        run_of(own, max_seq_length=20).is_finished()
    others = [epoch.replace("matthews", "f1"), epoch.replace("5.0", "{}")]
    for damaged in (epoch, *(2 * other for other in others), "{"):
        (run.folder / "metrics.jsonl").write_text(damaged)
        with pytest.raises(ValueError, match=r"metrics.jsonl: damaged .*; remove the folder"):
            run_of(own).is_finished()


# --- what is refused -------------------------------------------------------------------------


def source_of(folder, **changes) -> weights.PretrainedModel:
    config = config_of(folder, **changes)
    return weights.find(config, [config.create("cola")])


def refusal(folder, **changes) -> str:
    with pytest.raises(ValueError) as error:
        sweep.run(config_of(folder, **changes))
    assert not (folder / "out").exists()
    return str(error.value)


def test_a_checkpoint_without_pooler_is_refused_but_for_spans(own):
    generated_glue.write_model(own / "bare", without="bert/pooler", dropout=0.3)
    bare = str(own / "bare" / "model.ckpt-0")
    shutil.rmtree(own / "glue")  # found before the data are read
    assert f"{bare}: has no pooler (bert/pooler), which tasks" in refusal(own, checkpoint=bare)
    task = SquadTask(data_dir="", max_seq_length=24)
    config_file = str(own / "bare" / "bert_config.json")
    source = weights.find(config_of(own, checkpoint=bare, bert_config_file=config_file), [task])
    spans = task_model.build(task, source, seed=1)
    assert len(task_model.trained_variables(spans)) == len(spans.trainable_variables) - 2
    assert "no such checkpoint" in refusal(own, checkpoint=f"{own}/model/model.ckpt-9")

    def logits(training=False, **changes) -> np.ndarray:
        features = {name: np.ones([2, 8], np.int32) for name in ("input_ids", "segment_ids")}
        features["input_mask"] = np.array([8 * [1], 5 * [1] + 3 * [0]], np.int32)
        return task_model.forward(spans, features | changes, training=training).numpy()

    assert logits().shape == (2, 8, 2) and logits().dtype == np.float32
    other_padding = np.where(np.arange(8) < 5, 1, 7) * np.ones([2, 1], int)
    others = logits(input_ids=other_padding.astype(np.int32))
    differing = np.abs(logits() - others)[:, :5].max(axis=(1, 2))
    assert differing[0] > 1e-5 and differing[1] < 1e-7
    assert not np.allclose(logits(), logits(segment_ids=np.zeros([2, 8], np.int32)))
    assert (logits() == logits()).all() and not np.allclose(logits(), logits(training=True))
    kernel, biases = spans.trainable_variables[-2:]
    assert 0.5 < np.abs(kernel).max() / (2 * source.config.initializer_range) <= 1
    biases.assign([50.0, -50.0])  # the biases of begins and of ends
    assert (logits()[..., 0] > 25).all() and (logits()[..., 1] < -25).all()


def test_a_head_is_random_and_all_else_is_pre_trained(own):
    path = own / "model" / "bert_config.json"
    rates = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
    path.write_text(json.dumps(json.loads(path.read_text()) | rates))
    source = source_of(own)
    models = [task_model.build(glue.create("mnli", ""), source, seed=seed) for seed in (1, 2)]
    dropouts = [one for one in models[0].layers if isinstance(one, tf_keras.layers.Dropout)]
    assert [layer.rate for layer in dropouts] == [0.2]  # once, where BertClassifier has it twice
    pairs = list(zip(*(model.trainable_variables for model in models)))
    differ = [one.name for one, other in pairs if (one.numpy() != other.numpy()).any()]
    kernel = models[0].classifier.out_proj.kernel
    assert differ == [kernel.name] and kernel.shape == (32, 3)
    # A truncated normal ends at two standard deviations.
    assert 0.5 < np.abs(kernel).max() / (2 * source.config.initializer_range) <= 1


def test_another_vocabulary_than_the_models_is_refused(own, tmp_path):
    """tests/training/test_one_vocabulary.py has all that is compared."""
    words = (own / "model" / "vocab.txt").read_text().splitlines()
    (tmp_path / "vocab.txt").write_text("\n".join([*words[:-2], words[-1], words[-2]]))
    shutil.copy(own / "model" / "bert_config.json", tmp_path)
    config_file, other = (str(tmp_path / name) for name in ("bert_config.json", "vocab.txt"))
    # Beside the checkpoint, then beside the configuration.
    with pytest.raises(ValueError, match=f"different vocab.* of {own}/model/vocab.txt; give"):
        source_of(own, vocab_file=other, bert_config_file=config_file)
    with pytest.raises(ValueError, match=f"different vocab.* of {other}; give"):
        source_of(own, bert_config_file=config_file)


def test_text_is_cased_where_the_flag_and_the_vocabularys_files_say_so(own, tmp_path):
    words = shutil.copy(own / "model" / "vocab.txt", tmp_path)
    for do_lower_case, num_tokens in [(True, 1), (False, 3)]:
        source = source_of(own, vocab_file=words, do_lower_case=do_lower_case)
        assert len(source.tokenizer.tokenize("Red")) == num_tokens
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(ValueError, match=r"^--do_lower_case=True, but .*; give --do_lower_case=F"):
        source_of(own, vocab_file=words)


def test_many_unknown_words_are_told(own, capsys):
    path = own / "glue" / "CoLA" / "dev.tsv"
    path.write_text("".join(f"s\t{n % 2}\t\t\u4e2d \u5916 \u5916\n" for n in range(4)), "utf-8")
    run_of(own)
    assert "hint: cola, dev: 8 of 20 tokens (40.0%) are [UNK]" in capsys.readouterr().err


def test_what_does_not_belong_together_is_refused(own):
    model = functools.partial(refusal, own)
    assert source_of(own, max_seq_length=48).config.max_position_embeddings == 48
    long = model(max_seq_length=49)
    assert "--max_seq_length=49: the model has 48 positions; give 4 to 48" in long
    nowhere = model(checkpoint=str(own / "glue"))
    assert "glue: no run with checkpoints (no model.ckpt-*.index); give a checkpoint" in nowhere
    words = (own / "model" / "vocab.txt").read_text()
    (own / "long.txt").write_text(words + "more\n")
    long = model(vocab_file=str(own / "long.txt"))
    assert "words, but the configuration says vocab_size=" in long
    for flag in ("data_dir", "checkpoint", "output_dir"):
        assert f"--{flag}=gs://b/x: give a local path, and copy it" in model(**{flag: "gs://b/x"})
    assert "--num_gpus=1: jax finds none (" in model(device=DeviceConfig(num_gpus=1))
    both = DeviceConfig(num_gpus=1, use_tpu=True)
    assert "--use_tpu and --num_gpus exclude each other" in model(device=both)
    on_gpu = {"device": DeviceConfig(num_gpus=1), "runtime": "tensorflow"}
    assert "--num_gpus=1 needs jax; leave --runtime out" in model(**on_gpu)


def test_a_bad_file_of_any_task_is_found_before_the_first_is_trained(own):
    (own / "glue" / "RTE" / "dev.tsv").unlink()
    assert "RTE/dev.tsv: no such file" in refusal(own, task="glue")


def test_a_logit_that_is_not_finite_ends_the_run(own, monkeypatch):
    """As after a last update that makes weights infinite: the loss of its step is still finite."""
    predict = TaskTrainer.predict

    def damaged(self, batch):
        outputs = predict(self, batch)
        outputs[-1, 0] = np.nan
        return outputs

    monkeypatch.setattr(TaskTrainer, "predict", damaged)
    message = "a logit of dev is infinite or not a number: training has diverged; lower"
    with pytest.raises(FloatingPointError, match=message):
        sweep.run(config_of(own, num_train_epochs=1))
    assert not (own / "out" / "results.json").exists()


def test_of_a_runs_folder_the_newest_checkpoint_counts(made, tmp_path):
    for path in (made / "model").glob("model.ckpt-0.*"):
        for step in (0, 7):
            shutil.copy(path, tmp_path / path.name.replace("-0.", f"-{step}.", 1))
    source = source_of(made, checkpoint=f"{tmp_path}/")
    assert source.name == f"{tmp_path}/model.ckpt-7"
    (tmp_path / "run.json").write_text(json.dumps({"vocabulary": {"do_lower_case": "False"}}))
    with pytest.raises(ValueError, match=f"different casings, .* of the run in {tmp_path}; give"):
        source_of(made, checkpoint=str(tmp_path))


@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
def test_weights_are_float32_whatever_the_blocks_compute_in(own, precision):
    cola = glue.create("cola", str(own / "glue"))
    model = task_model.build(cola, source_of(own), seed=1, precision=precision)
    encoder = model.checkpoint_items["encoder"]
    computed = {layer.compute_dtype for layer in encoder.transformer_layers}
    assert computed == {"bfloat16" if precision == "bfloat16" else "float32"}
    heads = [encoder.pooler_layer, model.classifier, model.classifier.out_proj]
    assert {layer.compute_dtype for layer in heads} == {"float32"}
    assert tf_keras.mixed_precision.global_policy().name == "float32"
    assert {variable.dtype for variable in model.trainable_variables} == {tf.float32}
    is_rounded = tf.config.experimental.tensor_float_32_execution_enabled()
    assert is_rounded == (precision == "tf32")


# --- the command line ------------------------------------------------------------------------


def command(folder, *more, **changes) -> list[str]:
    names = "task data_dir checkpoint bert_config_file vocab_file output_dir max_seq_length".split()
    given = {name: getattr(config_of(folder), name) for name in names}
    given |= {"train_batch_size": 8, "num_train_epochs": 1, "learning_rate": 1e-3, **changes}
    flags = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return [sys.executable, "run_finetuning.py", *flags, *more]


@pytest.mark.gate
def test_command_line(own):
    done = starts.run(command(own, "--do_predict"), check=True)
    *_, results, tsv, result = done.stdout.splitlines()
    assert results.endswith("out/results.json") and tsv.endswith("predictions/CoLA.tsv")
    assert result.startswith("RESULT,cola,matthews,") and result.endswith("=0.001,runs=1")
    assert "cola, learning rate 0.001, seed 1: epoch 1: dev/matthews" in done.stderr


# Runs the script with the flags that follow; its sweep has found something and prints what it got.
OF_A_FOUND_RESULT = """
import runpy
from mlperf_bert.finetuning import sweep
runs = [{"learning_rate": 2e-5, "epochs": [{"dev/matthews": 7.0}]}]
record = {"main_metric": "dev/matthews", "learning_rate": 2e-5, "median": 7.0, "runs": runs}
def run(config):
    print(*config.settings, config.task, config.train_batch_size, sep="; ")
    return {"cola": record}, ["a.tsv", "b.tsv"]
sweep.run = run
runpy.run_path("run_finetuning.py", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        (["--learning_rate=0.001", "--seed=3"], ["0.001, seed 3"]),
        (["--task=squad1", "--doc_stride=64"], ["3e-05, seed 1"]),
        (["--sweep", "--learning_rates=3e-5,2e-5", "--seeds=4,1"],
         ["3e-05, seed 4", "3e-05, seed 1", "2e-05, seed 4", "2e-05, seed 1"]),
    ],
)  # fmt: skip
def test_the_command_gives_its_settings_and_prints_what_it_has_found(own, given, settings):
    script = own / "script.py"
    script.write_text(OF_A_FOUND_RESULT)
    flags = command(own, *given, learning_rate=None)[2:]
    done = starts.run([sys.executable, script, *flags], check=True)
    first, *table, results, one, two, last = done.stdout.splitlines()
    task = "squad1" if "--task=squad1" in given else "cola"
    assert first.split("; ") == [*(f"learning rate {each}" for each in settings), task, "8"]
    assert [line.split() for line in table[1:]] == [
        ["cola", "matthews", "2e-05", "1", "7.00", "7.00"]
    ]
    assert results == f"{own}/out/results.json" and (one, two) == ("a.tsv", "b.tsv")
    assert last == "RESULT,cola,matthews,7.000,learning_rate=2e-05,runs=1"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        ("KeyboardInterrupt", 75, "interrupted; run the same command again to resume"),
        ("tensorflow.errors.ResourceExhaustedError(None, None, 'full')", 1, "out of memory (full); "
         "lower --train_batch_size, --eval_batch_size or --max_seq_length, or"),
    ],
)  # fmt: skip
def test_an_interruption_and_too_little_memory_say_what_to_do(own, error, code, line):
    script = own / "script.py"
    raised = f"    import tensorflow\n    raise {error}\n    return"
    script.write_text(OF_A_FOUND_RESULT.replace("    return", raised))
    done = starts.run([sys.executable, script, *command(own)[2:]])
    assert done.returncode == code and done.stderr.startswith(f"run_finetuning.py: {line}")


def test_bad_command_lines_are_one_line(own):
    def refused(*more, **changes) -> str:
        done = starts.run(command(own, *more, **changes))
        lines = [line for line in done.stderr.splitlines() if "cuda_platform" not in line]
        assert done.returncode == 1 and len(lines) == 1, lines
        return lines[0]

    assert " --seeds=1,1: give different numbers" in refused("--sweep", "--seeds=1,1")
    assert "--learning_rates=x --seeds=" in refused("--sweep", "--learning_rates=x")
    assert "--learning_rates=0 --seeds=1,2,3,4,5: " in refused("--sweep", "--learning_rates=0")
    same = "1e-5,1.0000001e-5"  # as names of folders
    assert f"={same} --seeds=1," in refused("--sweep", f"--learning_rates={same}")
    instead = "--sweep takes --learning_rates and --seeds instead; leave the"
    assert f"--learning_rate=0.001: {instead}" in refused("--sweep")
    assert f"--seed=3: {instead}" in refused("--sweep", learning_rate=None, seed=3)
    for flag in ("--learning_rates=1e-5", "--seeds=1,2"):
        assert f"{flag}: has an effect only with --sweep; leave the flag out" in refused(flag)
    for flag in ("--doc_stride=64", "--max_query_length=9"):
        assert f"{flag}: has an effect only on SQuAD; leave" in refused(flag)


@pytest.mark.all
def test_sigterm_ends_it_and_the_same_command_goes_on(own):
    started = starts.Start(command(own, num_train_epochs=2000))
    metrics = own / "out" / "cola" / "learning_rate_0.001_seed_1" / "metrics.jsonl"
    waiting.until(lambda: metrics.exists() and '"eval"' in metrics.read_text(), started)
    started.send_signal(signal.SIGTERM)
    _, errors = started.communicate(timeout=300)
    assert started.returncode == 75, errors
    last = "run_finetuning.py: interrupted; run the same command again to resume"
    assert errors.splitlines()[-1] == last
    again = starts.Start(command(own, num_train_epochs=2000))
    waiting.until(lambda: "Resuming from" in again.output(), again)
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=300)
    assert again.returncode == 75
