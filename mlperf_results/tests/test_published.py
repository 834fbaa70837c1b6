"""The table of published results: beside what others read from the logs, and what we read."""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pandas
import pytest

from mlperf_bert.mlperf.log_reader import MOST_SAMPLES_TO_CONVERGE, RunResult
from mlperf_bert.submission import official
from mlperf_bert.submission.verdict import System
from mlperf_results import own, published, standing
from mlperf_results.published import Entry, family_of
from tests.mlperf.example_log import write_lines

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
    families = Counter(entry.family for entry in shipped)
    assert families == {
        "A100 SXM": 101, "H100 SXM": 68, "A100 PCIe": 41, "H200": 19, "B200": 12, "GC200 IPU": 10,
        "A30": 9, "Gaudi2": 9, "CPU": 9, "Bow IPU": 8, "H100 PCIe": 8, "TPU v4": 7, "Gaudi": 7,
        "GB200": 7, "RTX A5000": 6, "L40": 4, "L40S": 3, "Ascend 910": 2, "L4": 2, "RTX 4090": 2,
        "RX 7900 XTX": 2, "MI300X": 1,
    }  # fmt: skip
    frameworks = Counter(name for entry in shipped for name in entry.frameworks)
    assert frameworks == {
        "PyTorch": 273, "MXNet": 127, "TensorFlow": 86, "PopART": 14, "PaddlePaddle": 6,
        "tinygrad": 5, "CUDA": 3, "MindSpore": 2, "Lingvo": 2, "JAX": 1,
    }  # fmt: skip
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
    none = {"rcp": None, "evaluation_samples": (), "evaluation_accuracy": ()}
    for row in rows:
        expected = dataclasses.replace(by_name[f"1.0/{row.name}"], **none)
        assert dataclasses.replace(row, round="1.0") == expected


def test_logs_that_count_epochs_and_a_description_with_blemishes_are_a_row(tmp_path):
    """The logs have ranks in front, a list as a number and CRLF, as some vendors write them."""
    logs = tmp_path / "here" / "results" / "counts-epochs" / "bert"
    logs.mkdir(parents=True)
    for number in range(3):
        end = 600_000 + 60_000 * number
        log = write_lines(
            logs / f"result_{number}.txt",
            (0, "submission_division", "closed", {}),
            (0, "global_batch_size", [256], {}),
            (0, "run_start", None, {}),
            (1, "eval_accuracy", 0.5, {"epoch_num": 1}),
            (end - 1, "eval_accuracy", 0.7203, {"epoch_num": 1}),
            (end, "train_samples", 3_000_000 + number, {}),
            (end, "run_stop", None, {"status": "success"}),
        )
        log.write_text(log.read_text().replace("\n", "\r\n"))
    (tmp_path / "here" / "systems").mkdir()
    (tmp_path / "here" / "systems" / "counts-epochs.json").write_text(
        '\ufeff{"division": "close", "number_of_nodes": 2.0, '
        '"accelerators_per_node": "4", "accelerator_model_name": "NVIDIA A100-PCIe-40GB (250W)", '
        '"framework": "NGC MXNet , NGC PyTorch", "framework": "NGC PyTorch"}',
        encoding="utf-8",
    )
    [epochs] = standing.read_own(str(tmp_path / "here"))
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
    # So is what does not count; what else a reader has to know is noted.
    planned = {"samples_to_converge": None, "planned_samples": 3_000_256}
    more = (dataclasses.replace(each, **planned, minutes=m) for each, m in zip(runs, (10, 10, 30)))
    copies, left_out = ("a: the same run as b",), ("c: cut", "d: no log")
    found = own.entry_of(System(name="box", runs=(*more,), copies=copies, left_out=left_out))
    assert (found.runs, found.runs_converged, found.minutes_scored) == (5, 3, None)
    assert (found.run_samples, found.samples_mean) == ((None,) * 3, None)
    assert found.notes.splitlines() == [
        "copies left out: a: the same run as b",
        "runs left out: c: cut; d: no log",
        "far off in minutes: result_2.txt",
        "samples unknown: train_samples, 3,000,256, is a plan or the size of the data set",
    ]


