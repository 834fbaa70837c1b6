"""Whole runs on the tiny GLUE: resumed, swept, predicted, refused. CPU, two minutes.

Long because all of its runs are of one model on one small GLUE.
"""

import json
import shutil
import signal
import statistics
import sys

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.checkpoints.state import newest_checkpoint
from mlperf_bert.finetuning import glue, sweep, weights
from mlperf_bert.finetuning import model as task_model
from mlperf_bert.finetuning.config import Setting
from mlperf_bert.finetuning.run import Prepared, TaskRun
from mlperf_bert.finetuning.squad import SquadTask
from mlperf_bert.finetuning.sweep import TaskResult
from mlperf_bert.finetuning.training import TaskTrainer
from mlperf_bert.signals import Interrupted, StopRequest
from mlperf_bert.training.config import DeviceConfig
from tests.finetuning import generated_glue
from tests.finetuning.generated_glue import config_of
from tests.helpers import starts, waiting

ONE = Setting(learning_rate=1e-3, seed=1)


class StopAfter:
    """Asks a run to stop after so many steps."""

    def __init__(self, num_steps: int, *, by_crash: bool = False):
        self._left = num_steps
        self._crashes = by_crash

    def defer(self) -> None:
        pass

    @property
    def signal_name(self) -> str | None:
        self._left -= 1
        if self._left <= 0 and self._crashes:
            raise RuntimeError("power failure")
        return "SIGTERM" if self._left <= 0 else None


def run_of(folder, name="out", setting=ONE, **changes) -> TaskRun:
    config = config_of(folder, **changes)
    ready = Prepared(config.create(config.task), weights.find(config))
    return TaskRun(config, ready, setting, folder=folder / name)


def weights_of(folder) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder)))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "OBJECT_GRAPH" not in name and "save_counter" not in name
    }


@pytest.mark.gate
def test_a_resumed_run_equals_one_that_was_not_interrupted(own):
    generated_glue.write_model(own / "model", dropout=0.1)
    never = StopAfter(10**9)
    whole = run_of(own, "whole").train(never)
    steps = run_of(own, "parts", save_checkpoints_steps=2)
    # Within the first epoch, at its end (5 steps), between two saves; then a step is lost.
    for num_steps, stopped_at in ((3, 3), (2, 5), (2, 7)):
        with pytest.raises(Interrupted, match="the checkpoint is saved; run the same command"):
            steps.train(StopAfter(num_steps))
        assert not steps.finished()
        assert newest_checkpoint(str(own / "parts"))[0] == stopped_at
        steps = run_of(own, "parts", save_checkpoints_steps=2)
    with pytest.raises(RuntimeError):
        steps.train(StopAfter(2, by_crash=True))
    parts = run_of(own, "parts", save_checkpoints_steps=100).train(never)
    assert parts.epochs == whole.epochs and len(parts.epochs) == 2
    lines = [(own / name / "metrics.jsonl").read_text() for name in ("whole", "parts")]
    assert lines[0] == lines[1]
    first, second = weights_of(own / "whole"), weights_of(own / "parts")
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


@pytest.mark.all
def test_another_seed_is_another_run(own):
    found = []
    for seed in (1, 2):
        setting = Setting(learning_rate=1e-3, seed=seed)
        run_of(own, f"{seed}", setting, num_train_epochs=1).train(StopAfter(10**9))
        found.append(weights_of(own / f"{seed}"))
    kernels = [name for name in found[0] if "dense/kernel" in name]
    assert not any(np.array_equal(found[0][name], found[1][name]) for name in kernels)


