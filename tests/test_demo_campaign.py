"""The miniature campaign: its task, its recorded points, its nights, and (slow) the whole of it."""

import json
import shlex
import signal
import sys

import pytest

from demo import campaign, miniature, nightly, reference_points
from mlperf_bert.files import locks
from mlperf_bert.mlperf import convergence
from mlperf_bert.mlperf.logs import CAMPAIGN_RECORD
from mlperf_bert.submission import campaign as of_submission
from mlperf_results import compare
from tests.helpers import programs
from tests.mlperf.example_log import write_log
from tests.submission import timed_log


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
    of_model = [
        *("--bert_config_file=TO/checkpoint/bert_config.json", "--input_file=TO/train/*.tfrecord"),
        *("--eval_input_file=TO/eval.tfrecord", "--max_seq_length=64"),
        *("--max_predictions_per_seq=10", "--train_batch_size=64", "--eval_batch_size=100"),
        *("--optimizer=lamb", "--iterations_per_loop=100", "--save_checkpoints_steps=10000"),
    ]
    seed, first, converted = commands
    assert seed == 1 and first == [
        *("python", "run_pretraining.py", "--do_train", *of_model),
        *("--init_checkpoint=TO/checkpoint/model.ckpt-0", "--output_dir=TO/first", "--seed=1"),
        *("--target_accuracy=0.68", "--learning_rate=0.01", "--num_warmup_steps=100"),
        *("--num_train_steps=1500", "--eval_interval_samples=3200", "--submission_org=demo"),
        "--submission_platform=this-machine",
    ]
    assert converted == [
        *("python", "tf2_encoder_checkpoint_converter.py"),
        "--bert_config_file=TO/checkpoint/bert_config.json",
        "--checkpoint_to_convert=TO/first/model.ckpt-1000",
        "--converted_checkpoint_path=TO/learned/model.ckpt-0",
    ]
    assert "data and initial checkpoint are there" in capsys.readouterr().out
    # Those of the recorded reference points; the seed is left to chance.
    flags = [flag.replace(str(tmp_path), "TO") for flag in miniature.run_flags(tmp_path)]
    assert flags == [
        *("--do_train", *of_model, "--init_checkpoint=TO/learned/model.ckpt-0"),
        *("--learning_rate=0.005", "--num_warmup_steps=5", "--num_train_steps=280"),
        *("--eval_interval_samples=960", "--keep_checkpoint_max=1"),
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


@pytest.fixture(name="machine")
def machine_of_a_given_speed(monkeypatch):
    """Stands for trainings: `machine.minutes` of a run, scattered by 0.1%; and how a night ends."""

    class Machine:
        minutes, status, nights = 2.0, 0, []

    def one_night(words):
        given = dict(word.lstrip("-").split("=", 1) for word in words if "=" in word)
        folder = nightly.Path(given["output_dir"])
        Machine.nights.append(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CAMPAIGN_RECORD).write_text("{}")
        if Machine.status:
            return Machine.status
        for number in range(int(given["runs"])):
            run = folder / "runs" / str(number)
            run.mkdir(parents=True)
            minutes = Machine.minutes * (1 + 0.001 * (number % 3))
            timed_log.write_log(run / "bert.log", minutes=minutes, samples=12_480)
            (run / "run.json").write_text(json.dumps({"status": "success"}))
        (folder / "submission").mkdir()
        return 0

    monkeypatch.setattr(of_submission, "main", one_night)
    monkeypatch.setattr(miniature, "prepare", lambda folder: None)
    Machine.nights = []
    return Machine


def night(folder):
    return nightly.main([f"--output_dir={folder}", "--runs=5"])


@pytest.mark.parametrize(
    "minutes, code, verdict",
    [(2.001, 0, "no"), (2.2, compare.EXIT_SLOWER, "yes"), (1.8, 0, "no")],
)
def test_the_first_night_is_the_baseline_and_a_slower_machine_fails(
    machine, tmp_path, capsys, minutes, code, verdict
):
    assert night(tmp_path) == 0
    assert "baseline.json" in capsys.readouterr().out
    machine.nights[0].rename(tmp_path / "first")  # of the same second
    machine.minutes = minutes
    assert night(tmp_path) == code
    told = f"verdict on samples/s, slower by 5% or more: {verdict}"
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("status", [of_submission.EXIT_TRY_AGAIN, 130, 141])
def test_an_interrupted_night_goes_on(machine, tmp_path, status):
    machine.status = status
    assert night(tmp_path) == status
    begun = machine.nights[0].rename(machine.nights[0].with_name("2020-01-01"))
    machine.status = 0
    assert night(tmp_path) == 0
    assert machine.nights[1] == begun


def test_a_night_whose_runs_failed_is_over(machine, tmp_path, capsys):
    """The next one is a new one: runs that failed stay failed."""
    machine.status = 1
    assert night(tmp_path) == 1
    assert "the runs failed, see above; nothing is compared" in capsys.readouterr().err
    assert not (tmp_path / "baseline.json").exists()
    machine.nights[0].rename(machine.nights[0].with_name("2020-01-01"))  # of the same second
    machine.status = 0
    assert night(tmp_path) == 0
    assert machine.nights[1].name != "2020-01-01" and (tmp_path / "baseline.json").exists()


def test_two_nights_at_once_are_refused(machine, tmp_path, capsys):
    with locks.held(tmp_path, file_name=".nightly.lock"):
        assert night(tmp_path) == 1
    assert "another night goes on; wait for it, or stop it" in capsys.readouterr().err
