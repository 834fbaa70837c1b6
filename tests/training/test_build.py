"""What a run builds for several processes, and what its steps are told of how it was started."""

import dataclasses
import json
import types
from unittest import mock

import jax
import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.input import pipeline
from mlperf_bert.mlperf.log import SubmissionInfo
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.optimization.optimizers import WarmupPolynomialDecay
from mlperf_bert.programs import jax_trainer
from mlperf_bert.programs.config import Compilation
from mlperf_bert.programs.tf_trainer import SleepingTrainer
from mlperf_bert.training import (
    build,
    checks,
    evaluations,
    reporting,
    run,
)
from mlperf_bert.training.config import Cluster, DeviceConfig
from mlperf_bert.training.devices import Devices
from mlperf_bert.training.reporting import StartUp
from mlperf_bert.training.setup import Setup


@pytest.fixture
def setup(config):
    config = dataclasses.replace(config, eval_batch_size=5, max_eval_steps=3, num_parallel_files=5)
    setup = checks.inspect(config)
    setup.findings.require_none()
    return setup


def run_of(setup, *, step: int = 0, **of_team):
    """A run at a step, of which nothing is computed."""
    trainer = types.SimpleNamespace(
        step=tf.constant(step),
        batches=lambda own: [own(tf.distribute.InputContext(2, 1, num_replicas_in_sync=2))],
        put_state=lambda: None,
    )
    state = types.SimpleNamespace(directory=setup.config.output_dir, attach_input=lambda _: None)
    team = types.SimpleNamespace(cluster="two", seed=9, **of_team)
    programs = types.SimpleNamespace(trainer=trainer)
    return types.SimpleNamespace(setup=setup, team=team, programs=programs, state=state)


def test_each_of_two_processes_goes_on_behind_its_own_half_of_the_examples(setup, monkeypatch):
    monkeypatch.setattr(pipeline, "training_batches", lambda files, limits, **how: how)
    monkeypatch.setattr(pipeline, "evaluation_batches", lambda files, limits, **how: how)
    [training], eval_batches = build.all_batches(run_of(setup, step=7))
    assert training == {
        "batch_size": 2,
        "seed": 9,
        "deterministic": True,
        "num_workers": 2,
        "worker": 1,
        "first_example": 14,
        "pack_sequences": False,
        "num_parallel_files": 5,
    }
    assert eval_batches == {"batch_size": 5, "max_batches": 3}
    others = {"shuffle": False, "deterministic": False, "pack_sequences": True}
    changed = dataclasses.replace(setup, config=dataclasses.replace(setup.config, **others))
    [changed], _ = build.all_batches(run_of(changed, step=7))
    del others["shuffle"]
    assert changed == training | others | {"seed": None}


@pytest.mark.parametrize("of_chief", [4, 6])
def test_a_process_that_finds_another_checkpoint_than_the_chief_is_refused(
    setup, monkeypatch, of_chief
):
    monkeypatch.setattr(build, "newest_checkpoint", lambda _: (5, "model.ckpt-5"))
    with pytest.raises(ValueError, match=f"checkpoint of step 5, the chief that of {of_chief}; "):
        build.load_weights(run_of(setup, has_checkpoint=True, latest_step=of_chief))


def test_only_what_is_evaluated_may_go_where_a_run_evaluates_nothing(setup, tmp_path, monkeypatch):
    said: list[str] = []
    team = types.SimpleNamespace(output=types.SimpleNamespace(location=tmp_path), say=said.append)
    without = dataclasses.replace(setup.config, eval_input_file=None, keep_checkpoint_max=3)
    offline = dataclasses.replace(setup, config=without)
    figures = dict.fromkeys(Evaluation.__annotations__, 0.5)
    evaluations.record_evaluation(tmp_path, 10, Evaluation(**figures))
    assert build._disposable(setup, team, [0, 10]) == [0, 10]
    assert build._disposable(offline, team, [0, 10]) == {10} and not said
    (tmp_path / evaluations.RESULTS_LINES).write_text("damaged\n")
    assert build._disposable(offline, team, [0, 10]) == ()
    assert said[0].startswith("warning: no checkpoint is removed: ")
    monkeypatch.setattr(build, "RunState", lambda *of, **how: (*of, how))
    trainer = types.SimpleNamespace(state="state", fetch_state="fetch")
    directory, how = build.state_of(offline, team, trainer)
    assert directory == without.output_dir and how.pop("disposable")([0, 10]) == ()
    assert how == {"parts": "state", "fetch": "fetch", "keep_checkpoint_max": 3}


