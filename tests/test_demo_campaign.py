"""The miniature campaign: its task, its recorded points, and (slow) the whole of it."""

import json
import shlex
import signal
import sys

import pytest

from demo import campaign, miniature
from mlperf_bert.mlperf import convergence
from mlperf_bert.optimization.config import OptimizerConfig
from mlperf_bert.submission import campaign as of_submission
from tests.helpers import programs


def test_recorded_points_are_those_of_the_task():
    [record] = json.loads(campaign.REFERENCE_POINTS.read_text()).values()
    samples = record["Epochs to converge"]
    assert len(samples) == 20
    assert all(number % miniature.EVAL_INTERVAL_SAMPLES == 0 for number in samples)
    of_run = {
        "opt_base_learning_rate": miniature.LEARNING_RATE,
        "opt_learning_rate_training_steps": miniature.NUM_TRAIN_STEPS,
        "num_warmup_steps": miniature.NUM_WARMUP_STEPS,
        "start_warmup_step": 0,
        "gradient_accumulation_steps": 1,
    }
    of_run |= OptimizerConfig(name="lamb").hyperparameters(poly_power=1.0)
    assert record["Hyperparams"].items() <= of_run.items()
    assert len(record["Hyperparams"]) == 9
    assert (record["Benchmark"], record["BS"]) == ("bert", miniature.GLOBAL_BATCH_SIZE)
    bound = convergence.bound_of(miniature.GLOBAL_BATCH_SIZE, custom_rcps=campaign.REFERENCE_POINTS)
    assert bound.kind == "point"
    assert 0 < bound.point.min_mean_samples < bound.point.mean_samples


def test_a_task_is_prepared_once_from_the_newest_checkpoint(tmp_path, monkeypatch, capsys):
    commands = []

    def ran(steps, start):
        [(_, command)] = steps
        assert not (tmp_path / "ready").exists()
        commands.append(shlex.split(command.replace(str(tmp_path), "TO")))
        (tmp_path / "first").mkdir(exist_ok=True)
        for step in (100, 900, 1000):
            (tmp_path / "first" / f"model.ckpt-{step}.index").touch()

    monkeypatch.setattr(miniature, "run_steps", ran)
    monkeypatch.setattr(miniature, "make_data", lambda folder, seed, start: commands.append(seed))
    for _ in range(2):
        miniature.prepare(tmp_path)
    assert "data and initial checkpoint are there" in capsys.readouterr().out
    seed, first, converted = commands
    assert seed == 1
    # Those of the recorded RCPs; the seed of a run is left to chance.
    flags = [flag.replace(str(tmp_path), "TO") for flag in miniature.run_flags(tmp_path)]
    of_model = {
        *("--do_train", "--bert_config_file=TO/checkpoint/bert_config.json", "--optimizer=lamb"),
        *("--input_file=TO/train/*.tfrecord", "--eval_input_file=TO/eval.tfrecord"),
        *("--max_seq_length=64", "--max_predictions_per_seq=10", "--train_batch_size=64"),
        *("--eval_batch_size=100", "--iterations_per_loop=100", "--save_checkpoints_steps=10000"),
    }
    assert {*flags} == of_model | {
        *("--init_checkpoint=TO/learned/model.ckpt-0", "--learning_rate=0.005"),
        *("--num_warmup_steps=5", "--num_train_steps=280", "--eval_interval_samples=960"),
        "--keep_checkpoint_max=1",
    }
    assert first[:2] == ["python", "run_pretraining.py"]
    assert {*first[2:]} == of_model | {
        *("--init_checkpoint=TO/checkpoint/model.ckpt-0", "--output_dir=TO/first", "--seed=1"),
        *("--target_accuracy=0.68", "--learning_rate=0.01", "--num_warmup_steps=100"),
        *("--num_train_steps=1500", "--eval_interval_samples=3200", "--submission_org=demo"),
        "--submission_platform=this-machine",
    }
    assert converted == [
        *("python", "tf2_encoder_checkpoint_converter.py"),
        "--bert_config_file=TO/checkpoint/bert_config.json",
        "--checkpoint_to_convert=TO/first/model.ckpt-1000",
        "--converted_checkpoint_path=TO/learned/model.ckpt-0",
    ]


@pytest.mark.parametrize("status", [0, 1, 75, 128 + signal.SIGINT])
def test_a_campaign_that_has_ended_is_reported_and_another_is_not(tmp_path, monkeypatch, status):
    """The folder of the submission is there early: it comes while the official tools judge."""
    asked, reports = [], []
    org = tmp_path / "campaign" / "submission" / campaign.ORG
    org.mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["campaign", f"--output_dir={tmp_path}"])
    monkeypatch.setattr(miniature, "prepare", lambda folder: asked.append(folder))
    monkeypatch.setattr(of_submission, "main", lambda words: asked.append(words) or status)
    monkeypatch.setattr(campaign.report, "main", reports.append)
    assert campaign.main() == status
    points, task = f"--custom_rcps={campaign.REFERENCE_POINTS}", tmp_path / "task"
    assert asked == [
        task,
        [
            *("--org=demo", "--system=this-machine", f"--output_dir={tmp_path}/campaign", points),
            *(f"--system_description={tmp_path}/notes.json", "--", *miniature.run_flags(task)),
        ],
    ]
    assert "no submission" in json.loads((tmp_path / "notes.json").read_text())["sw_notes"]
    report = [str(org), points, f"--output={tmp_path}/report.html"]
    assert reports == ([report] if status <= 1 else [])


@pytest.mark.all
def test_ten_runs_pass_everything_that_can_pass(tmp_path):
    """Takes half an hour on two busy cores."""
    words = [sys.executable, "-m", "demo.campaign", f"--output_dir={tmp_path}"]
    done = programs.run(*words, check=True)
    assert "PASSED under ruleset 5.0.0" in done.stdout
    [system] = json.loads((tmp_path / "report.json").read_text())
    assert len(system["runs"]) == 10
    assert system["problems"] == []
    assert system["rcp"]["passed"] and system["seeds"]["passed"]
