"""Joules of stand-ins that are known exactly: counters that begin again or fail, a given power."""

import re

import pytest

from mlperf_bert.mlperf import energy
from mlperf_bert.mlperf.energy import Energy
from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.mlperf.log_reader import read_records, read_run
from tests.mlperf.example_log import Clock, initialise


class Nvml:
    """GPUs, of which the test sets the counters (mJ)."""

    class NVMLError(Exception):
        """The same as pynvml's."""

    def __init__(self, *millijoules: int, fails: str = ""):
        self.millijoules, self.fails = list(millijoules), fails

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return len(self.millijoules)

    def nvmlDeviceGetHandleByIndex(self, index):
        if index >= len(self.millijoules):
            raise self.NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in [f"GPU-{str(number) * 3}" for number in range(len(self.millijoules))]:
            raise self.NVMLError("Not Found")
        return int(uuid[-1])

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if self.fails:
            raise self.NVMLError(self.fails)
        return self.millijoules[handle]


def test_a_given_power_is_watts_times_seconds():
    clock = Clock()
    meter = energy.meter(power_watts=320, clock=clock)
    meter.read()
    clock.pass_by(32)
    assert meter.read().joules == pytest.approx(320 * 32)
    clock.pass_by(5.5)
    assert (
        str(meter.read())
        == "12,000.0 J = 0.003333 kWh of the whole system, computed from the given 320 W"
    )


@pytest.mark.parametrize(
    ("visible", "used", "of"),
    [
        ("", [0, 1], "the GPUs"),
        ("2,3", [2, 3], "the GPUs"),
        ("7, 3,4", [7, 3], "the GPUs"),
        ("GPU-666,GPU-222", [6, 2], "the GPUs"),
        (None, range(8), "all GPUs of the host"),
    ],
)
def test_of_the_gpus_those_count_that_the_run_uses(visible, used, of):
    nvml = Nvml(*[5_000] * 8)
    meter = energy.meter(num_gpus=2, visible=visible, nvml=nvml)
    meter.read()
    nvml.millijoules = [5_000 + 1000 * 2**number for number in range(8)]
    joules = sum(2**number for number in used)
    assert meter.read() == Energy(joules=joules, about=f"of {of}")


@pytest.mark.parametrize("visible", ["3,8", "GPU-,GPU-1", "3,-1", "MIG-a,MIG-b"])
def test_gpus_that_nvml_does_not_know_are_no_figure(visible):
    found = energy.meter(num_gpus=2, visible=visible, nvml=Nvml(*[5_000] * 8))
    assert re.fullmatch(r"unknown \(NVML: (Invalid|Not) \w+; give --power_watts\)", found.plan)


def test_a_counter_that_begins_again_or_is_lost_is_no_figure_from_then_on():
    for spoil, reason in (
        (lambda nvml: nvml.millijoules.__setitem__(1, 10), "GPU 1 began again at 0"),
        (lambda nvml: setattr(nvml, "fails", "GPU is lost"), "no counter of .* GPU is lost"),
    ):
        nvml = Nvml(5_000, 7_000)
        meter = energy.meter(num_gpus=2, nvml=nvml)
        meter.read()
        spoil(nvml)
        found = meter.read()
        assert found.joules is None and re.fullmatch(f"{reason}; give --power_watts", found.about)
        value, metadata = found.as_event()
        assert value["joules"] is None and Energy.from_event(value, metadata) == found
        nvml.millijoules, nvml.fails = [9_000, 9_000], ""
        assert meter.read() == found


def test_what_is_not_there_is_said_and_what_would_help():
    class NoDriver(Nvml):
        def nvmlInit(self):
            raise self.NVMLError("NVML Shared Library Not Found")

    def plan(**of) -> str:
        return energy.meter(**of).plan

    def unknown(reason: str) -> str:
        return f"unknown ({reason}; give --power_watts)"

    assert plan() == unknown("only GPUs are measured")
    missing = unknown("NVML: NVML Shared Library Not Found")
    assert plan(num_gpus=2, nvml=NoDriver()) == missing
    assert str(energy.meter(num_gpus=2, nvml=NoDriver()).read()) == missing
    before_volta = unknown("no counter of energy of a GPU: Not Supported")
    assert plan(num_gpus=1, nvml=Nvml(1, fails="Not Supported")) == before_volta
    there = plan(num_gpus=2, nvml=Nvml(1, 2), num_hosts=2)
    assert there == "of the GPUs; of the chief's host alone, out of 2"
    assert (
        plan(power_watts=1.5, num_hosts=4) == "of the whole system, computed from the given 1.5 W"
    )


def test_what_is_no_event_of_energy_is_none():
    for value, metadata in (
        (5, {"about": "a"}),
        ({}, {"about": "a"}),
        ({"joules": 3}, {}),
        ({"joules": float("inf")}, {"about": "a"}),
        ({"joules": -1}, {"about": "a"}),
    ):
        assert Energy.from_event(value, metadata) is None
    assert Energy.from_event({"joules": 0}, {"about": "a"}) == Energy(joules=0.0, about="a")


def test_a_log_says_once_what_was_taken_from_run_start_to_run_stop(tmp_path):
    path, clock = tmp_path / "bert.log", Clock()
    with MlperfLog(path) as log:
        initialise(log)
        clock.pass_by(3)
        with log.run(meter=energy.meter(power_watts=100, clock=clock)) as run:
            run.block_start(0, num_samples=448)
            clock.pass_by(10)
            run.checkpoint_start(10)
            run.checkpoint_stop(10)
            clock.pass_by(5)
            run.block_stop(448)
        clock.pass_by(7)
    [found] = [record for record in read_records(path) if record.key == "energy"]
    assert found.value == {"joules": 1500} and found.metadata["of"] == "run"
    taken = Energy(joules=1500, about="of the whole system, computed from the given 100 W")
    assert read_run(path).energy == taken
