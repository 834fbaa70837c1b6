"""Where runs stand: like beside like, what is unlike said, numbers those of the table."""

import json
import os
import re
import shutil
import statistics
from dataclasses import replace

import pytest

from mlperf_results import published, standing
from tests.mlperf.example_log import write_log, write_submission


@pytest.fixture(scope="module")
def submission(tmp_path_factory):
    """A submitter's folder with ten runs of one system."""
    org_dir = tmp_path_factory.mktemp("submission") / "example"
    curves = [[0.5] * (16 + number % 2) + [0.73] for number in range(10)]
    write_submission(org_dir, curves, num_layers=24)
    (org_dir / "systems").mkdir()
    (org_dir / "systems" / "box.json").write_text(
        '{"division": "closed", "number_of_nodes": "1", "accelerators_per_node": "8", '
        '"accelerator_model_name": "NVIDIA H100 80GB HBM3", "framework": "TensorFlow 2.20.0"}'
    )
    return org_dir


@pytest.fixture
def org_dir(submission, tmp_path):
    return shutil.copytree(submission, tmp_path / "example")


@pytest.fixture
def unjudged(monkeypatch):
    """The official checker, which takes seconds, is not asked about ten runs."""
    monkeypatch.setattr(standing, "with_convergence", lambda system, _: system)


@pytest.fixture(name="miniature")
def run_of_a_miniature(tmp_path):
    """The directory of a run as the demo's: open, a tiny model, short sequences."""
    folder = tmp_path / "run"
    folder.mkdir()
    log = write_log(folder / "bert.log", [0.5, 0.73], max_sequence_length=64)
    text = log.read_text().replace('"value": "closed"', '"value": "open"')
    log.write_text(text)
    device = {"num_gpus": 0, "use_tpu": False}
    record = {"status": "success", "parameters": {"device": device, "num_workers": 1}}
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_a_submission_is_ranked_and_its_neighbours_are_like_it(org_dir, shipped):
    [own] = standing.read_own(str(org_dir))
    assert (own.name, own.family, own.accelerators) == ("example/box", "H100 SXM", 8)
    assert own.rcp.startswith("passed")
    known = published.comparable(shipped)
    # Logs that are written in milliseconds have times that scatter.
    own = replace(own, minutes_scored=5.0, notes=None)
    head, minutes, samples, rate, checker, _, *neighbours = standing.standing_of(own, shipped)
    assert head == "example/box: comparable with closed results"
    like = [e.minutes for e in known if e.accelerators == 8]
    place = sum(other < 5.0 for other in like) + 1
    assert f"5 min (10 runs; place {place} of {len(like) + 1} on 8 accelerators)" in minutes
    assert "(batch 448; reference point at batch 448: mean 2,414,421 samples" in samples
    rates = [(e.family, e.samples_per_second_per_accelerator) for e in known]
    rates = [(family, each) for family, each in rates if each is not None]
    place = sum(each > own.samples_per_second_per_accelerator for _, each in rates) + 1
    median = statistics.median(each for family, each in rates if family == "H100 SXM")
    assert f"(place {place} of {len(rates) + 1} published results; median of H100 SXM" in rate
    assert rate.endswith(f": {median:,.4g})")
    assert checker.startswith("  official RCP checker: passed")
    assert len(neighbours) == standing.NUM_NEIGHBOURS
    assert any("PyTorch, not TensorFlow" in line for line in neighbours)
    log = org_dir / "results" / "box" / "bert" / "result_10.txt"
    write_log(log, [0.5] * 16 + [0.73], seed=10, num_layers=24)
    assert standing.read_own(str(org_dir))[0].rcp is None  # eleven runs are no result


def test_runs_that_do_not_count_are_named_and_no_run_is_ranked(org_dir, capsys):
    """One is a failed run; two are no result; of ten nothing is left."""
    folder = org_dir / "results" / "box" / "bert"

    def spoil(*numbers):
        for number in numbers:
            log = folder / f"result_{number}.txt"
            log.write_text(log.read_text().replace("0.73", "0.7199"))

    (folder / "result_3.txt").write_text(":::MLLOG {\n")
    [own] = standing.read_own(str(org_dir))
    assert (own.runs, own.runs_converged, own.departures, own.rcp) == (10, 9, (), None)
    spoil(4)
    [own] = standing.read_own(str(org_dir))
    assert (own.runs, own.runs_converged, own.departures) == (10, 8, ("did not converge",))
    assert standing.main([str(org_dir)]) == 0
    printed = capsys.readouterr().out
    assert "runs left out: result_3.txt: line 1, cut or damaged; copy the log" in printed
    assert "; result_4.txt: says success, and no evaluation has an accuracy of 0.7" in printed
    spoil(*set(range(10)) - {3, 4})
    assert standing.main([str(org_dir)]) == 1
    line = capsys.readouterr().err
    assert "no run in it counts" in line and "result_0.txt and 8 more: says success, and" in line