@pytest.mark.parametrize("is_chief", [True, False])
def test_a_run_is_checked_whole_before_it_begins_and_free_when_it_has_ended(
    setup, monkeypatch, is_chief
):
    """The chief alone compares inputs and devices, records how it ended, and has an outcome."""
    setup = dataclasses.replace(setup, connected=Devices(types.SimpleNamespace(size=2)))
    team = mock.MagicMock(is_chief=is_chief, cluster=None)
    ended = reporting.Outcome(status="success", accuracy=0.5, samples=8)
    parts = mock.MagicMock()
    parts.inspect.return_value, parts._train.return_value = setup, ended
    of_modules = {checks: "inspect check_saving", build: "build_programs state_of"}
    of_modules |= {reporting: "log_header", run: "_log_of Origin _train"}
    for module, names in of_modules.items():
        for name in names.split():
            monkeypatch.setattr(module, name, getattr(parts, name))
    assert run.train(setup.config, team, mock.Mock()) == (ended if is_chief else None)
    told = {"has_checkpoint": team.has_checkpoint, "connected": team.devices}
    assert parts.inspect.call_args == mock.call(setup.config, **told)
    assert parts.check_saving.call_args == mock.call(setup)
    assert team.output.require_same_devices.mock_calls == [mock.call(2)] * is_chief
    assert parts.Origin.return_value.end.mock_calls == [mock.call("success")] * is_chief
    assert parts.build_programs.call_args == mock.call(setup, seed=team.seed)
    team.output.release.assert_called_with()
    setup.findings.add_error("a bad flag")
    with pytest.raises(ValueError, match="a bad flag"):
        run.train(setup.config, team, mock.Mock())
    assert parts.log_header.call_count == 1


def test_what_a_run_has_logged_is_published_though_it_fails(tmp_path):
    published: list[bool] = []

    def publish():
        published.append((tmp_path / "bert.log").exists())
        raise OSError("the bucket does not answer")

    team = types.SimpleNamespace(log_path=lambda: tmp_path / "bert.log", publish=publish)
    with pytest.raises(FloatingPointError), run._log_of(team) as log:
        log.commit()
        raise FloatingPointError
    assert published == [True]


def test_each_flag_of_a_step_reaches_its_part(config, monkeypatch):
    told: dict[str, object] = {}
    model = tf.Module()
    model.fused, model.dropout_generator = True, tf.random.Generator.from_seed(1)
    monkeypatch.setattr(
        build.pretrainer, "build_pretrainer", lambda _, **how: told.update(how) or model
    )
    monkeypatch.setattr(build.pretrainer, "trained_variables", lambda _: [tf.Variable(0.0)])
    rate = {"learning_rate": 0.1, "num_train_steps": 40, "num_warmup_steps": 6}
    rate |= {"start_warmup_step": -2, "poly_power": 0.5, "steps_per_update": 4}
    passed = {"precision": "bfloat16", "recompute": "blocks", "pack_sequences": True}
    own = {"normalization": "replica_sum", "clip_by_global_norm_after_gradient_allreduce": True}
    config = dataclasses.replace(config, **rate, **passed, **own, kernels="triton")
    compilation = Compilation(reason="", passes=True, barriers=True)
    rates, trainer = build.build_trainer(config, None, seed=5, compilation=compilation)
    how = {"compile_passes": True, "sums_of_vectors": True, "barriers": True, "kernels": True}
    assert told == {"seed": 5, **passed, **how}
    assert rates == WarmupPolynomialDecay(**rate)
    made = trainer.optimizer
    assert (made.steps_per_update, made.clip_after_allreduce, made._whole_step) == (4, True, False)
    assert made.optimizer.is_compiled and trainer.batch_size == 4
    assert trainer.normalization == "replica_sum"
    parts = {"model", "optimizer", "accumulators", "step", "generators"}
    assert trainer.state.keys() == parts and len(trainer.state["accumulators"]) == 1
    exported = Compilation(reason="", passes=True, exported=True)
    _, trainer = build.build_trainer(config, None, seed=5, compilation=exported)
    assert trainer.optimizer._whole_step and not trainer.optimizer.optimizer.is_compiled