@pytest.mark.all
def test_a_finished_run_is_that_of_its_model_and_its_data_only(own, capsys):
    changes = {"num_train_epochs": 1, "task": "rte"}
    sweep.run(config_of(own, **changes))
    capsys.readouterr()
    sweep.run(config_of(own, **changes))
    folder = own / "out" / "rte" / "learning_rate_0.001_seed_1"
    assert f"finished before: {folder}\n" in capsys.readouterr().err

    def differs(match: str) -> None:
        with pytest.raises(ValueError, match=rf"holds another run \({match}"):
            sweep.run(config_of(own, **changes))

    config = json.loads((own / "model" / "bert_config.json").read_text())
    shutil.copytree(own / "model", own / "kept")
    path = str(own / "model" / "model.ckpt-0")
    generated_glue.write_initial_checkpoint(path, config, np.random.RandomState(4))
    differs("weights_sha256: .* there, .* here[)]")
    shutil.rmtree(own / "model")
    shutil.move(own / "kept", own / "model")
    dev = own / "glue" / "RTE" / "dev.tsv"
    content = dev.read_bytes()
    dev.write_bytes(b"\n".join(content.split(b"\n")[:-2]))
    differs("dev_sha256: .* there, .* here[)]")
    dev.write_bytes(content)
    sweep.run(config_of(own, **changes))


@pytest.mark.all
def test_results_of_other_commands_stay(own):
    changes = {"num_train_epochs": 1}
    single, other = ONE, Setting(learning_rate=1e-4, seed=1)
    sweep.run(config_of(own, task="rte", **changes))
    path = own / "out" / "results.json"
    first = json.loads(path.read_text())["tasks"]
    sweep.run(config_of(own, task="cola", **changes))
    found = json.loads(path.read_text())["tasks"]
    assert list(found) == ["cola", "rte"] and found["rte"] == first["rte"]
    # The checkpoint of a run that an earlier command trained stays too, the better one or not.
    sweep.run(config_of(own, task="rte", settings=(single, other), **changes))
    kept = {path.parent.name for path in (own / "out" / "rte").rglob("model.ckpt-*.index")}
    assert single.folder in kept
    path.write_text('{"tasks": [1]}')
    with pytest.raises(ValueError, match=r"results.json: damaged .*; remove it: the results"):
        sweep.run(config_of(own, task="rte", **changes))


@pytest.mark.all
def test_a_sweep_reports_medians_and_keeps_one_checkpoint(own):
    settings = tuple(Setting(learning_rate=r, seed=s) for r in (1e-3, 1e-5) for s in (1, 2))
    changes = {"settings": settings, "num_train_epochs": 1, "do_predict": True}
    results = sweep.run(config_of(own, **changes))
    [task] = results.tasks
    assert len(task.runs) == 4
    content = json.loads((own / "out" / "results.json").read_text())
    assert content["tasks"]["cola"]["median"] == (median := task.median_of(task.learning_rate))
    assert content["tasks"]["cola"]["best"] == max(task.score(run) for run in task.runs)
    kept = {path.parent for path in (own / "out").rglob("model.ckpt-*.index")}
    assert kept == {task.best.folder}
    assert [path.name for path in results.prediction_files] == ["CoLA.tsv"]
    assert results.line().startswith(f"RESULT,cola,matthews,{median:.3f},learning_rate=")
    times = {path: path.stat().st_mtime_ns for path in (own / "out").rglob("metrics.jsonl")}
    again = sweep.run(config_of(own, **changes))  # nothing is trained twice
    assert again.table() == results.table() and again.line() == results.line()
    assert times == {path: path.stat().st_mtime_ns for path in (own / "out").rglob("metrics.jsonl")}
    other = next(setting for setting in settings if setting != task.best.setting)
    with pytest.raises(ValueError, match="its checkpoint is gone, as that of a run that was not"):
        sweep.run(config_of(own, **changes | {"settings": (other,), "task": "glue"}))
    content = json.loads((own / "out" / "results.json").read_text())  # and the result stays
    assert Setting(**content["tasks"]["cola"]["best_setting"]) == other
    assert Setting(**content["tasks"]["cola"]["predictions_of"]) == task.best.setting


