"""What published results let expect: a law is found again, intervals hold what they say."""

from dataclasses import replace

import numpy as np
import pytest

from mlperf_bert.mlperf.convergence import log_reference_samples
from mlperf_results.expect import (
    COUNT,
    MINUTES,
    RATE,
    Interval,
    Published,
    Question,
)


@pytest.fixture(scope="session")
def example(shipped):
    [found] = [e for e in shipped if e.name == "4.0/smc/1xSMC-H100-SXM-80GB"]
    return replace(found, watts=None)


def samples_of(batch):
    """Five percent more than the reference needs."""
    return 1.05 * np.exp(log_reference_samples(np.log2(batch)))


def lawful(example, speed, model, org, count, batch, nodes):
    """A result whose rate and samples follow the law that the method assumes."""
    rate = speed * count**0.9 * batch**0.2 * nodes**-0.1
    minutes = samples_of(batch) / rate / 60
    return replace(
        example,
        org=org,
        system=f"{count} in {nodes}",
        accelerator_model_name=model,
        accelerators=count,
        nodes=nodes,
        global_batch_size=batch,
        samples_mean=samples_of(batch),
        samples_per_second_median=rate,
        minutes_scored=minutes,
        run_minutes=(minutes,) * 10,
    )


@pytest.fixture(name="law")
def results_that_follow_a_law(example):
    places = [
        (8, 448, 1),
        (8, 768, 2),
        (16, 448, 2),
        (64, 3072, 8),
        (64, 4608, 16),
        (512, 8192, 64),
    ]
    return Published(
        [
            lawful(example, speed, model, f"{org} {number}", *place)
            for speed, model, org in ((100, "A100-SXM4-80GB", "A"), (300, "NVIDIA H100 SXM", "B"))
            for number, place in enumerate(places)
        ]
    )


@pytest.mark.parametrize("place", [(8, 1024, 4), (32, 1024, 4), (4, 256, 1), (2048, 16384, 256)])
def test_a_law_of_count_batch_and_nodes_is_found_again(law, example, place):
    """Also where nobody published: between counts and beyond them."""
    found = law.expectation(Question("H100 SXM", *place))
    truth = lawful(example, 300, "H100", "C", *place)
    assert found.samples_per_second.expected == pytest.approx(truth.samples_per_second_median)
    assert found.minutes.expected == pytest.approx(truth.minutes)
    assert found.minutes.least == pytest.approx(found.minutes.most)  # no error, no width


def test_an_error_takes_nothing_of_its_submitter(example):
    """Of A 20 minutes are expected, twice, of B the root of 10 times 12; of C, alone, nothing."""
    entries = [
        replace(example, org=org, system=str(minutes), accelerators=n, samples_mean=6e4 * minutes,
                minutes_scored=float(minutes), samples_per_second_median=1000.0)
        for org, minutes, n in (("A", 10, 8), ("A", 12, 8), ("B", 20, 8), ("C", 40, 4))
    ]  # fmt: skip
    found = Published(entries).errors((COUNT,), True)
    assert list(found.submitters) == ["a", "a", "b"]
    expected = [10 / 20, 12 / 20, 20 / 120**0.5]
    assert np.exp(found.errors[:, MINUTES]) == pytest.approx(expected)
    assert found.errors[:, RATE] == pytest.approx(0)
    assert found.relative(MINUTES, 0.5) == pytest.approx(20 / 12 - 1)


def test_results_count_once_under_the_submitters_one_name_with_power_that_was_measured(example):
    again = replace(example, org="A-ac-power", same_logs_as=example.name, watts=6000.0)
    later = replace(again, org="A-dc-power", watts=5000.0)
    other = replace(example, org="SUPERMICRO", system="other")
    bad = [replace(example, division="open"), replace(example, minutes_scored=None, runs=11)]
    found = Published([example, again, later, other, *bad])
    assert [(e.org, e.watts) for e in found.entries] == [("smc", 6000.0), ("SUPERMICRO", None)]
    assert list(found.submitter) == ["supermicro"] * 2


def test_energy_is_the_minutes_times_the_measured_power_of_as_many_accelerators(known):
    of_eight, of_four = (known.expectation(Question("H100 SXM", n)) for n in (8, 4))
    [measured] = [e.watts for e in known.entries if e.family == "H100 SXM" and e.watts]
    hours = of_four.minutes.expected / 60
    assert of_four.kilowatt_hours.expected == pytest.approx(measured / 2 / 1000 * hours)
    assert of_eight.kilowatt_hours.least < of_eight.kilowatt_hours.expected
    assert known.expectation(Question("A100 SXM", 8)).kilowatt_hours is None


def test_an_interval_is_wider_far_from_all_counts(known):
    def width(count):
        rate = known.expectation(Question("H200", count)).samples_per_second
        return np.log(rate.most / rate.least)

    assert width(48) < width(512) < width(4096)
    assert width(8) < width(512)
    rows = np.flatnonzero(np.isin(known.place[:, COUNT], [3, 5]))  # 8 and 32
    far = [known.doublings(np.log2([count, 1, 1]), rows) for count in (8, 12, 48, 128, 1)]
    assert far == [1, 1, 1, 2, 3]


def test_an_interval_has_three_digits():
    assert str(Interval(1234.5, 0.01234, 99.96)) == "1,230 (0.0123 to 100)"