@pytest.mark.parametrize(
    "changed, is_same",
    [
        ({"seed": 3, "output_dir": "elsewhere", "log_every_steps": 3}, True),
        ({"learning_rate": 1.0}, False),
        ({"device": DeviceConfig(num_gpus=1)}, False),  # with barriers
        ({"bert_config_file": "wide.json"}, False),
    ],
)
def test_what_decides_a_step_is_in_the_name_of_its_program(
    config, tmp_path, monkeypatch, changed, is_same
):
    monkeypatch.chdir(tmp_path)
    wide = json.loads((tmp_path / "bert_config.json").read_text()) | {"intermediate_size": 99}
    (tmp_path / "wide.json").write_text(json.dumps(wide))
    config = dataclasses.replace(config, runtime="jax")
    other = Setup(config=dataclasses.replace(config, **changed))
    assert (Setup(config=config).step_identity == other.step_identity) is is_same


@pytest.mark.parametrize("is_chief, resumed", [(True, 3), (True, 0), (True, None), (False, 3)])
def test_the_chief_alone_writes_and_flushes_before_it_saves(
    setup, tmp_path, monkeypatch, is_chief, resumed
):
    """Also where it was killed before its first checkpoint: it drops the lines of before."""
    made: dict[str, tuple] = {}

    def recorded(name):
        return lambda *of, **how: made.setdefault(name, (of, how)) and mock.MagicMock()

    for name in ("MetricsWriter", "Saves"):
        monkeypatch.setattr(run, name, recorded(name))
    started = {"was_started_before": resumed is not None}
    built = run_of(setup, is_chief=is_chief, publish="publish", **started)
    built.team.output = types.SimpleNamespace(path=tmp_path)
    built.programs.trainer.profiling = "profiler"
    built.setup = dataclasses.replace(
        setup, config=dataclasses.replace(setup.config, async_checkpoint=is_chief)
    )
    with run._outputs_of(built, step=resumed or 0) as outputs:
        how = {"publish": "publish", "asynchronous": is_chief, "flush": outputs.metrics.flush}
    path = tmp_path if is_chief else None
    assert made["MetricsWriter"] == ((path,), {"resumed_step": resumed})
    assert made["Saves"] == ((built.state if is_chief else None,), how)
    assert outputs.profile.output_dir == path


def test_jax_evaluates_the_weights_that_its_trainer_has_on_the_devices(setup, monkeypatch):
    made = []

    def recorded(*of, **how):
        made.append((of, how))
        return mock.Mock(arrays="state")

    mesh = types.SimpleNamespace(size=2)
    config = dataclasses.replace(setup.config, pack_sequences=True)
    setup = dataclasses.replace(setup, config=config, connected=Devices(mesh))
    trainer = mock.Mock(model=tf.Module())
    monkeypatch.setattr(build, "build_trainer", lambda *_, **__: (None, trainer))
    monkeypatch.setattr(jax_trainer, "JaxTrainer", recorded)
    monkeypatch.setattr(jax_trainer, "JaxEvaluator", recorded)
    programs = build.build_programs(setup, seed=1)
    identity = {"step_identity": setup.step_identity}
    (of_training, told), (of_evaluation, also_told) = made
    assert of_training == (trainer, mesh) and of_evaluation[1:] == (mesh, "state")
    assert told == also_told == identity
    # Two of four examples, in one row or two.
    rows = [
        (len(batch["block_ids"]), batch["cls_positions"].shape[1])
        for batch in programs.synthetic_batches
    ]
    assert rows == [(1, 4), (2, 4)]


def test_devices_of_all_processes_share_a_batch_and_are_counted_once(setup):
    config = dataclasses.replace(setup.config, cluster=Cluster(2, 0, 1, 2, 0))
    connected = dataclasses.replace(
        setup, config=config, connected=Devices(types.SimpleNamespace(size=2))
    )
    checked = dataclasses.replace(setup, config=config)  # by one process, which has one device
    for each in (connected, checked):
        assert (each.num_replicas, each.replica_batch_size) == (2, 2)


