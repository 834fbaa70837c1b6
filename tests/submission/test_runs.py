"""The runs of one system: each once, and what is said of those that do not count."""

from pathlib import Path

import pytest

from mlperf_bert.mlperf.log_reader import LoggedEvaluation, RunResult
from mlperf_bert.submission import runs
from tests.mlperf.example_log import write_lines

RUN_START = (1000, "run_start", None, {})
SUCCESS = (2000, "run_stop", None, {"status": "success"})


def test_what_all_runs_were_to_train_is_not_what_each_has_trained():
    """Runs of other numbers of evaluations have not all trained the same train_samples."""

    def run(evaluations: int, samples: int) -> RunResult:
        each = LoggedEvaluation(minutes=1.0, samples=None, accuracy=0.72)
        return RunResult(
            Path("result_0.txt"), "success", 9.0, samples_to_converge=samples,
            counts_by_train_samples=True, evaluations=(each,) * evaluations,
        )  # fmt: skip

    plans = runs.with_planned_samples_unknown([run(20, 3_000_256), run(19, 3_000_256)])
    assert [each.samples_to_converge for each in plans] == [None, None]
    why = "samples unknown: train_samples, 3,000,256, is a plan or the size of the data set"
    assert runs.why_samples_are_unknown(plans) == why
    real = [run(20, 3_000_256), run(19, 2_850_176), run(20, 3_000_256)]
    assert (
        runs.with_planned_samples_unknown(real) == real and runs.why_samples_are_unknown(real) == ""
    )


def test_logs_that_do_not_count_are_left_out_with_the_reason(tmp_path):
    names = [tmp_path / f"result_{number}.txt" for number in range(5)]
    for number, accuracy in enumerate((0.72, 0.73, 0.7, 72.0)):
        write_lines(
            names[number], RUN_START, (1500, "eval_accuracy", accuracy, {"epoch_num": 448}), SUCCESS
        )
    names[4].write_bytes(names[0].read_bytes())
    found, left_out, copies = runs.read_runs({path.name: path for path in names})
    assert {name: run.path for name, run in found.items()} == {p.name: p for p in names[:2]}
    assert [line.partition(", ")[0] for line in left_out] == [
        "result_2.txt: says success",
        "result_3.txt: eval_accuracy is not from 0 to 1",
    ]
    assert copies == ["result_4.txt: the same run as result_0.txt"]
    lines = ["a: cut", "b: no log", "c: 1: cut", "d: empty", "e: another"]
    assert runs.in_words(lines) == "a and 1 more: cut; b: no log; d: empty; ..."


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ([30, 9.4, 9.5, 9.45, 9.5, 9.42, 9.48, 9.44, 9.46, 9.5], [0]),
        ([9.5, 9.4, 2.0, 9.45], [2]),
        ([10.0] * 9 + [13.0], [9]),  # no scatter at all
        ([10.0] * 9 + [11.0], []),
        ([23.9, 17.7, 21.5, 23.0, 22.6, 21.6, 22.4, 19.8, 18.9, 23.6], []),  # NVIDIA's of 1.0
        ([9.5, 30.0, 9.4], [1]),
        ([9.5, 30.0], []),  # nobody knows which
        ([], []),
    ],
)
def test_a_run_that_is_far_off_is_named(figures, expected):
    assert runs.far_off(dict(enumerate(figures))) == expected
