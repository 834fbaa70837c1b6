"""What a run builds for several processes, and what its steps are told of how it was started."""

import dataclasses
import types
from unittest import mock

import pytest
import tensorflow as tf

from mlperf_bert.input import pipeline
from mlperf_bert.mlperf.log import SubmissionInfo
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.programs.steps import Asleep
from mlperf_bert.training import (
    build,
    checks,
    evaluations,
    reporting,
    run,
)
from mlperf_bert.training.reporting import StartUp


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
    [training], evaluation = build.all_batches(run_of(setup, step=7))
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
    assert evaluation == {"batch_size": 5, "max_batches": 3}


@pytest.mark.parametrize("of_chief", [4, 6])
def test_a_process_that_finds_another_checkpoint_than_the_chief_is_refused(
    setup, monkeypatch, of_chief
):
    monkeypatch.setattr(build, "newest_checkpoint", lambda _: (5, "model.ckpt-5"))
    with pytest.raises(ValueError, match=f"checkpoint of step 5, the chief that of {of_chief}; "):
        build.load_weights(run_of(setup, has_checkpoint=True, latest_step=of_chief))


def test_only_what_is_evaluated_may_go_where_a_run_evaluates_nothing(setup, tmp_path):
    said: list[str] = []
    team = types.SimpleNamespace(output=types.SimpleNamespace(location=tmp_path), say=said.append)
    without = dataclasses.replace(setup.config, eval_input_file=None)
    offline = dataclasses.replace(setup, config=without)
    figures = dict.fromkeys(Evaluation.__annotations__, 0.5)
    evaluations.record_evaluation(tmp_path, 10, Evaluation(**figures))
    assert build._disposable(setup, team, [0, 10]) == [0, 10]
    assert build._disposable(offline, team, [0, 10]) == {10} and not said
    (tmp_path / evaluations.RESULTS_LINES).write_text("damaged\n")
    assert build._disposable(offline, team, [0, 10]) == ()
    assert said[0].startswith("warning: no checkpoint is removed: ")


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


@pytest.mark.parametrize("seconds", [None, 0.5])
def test_what_computes_may_sleep(setup, monkeypatch, seconds):
    trainer = mock.Mock(model=tf.Module())
    monkeypatch.setattr(build, "build_trainer", lambda *_, **__: (None, trainer))
    config = dataclasses.replace(setup.config, eval_input_file=None, emulate_step_seconds=seconds)
    made = build.build_programs(dataclasses.replace(setup, config=config), seed=1)
    assert isinstance(made.trainer, Asleep if seconds else mock.Mock)


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
    "weights, named", [("sha256:1", ["random_seed"]), ("", ["random_seed", "init_checkpoint"])]
)
def test_a_run_that_goes_on_need_not_name_its_weights_again(setup, weights, named):
    said = []
    issues = [types.SimpleNamespace(parameter=name) for name in ("random_seed", "init_checkpoint")]
    team = types.SimpleNamespace(has_checkpoint=True, was_started_before=True, say=said.append)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reporting.checks, "departures", lambda setup: [*issues])
        patched.setattr(reporting.rules, "open_division", lambda found: found)
        submission = reporting._submission(setup, team, {"init_checkpoint": weights})
    assert isinstance(submission, SubmissionInfo) and submission.division == "open"
    assert [each.parameter for each in said[0]] == [*named, "run"]


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
