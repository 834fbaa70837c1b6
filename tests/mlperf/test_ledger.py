"""Every second belongs to exactly one kind."""

import pytest

from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.ledger import Ledger
from tests.mlperf.example_log import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_inner_times_are_taken_from_outer_ones_and_the_rest_is_host_work(clock):
    book = Ledger(clock)
    clock.pass_by(1)
    with book.counting(ledger.COMPUTE):
        clock.pass_by(10)
        with book.counting(ledger.SAVING):
            clock.pass_by(3)
        clock.pass_by(5)
    clock.pass_by(0.5)
    found = book.read()
    assert {kind: s for kind, s in found.items() if s} == {"compute": 15, "saving": 3, "host": 1.5}
    assert sum(found.values()) == clock.now - 100
    assert ledger.accelerator_utilization(found) == 15 / 19.5
    assert ledger.in_words(found) == (
        "compute 15 s (76.9%), saving 3 s (15.4%), host 1.5 s (7.7%); accelerator utilization 76.9%"
    )
    assert ledger.in_words(Ledger(clock).read()) == "no time was spent"


def test_what_was_measured_apart_is_moved_and_no_more_than_there_is(clock):
    book = Ledger(clock)
    with book.counting(ledger.COMPUTE):
        clock.pass_by(4)
        book.move(1.5, source=ledger.COMPUTE, to=ledger.INPUT_WAIT)
    assert (book.read()["compute"], book.read()["input_wait"]) == (2.5, 1.5)
    book.move(-2, source=ledger.COMPUTE, to=ledger.INPUT_WAIT)
    assert book.read()["compute"] == 2.5
    book.move(100, source=ledger.COMPUTE, to=ledger.INPUT_WAIT)
    assert (book.read()["compute"], book.read()["input_wait"]) == (0, 4)


def test_an_error_ends_what_it_leaves(clock):
    book = Ledger(clock)
    with pytest.raises(OSError), book.counting(ledger.SAVING):
        clock.pass_by(2)
        raise OSError
    clock.pass_by(1)
    assert (book.read()["saving"], book.read()["host"]) == (2, 1)


def test_an_evaluation_waits_for_its_batches_and_computes_the_rest(clock):
    class Slow:
        def __iter__(self):
            clock.pass_by(0.5)  # files are opened
            return self.batches()

        def batches(self):
            for number in range(3):
                clock.pass_by(2)
                yield number
            clock.pass_by(0.25)  # until the end is seen

    book = Ledger(clock)
    with book.counting(ledger.EVALUATION_COMPUTE):
        for _ in book.waiting(Slow()):
            clock.pass_by(1)
    found = book.read()
    assert {kind: s for kind, s in found.items() if s} == {
        "evaluation_input_wait": 6.75,
        "evaluation_compute": 3,
    }


def test_after_its_stop_nothing_is_counted(clock):
    book = Ledger(clock)
    clock.pass_by(1)
    book.stop()
    with book.counting(ledger.SAVING):
        clock.pass_by(9)
    book.stop()
    assert sum(book.read().values()) == 1


def test_two_readings_differ_by_what_lies_between_and_files_hold_it(clock):
    book = Ledger(clock)
    clock.pass_by(1)
    before = book.read()
    with book.counting(ledger.COMPUTE):
        clock.pass_by(2)
    between = ledger.difference(book.read(), before)
    assert between == dict.fromkeys(ledger.KINDS, 0.0) | {"compute": 2.0}
    fields = ledger.as_fields(between)
    assert fields["compute_seconds"] == 2.0 and len(fields) == len(ledger.KINDS)
    assert ledger.from_fields({**fields, "throughput": 3}) == between
    for other in (-1, "1", None, float("inf"), float("nan")):
        assert ledger.from_fields({**fields, "host_seconds": other}) is None
    assert ledger.from_fields({"throughput": 3}) is ledger.from_fields(3) is None
