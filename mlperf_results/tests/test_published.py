"""The table of published results: beside what others read from the logs, and what we read."""

import dataclasses
import json

import pandas
import pytest

from mlperf_bert.mlperf.logs import RunResult
from mlperf_bert.submission import official
from mlperf_bert.submission.verdict import System
from mlperf_results import own, published, standing
from mlperf_results.published import Entry, family_of
from tests.mlperf.example_log import write_lines, write_log

# Other readings of odd logs. Graphcore's and others' differ by rounding alone.
UNLIKE_THE_FACTS = {
    "1.1/Google/tpu-v4-2048-JAX": "its count of samples includes training before the timed run",
    "3.1/xFusion/G5500V7x8xL40S": "evaluations stand before run_stop that are timed after it",
}
NAME = "round", "org", "system"
TEXTS = ["division", "status", "accelerator_model_name", "same_logs_as"]
NUMBERS = """
    nodes accelerators global_batch_size runs runs_missing runs_converged minutes_olympic_mean
    minutes_scored rcp_scaling_factor samples_mean samples_per_second_median
    samples_per_second_per_accelerator
""".split()
ALL = [*TEXTS, *NUMBERS]


def test_the_shipped_table(shipped):
    assert len(shipped) == 337
    assert published.TABLE.stat().st_size < 1_000_000
    rounds = [entry.round for entry in shipped]
    counts = [24, 36, 53, 47, 52, 35, 27, 29, 34]
    assert [rounds.count(name) for name in dict.fromkeys(rounds)] == counts
    for entry in shipped:
        assert len(entry.run_minutes) == len(entry.run_samples) == entry.runs_converged
        assert len(entry.evaluation_samples) == entry.runs_converged
        assert list(map(len, entry.evaluation_samples)) == list(map(len, entry.evaluation_accuracy))
        # A run ends with the evaluation that reaches the target, and is counted by it.
        for counted, samples in zip(entry.run_samples, entry.evaluation_samples):
            assert not samples or samples[-1] == counted


def test_numbers_equal_what_others_read_from_the_logs(shared):
    facts = json.loads((shared / "facts" / "published_bert_results.json").read_text())
    table = pandas.read_parquet(published.TABLE)
    assert list(facts["commits"].values()) == list(table.attrs["sources"].values())
    rows = {tuple(row[key] for key in NAME): row for row in table.to_dict("records")}
    assert len(facts["results"]) == len(rows)
    for expected in facts["results"]:
        name = tuple(expected[key] for key in NAME)
        found = {key: None if pandas.isna(rows[name][key]) else rows[name][key] for key in ALL}
        for key in TEXTS:
            assert found[key] == (expected.get(key) or None), (name, key)
        if "/".join(name) not in UNLIKE_THE_FACTS:
            numbers = {key: expected[key] for key in NUMBERS}
            assert {key: found[key] for key in NUMBERS} == pytest.approx(numbers, abs=1.01e-4), name


def test_the_real_logs_give_the_shipped_rows(shared, shipped, monkeypatch):
    """But for what the official checker says, which takes seconds, and single evaluations."""
    monkeypatch.setattr(standing, "with_convergence", lambda system, _: system)
    places = [str(place) for place in (shared / "real_logs").iterdir() if place.is_dir()]
    rows = [row for place in places for row in standing.read_own(place)]
    assert len(rows) == 6
    by_name = {entry.name: entry for entry in shipped}
    none = {"rcp": None, "rcp_unaided": None, "evaluation_samples": (), "evaluation_accuracy": ()}
    for row in rows:
        expected = dataclasses.replace(by_name[f"1.0/{row.name}"], **none)
        assert dataclasses.replace(row, round="1.0") == expected


def write_epochs(path, *, minutes, train_samples):
    """Write a log that counts epochs, with ranks and a list as a number, as some vendors do."""
    end = int(60_000 * minutes)
    lines = [
        (0, "submission_division", "closed", {}),
        (0, "global_batch_size", [256], {}),
        (0, "init_start", None, {}),
        (1, "init_stop", None, {}),
        (2, "run_start", None, {}),
        (3, "eval_accuracy", 0.5, {"epoch_num": 1}),
        (end + 1, "eval_accuracy", 0.7203, {"epoch_num": 1}),
        (end + 2, "train_samples", train_samples, {}),
        (end + 2, "run_stop", None, {"status": "success"}),
    ]
    write_lines(path, *lines)
    path.write_text(path.read_text().replace("\n", "\r\n"))