def test_what_a_finished_run_has_left_is_its_result(own):
    run = run_of(own)
    run.folder.mkdir()
    assert run.finished() is None
    run._output.record(status="running", seed=1)
    assert run.finished() is None
    run._output.record(status="success", seed=1)
    epoch = '{"kind": "eval", "step": 5, "dev/matthews": 5.0}\n'
    (run.folder / "metrics.jsonl").write_text('{"kind": "train", "loss": 1}\n' + 2 * epoch)
    assert run.finished().epochs == [{"dev": {"matthews": 5.0}}] * 2
    with pytest.raises(ValueError, match=r"holds another run .max_seq_length: 24 there"):
        run_of(own, max_seq_length=20).finished()
    for damaged in (
        epoch,
        2 * epoch.replace("matthews", "f1"),
        2 * epoch.replace("5.0", "{}"),
        "{",
    ):
        (run.folder / "metrics.jsonl").write_text(damaged)
        with pytest.raises(ValueError, match=r"metrics.jsonl: damaged, an epoch .* remove the fol"):
            run.finished()


def test_only_the_best_run_keeps_its_checkpoint(own, monkeypatch):
    settings = tuple(Setting(learning_rate=1e-3, seed=seed) for seed in (1, 2, 3))

    def train(self, stop):
        self.folder.mkdir(parents=True)
        (self.folder / "model.ckpt-5.index").touch()
        setting = next(one for one in settings if one.folder == self.folder.name)
        epochs = [{"dev": {"matthews": {1: 10.0, 2: 30.0, 3: 20.0}[setting.seed]}}]
        return sweep.TaskRunResult(setting=setting, folder=self.folder, epochs=epochs)

    monkeypatch.setattr(TaskRun, "train", train)
    sweep.run(config_of(own, settings=settings))
    [kept] = (own / "out").rglob("model.ckpt-*.index")
    assert kept.parent.name == settings[1].folder


