"""Measured power: what counts, as the official summarizer counts, and what is incomplete."""

import json

import pytest
from mlperf_logging.result_summarizer import result_summarizer

from mlperf_bert.mlperf.logs import RunResult
from mlperf_bert.submission.power import measured_watts
from tests.submission.timed_log import write_power_log

START, STOP = "power_measurement_start", "power_measurement_stop"
MINUTES_12 = 720_000


def readings(*spans: tuple[int, float]):
    """(until which ms, watts) of each reading."""
    return [(until, "power_reading", watts) for until, watts in spans]


SPANS = [(300_000, 100.0), (700_000, 400.0)]
FIRST_ROUND = [(0, "conversion_eff", 0.5), *readings((0, 9.0), *SPANS)]
WHOLE = [
    *((0, START, None), *readings(*SPANS), (MINUTES_12, STOP, None)),
    (MINUTES_12, "conversion_eff", 0.5),
]
SWITCH = [("conversion_eff", 0.9), ("interconnect_power_est", 50.0), ("conversion_eff", 7.0)]


@pytest.fixture(name="watts_of")
def watts_of_three_runs(tmp_path):
    """Writes logs of nodes and switches of three runs; returns a function that reads them."""
    runs = [
        RunResult(path=tmp_path / f"result_{n}.txt", status="success", minutes=10.0 + n)
        for n in range(3)
    ]

    def watts_of(lines=None, *, switch=(), num_nodes=2):
        for run in runs if lines else ():
            for node in range(num_nodes):
                write_power_log(tmp_path / "power" / run.path.stem / f"node_{node}.txt", *lines)
            for name in ("sw_0", "sw_1") if switch else ():
                about = [(0, *line) for line in switch]
                write_power_log(tmp_path / "power" / run.path.stem / f"{name}.txt", *about)
        return measured_watts(tmp_path, runs, num_nodes=2)

    return watts_of


@pytest.mark.parametrize(
    ("lines", "watts"),
    [
        # The official rule: over the time from start to stop, each reading since the one before.
        (WHOLE, 0.5 * (300 * 100 + 400 * 400) / 720),
        (WHOLE[::-1], 0.5 * (300 * 100 + 400 * 400) / 720),
        ([*WHOLE, *readings((800_000, 9e9))], 0.5 * (300 * 100 + 400 * 400) / 720),
        (WHOLE[:3], (300 * 100 + 400 * 400) / 700),  # no stop: up to the last reading
        (FIRST_ROUND, 0.5 * (300 * 100 + 400 * 400) / 700),
        # As in round 4.0, where the official summarizer divides by zero.
        ([(0, START, None), (0, STOP, None), *FIRST_ROUND], 0.5 * (300 * 100 + 400 * 400) / 700),
    ],
    ids=["whole", "backwards", "after the end", "no stop", "readings alone", "stop at start"],
)
def test_all_nodes_and_switches_count(watts_of, lines, watts):
    assert watts_of(lines) == (pytest.approx(2 * watts), None)
    assert watts_of(lines, switch=SWITCH) == (pytest.approx(2 * watts + 2 * 0.9 * 50), None)


def test_power_agrees_with_the_official_summarizer(watts_of, tmp_path):
    """For logs that it can read."""
    watts, _ = watts_of(WHOLE, switch=SWITCH[1:2])
    for log in tmp_path.glob("power/*/*.txt"):  # it wants whole lines
        lines = [json.loads(line.partition(":::MLLOG ")[2]) for line in log.open()]
        more = {"namespace": "", "event_type": "POINT_IN_TIME"}
        more |= {"metadata": {"lineno": 1, "file": "x"}}
        log.write_text("".join(f":::MLLOG {json.dumps(line | more)}\n" for line in lines))
    joules = result_summarizer._compute_total_power(
        str(tmp_path), "result_0.txt", MINUTES_12, "4.0.0"
    )
    assert watts == pytest.approx(joules / (MINUTES_12 / 1000))


FAR = f"node_{'9' * 99}"


@pytest.mark.parametrize(
    ("name", "lines", "reason"),
    [
        ("result_1/node_1", None, "power/result_1/node_1.txt is missing"),
        ("result_0/node_0", None, "power/result_0/node_0.txt is missing"),
        ("result_2/sw_0", None, "power/result_2/sw_0.txt is missing"),
        ("result_2/node_1", [(0, START, None)], "power/result_2/node_1.txt has no reading"),
        (
            "result_2/node_1",
            [(0, START, None), *readings((10_000, 3.0)), (MINUTES_12, STOP, None)],
            "the readings of power/result_2/node_1.txt end after 10 s",
        ),
        (
            "result_0/node_1",
            [(0, START, None), *readings((MINUTES_12, 5.0)), (MINUTES_12, STOP, None)],
            "the mean of power/result_0/node_1.txt is 5 W (are its readings in kW?)",
        ),
        (f"result_2/{FAR}", [(0, START, None)], f"power/result_0/{FAR}.txt is missing"),
        (
            "result_2/sw_0",
            [(0, "conversion_eff", 1.0)],
            "power/result_2/sw_0.txt has no interconnect_power_est",
        ),
    ],
)
def test_incomplete_power_is_unknown_and_said(watts_of, tmp_path, name, lines, reason):
    watts_of(WHOLE, switch=SWITCH)
    spoiled = tmp_path / "power" / f"{name}.txt"
    if lines is None:
        spoiled.unlink()
    else:
        write_power_log(spoiled, *lines)
    assert watts_of() == (None, reason)


def test_a_node_that_no_run_has_measured_is_missed(watts_of):
    assert watts_of() == (None, None)
    assert watts_of(WHOLE, num_nodes=1) == (None, "1 of 2 nodes have logs of power")


@pytest.mark.parametrize("value", ["much", None, True, -1, [3, 4], "nan"])
def test_a_reading_that_is_not_a_number_is_refused(watts_of, value):
    with pytest.raises(ValueError, match=r"node_0\.txt: power_reading is .* not a number; copy it"):
        watts_of([(0, START, None), (MINUTES_12, "power_reading", value)])
