"""The table of published results: made again from logs, and against what others read from them."""

import dataclasses
import json
import shutil

import pandas
import pytest

from mlperf_bert.mlperf.logs import RunResult
from mlperf_bert.submission import official
from mlperf_bert.submission.verdict import System
from mlperf_results import make_published, published
from mlperf_results.published import Entry, family_of, with_twins
from tests.mlperf.example_log import write_lines, write_log

# Other readings of odd logs. Graphcore's and others' differ by rounding alone.
UNLIKE_THE_FACTS = {
    "1.1/Google/tpu-v4-2048-JAX": "its count of samples includes training before the timed run",
    "3.1/xFusion/G5500V7x8xL40S": "evaluations stand before run_stop that are timed after it",
}
NUMBERS = """
    nodes accelerators global_batch_size runs runs_missing runs_converged minutes_olympic_mean
    minutes_scored rcp_scaling_factor samples_mean samples_per_second_median
    samples_per_second_per_accelerator
""".split()


@pytest.fixture(name="by_name")
def entries_by_name(shipped) -> dict[str, Entry]:
    return {entry.name: entry for entry in shipped}


def test_the_shipped_table(shipped):
    assert len(shipped) == 337
    assert published.TABLE.stat().st_size < 1_000_000
    rounds = [entry.round for entry in shipped]
    counts = [24, 36, 53, 47, 52, 35, 27, 29, 34]
    assert [rounds.count(name) for name in published.ROUNDS] == counts
    for entry in shipped:
        assert len(entry.run_minutes) == len(entry.run_samples) == entry.runs_converged
        assert len(entry.evaluation_samples) == entry.runs_converged
        assert list(map(len, entry.evaluation_samples)) == list(map(len, entry.evaluation_accuracy))
        # A run ends with the evaluation that reaches the target, and is counted by it.
        for counted, samples in zip(entry.run_samples, entry.evaluation_samples):
            assert not samples or samples[-1] == counted


def test_numbers_equal_what_others_read_from_the_logs(shared, by_name):
    facts = json.loads((shared / "facts" / "published_bert_results.json").read_text())
    assert len(facts["results"]) == len(by_name)
    assert list(facts["commits"].values()) == list(published.provenance()["sources"].values())
    for row in facts["results"]:
        entry = by_name[f"{row['round']}/{row['org']}/{row['system']}"]
        assert entry.division == row["division"]
        assert entry.status == row["status"]
        assert entry.accelerator_model_name == (row["accelerator_model_name"] or None)
        assert entry.same_logs_as == row.get("same_logs_as"), entry.name
        if entry.name in UNLIKE_THE_FACTS:
            continue
        for name in NUMBERS:
            value = getattr(entry, name)
            assert value == pytest.approx(row[name], abs=1.01e-4), (entry.name, name)


@pytest.mark.gate
def test_the_real_logs_give_the_shipped_rows(shared, by_name):
    found = make_published.read_round(shared / "real_logs", "1.0")
    assert len(found) == 6
    for entry in found:
        assert entry == by_name[entry.name]


def test_the_shipped_power_is_what_the_official_summarizer_says(shipped):
    """As mlperf-logging 4.1.68 counts the published logs; it divides by zero on the other two."""
    watts = {entry.name: entry.watts for entry in shipped if entry.watts is not None}
    assert watts.pop("5.0/Lenovo/SR780aV3-8xB200_SXM_180GB") == pytest.approx(9104.3966, abs=1e-4)
    assert {name: round(value) for name, value in watts.items()} == {
        "4.0/smc-ac-power/1xSMC-H100-SXM-80GB": 5719,
        "4.0/smc-dc-power/1xSMC-H100-SXM-80GB": 5560,
    }


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


@pytest.fixture(name="clone")
def generated_round(tmp_path):
    """A part of a round's repository with two dialects of logs."""
    systems = tmp_path / "here" / "systems"
    systems.mkdir(parents=True)
    for name in ("counts-samples", "counts-epochs"):
        logs = tmp_path / "here" / "results" / name / "bert"
        logs.mkdir(parents=True)
        for number in range(3):
            log = logs / f"result_{number}.txt"
            if name == "counts-samples":
                accuracies = ([0.4, 0.6, 0.73], [0.5, 0.73], [0.3, 0.4, 0.5, 0.73])[number]
                write_log(log, accuracies, num_layers=24)
            else:
                write_epochs(log, minutes=10 + number, train_samples=3_000_000 + number)
    (systems / "counts-epochs.json").write_text(
        '\ufeff{"division": "close", "status": "Available on-premise", "number_of_nodes": 2.0, '
        '"accelerators_per_node": "4", "accelerator_model_name": "NVIDIA A100-PCIe-40GB (250W)", '
        '"framework": "NGC MXNet , NGC PyTorch", "framework": "NGC PyTorch"}',
        encoding="utf-8",
    )
    (tmp_path / "here/results/counts-epochs/bert/scaling.json").write_text('{"scaling_factor": 2}')
    (tmp_path / "here/results/counts-samples/bert/result_3.txt").write_text("cut off")
    return tmp_path


