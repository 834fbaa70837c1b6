"""Where runs stand: like beside like, what is unlike said, numbers those of the table."""

import csv
import html
import json
import os
import re
import shutil
from dataclasses import replace

import pytest
from bokeh.document import Document

from demo.campaign import REFERENCE_POINTS
from mlperf_bert.mlperf.convergence import reference_points
from mlperf_bert.mlperf.logs import read_run
from mlperf_bert.submission import verdict
from mlperf_results import make_published, nearest, published, standing, standing_page
from tests.mlperf.example_log import write_log

HOSTILE = "</script><script>document.title='taken'</script>"


@pytest.fixture(name="org_dir")
def example_submission(tmp_path):
    """A submitter's folder with ten runs of one system."""
    folder = tmp_path / "example" / "results" / "box" / "bert"
    folder.mkdir(parents=True)
    for number in range(10):
        accuracies = [0.5] * (16 + number % 2) + [0.73]
        write_log(folder / f"result_{number}.txt", accuracies, seed=number, num_layers=24)
    systems = tmp_path / "example" / "systems"
    systems.mkdir()
    (systems / "box.json").write_text(
        '{"division": "closed", "number_of_nodes": "1", "accelerators_per_node": "8", '
        '"accelerator_model_name": "NVIDIA H100 80GB HBM3", "framework": "TensorFlow 2.20.0"}'
    )
    return tmp_path / "example"


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


def rows_in(page):
    """The columns of the table that a page holds."""
    [text] = re.findall(r"docs_json = '(.*?)';\n", page)
    [document] = json.loads(html.unescape(text.replace("\\\\", "\\"))).values()
    return Document.from_json(document).get_model_by_name("rows").data


def test_a_submission_is_ranked_and_its_neighbours_are_like_it(org_dir, shipped):
    [own] = standing.read_own(str(org_dir))
    assert (own.name, own.family, own.accelerators) == ("example/box", "H100 SXM", 8)
    assert own.rcp.startswith("passed")
    assert own.rcp_unaided is None
    found = nearest.standing_of(replace(own, minutes_scored=5.0), shipped)
    assert found.own.caveat == ""
    like = [e for e in published.comparable(shipped) if e.accelerators == 8]
    faster = [entry for entry in like if entry.minutes < 5.0]
    assert found.minutes_place == (len(faster) + 1, len(like) + 1)
    assert found.rate_place[1] > len(like)
    assert str(found.bound).startswith("reference point at batch 448: mean 2,414,421 samples")
    assert len(found.neighbours) == nearest.NUM_NEIGHBOURS
    for other in found.neighbours:
        assert other.division == "closed" and not other.same_logs_as
    assert {other.family for other in found.neighbours} <= {"H100 SXM", "H200", "B200"}
    assert any("PyTorch, not TensorFlow" in nearest.unlike(own, o) for o in found.neighbours)