def test_only_converged_runs_have_samples_and_can_be_far_off(tmp_path):
    most = MOST_SAMPLES_TO_CONVERGE
    figures = [("success", 10.0, 2_000_000), ("success", 10.1, most), ("success", 10.2, most + 1),
               ("success", 9.9, 0), ("aborted", 30.0, 2_000_000)]  # fmt: skip
    runs = tuple(
        RunResult(tmp_path / f"result_{number}.txt", status, minutes, samples_to_converge=samples)
        for number, (status, minutes, samples) in enumerate(figures)
    )
    found = own.entry_of(System(name="box", runs=runs))
    assert found.run_samples == (2_000_000, most, None, None)
    assert (found.samples_mean, found.notes) == ((2_000_000 + most) / 2, None)
    rates = [2_000_000 / 600, most / 606]
    assert found.samples_per_second_median == round(sum(rates) / 2, 2)


@pytest.mark.parametrize(
    ("description", "logged", "accelerators", "division"),
    [
        ({"number_of_nodes": "2", "accelerators_per_node": 4}, 16, 8, "closed"),
        ({"number_of_nodes": "2", "accelerators_per_node": 0}, 16, 0, "closed"),
        ({"number_of_nodes": "2", "division": "Open"}, 16, 16, "open"),
        ({"accelerators_per_node": "8 or 4", "division": "preview"}, 16, 16, "preview"),
        ({"division": " "}, None, None, "closed"),
    ],
)  # fmt: skip
def test_a_row_takes_from_the_logs_what_the_description_does_not_say(
    description, logged, accelerators, division
):
    run = RunResult(Path("x"), "success", 10, num_replicas=logged, division="CLOSED")
    found = own.entry_of(System(name="box", runs=(run,), description=description), org="o")
    assert (found.accelerators, found.division, found.name) == (accelerators, division, "o/box")


def test_a_row_has_what_all_of_its_logs_say_alike(tmp_path):
    names = ("global_batch_size", "max_sequence_length", "num_weights", "num_replicas")
    for first, second, found in ((8, 8, 8), (None, 8, 8), (8, 9, None), (9, 8, None)):
        runs = [
            RunResult(tmp_path / "x", "success", 10, **dict.fromkeys(names, value))
            for value in (first, second)
        ]
        row = own.entry_of(System(name="box", runs=tuple(runs)))
        said = row.global_batch_size, row.max_sequence_length, row.num_weights, row.accelerators
        assert said == (found,) * 4


def test_minutes_are_the_score_or_the_mean_of_runs_that_all_converged(shipped):
    known = {"minutes_scored": None, "runs": 3, "runs_converged": 3, "run_minutes": (1.0, 2.0, 6.0)}
    few = dataclasses.replace(shipped[-1], **known)
    for changes, minutes in (
        ({}, 3.0), ({"minutes_scored": 2.5}, 2.5), ({"runs": 4}, None), ({"runs_missing": 1}, None),
        ({"runs": 0, "runs_converged": 0, "run_minutes": ()}, None),
    ):  # fmt: skip
        assert dataclasses.replace(few, **changes).minutes == minutes
    entries = [few, dataclasses.replace(few, same_logs_as="x"), dataclasses.replace(few, runs=4)]
    assert published.comparable(entries) == [few]


@pytest.mark.parametrize(
    ("name", "number", "family"),
    [
        # Kin of a family is not of it.
        *((name, 8, name) for name in ("NVIDIA GH200 480GB", "NVIDIA H100 NVL", "A100 MIG 1g.5gb")),
        ("TPU-v5p", 8, "TPU-v5p"),
        ("gaudi 2", 8, "Gaudi2"),
        ("Gaudi 3", 8, "Gaudi 3"),
        ("7900xtx", 8, "RX 7900 XTX"),
        ("Abacus 3", 2, "Abacus 3"),
        ("", None, "unknown"),
    ],
)
def test_families_of_names_that_nobody_published(name, number, family):
    assert family_of(name, number) == family
