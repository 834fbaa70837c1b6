"""Whole runs in this process: what one leaves, whatever ends it. CPU, seconds.

The steps of the first are sleeps, and offline its weights are really evaluated. The weights of the
others are one number, and their steps and evaluations are what the test says. Starts whose steps
compute are tested elsewhere, in minutes.
"""

import contextlib
import dataclasses
import json
import re
import signal
import types

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.checkpoints.state import saved_checkpoints
from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.mlperf.log_reader import read_records
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.programs.config import STEP_FIGURES
from mlperf_bert.programs.contract import LocalState
from mlperf_bert.signals import Interrupted
from mlperf_bert.training import build, checks, offline, run, workers
from mlperf_bert.training.config import ProfileWindow
from mlperf_bert.training.evaluations import read_evaluations
from mlperf_bert.training.output import read_record
from mlperf_bert.training.reporting import Outcome, StartUp
from tests.training.configurations import TINY, record

ENDS = {"save_checkpoints_steps": 5, "seed": 7, "time_budget": 600.0, "runtime": "tensorflow"}


@pytest.fixture
def given(config, tmp_path):
    """A run of ten steps, a checkpoint after each five; its files hold examples."""
    model = dataclasses.asdict(TINY) | {"num_hidden_layers": 1}
    (tmp_path / "bert_config.json").write_text(json.dumps(model))
    weights = {"masked_lm_weights": np.float32([1, 1, 0, 0])}
    for name, number in (("part-0", 1), ("part-1", 1), ("eval", 3)):
        (tmp_path / name).write_bytes(record(config.shape, **weights) * number)
    return dataclasses.replace(config, **ENDS)


def trained(config) -> Outcome | None:
    config, team = workers.agree(config)
    return run.train(config, team, StartUp())


def story(path) -> list[str]:
    """The log's lines from the end of the preparations on: key and step, accuracy or status.

    A thread logs the end of a checkpoint, at any moment: it is left out.
    """
    lines = []
    for each in read_records(path):
        more = each.value if each.key in ("eval_accuracy", "eval_samples", "train_samples") else ""
        more = each.metadata.get("status", each.metadata.get("step_num", more))
        if each.key not in ("tracked_stats", "energy", "checkpoint_stop"):
            lines.append(f"{each.key} {more}".replace("checkpoint_start", "save").strip())
    return lines[lines.index("init_stop") :]


def test_steps_that_are_sleeps_read_and_save_and_are_no_result(given, tmp_path, capsys):
    asleep = {"emulate_step_seconds": 0.01, "eval_input_file": None}
    outcome = trained(dataclasses.replace(given, **asleep))
    assert outcome == Outcome(status="aborted", accuracy=None, samples=40)
    told = capsys.readouterr().out
    for line in (
        "  - emulate_step_seconds: the rules require computed steps, this run has sleeps of 0.01 s",
        "not a result: each step sleeps for 0.01 s",
        "started in .* s: imports .*, checks .*, model .*, compilation .*, weights .*, data .*",
        r"where the time went: .*saving .*s \(.*%\).*",
    ):
        assert re.search(f"^{line}$", told, re.MULTILINE), line
    out = tmp_path / "out"
    assert story(out / "bert.log") == [
        "init_stop", "run_start", "block_start", "save 5", "block_stop", "save 10",
        "train_samples 40", "run_stop aborted",
    ]  # fmt: skip
    logged = {each.key: each.value for each in read_records(out / "bert.log")}
    assert (logged["emulated_step_seconds"], logged["time_budget_seconds"]) == (0.01, 600.0)
    assert logged["submission_division"] == "open" and logged["train_samples"] == 40
    assert read_record(out).status == "aborted" and [*saved_checkpoints(str(out))] == [0, 5, 10]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["step"], line["samples"]) for line in lines] == [
        ("train", 5, 20), ("train", 10, 40),
    ]  # fmt: skip
    assert all(0 < line["samples_per_second"] <= 400 for line in lines)
    told = offline.evaluate(given)
    assert told.startswith(f"{out}/bert.offline.log: aborted after 40 samples; division open (")
    # Nothing was learnt: three times the same weights, and of the seed.
    first, *others = read_evaluations(out).values()
    assert others == [first] * 2 and first.num_examples == 3
    assert first.loss == pytest.approx(np.log(64) + np.log(2), abs=0.1)


