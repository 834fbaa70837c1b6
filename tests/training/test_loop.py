"""Signals become a request to stop; what is due when, in steps."""

import contextlib
import gc
import signal
import sys

import pytest

from mlperf_bert.signals import StopRequest
from mlperf_bert.training.config import Schedule
from mlperf_bert.training.loop import require_finite


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_the_handlers_before_come_back(number):
    before = signal.getsignal(number)
    with StopRequest() as request:
        request.defer()
        assert request.signal_name is None
        signal.raise_signal(number)
        assert request.signal_name == number.name
        signal.raise_signal(signal.SIGTERM)  # noted only: the step goes on to its end
    assert signal.getsignal(number) == before


def test_a_second_ctrl_c_does_not_wait():
    with StopRequest() as request:
        request.defer()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_before_the_loop_a_signal_interrupts_even_if_it_was_swallowed(number):
    with StopRequest() as request:
        with contextlib.suppress(KeyboardInterrupt):  # as TensorFlow does now and then
            signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            request.defer()


@pytest.fixture
def printed_by_python(monkeypatch) -> list:
    """The exceptions that could not be raised and would be printed."""
    found: list = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    return found


def test_a_signal_in_a_callback_of_the_garbage_collector_interrupts_too(printed_by_python):
    def signalled(phase, info):
        gc.callbacks.remove(signalled)
        signal.raise_signal(signal.SIGTERM)

    with StopRequest() as request:
        gc.callbacks.append(signalled)
        gc.collect()
        assert request.signal_name == "SIGTERM"  # and nothing was raised
        with pytest.raises(KeyboardInterrupt):
            request.defer()
    assert not printed_by_python
    assert sys.unraisablehook == printed_by_python.append


def test_other_exceptions_in_callbacks_are_still_printed(printed_by_python):
    def failing(phase, info):
        gc.callbacks.remove(failing)
        raise ZeroDivisionError

    with StopRequest():
        gc.callbacks.append(failing)
        gc.collect()
    assert [one.exc_type for one in printed_by_python] == [ZeroDivisionError]


def test_the_next_stop_is_the_first_thing_due():
    schedule = Schedule(
        num_train_steps=50,
        evaluation_interval_steps=20,
        save_checkpoints_steps=15,
        log_every_steps=7,
        iterations_per_loop=6,
    )
    stops, step = [], 0
    while step < 50:
        step = schedule.next_stop(step)
        stops.append(step)
    assert stops == [6, 7, 13, 14, 15, 20, 21, 27, 28, 30, 35, 40, 42, 45, 49, 50]
    assert [step for step in stops if schedule.evaluation_is_due(step)] == [20, 40, 50]
    assert [schedule.next_evaluation(step) for step in (0, 20, 40)] == [20, 40, 50]


@pytest.mark.parametrize(
    "loss, step, error, message",
    [
        (float("nan"), 1, ValueError, "before any weight has changed: the initial weights"),
        (float("inf"), 2, FloatingPointError, "step 2 is inf: training has diverged; lower"),
    ],
)
def test_weights_that_cannot_be_trained_have_not_diverged(loss, step, error, message):
    require_finite(1.0, step)
    with pytest.raises(error, match=message):
        require_finite(loss, step)
