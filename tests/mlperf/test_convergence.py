"""The RCPs are mlperf-logging's, and every batch size is judged as its checker does."""

import json

import pytest
from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker

from mlperf_bert.mlperf import convergence

SIZES = "256 448 1536 3072 4096 4608 6144 6912 8192 8704 12288 13056 16384"


@pytest.mark.parametrize(
    ("ruleset", "sizes", "mean", "rate"),
    [
        ("1.0.0", "256 448 1536 3072 6144 6912 8192 12288", 2_621_696.0, 4e-4),
        ("2.0.0", SIZES, 2_621_696.0, 4e-4),
        ("5.0.0", SIZES, 2_414_421.3, 4.25e-4),
    ],
)
def test_the_points_are_those_of_the_round(ruleset, sizes, mean, rate):
    points = convergence.reference_points(ruleset)
    assert [*map(str, points)] == sizes.split()
    assert points[448].mean_samples == pytest.approx(mean, abs=0.1)
    assert points[448].hyperparameters["opt_base_learning_rate"] == rate


def test_the_checker_keeps_seven_points_of_the_last_rounds():
    bounds = {size: convergence.bound_of(size, "5.0.0") for size in map(int, SIZES.split())}
    kept = [size for size, bound in bounds.items() if bound.kind == "point"]
    assert kept == [448, 4608, 6144, 6912, 12288, 13056, 16384]


@pytest.mark.parametrize("batch_size", [1536, 5000, 15000])
def test_interpolation_equals_the_checkers(batch_size):
    checker = RCP_Checker("training", "5.0.0", "bert", verbose=False)
    low, high = (
        find(batch_size, "pruned_rcps")
        for find in (checker._find_top_min_rcp, checker._find_bottom_max_rcp)
    )
    _, official = checker._create_interp_rcp(batch_size, low, high)
    bound = convergence.bound_of(batch_size, "5.0.0")
    assert bound.kind == "interpolation"
    assert bound.point.mean_samples == pytest.approx(official["RCP Mean"])
    assert bound.point.min_mean_samples == pytest.approx(official["Min Epochs"], abs=0.01)


def test_batch_sizes_beyond_the_table():
    small = convergence.bound_of(24)
    assert (small.kind, small.point.global_batch_size) == ("smallest batch", 448)
    assert str(small) == (
        "no RCP is as small; judged by batch 448: mean 2,414,421 samples, at least 2,274,732"
    )
    told = str(convergence.bound_of(448))
    assert told == "RCP at batch 448: mean 2,414,421 samples, at least 2,274,732"
    assert str(convergence.bound_of(1536)).startswith("interpolation at batch 1536: mean ")
    assert convergence.bound_of(448, "1.0.0").kind == "interpolation"
    large = convergence.bound_of(20_000)
    assert (large.kind, large.point) == ("missing", None)
    assert "the check fails unless one is submitted" in str(large)


def test_custom_points(tmp_path):
    file = tmp_path / "rcps.json"
    record = {"Benchmark": "bert", "BS": 64, "Hyperparams": {}}
    file.write_text(json.dumps({"tiny": record | {"Epochs to converge": list(range(100, 120))}}))
    bound = convergence.bound_of(64, custom_rcps=file)
    assert (bound.kind, bound.point.mean_samples) == ("point", 109.5)


POINT = {"Benchmark": "bert", "BS": 64, "Hyperparams": {}, "Epochs to converge": [1, 2, 3]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[]", "expected a JSON object, got list"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": null}', "NoneType"),
        ({"BS": "64"}, "not supported between"),
        ({"BS": float("nan")}, "positive, of three runs or more"),
        ({"Epochs to converge": [1, 2, -3]}, "positive, of three runs or more"),
        ({"Epochs to converge": [1, 2]}, "positive, of three runs or more"),
        ({"Hyperparams": []}, "or Hyperparams are no object"),
        ({"Benchmark": "resnet"}, "the benchmark is not bert"),
    ],
)
def test_bad_custom_points(tmp_path, content, reason):
    file = tmp_path / "rcps.json"
    file.write_text(content if isinstance(content, str) else json.dumps({"a": POINT | content}))
    with pytest.raises(ValueError, match=f"rcps.json: damaged .*{reason}"):
        convergence.reference_points("5.0.0", file)