def test_a_miniature_is_shown_and_never_ranked(miniature, capsys):
    assert standing.main([str(miniature)]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{miniature}: not comparable: open, miniature"
    assert "not ranked" in lines[0]
    assert "no reference for such a run" in lines[1]
    for place in (miniature / "bert.log", miniature):
        [own] = standing.read_own(str(place))
        assert (own.accelerators, own.max_sequence_length) == (0, 64)
    foreign = shutil.copy(miniature / "bert.log", miniature / "another.log")
    assert standing.read_own(str(foreign))[0].accelerators is None
    assert all("BERT-large, not a miniature" in line for line in lines[4:]) and len(lines) > 4


@pytest.mark.parametrize(
    ("changes", "departures"),
    [
        ({"division": "open"}, ("open",)),
        ({"division": None}, ("no division",)),
        ({"num_weights": 46, "max_sequence_length": 64}, ("miniature",)),
        ({"max_sequence_length": 128}, ("sequences of 128 tokens",)),
        ({"runs_missing": 1, "minutes_scored": None}, ("logs missing",)),
        ({"minutes_scored": None, "runs_converged": 8}, ("did not converge",)),
        ({}, ()),
    ],
)
def test_what_is_never_ranked(shipped, changes, departures):
    closed = next(entry for entry in shipped if not entry.departures)
    assert replace(closed, **changes).departures == departures


def test_the_official_verdict_says_how_it_was_counted(shared, capsys):
    assert standing.main([str(shared / "real_logs" / "NVIDIA")]) == 0
    printed = capsys.readouterr().out
    how = "counted by train_samples (its option --bert_train_samples)"
    assert f"official RCP checker: passed, RCP found, RCP test PASSED, {how}; samples" in printed
    assert "published as 1.0/NVIDIA/dgxa100_ngc21.05_pytorch" in printed


def test_the_latest_of_those_that_are_as_like_comes_first_and_what_is_unlike_is_said(shipped):
    """The runs themselves are no neighbour of a result that was published three times."""
    first = shipped[-1]
    rounds = {"3.0": first.global_batch_size, "3.1": first.global_batch_size, "4.0": 56}
    others = [
        replace(first, round=name, global_batch_size=batch, run_minutes=(float(batch),) * 10)
        for name, batch in rounds.items()
    ]
    others[0] = replace(others[0], minutes_scored=9.5, runs=9)
    own = replace(first, round="", org="mine")
    found = standing.standing_of(own, [*others, first])
    name, batch = f"{first.org}/{first.system}", first.global_batch_size
    assert found == [
        f"mine/{first.system}: comparable with closed results",
        f"  Time to train: {first.minutes:.4g} min (10 runs; place 2 of 4 on 6 accelerators)",
        "  Samples to converge: 3,029,030 (batch 96; no reference point is as small; judged by "
        "batch 448: mean 2,414,421 samples, at least 2,274,732)",
        "  Samples/s per accelerator: 28.08 (place 1 of 4 published results; median of "
        "RX 7900 XTX: 28.08)",
        f"  published as {first.name}",
        f"  official RCP checker: {first.rcp}",
        "  most like it, and what is unlike as far as logs and descriptions say:",
        f"    3.1/{name}: {first.minutes:.4g} min",
        f"    3.0/{name}: 9.5 min; 9 runs, not 10",
        f"    4.0/{name}: {first.minutes:.4g} min; batch 56, not {batch:,}",
    ]
    assert "not ranked" in standing.standing_of(replace(own, accelerators=None), others)[1]


def test_copies_and_plans_are_told(org_dir, capsys):
    folder = org_dir / "results" / "box" / "bert"
    for number in range(1, 10):
        (folder / f"result_{number}.txt").unlink()
        os.link(folder / "result_0.txt", folder / f"result_{number}.txt")
    assert standing.main([str(org_dir)]) == 0
    printed = capsys.readouterr().out
    assert "(1 run, no result; place" in printed
    assert "\n  copies left out: result_1.txt and 8 more: the same run as result_0.txt\n" in printed
    for number in range(1, 10):
        (folder / f"result_{number}.txt").unlink()
    text = re.sub(r'"epoch_num": \d+', '"epoch_num": 1', (folder / "result_0.txt").read_text())
    text = text.replace("train_samples", "trained").replace("eval_samples", "train_samples")
    (folder / "result_0.txt").write_text(text)
    assert standing.main([str(org_dir)]) == 0
    printed = capsys.readouterr().out
    assert "Samples/s per accelerator: unknown (" in printed
    assert "\n  samples unknown: train_samples, 10,000, is a plan or the size of the" in printed


def test_runs_that_cannot_be_read_are_one_line(miniature, org_dir, tmp_path, refusal):
    log = miniature / "bert.log"
    whole = log.read_text()
    log.write_text("".join(line for line in whole.splitlines(True) if "run_stop" not in line))
    assert f"{log}: 0 lines run_stop, a log of one run has 1" in refusal(standing, miniature)
    assert "0 lines run_stop" in refusal(standing, log)
    record = miniature / "run.json"
    record.write_text(json.dumps({"status": "running"}))
    assert f"{miniature}: this run has not ended; resume it, or wait" in refusal(
        standing, miniature
    )
    log.write_text(whole)
    assert standing.read_own(str(log))[0].name == str(log)  # its run was killed after its end
    record.write_text(json.dumps({"status": "success"}))
    (miniature / "bert.resumed-1.log").write_text(whole)
    for place in (miniature, miniature / "bert.resumed-1.log"):
        assert f"{place}: was resumed, none of its logs has all" in refusal(standing, place)
    (tmp_path / "campaign.json").write_text("{}")
    assert "this campaign has no result yet; give runs/N in it" in refusal(standing, tmp_path)
    logs = org_dir / "results" / "box" / "bert"
    assert "runs; give one, or the folder above results/" in refusal(standing, logs)
    shutil.rmtree(logs)
    assert "no results/SYSTEM/bert/result_*.txt" in refusal(standing, org_dir)


@pytest.mark.usefixtures("unjudged")
def test_a_campaign_stands_for_its_submission(org_dir, tmp_path):
    folder = tmp_path / "campaign"
    (folder / "submission").mkdir(parents=True)
    (folder / "campaign.json").write_text("{}")
    shutil.move(org_dir, folder / "submission" / "example")
    # As a campaign leaves it that was killed while it wrote.
    shutil.copytree(folder / "submission" / "example", folder / "submission" / ".example.partial")
    [own] = standing.read_own(str(folder))
    assert own.name == "example/box"