def test_what_was_trained_is_in_the_results_when_its_answers_cannot_be_written(own, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(sweep, "_predict", full)
    with pytest.raises(OSError, match="no space left"):
        sweep.run(config_of(own, num_train_epochs=1, do_predict=True))
    content = json.loads((own / "out" / "results.json").read_text())["tasks"]["cola"]
    assert len(content["runs"]) == 1 and "predictions_of" not in content


def test_a_run_that_was_interrupted_keeps_its_checkpoint_until_it_goes_on(own, monkeypatch):
    def ended(run, stop=None):
        if stop is None and run.folder == begun.parent:
            return None
        assert begun.exists()
        result = [{"dev": {"matthews": 1.0}}]
        return sweep.TaskRunResult(setting=ONE, folder=run.folder, epochs=result)

    settings = (ONE, Setting(learning_rate=1e-3, seed=2))
    begun = own / "out" / "cola" / settings[1].folder / "checkpoint"
    begun.parent.mkdir(parents=True)
    begun.touch()
    monkeypatch.setattr(TaskRun, "finished", ended)
    monkeypatch.setattr(TaskRun, "train", ended)
    assert len(sweep.run(config_of(own, settings=settings)).tasks[0].runs) == 2


def test_a_signal_at_the_very_end_of_a_run_ends_the_sweep(own, monkeypatch):
    begun = []

    def train(self, stop):
        begun.append(self.folder)
        stop.defer()
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(TaskRun, "train", train)
    settings = tuple(Setting(learning_rate=1e-3, seed=seed) for seed in (1, 2))
    with pytest.raises(Interrupted, match=r"SIGTERM at the end of .*_seed_1: run the same command"):
        sweep.run(config_of(own, settings=settings))
    assert len(begun) == 1


@pytest.mark.all
def test_all_of_glue_is_one_table_and_an_average(own):
    sweep.run(config_of(own, task="rte", num_train_epochs=1))
    [metrics] = (own / "out" / "rte").rglob("metrics.jsonl")
    before = metrics.stat().st_mtime_ns
    results = sweep.run(config_of(own, task="glue", num_train_epochs=1, do_predict=True))
    assert metrics.stat().st_mtime_ns == before  # rte counts, and is not trained again
    assert [task.task.name for task in results.tasks] == list(glue.NAMES)
    for task in results.tasks:
        assert len(task.runs[0].epochs) == 1
    mnli = next(task for task in results.tasks if task.task.name == "mnli")
    assert set(mnli.runs[0].metrics) == {"dev_matched", "dev_mismatched"}
    scores = [
        statistics.mean(v for split in task.runs[0].metrics.values() for v in split.values())
        for task in results.tasks
    ]
    assert results.glue_average == pytest.approx(sum(scores) / 8)
    assert results.table().splitlines()[-1].split()[:2] == ["glue", "average"]
    assert results.line() == f"RESULT,glue,average,{results.glue_average:.3f}"
    names = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE".split()
    found = sorted(path.name for path in (own / "out" / "predictions").iterdir())
    assert found == sorted(f"{name}.tsv" for name in names)


def test_medians_and_the_best_by_hand(tmp_path):
    def done(rate, seed, accuracy, f1):
        metrics = {"dev": {"f1": f1, "accuracy": accuracy}}
        setting = Setting(learning_rate=rate, seed=seed)
        return sweep.TaskRunResult(setting=setting, folder=tmp_path, epochs=[metrics])

    runs = [done(1e-5, 1, 0, 10), done(1e-5, 2, 0, 90), done(1e-5, 3, 0, 20)]
    runs += [done(2e-5, 1, 60, 30), done(2e-5, 2, 50, 40), done(2e-5, 3, 40, 45)]
    task = TaskResult(task=glue.create("mrpc", ""), runs=runs)
    assert (task.learning_rate, task.median_of(2e-5), task.best) == (2e-5, 40, runs[1])
    assert task.task_score == 45  # of 45, 45 and 42.5
    table = sweep.Results(tasks=[task], prediction_files=[]).table().splitlines()
    assert [line.split() for line in table[1:]] == [
        ["mrpc", "f1", "1e-05", "3", "20.00", "90.00"],
        ["mrpc", "f1", "2e-05*", "3", "40.00", "45.00"],
    ]


def test_beside_a_better_run_the_results_say_whose_the_answers_are(tmp_path):
    def write(*accuracies, **options):
        runs = [
            sweep.TaskRunResult(
                setting=Setting(learning_rate=1e-5, seed=seed),
                folder=tmp_path,
                epochs=[{"dev": {"accuracy": accuracy}}],
            )
            for seed, accuracy in enumerate(accuracies, start=1)
        ]
        sweep._write(tmp_path, TaskResult(task=glue.create("rte", ""), runs=runs), **options)
        found = json.loads((tmp_path / "results.json").read_text())["tasks"]["rte"]
        return found["best_setting"]["seed"], found["predictions_of"]["seed"]

    assert write(50.0, is_predicted=True) == (1, 1)
    assert write(50.0, 60.0) == (2, 1)
    assert write(50.0, 60.0, is_predicted=True) == (2, 2)


@pytest.mark.all
def test_replicas_change_nothing(own):
    """Two of a MirroredStrategy, on two devices made of one CPU, against one."""
    program = f"""
import sys
import numpy as np, tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
from mlperf_bert.finetuning import model, run, training, weights
from mlperf_bert.optimization.optimizers import WarmupPolynomialDecay
from tests.finetuning.generated_glue import config_of
from pathlib import Path
config = config_of(Path({str(own)!r}))
ready = run.Prepared(config.create("cola"), weights.find(config))
features, found = ready.split("train").features, []
for strategy in (tf.distribute.OneDeviceStrategy("CPU:0"),
                 tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])):
    trainer = training.TaskTrainer(
        build_model=lambda: model.build(ready.task, ready.source, seed=1),
        schedule=WarmupPolynomialDecay(
            learning_rate=1e-3, num_train_steps=9, num_warmup_steps=1),
        strategy=strategy, batch_size=8, eval_batch_size=4)
    losses = [trainer.train_step(features, np.arange(n, n + 8 - n)) for n in range(4)]
    found.append((losses, trainer.predict(features)))
np.testing.assert_allclose(found[0][0], found[1][0], rtol=0, atol=1e-6)
np.testing.assert_allclose(found[0][1], found[1][1], rtol=0, atol=1e-5)
"""
    path = own / "program.py"
    path.write_text(program)
    starts.run([sys.executable, str(path)], check=True)


# --- what is refused -------------------------------------------------------------------------


def refusal(folder, **changes) -> str:
    with pytest.raises(ValueError) as error:
        sweep.run(config_of(folder, **changes))
    assert not (folder / "out").exists()
    return str(error.value)


def test_a_checkpoint_without_pooler_is_refused_but_for_spans(own):
    generated_glue.write_model(own / "bare", without="bert/pooler")
    bare = str(own / "bare" / "model.ckpt-0")
    shutil.rmtree(own / "glue")  # found before the data are read
    assert f"{bare}: has no pooler (bert/pooler), which tasks" in refusal(own, checkpoint=bare)
    source = weights.find(config_of(own, checkpoint=bare))
    weights.check(source, needs_pooler=False)
    spans = task_model.build(SquadTask(name="squad1", data_dir=""), source, seed=1)
    assert len(task_model.trained_variables(spans)) == len(spans.trainable_variables) - 2
    assert "no such checkpoint" in refusal(own, checkpoint=f"{own}/model/model.ckpt-9")


def test_what_does_not_belong_together_is_refused(own):
    def model(**changes):
        return refusal(own, **changes)

    assert "--max_seq_length=49: the model has 48 positions; give 4 to 48" in model(
        max_seq_length=49
    )
    nowhere = model(checkpoint=str(own / "glue"))
    assert "glue: no run with checkpoints (no model.ckpt-*.index); give a checkpoint" in nowhere
    (own / "long.txt").write_text(
        (own / "model" / "vocab.txt").read_text() + "more\nand\nmore tokens\n"
    )
    long = model(vocab_file=str(own / "long.txt"))
    assert "words, but the configuration says vocab_size=" in long
    assert "give a local path, and copy it" in model(output_dir="gs://bucket/out")
    assert "--num_gpus=64, but TensorFlow sees" in model(device=DeviceConfig(num_gpus=64))


def test_a_bad_file_of_any_task_is_found_before_the_first_is_trained(own):
    (own / "glue" / "RTE" / "dev.tsv").unlink()
    assert "RTE/dev.tsv: no such file" in refusal(own, task="glue")


def test_a_loss_that_is_not_finite_ends_the_run(own):
    with pytest.raises(
        FloatingPointError, match="training has diverged; lower --learning_rate"
    ) as error:
        sweep.run(config_of(own, settings=(Setting(learning_rate=1e30, seed=1),)))
    assert str(error.value).startswith("cola, learning rate 1e+30, seed 1: the loss of step ")
    assert "--learning_rates" in str(error.value)


def test_a_logit_that_is_not_finite_ends_the_run(own, monkeypatch):
    """As after a last update that makes weights infinite: the loss of its step is still finite."""
    predict = TaskTrainer.predict

    def damaged(self, features, **options):
        outputs = predict(self, features, **options)
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
    source = weights.find(config_of(made, checkpoint=f"{tmp_path}/"))
    assert source.name == f"{tmp_path}/model.ckpt-7"


@pytest.mark.all
@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
def test_precisions(own, precision):
    changes = {"precision": precision, "num_train_epochs": 1}
    exact = run_of(own, "a", num_train_epochs=1)
    other = run_of(own, "b", **changes)
    exact.train(StopAfter(10**9))
    other.train(StopAfter(10**9))
    first, second = weights_of(own / "a"), weights_of(own / "b")
    for name, value in first.items():
        assert value.dtype == second[name].dtype
    [split] = list(exact.predictions(("test",)))
    [low] = list(other.predictions(("test",)))
    np.testing.assert_allclose(split[1], low[1], rtol=0, atol=0.1)
    if precision == "bfloat16":  # tf32 changes nothing on a CPU
        assert not np.array_equal(split[1], low[1])
    source = weights.find(config_of(own))
    cola = glue.create("cola", str(own / "glue"))
    model = task_model.build(cola, source, seed=1, precision=precision)
    encoder = model.checkpoint_items["encoder"]
    computed = {layer.compute_dtype for layer in encoder.transformer_layers}
    assert computed == {"bfloat16" if precision == "bfloat16" else "float32"}
    assert {variable.dtype for variable in model.trainable_variables} == {tf.float32}


# --- the command line ------------------------------------------------------------------------


def command(folder, *more, **changes) -> list[str]:
    names = "task data_dir checkpoint bert_config_file vocab_file output_dir max_seq_length".split()
    given = {name: getattr(config_of(folder), name) for name in names}
    given |= {"train_batch_size": 8, "num_train_epochs": 1, "learning_rate": 1e-3, **changes}
    flags = [f"--{name}={value}" for name, value in given.items()]
    return [sys.executable, "run_finetuning.py", *flags, *more]


@pytest.mark.gate
def test_command_line(own):
    done = starts.run(command(own, "--do_predict"), check=True)
    *_, results, tsv, result = done.stdout.splitlines()
    assert results.endswith("out/results.json") and tsv.endswith("predictions/CoLA.tsv")
    assert result.startswith("RESULT,cola,matthews,") and result.endswith("=0.001,runs=1")
    assert "cola, learning rate 0.001, seed 1: epoch 1: dev/matthews" in done.stderr


def test_bad_command_lines_are_one_line(own):
    def refused(*more, **changes) -> str:
        done = starts.run(command(own, *more, **changes))
        lines = [line for line in done.stderr.splitlines() if "cuda_platform" not in line]
        assert done.returncode == 1 and len(lines) == 1, lines
        return lines[0]

    assert "run_finetuning.py: flag --task=" in refused(task="wnli")
    assert " --seeds=1,1: give different numbers" in refused("--sweep", "--seeds=1,1")
    assert "--learning_rates=x --seeds=" in refused("--sweep", "--learning_rates=x")
    same = "1e-5,1.0000001e-5"  # as names of folders
    assert f"={same} --seeds=1," in refused("--sweep", f"--learning_rates={same}")
    unused = "--learning_rate=0.001: --sweep takes --learning_rates and --seeds instead; leave the"
    assert unused in refused("--sweep")
    unused = "--seeds=1,2: has an effect only with --sweep; leave the flag out"
    assert unused in refused("--seeds=1,2")
    assert "--doc_stride=64: has an effect only on SQuAD; leave" in refused("--doc_stride=64")
    gone = refused(data_dir=f"{own}/none")
    assert f"{own}/none/CoLA/train.tsv: no such file; --data_dir takes" in gone


@pytest.mark.all
def test_sigterm_saves_and_the_same_command_goes_on(own):
    started = starts.Start(command(own, num_train_epochs=2000))
    metrics = own / "out" / "cola" / "learning_rate_0.001_seed_1" / "metrics.jsonl"
    waiting.until(lambda: metrics.exists() and '"eval"' in metrics.read_text(), started)
    started.send_signal(signal.SIGTERM)
    _, errors = started.communicate(timeout=300)
    assert started.returncode == 75, errors
    assert "run_finetuning.py: SIGTERM after step" in errors.splitlines()[-1]
    again = starts.Start(command(own, num_train_epochs=2000))
    waiting.until(lambda: "Going on from" in again.output(), again)
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=300)
    assert again.returncode == 75
    done = starts.run(command(own, num_train_epochs=3))
    assert done.returncode == 1
    assert "holds another run (num_train_epochs: 2000 there, 3 here)" in done.stderr


def test_one_process_at_a_time(own):
    run = run_of(own)
    run._output.claim()
    try:
        with pytest.raises(ValueError, match="another process trains into it; wait for it"):
            run_of(own).train(StopRequest())
    finally:
        run._output.release()


def test_the_metrics_of_all_runs_are_drawn(tmp_path):
    def picture(accuracy: float, num_tasks: int = 1) -> bytes:
        epochs = [{"dev": {"accuracy": each}} for each in (50.0, accuracy)]
        runs = [{"learning_rate": 1e-5, "seed": seed, "epochs": epochs} for seed in range(9)]
        result = {"main_metric": "dev/accuracy", "runs": runs}
        sweep.draw({f"task {n}": result for n in range(num_tasks)}, tmp_path / "results.png")
        return (tmp_path / "results.png").read_bytes()

    assert picture(60.0) == picture(60.0) != picture(70.0)
    width = lambda png: int.from_bytes(png[16:20], "big")  # noqa: E731 - of a PNG's header
    assert width(picture(60.0)) < width(picture(60.0, num_tasks=5)) == 4 * 3.2 * 150
