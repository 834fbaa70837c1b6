"""Where runs stand: like beside like, what is unlike said, numbers those of the table."""

import json
import shutil
from dataclasses import replace

import pytest

from mlperf_results import standing
from tests.fixtures import REPOSITORY
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


def test_a_result_of_ten_runs_has_the_official_verdict(org_dir):
    [own] = standing.read_own(str(org_dir))
    assert (own.name, own.family, own.accelerators) == ("example/box", "H100 SXM", 8)
    assert own.rcp.startswith("passed")
    log = org_dir / "results" / "box" / "bert" / "result_10.txt"
    write_log(log, [0.5] * 16 + [0.73], seed=10, num_layers=24)
    assert standing.read_own(str(org_dir))[0].rcp is None  # eleven runs are no result


def test_a_miniature_is_shown_and_never_ranked(miniature, capsys):
    assert standing.main([str(miniature)]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{miniature}: not comparable: open, miniature"
    assert "not ranked" in lines[0]
    assert "no reference for such a run" in lines[1]
    for place in (miniature / "bert.log", miniature):
        [own] = standing.read_own(str(place))
        assert (own.accelerators, own.max_sequence_length) == (0, 64)
    foreign = str(shutil.copy(miniature / "bert.log", miniature / "another.log"))
    assert standing.read_own(foreign)[0].accelerators is None
    assert all("BERT-large, not a miniature" in line for line in lines[4:]) and len(lines) > 4
    record = (miniature / "run.json").read_text().replace('"num_gpus": 0', '"num_gpus": 8')
    (miniature / "run.json").write_text(record)
    assert standing.read_own(str(miniature))[0].accelerators is None  # of one of several hosts
    standing.main([foreign, str(miniature)])
    told = [line for line in capsys.readouterr().out.splitlines() if line[0] != " "]
    assert told == [f"{place}: not comparable: open, miniature" for place in (foreign, miniature)]


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
    page = (REPOSITORY / "mlperf_results/docs/standing.md").read_text(encoding="utf-8")
    example = page.split("among other lines:\n\n")[1].split("\n\n")[0].splitlines()
    assert len(example) == 6 and {line[4:] for line in example} <= set(printed.splitlines())


def test_the_latest_of_those_that_are_as_like_comes_first_and_what_is_unlike_is_said(shipped):
    """The runs themselves are no neighbour of a result that was published three times."""
    first = shipped[-1]
    rounds = {"3.0": first.global_batch_size, "3.1": first.global_batch_size, "4.0": 56}
    others = [
        replace(first, round=name, global_batch_size=batch, run_minutes=(float(batch),) * 10)
        for name, batch in rounds.items()
    ]
    others[0] = replace(others[0], minutes_scored=9.5, runs=9)
    others[2] = replace(others[2], accelerators=8, accelerator_model_name="NVIDIA L4")
    others[2] = replace(others[2], framework="NGC PyTorch", samples_per_second_per_accelerator=99)
    own = replace(first, round="", org="mine", notes="copies left out: 2\nfar off: 1")
    own = replace(own, run_minutes=own.run_minutes[::-1])  # its logs may have other numbers
    found = standing.standing_of(own, [*others, first])
    name, batch = f"{first.org}/{first.system}", first.global_batch_size
    frameworks = "/".join(first.frameworks)
    assert found == [
        f"mine/{first.system}: comparable with closed results",
        f"  Time to train: {first.minutes:.4g} min (10 runs; place 2 of 3 on 6 accelerators)",
        "  Samples to converge: 3,029,030 (batch 96; no RCP is as small; judged by "
        "batch 448: mean 2,414,421 samples, at least 2,274,732)",
        "  Samples/s per accelerator: 28.08 (place 2 of 4 published results; median of "
        "RX 7900 XTX: 28.08)",
        "  copies left out: 2",
        "  far off: 1",
        f"  published as {first.name}",
        f"  official RCP checker: {first.rcp}",
        "  most like it, and what is unlike as far as logs and descriptions say:",
        f"    3.1/{name}: {first.minutes:.4g} min",
        f"    3.0/{name}: 9.5 min; 9 runs, not 10",
        f"    4.0/{name}: {first.minutes:.4g} min; L4, not RX 7900 XTX; accelerators 8, not 6; "
        f"batch 56, not {batch:,}; PyTorch, not {frameworks}",
    ]
    for changes, line in (
        ({"accelerators": None}, "not ranked"),
        ({"accelerators": 0}, "place 1 of 1 on 0 accelerators"),
        ({"runs": 1}, "(1 run, no result; place 2 of"),
        ({"samples_per_second_median": None, "samples_per_second_per_accelerator": None},
         "Samples/s per accelerator: unknown (no run reached the target, or the logs do not say"),
        ({"samples_per_second_per_accelerator": None},
         "Samples/s per accelerator: unknown (168.5 /s in all; no accelerator, or their number is"),
        ({"rcp_scaling_factor": 1.25}, "min (10 runs, scaled by 1.2500; place 2 of 3 on 6 acc"),
        ({"global_batch_size": None}, "Samples to converge: 3,029,030 (batch size not logged)"),
        ({"division": "open"}, "Samples/s per accelerator: 28.08 (not ranked)"),
        ({"accelerator_model_name": "X"}, "28.08 (place 2 of 4 published results)"),
    ):  # fmt: skip
        assert line in "\n".join(standing.standing_of(replace(own, **changes), others))


def test_the_nearest_come_first(shipped):
    """By accelerators, half by the batch, family and framework; as near ones the latest first."""
    known = {
        "accelerators": 8, "global_batch_size": 448, "num_weights": 398, "framework": "NGC PyTorch",
        "accelerator_model_name": "NVIDIA H100 80GB HBM3", "max_sequence_length": None,
        "minutes_scored": 5.0, "samples_per_second_per_accelerator": None, "round": "4.0",
    }  # fmt: skip
    own = replace(shipped[-1], **known, org="mine", run_minutes=())
    others = [
        replace(own, org=org, **changes)
        for org, changes in {
            "far": {"accelerators": 64}, "processors": {"accelerators": 0, "division": "closed"},
            "half": {"accelerators": 4, "samples_per_second_per_accelerator": 30.0},
            "quarter": {"global_batch_size": 112, "samples_per_second_per_accelerator": 50.0},
            "other": {"accelerator_model_name": "L4", "samples_per_second_per_accelerator": 10.0},
            "jax": {"framework": "JAX", "minutes_scored": 4.0},
            "no batch": {"global_batch_size": None, "framework": None},
            "both": {"accelerators": 16, "global_batch_size": 1792}, "two": {"accelerators": 2},
        }.items()
    ]  # fmt: skip
    own = replace(own, samples_per_second_per_accelerator=35.0, max_sequence_length=512)
    found = standing.standing_of(own, others)
    assert "(10 runs; place 2 of 5 on 8 accelerators)" in found[1]
    assert "(place 2 of 4 published results; median of H100 SXM: 40)" in found[3]
    system, begin = own.system, found.index(next(line for line in found if "most like it" in line))
    assert found[begin + 1 :] == [
        f"    4.0/{org}/{system}: {words}"
        for org, words in (
            ("no batch", "5 min"), ("jax", "4 min; JAX, not PyTorch"),
            ("other", "5 min; L4, not H100 SXM"), ("quarter", "5 min; batch 112, not 448"),
            ("half", "5 min; accelerators 4, not 8"), ("two", "5 min; accelerators 2, not 8"),
            ("both", "5 min; accelerators 16, not 8; batch 1,792, not 448"),
            ("far", "5 min; accelerators 64, not 8"),
        )
    ]  # fmt: skip
    short = replace(own, max_sequence_length=128, division="open", rcp_scaling_factor=None)
    other = replace(own, max_sequence_length=None, rcp_scaling_factor=1.5, runs=9)
    [*_, last] = standing.standing_of(short, [other])
    assert last.endswith(
        ": 5 min; tokens 512, not 128; division closed, not open; "
        "its time is scaled by 1.5000; 9 runs, not 10"
    )


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
    for log in logs.iterdir():
        log.unlink()
    assert "no results/SYSTEM/bert/result_*.txt" in refusal(standing, org_dir)


def test_a_campaign_stands_for_its_submission(org_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(standing, "with_convergence", lambda system, _: system)  # takes seconds
    folder = tmp_path / "campaign"
    (folder / "submission").mkdir(parents=True)
    (folder / "campaign.json").write_text("{}")
    shutil.move(org_dir, folder / "submission" / "example")
    # As a campaign leaves it that was killed while it wrote.
    shutil.copytree(folder / "submission" / "example", folder / "submission" / ".example.partial")
    [own] = standing.read_own(str(folder))
    assert own.name == "example/box"
    monkeypatch.chdir(folder / "submission" / "example")
    assert standing.read_own(".")[0].name == "example/box"
