"""The simulation of scaling, by hand for a round machine."""

import sys

import pytest

from benchmarks import scaling
from benchmarks.scaling import Machine
from tests.helpers import starts

ROUND = Machine(step_seconds=0.2, gradient_bytes=10**9, bytes_per_second=10e9, latency_seconds=1e-5)


def test_a_ring_sends_almost_twice_the_gradients():
    assert ROUND.all_reduce_seconds(1) == 0
    assert ROUND.all_reduce_seconds(2) == pytest.approx(0.1 + 2e-5)
    assert ROUND.all_reduce_seconds(1024) == pytest.approx(0.2 * 1023 / 1024 + 0.02046)


def test_efficiency_between_no_and_full_overlap():
    assert ROUND.efficiency(1, hidden_share=0) == 1
    assert ROUND.efficiency(2, hidden_share=0) == pytest.approx(0.2 / 0.30002)
    assert ROUND.efficiency(2, hidden_share=2 / 3) == 1  # 0.1 s pass within 0.133 s
    assert ROUND.efficiency(1024, hidden_share=2 / 3) < 0.75


def test_the_table_has_both_ways_of_sending():
    lines = scaling.table(ROUND)
    assert (
        lines[2] == "| 1 | 100% | 100% |" and lines[3] == "| 2 | 100% | 67% |" and len(lines) == 13
    )


@pytest.mark.parametrize(
    "options, message",
    [
        (["--gb_per_second=0"], "--gb_per_second=0.0: it must be more than 0"),
        (["--gb_per_second=1", "--step_seconds=1"], "belong together: give both or none"),
    ],
)
def test_bad_options_are_told(options, message):
    command = [sys.executable, "benchmarks/scaling.py", *options]
    done = starts.run(command)
    assert done.returncode == 2 and message in done.stderr.splitlines()[-1]


def test_one_core_is_told(monkeypatch, capsys):
    monkeypatch.setattr(scaling.os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(sys, "argv", ["scaling", "--gb_per_second=1"])
    with pytest.raises(SystemExit, match="2"):
        scaling.main()
    assert "two processes are measured, each on its own core" in capsys.readouterr().err
