"""The miniature campaign: its task, its recorded reference points, and (slow) the whole of it."""

import json
import signal
import sys

import pytest

from demo import campaign, miniature, reference_points
from mlperf_bert.mlperf import convergence
from mlperf_bert.submission.campaign import Campaign
from tests.helpers import programs
from tests.mlperf.example_log import write_log


def test_recorded_points_are_those_of_the_task():
    [record] = json.loads(campaign.REFERENCE_POINTS.read_text()).values()
    samples = record["Epochs to converge"]
    assert len(samples) == reference_points.NUM_RUNS
    assert all(number % miniature.EVAL_INTERVAL_SAMPLES == 0 for number in samples)
    written = reference_points.points(samples, when=record["When"])
    [fresh] = written.values()
    assert record["Hyperparams"] == fresh["Hyperparams"]
    assert (record["Benchmark"], record["BS"]) == ("bert", miniature.GLOBAL_BATCH_SIZE)
    bound = convergence.bound_of(miniature.GLOBAL_BATCH_SIZE, custom_rcps=campaign.REFERENCE_POINTS)
    assert bound.kind == "point"
    assert 0 < bound.point.min_mean_samples < bound.point.mean_samples


def test_flags_of_a_run_leave_the_seed_to_chance(tmp_path):
    flags = miniature.run_flags(tmp_path)
    Campaign(org="o", system="s", status="onprem", folder=tmp_path, num_runs=10, flags=tuple(flags))
    assert not any(flag.startswith("--seed") for flag in flags)


def test_a_reference_run_that_misses_the_target_is_no_point(tmp_path, monkeypatch):
    """The rules forgive a campaign one such run; the other is there and is not repeated."""
    monkeypatch.setattr(reference_points, "NUM_RUNS", 2)
    for number, (last, status) in enumerate(((0.5, "aborted"), (0.73, "success"))):
        folder = tmp_path / "runs" / str(number)
        folder.mkdir(parents=True)
        write_log(folder / "bert.log", [0.5, last])
        (folder / "run.json").write_text(json.dumps({"status": status}))
    with pytest.raises(ValueError, match=r"runs/0/bert\.log: the target was not reached; the task"):
        reference_points.train(tmp_path)
    (tmp_path / "runs/0/bert.log").unlink()
    write_log(tmp_path / "runs/0/bert.log", [0.5, 0.73])
    assert reference_points.train(tmp_path) == [300_160] * 2


def test_a_prepared_task_is_not_made_again(tmp_path, capsys):
    (tmp_path / "ready").touch()
    miniature.prepare(tmp_path)
    assert "data and initial checkpoint are there" in capsys.readouterr().out


def test_after_ctrl_c_there_is_no_report(tmp_path, monkeypatch):
    """The folder of the submission is there already: it came while the official tools judged."""
    (tmp_path / "campaign" / "submission" / campaign.ORG).mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["campaign", f"--output_dir={tmp_path}"])
    monkeypatch.setattr(miniature, "prepare", lambda folder: None)
    monkeypatch.setattr(campaign.campaign, "main", lambda words: 128 + signal.SIGINT)
    monkeypatch.setattr(campaign.report, "main", lambda words: pytest.fail("a report is made"))
    assert campaign.main() == 128 + signal.SIGINT


@pytest.mark.soak
def test_ten_runs_pass_everything_that_can_pass(tmp_path):
    """Takes half an hour on two busy cores."""
    words = [sys.executable, "-m", "demo.campaign", f"--output_dir={tmp_path}"]
    done = programs.run(*words, check=True)
    assert "PASSED under ruleset 5.0.0" in done.stdout
    [system] = json.loads((tmp_path / "report.json").read_text())
    assert len(system["runs"]) == 10
    assert system["problems"] == []
    assert system["rcp"]["passed"] and system["seeds"]["passed"]
