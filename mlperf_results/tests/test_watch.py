"""Where a run stands among others: the band, the forecast, the causes, and how it is told."""

import math
import re
import sys
import types
from dataclasses import replace

import numpy as np
import pytest

from mlperf_bert.mlperf import logs
from mlperf_bert.mlperf.rules import BERT_LARGE
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.programs.config import FIGURES
from mlperf_bert.training.loop import OVER, Trained
from mlperf_results import other_runs, watch
from mlperf_results.benchmarks import watch_table
from mlperf_results.other_runs import Curve, Reference
from tests.fixtures import REPOSITORY
from tests.helpers import programs
from tests.mlperf.example_log import write_log, write_runs


def rising(end, *, every=100_000, initial=0.3, target=0.72):
    """A run that rises in a straight line from `initial` to the target at `end` samples."""
    samples = np.arange(every, end + every, every, dtype=float)
    return Curve(samples, np.minimum(initial + (target - initial) * samples / end, target))


@pytest.fixture(name="others")
def five_straight_runs():
    """They need 1.0 to 1.4 million samples; margins are round numbers."""
    return five_straight_runs_of(100_000)


def five_straight_runs_of(every):
    return Reference(
        [rising(every * number, every=every) for number in (10, 11, 12, 13, 14)],
        words="others",
        slow=1.25,
        fast=1.25,
        slack=0.01,
        initial_accuracy=0.3,
        hyperparameters={"opt_base_learning_rate": 0.001},
    )


def test_an_observed_run_loads_nothing_that_draws_and_no_official_tool():
    """The start of the run would take longer."""
    program = """
import sys
from mlperf_results import watch
slow = {"jinja2", "matplotlib", "scipy", "bokeh", "mlperf_bert.submission.official"}
sys.exit(", ".join(slow & sys.modules.keys()) or 0)
"""
    programs.run(sys.executable, "-c", program, check=True)


def test_the_band_is_the_others_with_more_and_fewer_samples(others):
    low, high = others.band(500_000)
    # The slowest after 400,000 samples, the fastest after 625,000, and 0.01 beyond.
    assert low == pytest.approx(0.3 + 0.42 * 0.4 / 1.4 - 0.01, abs=1e-3)
    assert high == pytest.approx(0.3 + 0.42 * 0.625 + 0.01, abs=1e-3)


def stands(reference, samples, accuracy):
    return watch.Watched(reference=reference, hyperparameters={}).evaluated(samples, accuracy, None)


@pytest.mark.parametrize(
    ("samples", "accuracy", "side"),
    [
        # Before the first step a run has the accuracy of the checkpoint.
        (0, 0.2, "below"),
        (0, 0.3, ""),
        # How the others got to their first evaluation is not known.
        (50_000, 0.3, ""),
        (50_000, 0.2, "below"),
        (500_000, 0.31, "below"),
        (500_000, math.nan, "below"),
        (500_000, 0.45, ""),
        (500_000, 0.9, "above"),
        # Much more than the slowest needed.
        (1.7e6, 0.719, ""),
        (1.8e6, 0.719, "below"),
        (1.8e6, 0.72, ""),
    ],
)
def test_what_is_outside_has_no_forecast(others, samples, accuracy, side):
    found, words = stands(others, samples, accuracy)
    assert found == side
    is_expected = not side and samples > 0 and accuracy < 0.72
    assert ("expected after" in words) == is_expected


def test_without_an_initial_accuracy_the_first_evaluation_accuses_nobody(others):
    unknown = Reference(others.curves, words="others", slow=1.25, fast=1.25, slack=0.01)
    assert stands(unknown, 50_000, 0.1)[0] == ""
    assert stands(unknown, 150_000, 0.1)[0] == "below"
    assert stands(unknown, 50_000, math.nan)[0] == "below"


@pytest.mark.parametrize(
    "batch, words",
    [
        (448, "at batch 448"),
        (500, "at batch 448 to 512 (nobody published 500)"),
        (8192, "at batch 6,144 to 8,192 (few published 8,192)"),
    ],
)
def test_a_batch_that_few_published_uses_its_neighbours_and_says_so(shipped, batch, words):
    assert other_runs.published_reference(batch, shipped).words == f"published runs {words}"


