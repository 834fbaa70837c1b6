"""Signals become a request to stop; what is due when, in steps."""

import contextlib
import dataclasses
import gc
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mlperf_bert import signals
from mlperf_bert.programs.config import STEP_FIGURES
from mlperf_bert.signals import Interrupted, StopRequest
from mlperf_bert.training.config import ProfileWindow
from mlperf_bert.training.events import LastStep, Log, Profile, RequireFinite, StopOnSignal
from mlperf_bert.training.loop import (
    OVER,
    REACHED,
    STOPPED,
    Event,
    Trained,
    next_multiple,
    train,
)
from tests.training.configurations import run_config


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_signal_is_noted_and_the_handlers_before_come_back(number):
    before = signal.getsignal(number)
    with StopRequest() as request:
        request.defer()
        assert request.signal_name is None
        signal.raise_signal(number)
        assert request.signal_name == number.name
        signal.raise_signal(signal.SIGTERM)  # noted only: the step goes on to its end
    assert signal.getsignal(number) == before


def test_what_a_shell_lets_its_background_ignore_still_stops_a_run():
    """`kill -INT` is for this process alone."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequest() as request:
            request.defer()
            signal.raise_signal(signal.SIGINT)
        assert request.signal_name == "SIGINT"
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as request:
            signal.raise_signal(signal.SIGHUP)
            request.defer()
        assert request.signal_name is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_says_at_its_end_how_full_its_rows_were():
    """Steps of two and of one call: 3 + 5 + 2 rows of 16 tokens."""
    said = []
    log = Log(
        config=run_config(pack_sequences=True, max_seq_length=16, log_every_steps=100),
        timed=None,
        metrics=None,
        progress=SimpleNamespace(advance=lambda number, words: None),
        rates=None,
        time_budget=None,
        say=said.append,
    )
    counts = np.zeros([3, len(STEP_FIGURES)], np.float32)
    counts[:, STEP_FIGURES.index("num_rows")] = 3, 5, 2
    counts[:, STEP_FIGURES.index("num_real_tokens")] = 40, 50, 30
    log.at(Trained(step_before=0, step=2, figures=counts[:2], seconds=1.0))
    log.at(Trained(step_before=2, step=3, figures=counts[2:], seconds=1.0))
    log.end(3, OVER)
    dataclasses.replace(log, config=run_config(), _num_rows=10).end(3, OVER)  # packs nothing
    assert said == ["packing: 75.0% of the tokens of 10 rows were real"]


@pytest.mark.parametrize("others, ending", [(0.0, None), (1.0, STOPPED)])
def test_a_signal_to_another_process_ends_the_run(others, ending):
    event = StopOnSignal(StopRequest(), lambda own: np.array([own, [others]]))
    assert event.at(Trained(step_before=1, step=2, figures=np.ones((1, 1)), seconds=1.0)) == ending
    if ending:
        with pytest.raises(Interrupted, match=r"^another process got a signal after step 2: "):
            event.end(2, ending)


def test_a_second_ctrl_c_does_not_wait():
    with StopRequest() as request:
        request.defer()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("number", signals.SIGNALS)
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


class Every(Event):
    """Notes the calls that end at its multiples."""

    def __init__(self, steps):
        self.steps, self.seen = steps, []

    def next(self, step):
        return next_multiple(step, self.steps)

    def at(self, trained):
        if trained.step % self.steps == 0:
            self.seen.append(trained.step)


def stops_of(*events, last_step, longest_call_steps, step=0):
    """The steps after device calls."""
    stops = [step]

    def train_steps(num_steps):
        stops.append(stops[-1] + num_steps)
        return np.zeros((num_steps, 1)), 1.0

    last = LastStep(last_step, longest_call_steps=longest_call_steps)
    assert train(train_steps, [*events, last], step=step) == (last_step, OVER)
    return stops[1:]


def test_a_device_call_ends_at_the_first_thing_due():
    evaluating, saving, logging = Every(20), Every(15), Every(7)
    stops = stops_of(evaluating, saving, logging, last_step=50, longest_call_steps=6)
    assert stops == [6, 7, 13, 14, 15, 20, 21, 27, 28, 30, 35, 40, 42, 45, 49, 50]
    assert (evaluating.seen, saving.seen) == ([20, 40], [15, 30, 45])
    assert stops_of(Every(7), last_step=20, longest_call_steps=3, step=8) == [11, 14, 17, 20]


@pytest.mark.parametrize("begins_at, profiled", [(0, (19, 29)), (24, (24, 29)), (29, None)])
def test_a_profile_has_the_device_calls_of_its_window_or_of_what_is_left_of_it(begins_at, profiled):
    entered, step = [], begins_at

    @contextlib.contextmanager
    def profiler(folder):
        entered.append((folder, step))
        yield
        entered.append((folder, step))

    def train_steps(num_steps):
        nonlocal step
        step += num_steps
        return np.zeros((num_steps, 1)), 1.0

    profile = Profile(ProfileWindow(20, 29), Path("out"), profiler)
    train(train_steps, [profile, LastStep(40, longest_call_steps=4)], step=begins_at)
    assert entered == ([("out", each) for each in profiled] if profiled else [])
    # Another process than the chief makes calls of the same lengths, and writes nothing.
    silent, number = Profile(ProfileWindow(20, 29), None, profiler), len(entered)
    assert [silent.next(step) for step in (0, 19, 24, 29)] == [19, 29, 29, None]
    assert len(entered) == number


class Told(Event):
    """Notes what it is asked; may end the run when it is asked so."""

    def __init__(self, name, notes, **endings):
        self.name, self.notes, self.endings = name, notes, endings

    def begin(self, step):
        self.notes.append(f"{self.name} begins")
        return self.endings.get("begin")

    def next(self, step):
        return step + 1

    def at(self, trained):
        self.notes.append(f"{self.name} at {trained.step}")
        return self.endings.get("at")

    def end(self, step, ending):
        self.notes.append(f"{self.name} ends {ending}")
        return self.endings.get("end")


@pytest.mark.parametrize(
    "endings, step, ending, notes",
    [
        # The first event that ends the run is the last that acts.
        (({}, {"at": STOPPED}, {"at": OVER}), 0, (1, STOPPED),
         "a begins, b begins, c begins, a at 1, b at 1, a ends stopped, b ends stopped, "
         "c ends stopped"),
        # A run may end before its first step.
        (({"begin": OVER}, {"at": REACHED}, {}), 9, (9, OVER),
         "a begins, a ends over, b ends over, c ends over"),
        # An event at the end may find another ending.
        (({"at": OVER}, {"end": REACHED}, {}), 0, (1, REACHED),
         "a begins, b begins, c begins, a at 1, a ends over, b ends over, c ends reached"),
    ],
)  # fmt: skip
def test_what_ends_a_run_and_who_is_told_of_it(endings, step, ending, notes):
    told: list[str] = []
    events = [Told(name, told, **given) for name, given in zip("abc", endings)]
    assert train(lambda n: (np.zeros((n, 1)), 1.0), events, step=step) == ending
    assert told == notes.split(", ")


@pytest.mark.parametrize(
    "loss, step, error, message",
    [
        (float("nan"), 1, ValueError, "before any weight has changed: the initial weights"),
        (float("inf"), 2, FloatingPointError, "step 2 is inf: training has diverged; lower"),
    ],
)
def test_weights_that_cannot_be_trained_have_not_diverged(loss, step, error, message):
    figures = np.ones((3, len(STEP_FIGURES)))
    trained = Trained(step_before=0, step=3, figures=figures, seconds=1.0)
    assert RequireFinite().at(trained) is None
    figures[step - 1, 0] = loss
    with pytest.raises(error, match=message):
        RequireFinite().at(trained)
