"""Runs of one's own, beside which others are watched."""

import json
import math
import re
import shutil

import numpy as np
import pytest

from mlperf_results import other_runs, watch
from mlperf_results.other_runs import Curve
from tests.mlperf.example_log import write_log, write_runs

CURVE = [[1.0, 2.0], [0.3, 0.7]]


def test_runs_of_ones_own_are_a_band(tmp_path, capsys):
    """Up to the least accuracy with which one ended; one that was aborted is none of them."""
    folder = write_runs(tmp_path / "campaign", (10, 11, 12, 12))
    for number, accuracies in enumerate(([0.5, 0.45, 0.6, 0.74], [0.3, 0.4]), start=4):
        (folder / "runs" / str(number)).mkdir()
        write_log(folder / "runs" / str(number) / "bert.log", accuracies)
    others = other_runs.own_reference(folder)
    assert len(others) == 5 and others.target == 0.73
    assert others.slack >= other_runs.SLACK
    log = folder / "runs" / "0" / "bert.log"
    saved = tmp_path / "band.json"
    assert watch.main([str(log), f"--reference={folder}", f"--save={saved}"]) == 0
    again = other_runs.own_reference(str(saved))
    for name in ("samples", "accuracy"):
        for curve, saved_curve in zip(others.curves, again.curves, strict=True):
            assert np.array_equal(getattr(curve, name), getattr(saved_curve, name))
    samples = others.curves[0].samples[-1]
    assert again.band(samples / 2) == others.band(samples / 2)
    assert "expected after" in capsys.readouterr().out


def test_the_others_count_up_to_the_target_of_the_run(tmp_path):
    """Runs to 0.73 forecast when a run will be at 0.5."""
    folder = write_runs(tmp_path / "campaign", (10, 11, 12))
    others = other_runs.own_reference(str(folder), target=0.5)
    assert others.target == 0.5
    assert all(curve.best[-1] >= 0.5 > curve.best[-2] for curve in others.curves)


def test_an_evaluation_that_is_nan_does_not_spoil_the_band(tmp_path):
    folder = write_runs(tmp_path / "campaign", (10, 11, 12))
    log = folder / "runs" / "0" / "bert.log"
    log.write_text(re.sub(r'(eval_accuracy", "value": )0\.4\d*', r"\1NaN", log.read_text()))
    others = other_runs.own_reference(str(folder))
    assert np.isfinite(others.curves[0].accuracy).all()
    assert np.isfinite(others.band(1_000_000)).all()


@pytest.mark.parametrize(("new", "told"), [('value": 256', "256 and 512"), (None, "512 and None")])
def test_runs_of_another_or_of_an_unknown_task_are_no_band(tmp_path, new, told):
    folder = write_runs(tmp_path / "campaign", (10, 11, 12))
    log = folder / "runs" / "1" / "bert.log"
    lines = log.read_text().splitlines(keepends=True)
    is_tokens = ["max_sequence_length" in line for line in lines]
    changed = [
        line.replace('value": 512', new) if of_it and new else "" if of_it else line
        for line, of_it in zip(lines, is_tokens)
    ]
    assert changed != lines
    log.write_text("".join(changed))
    message = f"--reference={folder}: runs of different tokens: {told}; give a folder of each"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        other_runs.own_reference(str(folder))


@pytest.mark.parametrize(
    "spoil",
    [
        {"curves": [CURVE, CURVE, [[1], [0.3, 0.7]]]},
        {"curves": [CURVE, CURVE, [[2, 1], [0.3, 0.7]]]},
        {"curves": [CURVE, CURVE, [[1, 2], [0.3, math.nan]]]},
        {"task": 3},
    ],
)
def test_a_damaged_file_of_runs_is_one_line(tmp_path, capsys, refusal, spoil):
    content = {"curves": [CURVE] * 3, "words": "mine", "hyperparameters": {}, "task": {}}
    band = tmp_path / "band.json"
    band.write_text(json.dumps(content))
    log = write_log(tmp_path / "bert.log", [0.7])
    assert watch.main([str(log), f"--reference={band}"]) == 0
    band.write_text(json.dumps(content | spoil))
    capsys.readouterr()
    line = refusal(watch, log, f"--reference={band}")
    assert line.startswith(f"watch: {band}: damaged (") and "--save" in line


def test_runs_are_saved_under_a_name_by_which_they_are_read(tmp_path, capsys):
    folder = write_runs(tmp_path / "campaign", (10, 11, 12))
    assert watch.main([f"--reference={folder}", f"--save={tmp_path / 'band'}"]) == 1
    assert "give a name that ends with .json" in capsys.readouterr().err
    assert watch.main([f"--reference={folder}", f"--save={tmp_path / 'new' / 'a.json'}"]) == 0
    assert capsys.readouterr().out.startswith(f"3 runs of {folder} are in ")


def test_the_band_has_room_for_twice_what_each_run_is_outside_of_the_others():
    """Two straight runs, and one that is 0.1 above both in the middle."""
    samples = np.array([1e5, 2e5, 3e5])
    curves = [Curve(samples, np.array([0.5, middle, 0.72])) for middle in (0.6, 0.6, 0.7)]
    assert other_runs.own_slack(curves, 0.72) == pytest.approx(0.2, rel=0.01)
    assert other_runs.own_slack(curves[:2] * 2, 0.72) == other_runs.SLACK


def test_copies_among_runs_of_ones_own_are_one_run(tmp_path, refusal, capsys):
    folder = write_runs(tmp_path / "campaign", (10, 11, 12))
    for number in range(3, 9):
        (folder / "runs" / str(number)).symlink_to(folder / "runs" / "0")
    others = other_runs.own_reference(str(folder))
    assert len(others) == 3 and others.words == f"runs of {folder} (without 6 copies of them)"
    for number in "12":
        shutil.rmtree(folder / "runs" / number)
    assert "1 of its runs have reached the target" in refusal(
        watch, folder / "runs" / "0" / "bert.log", f"--reference={folder}"
    )
