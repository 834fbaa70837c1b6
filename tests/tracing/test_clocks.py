"""The three clocks, and conversion between them."""

import time

import pytest

from tracing.clocks import Alignment, ClockPair, read_pair


def test_a_pair_is_tight_and_now():
    pair = read_pair()
    assert 0 <= pair.uncertainty_ns < 1_000_000
    assert abs(pair.monotonic_ns - time.monotonic_ns()) < 10**9
    assert abs(pair.realtime_ns - time.time_ns()) < 10**9


def test_conversion_follows_the_drift_and_bounds_its_error():
    pairs = [
        ClockPair(10**9, 10**18, 2 * 10**9, 40),
        ClockPair(2 * 10**9, 10**18 + 10**9 + 600, 3 * 10**9, 40),
    ]
    alignment = Alignment(pairs)
    assert alignment.drift_ns == 600
    assert alignment.error_bound_ns == 600 + 80
    half = 15 * 10**8
    assert alignment.realtime_from_monotonic(half) == 10**18 + 5 * 10**8 + 300
    assert alignment.monotonic_from_realtime(10**18 + 5 * 10**8 + 300) == pytest.approx(half, abs=2)
    assert alignment.monotonic_from_boottime(25 * 10**8) == half


def test_one_pair_serves():
    assert Alignment([ClockPair(5, 105, 5, 1)]).monotonic_from_realtime([107]).tolist() == [7]