@pytest.fixture(name="org_dir")
def generated_submission(tmp_path):
    """A submitter's folder with two dialects of logs."""
    systems = tmp_path / "here" / "systems"
    systems.mkdir(parents=True)
    for name in ("counts-samples", "counts-epochs"):
        logs = tmp_path / "here" / "results" / name / "bert"
        logs.mkdir(parents=True)
        for number in range(3):
            log = logs / f"result_{number}.txt"
            if name == "counts-samples":
                accuracies = ([0.4, 0.6, 0.73], [0.5, 0.73], [0.3, 0.4, 0.5, 0.73])[number]
                write_log(log, accuracies, seed=number, num_layers=24)
            else:
                write_epochs(log, minutes=10 + number, train_samples=3_000_000 + number)
    (systems / "counts-epochs.json").write_text(
        '\ufeff{"division": "close", "status": "Available on-premise", "number_of_nodes": 2.0, '
        '"accelerators_per_node": "4", "accelerator_model_name": "NVIDIA A100-PCIe-40GB (250W)", '
        '"framework": "NGC MXNet , NGC PyTorch", "framework": "NGC PyTorch"}',
        encoding="utf-8",
    )
    return tmp_path / "here"


def test_generated_logs_of_two_dialects(org_dir):
    epochs, samples = standing.read_own(str(org_dir))
    assert epochs == Entry(
        round="",
        org="here",
        system="counts-epochs",
        division="closed",
        nodes=2,
        accelerators=8,
        accelerator_model_name="NVIDIA A100-PCIe-40GB (250W)",
        framework="NGC PyTorch",
        global_batch_size=256,
        runs=3,
        runs_converged=3,
        minutes_scored=11.0,
        samples_mean=3_000_001.0,
        samples_per_second_median=4545.46,
        samples_per_second_per_accelerator=568.18,
        run_minutes=(10.0, 11.0, 12.0),
        run_samples=(3_000_000, 3_000_001, 3_000_002),
    )
    assert (epochs.family, epochs.frameworks) == ("A100 PCIe", ("PyTorch",))
    assert samples.run_samples == (450_240, 300_160, 600_320)
    counts = (samples.runs, samples.runs_converged, samples.runs_missing, samples.num_weights)
    assert counts == (3, 3, 0, 398)


def test_a_failed_run_is_the_slowest_and_the_checkers_scaling_counts(tmp_path):
    runs = tuple(
        RunResult(tmp_path / f"result_{number}.txt", status, 10 + number)
        for number, status in enumerate(["success"] * 3 + ["aborted"])
    )
    # It is left out as the fastest is.
    found = own.entry_of(System(name="box", runs=runs))
    assert (found.runs, found.runs_converged, found.minutes) == (4, 3, 11.5)
    for scaling, expected in ((1.0, None), (1.5, 1.5)):
        rcp = official.RcpVerdict(True, "RCP found", None, None, None, scaling)
        found = own.entry_of(System(name="box", runs=runs, rcp=rcp))
        assert (found.rcp_scaling_factor, found.minutes) == (expected, 11.5 * scaling)
        assert found.rcp == "passed, RCP found"


def test_a_damaged_table_is_one_line(tmp_path):
    table = tmp_path / "published.parquet"
    table.write_bytes(published.TABLE.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"published.parquet: no table of published results \("):
        published.load(table)
    pandas.DataFrame({"another": [1]}).to_parquet(table)
    with pytest.raises(ValueError, match=r"no table of published results \(.*another"):
        published.load(table)


@pytest.mark.parametrize(
    ("name", "number", "family"),
    [
        ("NVIDIA H100 80GB HBM3", 8, "H100 SXM"),
        ("NVIDIA A100 - PCIe - 80 GB", 8, "A100 PCIe"),
        ("NVIDIA L40S", 8, "L40S"),
        # Kin of a family is not of it.
        *((name, 8, name) for name in ("NVIDIA GH200 480GB", "NVIDIA H100 NVL", "A100 MIG 1g.5gb")),
        ("NVIDIA GB200", 4, "GB200"),
        ("NVIDIA H100-PCIe-80GB", 8, "H100 PCIe"),
        ("NVIDIA B200-SXM-180GB", 8, "B200"),
        ("TPU-v4", 8, "TPU v4"),
        ("TPU-v5p", 8, "TPU-v5p"),
        ("NVIDIA L4", 8, "L4"),
        ("N/A", 0, "CPU"),
        ("Abacus 3", 2, "Abacus 3"),
        ("", None, "unknown"),
    ],
)
def test_families(name, number, family):
    assert family_of(name, number) == family