def test_the_log_says_how_a_run_computes(setup, monkeypatch):
    others = {"precision": "tf32", "normalization": "replica_sum", "drop_caches": True}
    others |= {"device": DeviceConfig(use_tpu=True), "eval_input_file": None, "time_budget": 9.0}
    others |= {"steps_per_update": 5, "num_warmup_steps": 3, "start_warmup_step": -1}
    others |= {"poly_power": 0.5}
    config = dataclasses.replace(setup.config, **others)
    mesh = types.SimpleNamespace(size=2, devices=np.array(jax.devices("cpu")[:1] * 2))
    setup = dataclasses.replace(setup, config=config, connected=Devices(mesh))
    logged: dict[str, object] = {}
    log = types.SimpleNamespace(init_start=logged.update, events=logged.update)
    log.event = lambda key, value: logged.update({key: value})
    team = types.SimpleNamespace(has_checkpoint=False, was_started_before=False, seed=9, say=len)
    monkeypatch.setattr(reporting.rules, "open_division", lambda found: "open")
    for reason in ("not root", None):
        monkeypatch.setattr(reporting.caches, "drop", lambda reason=reason: reason)
        reporting.log_header(log, setup, team, {"run": "x"})
        assert logged["cache_cleared"] == (reason is None)
    precision = "lowest_numerical_precision_in_{}".format
    expected = {
        precision("linear"): "bfloat16",
        precision("attn"): "bfloat16",
        precision("comm"): "fp32",
    }
    expected |= {"micro_batch_size": 2, "num_replicas": 2, "gradient_normalization": "replica_sum"}
    expected |= {"seed": 9, "time_budget_seconds": 9.0, "provenance": {"run": "x"}}
    expected |= {"global_batch_size": 20, "gradient_accumulation_steps": 5, "num_warmup_steps": 3}
    expected |= {"opt_base_learning_rate": 1e-3, "opt_learning_rate_training_steps": 10}
    expected |= {"opt_learning_rate_warmup_steps": 3, "start_warmup_step": -1}
    expected |= {"opt_lamb_learning_rate_decay_poly_power": 0.5, "max_sequence_length": 16}
    expected |= {"max_predictions_per_seq": 4}
    assert {key: logged[key] for key in expected} == expected


@pytest.mark.parametrize("seconds", [None, 0.5])
def test_what_computes_may_sleep(setup, monkeypatch, seconds):
    trainer = mock.Mock(model=tf.Module())
    monkeypatch.setattr(build, "build_trainer", lambda *_, **__: (None, trainer))
    config = dataclasses.replace(setup.config, eval_input_file=None, emulate_step_seconds=seconds)
    made = build.build_programs(dataclasses.replace(setup, config=config), seed=1)
    assert isinstance(made.trainer, SleepingTrainer if seconds else mock.Mock)


@pytest.mark.parametrize(
    "num_examples, logged", [(50, 15), (15, 15), (11, 11)], ids=["limited", "as many", "fewer"]
)
def test_the_log_has_the_examples_that_an_evaluation_takes(setup, num_examples, logged):
    told = []
    timed = types.SimpleNamespace(eval_samples=told.append)
    built = run_of(setup, say=told.append)
    built.log = types.SimpleNamespace(declare_open=lambda: told.append("open"))
    run._log_evaluation_samples(built, timed, num_examples)
    samples, text, division = told
    assert samples == logged and division == "open" and f"this run has {num_examples}" in text


@pytest.mark.parametrize(
    "weights, has_checkpoint, named",
    [
        ("sha256:1", True, []),
        ("", True, ["init_checkpoint"]),
        ("sha256:1", False, ["init_checkpoint"]),
    ],
)
def test_a_run_that_goes_on_need_not_name_its_weights_again(setup, weights, has_checkpoint, named):
    said = []
    issues = [types.SimpleNamespace(parameter=name) for name in ("random_seed", "init_checkpoint")]
    team = types.SimpleNamespace(was_started_before=True, say=said.append)
    team.has_checkpoint = has_checkpoint
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reporting.checks, "departures", lambda setup: [*issues])
        patched.setattr(reporting.rules, "open_division", lambda found: found)
        submission = reporting._submission(setup, team, {"init_checkpoint": weights})
    assert isinstance(submission, SubmissionInfo) and submission.division == "open"
    assert [each.parameter for each in said[0]] == ["random_seed", *named, "run"]


def test_a_run_without_departures_stays_in_its_division(setup, monkeypatch):
    """Only one that departs says so, and is open."""
    said: list[object] = []
    monkeypatch.setattr(reporting.checks, "departures", lambda setup: [])
    team = types.SimpleNamespace(has_checkpoint=False, was_started_before=False, say=said.append)
    assert reporting._submission(setup, team, {}) is setup.config.submission and not said
    assert setup.config.submission.division == "closed"


def test_each_part_of_a_start_has_its_own_time(monkeypatch):
    ages = iter([2.0, 2.0, 5.0, 9.0])
    monkeypatch.setattr(reporting, "process_age", lambda: next(ages))
    start_up = StartUp()
    start_up.done("checks")
    start_up.done("model")
    assert str(start_up) == "started in 9.0 s: imports 2.0, checks 3.0, model 4.0"