def test_a_miniature_is_shown_and_never_ranked(miniature, shipped, capsys):
    assert standing.main([str(miniature)]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{miniature}: not comparable: open, miniature"
    assert "not ranked" in lines[0]
    assert "no reference for such a run" in lines[1]
    for place in (miniature / "bert.log", miniature):
        [own] = standing.read_own(str(place))
        assert (own.accelerators, own.precision, own.max_sequence_length) == (0, "bfloat16", 64)
    found = nearest.standing_of(own, shipped)
    assert (found.minutes_place, found.rate_place) == (None, None)
    assert "BERT-large, not a miniature" in nearest.unlike(own, found.neighbours[0])


@pytest.mark.parametrize(
    ("changes", "departures"),
    [
        ({"division": "open"}, ("open",)),
        ({"division": None}, ("no division",)),
        ({"num_weights": 46, "max_sequence_length": 64}, ("miniature",)),
        ({"max_sequence_length": 128}, ("sequences of 128 tokens",)),
        ({"runs_missing": 1, "minutes_scored": None, "runs_converged": 9}, ("logs missing",)),
        ({"minutes_scored": None, "runs_converged": 8}, ("did not converge",)),
        ({}, ()),
    ],
)
def test_what_is_never_ranked(shipped, changes, departures):
    closed = next(entry for entry in shipped if not entry.departures)
    assert replace(closed, **changes).departures == departures


def test_every_published_system_that_departs_is_outside_the_ranking(shipped):
    left = published.comparable(shipped)
    assert len(left) == 266
    assert {entry.division for entry in left} == {"closed"}
    assert all(entry.minutes and not entry.same_logs_as for entry in left)


def test_the_official_verdict_stands_beside_ours(shared, capsys):
    nvidia = shared / "real_logs" / "NVIDIA"
    assert standing.main([str(nvidia), "--ruleset=1.0.0"]) == 0
    printed = capsys.readouterr().out
    ours, officials = (
        "RCP, counted by train_samples: ",
        "official RCP checker, which counts by epoch",
    )
    assert f"{ours}passed, RCP Interpolation, RCP test PASSED" in printed
    assert re.search(rf"{officials}_num: FAILED, .*as it counts: 1, credible from", printed)
    assert "published as 1.0/NVIDIA/dgxa100_ngc21.05_pytorch" in printed


def test_numbers_of_the_page_are_those_of_the_logs(shared, org_dir, tmp_path, shipped):
    page = tmp_path / "standing.html"
    assert standing.main([str(org_dir), f"--output={page}"]) == 0
    assert page.stat().st_size < 3_000_000
    rows = rows_in(page.read_text(encoding="utf-8"))
    assert rows["name"] == ["example/box", *(entry.name for entry in shipped)]
    facts = json.loads((shared / "facts" / "published_bert_results.json").read_text())
    known = {f"{r['round']}/{r['org']}/{r['system']}": r for r in facts["results"]}
    compared = [row for row in known.values() if row["minutes_scored"]][::15]
    assert len(compared) >= 20
    for row in compared:
        place = rows["name"].index(f"{row['round']}/{row['org']}/{row['system']}")
        assert rows["minutes"][place] == pytest.approx(row["minutes_scored"], abs=1.01e-4)
        assert rows["batch"][place] == row["global_batch_size"]
        assert rows["samples"][place] == row["samples_mean"]
        if row["accelerators"]:
            assert rows["accelerators"][place] == row["accelerators"]
            assert rows["rate"][place] == row["samples_per_second_per_accelerator"]


@pytest.mark.parametrize(
    ("conditions", "number"),
    [
        (["round=5.0"], 34),
        (["accelerators=8", "accelerator=h100 pcie"], 5),
        (["accelerators=..4", "division=closed"], 61),
        (["batch=12288.."], 13),
        (["framework=tensorflow", "org=Google"], 6),
    ],
)
def test_conditions_choose(shipped, conditions, number):
    found = nearest.chosen(shipped, conditions)
    assert len(found) == number
    assert set(found) <= set(shipped)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--where=speed=8"], "--where=speed=8: give NAME=TEXT with round, org, system, "),
        (["--where=accelerators=eight"], "accelerators=eight: give NAME=TEXT with round"),
        ([f"--where=accelerators={'9' * 5000}"], "or FROM..TO with accelerators, batch"),
        ([f"--where=batch=1..{'9' * 5000}"], "or FROM..TO with accelerators, batch"),
        (["--where=round=9.9"], "no published result meets round=9.9; ask for less"),
        (["--ruleset=5.1.0"], "ruleset '5.1.0' has no BERT"),
        (
            ["nowhere"],
            "nowhere: there is no such file or folder; give a log",
        ),
        (["--custom_rcps=nowhere.json"], "nowhere.json: no file of reference points"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, refusal, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(standing, *arguments, "--output=page.html")
    assert not list(tmp_path.iterdir())


def test_what_is_like_it_in_all_that_is_known_is_not_called_unlike(shipped):
    own = replace(shipped[-1], round="", org="mine")
    found = nearest.standing_of(own, shipped).lines()
    at = found.index("  most like it, and what is unlike as far as logs and descriptions say:")
    assert re.fullmatch(rf"    {re.escape(shipped[-1].name)}: [\d.]+ min", found[at + 1])
    assert any("; accelerators " in line for line in found[at + 1 :])


def test_copies_and_plans_are_told(org_dir, capsys):
    folder = org_dir / "results" / "box" / "bert"
    for number in range(1, 10):
        (folder / f"result_{number}.txt").unlink()
        os.link(folder / "result_0.txt", folder / f"result_{number}.txt")
    assert standing.main([str(org_dir)]) == 0
    told = "1 run, no result, copies left out: result_1.txt and 8 more: the same run as result_0"
    assert told in capsys.readouterr().out
    for number in range(1, 10):
        (folder / f"result_{number}.txt").unlink()
    text = re.sub(r'"epoch_num": \d+', '"epoch_num": 1', (folder / "result_0.txt").read_text())
    text = text.replace("train_samples", "trained").replace("eval_samples", "train_samples")
    (folder / "result_0.txt").write_text(text)
    assert standing.main([str(org_dir)]) == 0
    printed = capsys.readouterr().out
    assert "Samples/s per accelerator: unknown (train_samples, 10,000, is a plan or the" in printed


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
    shutil.rmtree(org_dir / "results" / "box" / "bert")
    assert "no results/SYSTEM/bert/result_*.txt" in refusal(standing, org_dir)


def test_a_campaign_stands_for_its_submission(org_dir, tmp_path):
    folder = tmp_path / "campaign"
    (folder / "submission").mkdir(parents=True)
    (folder / "campaign.json").write_text("{}")
    shutil.move(org_dir, folder / "submission" / "example")
    # As a campaign leaves it that was killed while it wrote.
    shutil.copytree(folder / "submission" / "example", folder / "submission" / ".example.partial")
    [own] = standing.read_own(str(folder))
    assert own.name == "example/box"


def test_runs_that_did_not_converge_are_shown(org_dir, tmp_path, capsys):
    for log in (org_dir / "results" / "box" / "bert").iterdir():
        text = log.read_text().replace('"value": 0.73', '"value": NaN')
        log.write_text(text.replace("success", "aborted"))
    page = tmp_path / "new" / "standing.html"
    assert standing.main([str(org_dir), f"--output={page}"]) == 0
    printed = capsys.readouterr().out
    assert "example/box: not comparable: did not converge" in printed
    assert "Samples/s per accelerator: unknown (no run reached the target" in printed
    assert "not comparable: did not converge" in page.read_text(encoding="utf-8")


def test_rows_as_csv(miniature, tmp_path):
    table = tmp_path / "new" / "rows.csv"
    assert standing.main([str(miniature), "--where=round=1.0", f"--csv={table}"]) == 0
    rows = list(csv.DictReader(table.open(newline="")))
    assert len(rows) == 1 + 24
    assert (rows[0]["round"], rows[0]["system"]) == ("", str(miniature))
    nvidia = next(row for row in rows if row["system"] == "dgxa100_ngc21.05_pytorch")
    assert nvidia["minutes_scored"] == "21.6926"
    assert len(json.loads(nvidia["run_minutes"])) == 10
    [one, *_] = runs = json.loads(nvidia["evaluation_accuracy"])
    assert len(runs) == 10 and all(0 < accuracy < 1 for accuracy in one)


def test_names_of_foreign_logs_stay_text(org_dir, tmp_path):
    description = org_dir / "systems" / "box.json"
    described = json.loads(description.read_text())
    described |= {"accelerator_model_name": HOSTILE, "framework": HOSTILE}
    description.write_text(json.dumps(described))
    page = tmp_path / "standing.html"
    assert standing.main([str(org_dir), f"--output={page}"]) == 0
    text = page.read_text(encoding="utf-8")
    assert HOSTILE not in text
    assert "<script>document" not in text


def test_the_reference_points_are_drawn(shipped):
    points = reference_points("5.0.0")
    drawn = standing_page.draw([], shipped, points)
    assert set(drawn.places) >= {"minutes", "rate", "convergence", "accuracy", "table", "count"}
    assert len(drawn.colors) == len({entry.family for entry in shipped})
    assert "2414421" in drawn.script
    # Of every plot; of the reference points another one.
    assert drawn.script.count('"name":"HoverTool"') == 5


def test_other_reference_points_are_drawn_in_place_of_the_official_ones(tmp_path):
    page = tmp_path / "page.html"
    assert standing.main([f"--custom_rcps={REFERENCE_POINTS}", f"--output={page}"]) == 0
    text = page.read_text(encoding="utf-8")
    assert f"reference convergence points of {REFERENCE_POINTS.name}" in text
    [mean] = [
        point.mean_samples for point in reference_points(custom_rcps=REFERENCE_POINTS).values()
    ]
    assert str(round(mean))[:4] in text and "2414421" not in text


@pytest.mark.parametrize(
    ("named", "expected"),
    [(["bf16"] * 2, "bf16"), (["bf16", "fp8"], None), ([["fp8"]] * 2, None)],
)
def test_the_precision_is_the_one_that_all_logs_name(miniature, named, expected):
    """A foreign log may hold any value."""
    run = read_run(miniature / "bert.log")
    key = "lowest_numerical_precision_in_linear"
    runs = tuple(replace(run, hyperparameters={key: value}) for value in named)
    found = make_published.entry_of(verdict.System(name="box", runs=runs))
    assert found.precision == expected
