"""A side of a comparison: which runs count, what they have in common, on what they ran."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mlperf_bert.mlperf.log_reader import RunResult
from mlperf_results import sides
from tests.submission.timed_log import write_log, write_results


def test_only_runs_that_count_say_what_a_side_is(tmp_path, monkeypatch):
    """A log has what its run began with; the record beside it is later."""
    folder = tmp_path / "box" / "results" / "x" / "bert"
    for number, (minutes, changes) in enumerate(
        [(20, {}), (21, {}), (22, {"status": "aborted", "batch": 64, "accuracy": 0.1})]
    ):
        log = write_log(folder / f"result_{number}.txt", minutes, tokens=None, **changes)
        said = {"value": {"host": f"x{number // 2}", "data": "d"}, "key": "provenance"}
        with log.open("a") as file:
            file.write(f":::MLLOG {json.dumps({'time_ms': 0, 'metadata': {}} | said)}\n")
    (tmp_path / "box" / "systems").mkdir()
    described = {
        "host_processor_model_name": "P", "host_memory_capacity": "M", "accelerators_per_node": 8,
        "accelerator_model_name": "A", "number_of_nodes": "2", "framework": "JAX", "host": "z",
        "operating_system": "O",
    }  # fmt: skip
    (tmp_path / "box" / "systems" / "x.json").write_text(json.dumps(described))
    monkeypatch.chdir(folder)
    found = sides.read_side(".")
    assert list(found.runs) == ["result_0.txt", "result_1.txt"]
    assert found.task == {"benchmark": "bert", "batch": 448, "division": "closed"}
    assert {name: "".join(values) for name, values in found.made_on.items()} == {
        "accelerator": "A", "accelerators": "8", "data": "d", "framework": "JAX", "host": "x0",
        "memory": "M", "nodes": "2", "operating system": "O", "processor": "P",
    }  # fmt: skip
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(log.with_name("result_0.txt"), run / "bert.log")
    record = {"status": "success", "parameters": None, "made_with": {"host": "y"}}
    (run / "run.json").write_text(json.dumps(record))
    assert sides.read_side(str(run)).made_on == {"data": ("d",), "host": ("y",)}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"benchmark": "gpt3"}, "benchmark: bert and gpt3"),
        ({"max_sequence_length": 128}, "tokens: 128 and 512"),
        ({"num_weights": 46}, "weights: 398 and 46"),
        ({"global_batch_size": 256}, "batch: 256 and 448"),
        ({"division": "open"}, "division: closed and open"),
    ],
)
def test_the_runs_of_a_side_are_of_one_task(changes, told):
    known = {"benchmark": "bert", "max_sequence_length": 512, "num_weights": 398,
             "global_batch_size": 448, "division": "closed"}  # fmt: skip
    runs = [RunResult(Path("x"), "success", 20, **known | more) for more in ({}, changes)]
    with pytest.raises(ValueError, match=f"^a: runs of different {told}; give a folder of each$"):
        sides._common_task("a", runs)


def test_a_run_that_is_there_twice_counts_once_and_is_named(tmp_path):
    results = write_results(tmp_path / "a", [20.0, 21.0])
    shutil.copy(results / "result_0.txt", results / "result_2.txt")
    found = sides.read_side(str(tmp_path / "a"))
    assert list(found.runs) == ["result_0.txt", "result_1.txt"]
    assert found.left_out == ("result_2.txt: the same run as result_0.txt",)


def test_a_published_result_as_a_side(shipped):
    entry = replace(
        shipped[-1], round="4.0", org="o", system="s", runs=4, runs_missing=6,
        runs_converged=2, framework="",
        run_minutes=(2.0, 4.0), run_samples=(1200.0, None), accelerators=8, nodes=None,
        accelerator_model_name="L4", host_processor_model_name=None, global_batch_size=448,
        max_sequence_length=None, num_weights=398, division="closed",
    )  # fmt: skip
    assert sides.side_of_entry(entry) == sides.Side(
        name="4.0/o/s",
        runs={
            "run 0": {"time_to_train": 2, "samples_to_converge": 1200, "samples_per_second": 10},
            "run 1": {"time_to_train": 4},
        },
        left_out=("a run: did not converge",) * 2,
        task={"benchmark": "bert", "weights": 398, "batch": 448, "division": "closed"},
        made_on={"accelerator": ("L4",), "accelerators": ("8",)},
    )