def test_samples_of_another_batch_are_as_many_as_the_reference_needs_there(shipped):
    """Where only 6,144 is published, a run of 6,912 is expected to take its reference's share."""
    alone = [entry for entry in shipped if entry.global_batch_size == 6144]
    here = other_runs.published_reference(6144, alone)
    there = other_runs.published_reference(6912, alone)
    first, second = (reference.curves[0].samples[-1] for reference in (here, there))
    assert second / first == pytest.approx(3_601_920 / 3_319_125, rel=1e-6)


def test_an_evaluation_before_the_first_step_is_none_of_a_curve(shipped):
    runs = {"evaluation_samples": ((0.0, 448.0),), "evaluation_accuracy": ((0.34, 0.5),)}
    [curve] = other_runs.curves_of(replace(shipped[0], **runs))
    assert list(curve.samples) == [448]


def test_published_runs_are_inside_while_their_own_system_is_left_out(shipped):
    """Of one batch size; the page has the table of all."""
    some = [entry for entry in shipped if entry.global_batch_size in (256, 240, 352)]
    outside, total = watch_table.false_alarms(some, lambda entry: entry.name)
    assert total == 120 and outside <= 1


@pytest.mark.gate
def test_the_notes_have_the_table(shipped):
    notes = (REPOSITORY / "benchmarks" / "NOTES.md").read_text(encoding="utf-8")
    made = watch_table.table(shipped)
    assert made in notes
    outside, total = re.search(r"its system \| (\d+) \| ([\d,]+)", made).groups()
    assert int(outside) / int(total.replace(",", "")) <= 1 / 200
    inside = re.findall(r"([\d.]+)% \| [\d]+% \|$", made, re.MULTILINE)
    assert 89 <= float(inside[-1]) <= 95  # "nine of ten"


def evaluation(accuracy, loss=2.0):
    return Evaluation(
        masked_lm_accuracy=accuracy,
        masked_lm_loss=loss,
        next_sentence_accuracy=0.9,
        next_sentence_loss=0.1,
        loss=loss + 0.1,
        num_examples=10_000,
    )


def watch_of(others, *, rate=0.001, ends=False):
    run = watch.Watched(
        reference=others, hyperparameters={"opt_base_learning_rate": rate}, vocab_size=30522
    )
    return watch.Watch(run=run, batch_size=1000, ends_hopeless=ends)


def watched(others, accuracy, *, first, **options):
    """What is said after 500 steps of 1,000 samples, and how the loop goes on."""
    watcher = watch_of(others, **options)
    watcher.begin(0)
    figures = np.zeros((500, len(FIGURES)))
    figures[0, FIGURES.index("masked_lm_loss")] = first
    trained = Trained(before=0, step=500, figures=figures, seconds=1.0)
    assert watcher.at(trained) is None
    words = watcher.evaluated(500, evaluation(accuracy))
    return words, watcher.at(replace(trained, before=500, step=510))


def test_the_example_of_the_page_is_what_the_command_prints_of_the_log(shared, capsys, monkeypatch):
    page = (REPOSITORY / "mlperf_results" / "docs" / "watching.md").read_text(encoding="utf-8")
    log = "tpu-v4-128-TF/bert/result_1.txt"
    [example] = [block for block in page.split("\n\n") if block.startswith("    tpu-")]
    first, early, rest, last = [line[4:] for line in example.splitlines()]
    monkeypatch.chdir(shared / "real_logs" / "Google" / "results")
    watch.main([log])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == first and early in printed[1:-1] and rest == "  ..."
    assert printed[-1] == last


@pytest.mark.parametrize(
    ("rate", "words"),
    [(1e4, "in 1m9s"), (1e3, "in 11m26s"), (1e2, "in 1h54m17s"), (None, "(1.08 to 1.29)")],
)
def test_the_time_that_is_left_is_told_as_a_time_budget_is_given(others, rate, words):
    run = watch.Watched(reference=others, hyperparameters={})
    _, said = run.evaluated(5e5, 0.48, rate)
    assert said.endswith(words)
    run = watch.Watched(reference=five_straight_runs_of(10_000), hyperparameters={})
    _, said = run.evaluated(5e4, 0.48, None)
    assert said.endswith("; 0.720 expected after 118,571 samples (107,829 to 129,314)")


def test_a_run_that_was_at_the_target_is_not_expected_there_again(others):
    watcher = watch_of(others)
    watcher.begin(0)
    said = [watcher.evaluated(1400, evaluation(accuracy)) for accuracy in (0.7, 0.72, 0.7)]
    assert ["expected after" in words for words in said] == [True, False, False]