class OneNumber(LocalState, tf.Module):
    """A trainer whose weight is the number of steps; `loss_of` gives the loss of one.

    Between two steps the weight is on a device.
    """

    def __init__(self, loss_of):
        super().__init__()
        self.loss_of = loss_of
        self.step = tf.Variable(0, dtype=tf.int64)
        self.weight = tf.Variable(0.0)
        self.variables_to_train = [self.weight]
        self.state = {"weight": self.weight, "step": self.step}
        self.warmed_up, self.profiles, self.read = [], [], []

    def put_state(self):
        self.on_device = self.weight.numpy()

    def fetch_state(self):
        self.weight.assign(self.on_device)

    @contextlib.contextmanager
    def profiling(self, directory):
        first = int(self.step)
        yield
        self.profiles.append((directory, first, int(self.step)))

    def batches(self, make_dataset):
        return iter(make_dataset(tf.distribute.InputContext()))

    def warm_up(self, batches, *, keeps_weights):
        self.warmed_up.append(keeps_weights)

    def train(self, iterator, num_steps):
        figures = np.zeros((int(num_steps), len(STEP_FIGURES)), np.float32)
        for index in range(len(figures)):
            self.read.append(next(iterator)["input_ids"][:, 0].numpy().tolist())
            figures[index, 0] = self.loss_of(int(self.step.assign_add(1)))
            self.on_device += 1.0
        return figures


@pytest.fixture
def stands_in(monkeypatch):
    """Makes steps and evaluations of one number; returns how, its trainers in a list."""

    def stand_in(loss_of=lambda step: 1.0, accuracies=()):
        trainers, accuracies = [], iter(accuracies)

        def evaluate(dataset, time=None):
            assert sum(1 for _ in dataset) == 1  # 3 examples, 4 of which are a batch
            figures = dict.fromkeys(Evaluation.__annotations__, 0.5)
            seen = {"masked_lm_accuracy": next(accuracies), "num_examples": 3}
            return Evaluation(**figures | seen)

        def build_programs(setup, *, seed):
            trainers.append(OneNumber(loss_of))
            rates = types.SimpleNamespace(at_step=lambda step: 0.1)
            return build.Programs(
                rates=rates, trainer=trainers[-1],
                synthetic_batches=None, synthetic_evaluation_batch=None,
                evaluator=types.SimpleNamespace(evaluate=evaluate),
            )  # fmt: skip

        monkeypatch.setattr(build, "build_programs", build_programs)
        return trainers

    return stand_in


def test_a_run_ends_at_its_target(given, tmp_path, capsys, stands_in, monkeypatch):
    """With the words of its end, and a clock that was set back meanwhile."""
    trainers = stands_in(accuracies=[0.3, 0.72])
    monkeypatch.setattr(MlperfLog, "clock_shift_seconds", lambda _: -2.5)
    window = ProfileWindow(2, 5)
    more = {"eval_interval_samples": 12, "log_every_steps": 2, "profile_steps": window}
    more |= {"keep_checkpoint_max": 1, "power_watts": 100.0}
    published, out = [], tmp_path / "out"
    monkeypatch.setattr(
        workers.Team, "publish", lambda team: published.append(read_record(out).status)
    )
    monkeypatch.setattr(checks, "memory_bytes", lambda: 1)
    outcome = trained(dataclasses.replace(given, **more))
    assert published[-2:] == ["running", "success"]  # the records too, which come last
    assert outcome == Outcome(status="success", accuracy=0.72, samples=24)
    told = capsys.readouterr().out
    assert "computing in float32; " in told and "not that of the closed division: eval" in told
    assert "warning: the host's clock was set back by 2.5 s in the run, or the host slept; " in told
    assert told.count("warning: --async_checkpoint: a copy of the state takes") == 1
    [energy] = [each.value for each in read_records(out / "bert.log") if each.key == "energy"]
    assert energy["joules"] > 0
    assert story(out / "bert.log") == [
        "init_stop", "run_start", "eval_samples 3", "block_start", "block_stop", "eval_start",
        "eval_stop", "eval_accuracy 3", "block_start", "save 5", "block_stop", "eval_start",
        "eval_stop", "eval_accuracy 6", "clock_shift_seconds", "train_samples 24",
        "run_stop success", "save 6",
    ]  # fmt: skip
    assert read_record(out).status == "success" and [*saved_checkpoints(str(out))] == [6]
    assert not (out / ".lock").exists() and trainers[0].profiles == [(str(out), 1, 5)]


