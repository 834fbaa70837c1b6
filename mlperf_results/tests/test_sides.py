"""What is one run of a side: copies, plans, and baselines of every kind."""

import json

import pytest

from tests.submission.timed_log import write_log, write_results

SLOW = [20.0, 21.0, 22.0, 20.5, 21.5]
FAST = [18.0, 18.5, 19.5, 19.0, 18.2]


def test_copies_of_a_log_are_one_run_and_said(tmp_path, call):
    write_results(tmp_path / "a", SLOW)
    write_results(tmp_path / "b", FAST[:2])
    log = tmp_path / "b" / "result_0.txt"
    for number in range(2, 50):
        (tmp_path / "b" / f"result_{number}.txt").symlink_to(log)
    (tmp_path / "b" / "result_50.txt").write_text(log.read_text().replace(":::", "0: :::"))
    found = call("a", "b")[1]
    assert "B: b: 2 runs, 49 left out (result_2.txt and 48 more: the same run as result_0.txt)" in (
        found
    )


@pytest.mark.parametrize("at_the_end", [False, True])
def test_samples_that_are_a_plan_are_not_compared(tmp_path, call, at_the_end):
    """Before the training, or after it the same in runs that were not evaluated as often."""
    write_results(tmp_path / "a", SLOW)
    write_results(tmp_path / "b", FAST, samples=1)
    for log in (tmp_path / "b").glob("*.txt"):
        lines = log.read_text().splitlines(keepends=True)
        start, evaluated = (
            next(number for number, line in enumerate(lines) if key in line)
            for key in ("run_start", "eval_accuracy")
        )
        plan = lines[start].replace("run_start", "train_samples").replace("null", "3000256")
        again = [lines[evaluated].replace("0.72", "0.7")] * (log.stem == "result_3")
        lines[evaluated:evaluated] = again
        lines.insert(len(lines) if at_the_end else start, plan)
        log.write_text("".join(lines))
    code, printed, _ = call("a", "b")
    assert code == 0 and "time to train" in printed
    assert "samples/s" not in printed and "samples to converge:" not in printed
    said = "B: b: 5 runs; samples unknown: train_samples, 3,000,256, is a plan or the size of the"
    assert said in printed


def test_a_baseline_is_the_side_that_was_written(tmp_path, call):
    write_log(tmp_path / "a.log", 20, seconds={"compute": 1190.0}, joules=5e6)
    assert call("a.log", "--write_baseline=base.json")[1] == "A: a.log: 1 run, in base.json\n"
    write_log(tmp_path / "b.log", 21, seconds={"compute": 1200.0}, joules=6e6)
    compared = call("a.log", "b.log")[1]
    assert "energy: 1.389 -> 1.667 kWh" in compared and "compute: 595 -> 600" in compared
    assert call("b.log", "--baseline=base.json")[1] == compared
    content = json.loads((tmp_path / "base.json").read_text())
    [run] = content["runs"].values()
    assert run["time_to_train"] == 20 and run["energy"] == 5e6 / 3.6e6 and run["saving"] == 0
    for spoil in (
        {"runs": {}},
        {"runs": [run]},
        *({"runs": {"a.log": run | {"time_to_train": value}}} for value in ("20", None, 0, 1e99)),
        {"runs": {"a.log": {"compute": 1190.0}}},
        {"runs": {"a.log": run | {"compute": -1}}},
        {"made_on": {"host": 1}},
        {"task": "bert"},
    ):
        (tmp_path / "bad.json").write_text(json.dumps(content | spoil))
        code, _, error = call("a.log", "--baseline=bad.json")
        assert code == 1 and error.count("\n") == 1
        assert error.startswith("compare: bad.json: damaged (")
        assert error.endswith("; write it again with --write_baseline\n")