@pytest.mark.parametrize(
    "run, cause",
    [
        ({"first": 10.4}, "the weights are not loaded"),
        ({"first": 6.0, "rate": 0.01}, "--learning_rate is 0.01, theirs 0.001"),
        ({"first": 11.9}, "nothing that the run knows of itself says why"),
    ],
)
def test_a_run_below_the_band_is_warned_with_its_cause_and_can_be_ended(others, run, cause):
    words, ending = watched(others, 0.2, **run)
    assert words.startswith("WARNING: others: ") and "0.2000 is below all of them" in words
    assert f": {cause}" in words and ending is None
    words, ending = watched(others, 0.2, **run, ends=True)
    assert words.endswith("--stop_if_hopeless ends the run") and ending == OVER


def test_a_run_above_the_band_is_warned_and_goes_on(others):
    words, ending = watched(others, 0.9, first=6.0, ends=True)
    assert "0.9000 is above all of them (limit 0.57" in words and ending is None


def test_a_run_that_goes_on_is_judged_by_its_own_steps_alone(others, monkeypatch):
    clock = types.SimpleNamespace(monotonic=iter([0.0, 5.0, 10.0]).__next__)
    monkeypatch.setattr(watch, "time", clock)
    watcher = watch_of(others)
    watcher.begin(400)
    figures = np.full((100, len(FIGURES)), 10.4)
    watcher.at(Trained(before=400, step=500, figures=figures, seconds=1.0))
    assert "not loaded" not in watcher.evaluated(500, evaluation(0.1))
    # 10,000 samples a second, and four sevenths of 1.2 million are left.
    assert watcher.evaluated(500, evaluation(0.48)).endswith(", in 1m9s")


def config(tmp_path, model, **changes):
    """What the watch asks of a configuration."""
    path = tmp_path / "bert_config.json"
    path.write_text(str(dict(model)).replace("'", '"'))
    given = {
        "bert_config_file": str(path),
        "global_batch_size": 448,
        "train_batch_size": 448,
        "learning_rate": 4e-4,
        "num_warmup_steps": 0,
        "optimizer": types.SimpleNamespace(name="lamb", epsilon=1e-6),
        "poly_power": 1.0,
        "shape": types.SimpleNamespace(max_seq_length=512),
        "target_accuracy": 0.72,
        "emulate_step_seconds": None,
    }
    return types.SimpleNamespace(**given | changes)


@pytest.mark.parametrize("is_own", [False, True])
def test_a_run_is_watched_beside_published_runs_or_ones_own(tmp_path, is_own):
    words, target = [], 0.72
    if is_own:
        folder = write_runs(tmp_path / "campaign", (10, 11, 12))
        words, target = [f"--reference={folder}", "--stop_if_hopeless"], 0.73
    watcher = watch.observer(config(tmp_path, BERT_LARGE, target_accuracy=target), words)
    of_whom = "runs of " if is_own else "published runs at batch 448: "
    assert of_whom in watcher.evaluated(335, evaluation(0.38))
    assert (watcher.ends_hopeless, watcher.batch_size) == (is_own, 448)
    assert (watcher.run.vocab_size, watcher.run.reference.target) == (30522, target)
    hyperparameters = {"opt_base_learning_rate": 4e-4, "opt_epsilon": 1e-6, "num_warmup_steps": 0}
    assert watcher.run.hyperparameters == hyperparameters


UNLIKE = r"published runs are of .*; give runs like this"


@pytest.mark.parametrize(
    ("changes", "is_own", "message"),
    [
        ({"optimizer": types.SimpleNamespace(name="adamw", epsilon=1e-6)}, False, UNLIKE),
        ({"poly_power": 0.5}, False, UNLIKE),
        ({"shape": types.SimpleNamespace(max_seq_length=128)}, False, UNLIKE),
        ({"target_accuracy": 0.71}, False, UNLIKE),
        ({"emulate_step_seconds": 0.1}, False, UNLIKE),
        ({"model": {**BERT_LARGE, "num_hidden_layers": 2}}, False, UNLIKE),
        *(
            ({"global_batch_size": batch}, False, f"near {batch:,}, only 66 to 16,384; give")
            for batch in (1, 32, 10**6)
        ),
        ({"global_batch_size": 64}, True, "this run: has batch 64, the runs of .* have 448; give"),
        (
            {"shape": types.SimpleNamespace(max_seq_length=128)}, True,
            "this run: has tokens 128, the runs of .* have 512",
        ),
        ({"target_accuracy": 0.8}, True, r"0 of its runs have reached the target 0\.8; 3 are"),
    ],
)  # fmt: skip
def test_a_run_with_nothing_to_compare_it_with_is_refused(tmp_path, changes, is_own, message):
    changes = {"model": BERT_LARGE, "target_accuracy": 0.73 if is_own else 0.72} | changes
    folder = write_runs(tmp_path / "campaign", (10, 11, 12))
    with pytest.raises(ValueError, match=message):
        watch.observer(config(tmp_path, **changes), [f"--reference={folder}"] * is_own)