def test_generated_logs_of_two_dialects(clone):
    epochs, samples = make_published.read_round(clone, "3.0")
    assert epochs == Entry(
        round="3.0",
        org="here",
        system="counts-epochs",
        division="closed",
        status="available",
        nodes=2,
        accelerators=8,
        accelerator_model_name="NVIDIA A100-PCIe-40GB (250W)",
        framework="NGC PyTorch",
        global_batch_size=256,
        runs=3,
        runs_converged=3,
        minutes_olympic_mean=11.0,
        rcp_scaling_factor=2,
        minutes_scored=22.0,
        samples_mean=3_000_001.0,
        samples_source="train_samples",
        samples_per_second_median=4545.46,
        samples_per_second_per_accelerator=568.18,
        run_minutes=(10.0, 11.0, 12.0),
        run_samples=(3_000_000, 3_000_001, 3_000_002),
        evaluation_samples=((), (), ()),
        evaluation_accuracy=((), (), ()),
    )
    assert (epochs.family, epochs.frameworks) == ("A100 PCIe", ("PyTorch",))
    assert samples.samples_source == "epoch_num"
    assert samples.run_samples == (450_240, 300_160, 600_320)
    assert samples.curve == [(150_080, 0.4), (300_160, 0.6), (450_240, 0.73)]
    assert [len(each) for each in samples.evaluation_accuracy] == [3, 2, 4]
    counts = (samples.runs, samples.runs_converged, samples.runs_missing, samples.num_weights)
    assert counts == (4, 3, 0, 398)
    assert samples.notes == "result_3.txt: no line starts with :::MLLOG, so this is no MLPerf log"


def test_closed_results_of_ten_runs_are_judged_and_the_reviews_scaling_counts(clone, monkeypatch):
    """Also if one of the ten did not converge."""
    asked = []

    def check_rcp(folder, ruleset, *, by_train_samples=False):
        asked.append((folder.parent.name, ruleset, by_train_samples))
        return official.RcpVerdict(True, "RCP found", None, None, None, 1.5)

    monkeypatch.setattr(make_published, "check_rcp", check_rcp)
    of_three = make_published.read_round(clone, "3.0")
    assert not asked and [entry.rcp for entry in of_three] == [None, None]
    for system in ("counts-epochs", "counts-samples"):
        logs = clone / "here" / "results" / system / "bert"
        for number in range(3 if system == "counts-epochs" else 4, 10):
            shutil.copy(logs / "result_0.txt", logs / f"result_{number}.txt")
    epochs, samples = make_published.read_round(clone, "3.0")
    assert sorted(asked) == [
        ("counts-epochs", "3.0.0", False),
        ("counts-epochs", "3.0.0", True),
        ("counts-samples", "3.0.0", False),
    ]
    assert (epochs.rcp, epochs.rcp_unaided) == ("passed, RCP found",) * 2
    assert (samples.rcp, samples.rcp_unaided) == ("passed, RCP found", None)
    rcp = official.RcpVerdict(True, "RCP found", None, None, None, 1.5)
    runs = tuple(RunResult(clone / "result_0.txt", "success", minutes) for minutes in (10, 11, 12))
    # A run that failed is the slowest, and is left out as the fastest is.
    found = make_published.entry_of(System(name="box", runs=runs), num_failed_logs=1)
    assert (found.runs, found.runs_converged, found.minutes) == (4, 3, 11.5)
    rdi = System(name="box", runs=runs, description={"status": "RDI"})
    found = make_published.entry_of(rdi, num_missing_logs=1)  # nobody knows how slow it was
    assert (found.minutes, found.status) == (None, "research")
    for scaling, expected in ((None, 1.5), (2.0, 2.0)):
        found = make_published.entry_of(System(name="box", runs=runs, rcp=rcp), scaling=scaling)
        assert found.rcp_scaling_factor == expected


def test_runs_that_were_handed_in_twice_are_marked(clone):
    again = [
        dataclasses.replace(entry, run_minutes=entry.run_minutes[::-1])  # in another order
        for entry in make_published.read_round(clone, "3.1")
    ]
    found = with_twins([*make_published.read_round(clone, "3.0"), *again])
    assert [entry.same_logs_as for entry in found] == [
        None,
        None,
        "3.0/here/counts-epochs",
        "3.0/here/counts-samples",
    ]


def test_the_command_writes_a_table_that_load_and_pandas_read(clone, tmp_path, monkeypatch):
    monkeypatch.setattr(make_published, "ROUNDS", ("3.0", "3.1"))
    for name in ("3.0", "3.1"):
        folder = tmp_path / "clones" / f"training_results_v{name}"
        shutil.copytree(clone / "here", folder / "here")
    said = {"rev-parse": "c0ffee\n", "ls-tree": ""}
    monkeypatch.setattr(make_published, "_git", lambda folder, command, *_: said[command])
    table = tmp_path / "table.parquet"
    assert make_published.main([str(tmp_path / "clones"), f"--output={table}"]) == 0
    entries = published.load(table)
    first = make_published.read_round(clone, "3.0")
    assert entries[:2] == first
    assert [e.same_logs_as for e in entries] == [None, None, *(entry.name for entry in first)]
    written = pandas.read_parquet(table)
    assert list(written.columns) == [column.name for column in dataclasses.fields(Entry)]
    attrs = written.attrs
    addresses = [f"https://github.com/mlcommons/training_results_v{r}" for r in ("3.0", "3.1")]
    assert attrs["sources"] == dict.fromkeys(addresses, "c0ffee")
    assert attrs["licence"] == make_published.LICENCE


def test_the_command_asks_for_all_clones(tmp_path, refusal):
    asks = "training_results_v1.0: no clone; git clone --depth 1 https://github.com/"
    assert asks in refusal(make_published, tmp_path)
    output = f"--output={tmp_path}/none/table.parquet"  # told before the minutes of asking
    assert f"there is no folder {tmp_path}/none; make it" in refusal(
        make_published, tmp_path, output
    )


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