def test_a_loss_that_is_not_finite_ends_a_run_for_good(given, tmp_path, stands_in):
    """The same command would diverge again."""
    trainers = stands_in(loss_of=lambda step: np.nan if step == 8 else 1.0)
    alone = dataclasses.replace(given, eval_input_file=None, log_every_steps=1)
    with pytest.raises(FloatingPointError, match="step 8"):
        trained(dataclasses.replace(alone, profile_steps=ProfileWindow(7, 10)))
    out = tmp_path / "out"
    assert trainers[0].profiles == [(str(out), 6, 8)]  # what it has is written
    assert read_record(out).status == "aborted" and [*saved_checkpoints(str(out))] == [0, 5]
    assert story(out / "bert.log")[-1] == "run_stop aborted"
    with pytest.raises(ValueError, match=r"holds a finished run \(status aborted\)"):
        trained(alone)


def test_a_run_that_fails_goes_on_from_its_checkpoint(given, tmp_path, capsys, stands_in):
    """It has the weights and the examples of that step, and names no initial ones again."""

    def full_at_9(step):
        if step == 9 and full.pop():
            raise OSError("No space left on device")
        return 1.0

    full = [False, True]
    trainers = stands_in(loss_of=full_at_9)
    numbered = (record(given.shape, input_ids=np.full(16, number)) for number in range(50))
    (tmp_path / "part-0").write_bytes(b"".join(numbered))
    alone = dataclasses.replace(given, eval_input_file=None, log_every_steps=1)
    with pytest.raises(OSError, match="No space left"):
        trained(alone)
    out = tmp_path / "out"
    assert read_record(out).status == "running" and [*saved_checkpoints(str(out))] == [0, 5]
    capsys.readouterr()
    assert trained(alone) == Outcome(status="aborted", accuracy=None, samples=40)
    told = capsys.readouterr().out
    assert "  - run: the rules require one from start to end, this run has one that was res" in told
    assert f"Resuming from {out}/model.ckpt-5" in told
    assert [trainer.weight.numpy() for trainer in trainers] == [5, 10]
    assert trainers[1].read[:4] == trainers[0].read[5:] != trainers[0].read[:4]
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines] == [*range(1, 11)]
    # What a checkpoint replaces need not be kept while the programs are tried out.
    assert [trainer.warmed_up for trainer in trainers] == [[True], [False]]
    logs = [{each.key for each in read_records(path)} for path in sorted(out.glob("bert*.log"))]
    assert ["weights_initialization" in keys for keys in logs] == [True, False]
    assert read_record(out).status == "aborted" and [*saved_checkpoints(str(out))] == [0, 5, 10]


def test_a_signal_ends_a_run_after_its_step(given, tmp_path, stands_in):
    stands_in(loss_of=lambda step: float(step != 3 or not signal.raise_signal(signal.SIGTERM)))
    with pytest.raises((Interrupted, KeyboardInterrupt), match="SIGTERM after step 3: "):
        trained(dataclasses.replace(given, log_every_steps=1))
    out = tmp_path / "out"
    assert read_record(out).status == "running" and [*saved_checkpoints(str(out))] == [3]
    # With another number of devices the losses of the rest would be others.
    log = (out / "bert.log").read_text()
    (out / "bert.log").write_text(
        log.replace('"num_replicas", "value": 1', '"num_replicas", "value": 2')
    )
    with pytest.raises(ValueError, match=r"holds another run \(devices: 2 there, 1 here\)"):
        trained(given)


def test_a_run_that_is_refused_leaves_nothing(given, tmp_path, stands_in):
    """Though only the first look into the data finds what is wrong."""
    stands_in()
    whole = (tmp_path / "eval").read_bytes()
    for name, content, message in (
        ("eval", whole[:-1], r"eval: record 2 at byte \d+ is damaged"),
        ("part-1", b"", "part-1"),
        ("bert_config.json", b"{", r"bert_config\.json"),
    ):
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            trained(given)
        assert not (tmp_path / "out").exists(), name
        (tmp_path / name).write_bytes(before)


def test_an_example_that_cannot_be_packed_is_named(given, stands_in):
    stands_in()
    with pytest.raises(ValueError, match=r"part-0: record 0 at byte 0 .*packing needs the padding"):
        trained(dataclasses.replace(given, pack_sequences=True))
