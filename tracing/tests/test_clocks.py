"""The three clocks, and conversion between them."""

import ctypes
import errno
import time
from types import SimpleNamespace
from unittest import mock

import pytest

from tracing import clocks
from tracing.clocks import Alignment, ClockPair, read_pair


def test_conversion_follows_the_drift_and_bounds_its_error():
    pairs = [
        ClockPair(10**9, 10**18, 2 * 10**9, 40),
        ClockPair(2 * 10**9, 10**18 + 10**9 + 600, 3 * 10**9, 40),
    ]
    alignment = Alignment(pairs)
    assert alignment.drift_ns == 600
    assert alignment.error_bound_ns == 600 + 80
    half, half_real = 15 * 10**8, 10**18 + 5 * 10**8 + 300
    assert alignment.converted(half, "monotonic_ns", "realtime_ns") == half_real
    assert abs(alignment.converted(half_real, "realtime_ns", "monotonic_ns") - half) <= 2
    assert alignment.converted(25 * 10**8, "boottime_ns", "monotonic_ns") == half
    one = Alignment([ClockPair(5, 105, 5, 1)])
    assert one.converted([107], "realtime_ns", "monotonic_ns").tolist() == [7]
    tries = iter([9, *range(8, 4, -1), *range(6, 90)])
    with mock.patch.object(clocks, "_one_pair", lambda: ClockPair(0, 0, 0, next(tries))):
        assert read_pair().uncertainty_ns == 5  # the tightest try
    now = read_pair()
    assert 0 <= now.uncertainty_ns < 1_000_000
    assert abs(now.realtime_ns - time.time_ns()) < 10**9


@pytest.mark.parametrize(
    ("answer", "status", "found"),
    [
        (0, 0, {"is_synchronised": True, "error_bound_ns": 1_234_000, "why": None}),
        (5, 0x40, {"is_synchronised": False, "why": "no daemon sets the clock"}),
        (-1, 0, {"is_synchronised": None, "why": "Operation not permitted"}),
    ],
)
def test_the_kernels_error_is_in_microseconds(answer, status, found, monkeypatch):
    def adjtimex(state) -> int:
        assert state.contents.modes == 0, "nothing is set"
        state.contents.maxerror, state.contents.status = 1234, status
        ctypes.set_errno(errno.EPERM)
        return answer

    monkeypatch.setattr(clocks.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(adjtimex=adjtimex))
    monkeypatch.setattr(clocks.ctypes, "byref", ctypes.pointer)
    assert clocks.synchronisation() == {"error_bound_ns": None} | found