def test_one_of_several_runs_that_is_outside_is_enough(tmp_path, capsys):
    folder = write_runs(tmp_path / "campaign", (10, 11, 12, 12))
    good, bad = folder / "runs" / "1" / "bert.log", tmp_path / "bad.log"
    write_log(bad, [0.3, 0.31, 0.31, 0.31, 0.31, 0.32])
    for runs, code in [([good], 0), ([good, bad], 3), ([bad, good], 3)]:
        assert watch.main([*map(str, runs), f"--reference={folder}"]) == code
        assert ("WARNING" in capsys.readouterr().out) == (code == watch.EXIT_OUTSIDE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"global_batch_size": None}, "no batch size in the log, or not BERT-large with 512"),
        ({"max_sequence_length": 128}, "no batch size in the log, or not BERT-large with 512"),
        ({"num_weights": 30}, "no batch size in the log, or not BERT-large with 512"),
        ({"global_batch_size": 32}, "nobody published a batch near 32, only 66 to 16,384; give"),
        (
            {"evaluations": (logs.LoggedEvaluation(1.0, None, 0.5),)},
            "its epoch_num does not count samples: nothing says when an evaluation was",
        ),
    ],
)
def test_a_log_with_nothing_to_compare_it_with_is_refused(tmp_path, change, message):
    log = write_log(tmp_path / "bert.log", [0.38, 0.73], num_layers=24)
    run = replace(logs.read_run(log), **change)
    with pytest.raises(ValueError, match=re.escape(f"{log}: {message}")):
        watch.lines(run, watch.reference_of_log(run))


def test_what_is_no_reference_is_one_line(tmp_path, refusal):
    write_runs(tmp_path / "two", (10, 11))
    log = write_log(tmp_path / "bert.log", [0.38, 0.73])
    write_runs(tmp_path / "others", (10, 11, 12))
    other = write_log(tmp_path / "other.log", [0.38, 0.73], max_sequence_length=128)
    has_128 = f"{other}: has tokens 128, the runs of {tmp_path}/others have 512; give runs like it"
    assert has_128 in refusal(watch, other, f"--reference={tmp_path / 'others'}")
    for name, reason in [
        ("two", "2 of its runs have reached the target 0.73; 3 are the fewest"),
        ("missing", "missing: there is no such file or folder; give"),
    ]:
        assert reason in refusal(watch, log, f"--reference={tmp_path / name}")


def test_a_log_that_grows_is_followed_to_its_end(tmp_path, capsys, monkeypatch):
    """Each evaluation is told once; the file grows by a line while the watch sleeps."""
    whole = write_log(tmp_path / "whole.log", [0.38, 0.40, 0.46, 0.73], num_layers=24)
    lines = whole.read_text().splitlines(keepends=True)
    growing = tmp_path / "growing.log"
    start = next(number for number, line in enumerate(lines) if "run_start" in line)
    growing.write_text("a line of the launcher, and one that is cut")
    left = iter(["\n", "".join(lines[:40]), "".join(lines[40:start]), *lines[start:]])

    def grow(seconds):
        with growing.open("a") as file:
            file.write(next(left))

    monkeypatch.setattr(watch.time, "sleep", grow)
    assert watch.main([str(growing), "--follow"]) == watch.EXIT_OUTSIDE
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"{growing}: has not begun; waiting for its run_start"
    assert printed[1].startswith(f"{growing}: running, no evaluation yet; the others are 566 ")
    told = [line for line in printed if line.startswith("  after ")]
    assert [line.split(": ")[1][:6] for line in told] == ["0.3800", "0.4000", "0.4600", "0.7300"]
    assert next(left, None) is None
