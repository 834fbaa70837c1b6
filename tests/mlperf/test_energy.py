"""Joules of stand-ins that are known exactly: counters that wrap or fail, a given power."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mlperf_bert.mlperf import energy
from mlperf_bert.mlperf.energy import Energy
from mlperf_bert.mlperf.log import MlperfLog, close_log
from mlperf_bert.mlperf.logs import energy_of_pieces, read_records, read_run
from tests.mlperf.example_log import Clock, initialise


@pytest.fixture
def clock() -> Clock:
    return Clock()


def zones(folder, *, of=(("package-0", 1_000), ("package-1", 2_000), ("dram", 300))):
    """A tree as the kernel's, with a counter in microjoules for each name."""
    for number, (name, microjoules) in enumerate(of):
        zone = folder / f"intel-rapl:{number}"
        zone.mkdir(parents=True)
        (zone / "name").write_text(f"{name}\n")
        (zone / "energy_uj").write_text(f"{microjoules}\n")
        (zone / "max_energy_range_uj").write_text("65532610987\n")
    (folder / "intel-rapl").mkdir()
    return folder


def count(folder, zone: int, microjoules: int) -> None:
    (folder / f"intel-rapl:{zone}" / "energy_uj").write_text(f"{microjoules}\n")


class Nvml:
    """GPUs, of which the test sets the counters (mJ)."""

    class NVMLError(Exception):
        """As pynvml's."""

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

    def nvmlDeviceGetIndex(self, handle):
        return handle

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if self.fails:
            raise self.NVMLError(self.fails)
        return self.millijoules[handle]


def test_a_given_power_is_watts_times_seconds(clock):
    meter = energy.meter(power_watts=320, clock=clock)
    meter.read()
    clock.pass_by(32)
    assert meter.read().joules == pytest.approx(320 * 32)
    clock.pass_by(5.5)
    taken = meter.read()
    assert taken.parts == {"system": pytest.approx(320 * 37.5)}
    assert str(taken) == "12,000.0 J = 0.003333 kWh of the system; at the given 320 W"


def test_counters_of_rapl_are_added_also_where_they_wrap(tmp_path, clock):
    folder = zones(tmp_path / "powercap")
    count(folder, 0, 65_532_000_000)
    meter = energy.meter(rapl=folder, clock=clock)
    assert meter.plan == "of the processors and memory"
    meter.read()
    clock.pass_by(10)
    count(folder, 0, 389_013)  # 610,987 to its end, and 389,013 more: 1 J
    count(folder, 1, 2_000 + 4_000_000)
    count(folder, 2, 300 + 500_000)
    meter.read()
    clock.pass_by(10)
    count(folder, 0, 389_013 + 2_000_000)
    found = meter.read()
    assert found.parts == pytest.approx({"processors": 7.0, "memory": 0.5}, abs=1e-9)
    assert str(found).startswith("7.5 J = 2.083e-06 kWh of the processors and memory")


def test_parts_of_a_package_and_the_whole_platform_are_not_counted_twice(tmp_path):
    of = [(name, 5) for name in ("psys", "package-0", "core", "uncore", "dram")]
    found = energy._zones(zones(tmp_path / "powercap", of=of))
    assert [sensor.part for sensor in found] == ["processors", "memory"]


def test_a_counter_that_may_have_wrapped_twice_is_no_figure(tmp_path, clock):
    folder = zones(tmp_path / "powercap")
    meter = energy.meter(rapl=folder, clock=clock)
    meter.read()
    clock.pass_by(66)
    found = meter.read()
    assert found.joules is None
    assert found.unknown == (
        "RAPL's intel-rapl:0 was not read for 66 s and may have wrapped twice; give --power_watts"
    )
    # A whole range in 66 s would be 993 W: as often as it is read within 65 s, it is known.
    meter = energy.meter(rapl=folder, clock=clock)
    meter.read()
    for _ in range(3):
        clock.pass_by(65)
        assert meter.read().joules == 0


ALL = "all 8 GPUs count, the run uses 2: which is not known"


@pytest.mark.parametrize(
    ("visible", "used", "notes"),
    [
        ("", [0, 1], []),
        ("2,3", [2, 3], []),
        ("7, 3,4", [7, 3], []),
        ("GPU-666,GPU-222", [6, 2], []),
        *[(of, range(8), [ALL]) for of in (None, "3", "3,8", "GPU-,GPU-1", "3,-1", "MIG-a,MIG-b")],
    ],
)
def test_of_the_gpus_those_count_that_the_run_uses(tmp_path, clock, visible, used, notes):
    """And not the processors beside them."""
    nvml, folder = Nvml(*[5_000] * 8), zones(tmp_path / "powercap")
    meter = energy.meter(num_gpus=2, visible=visible, rapl=folder, nvml=nvml, clock=clock)
    meter.read()
    nvml.millijoules = [5_000 + 1000 * 2**number for number in range(8)]
    clock.pass_by(400)
    count(folder, 0, 10**6)
    found = meter.read()
    assert found.parts == {"GPUs": sum(2**number for number in used)}
    assert list(found.notes) == notes


def test_a_counter_that_begins_again_or_is_lost_is_no_figure(tmp_path, clock):
    for spoil, reason in (
        (lambda nvml: nvml.millijoules.__setitem__(1, 10), "GPU 1 began again at 0"),
        (lambda nvml: setattr(nvml, "fails", "GPU is lost"), "no counter of .* GPU is lost"),
    ):
        nvml = Nvml(5_000, 7_000)
        meter = energy.meter(num_gpus=2, rapl=tmp_path, nvml=nvml, clock=clock)
        meter.read()
        spoil(nvml)
        found = meter.read()
        assert found.joules is None and re.fullmatch(f"{reason}; give --power_watts", found.unknown)
        value, metadata = found.as_event()
        assert value["joules"] is None and Energy.from_event(value, metadata) == found


def test_what_is_not_there_is_said_and_what_would_help(tmp_path, monkeypatch):
    class NoDriver(Nvml):
        def nvmlInit(self):
            raise self.NVMLError("NVML Shared Library Not Found")

    def plan(**of) -> str:
        return energy.meter(**{"rapl": tmp_path} | of).plan

    def unknown(reason: str) -> str:
        return f"unknown ({reason}; give --power_watts)"

    rapl = zones(tmp_path / "powercap")
    assert plan() == unknown(f"no RAPL in {tmp_path}")
    missing = unknown("no NVML (NVML Shared Library Not Found)")
    assert plan(num_gpus=2, nvml=NoDriver(), rapl=rapl) == missing
    assert plan(num_gpus=2, nvml=Nvml()) == unknown("NVML shows no GPU")
    before_volta = unknown("no counter of energy of a GPU: Not Supported")
    assert plan(num_gpus=1, nvml=Nvml(1, fails="Not Supported")) == before_volta
    assert plan(use_tpu=True, rapl=rapl) == unknown("a TPU does not report its energy")
    there = plan(num_gpus=2, nvml=Nvml(1, 2), num_hosts=4)
    assert there == "of the GPUs; of the chief's host alone, out of 4"
    assert plan(power_watts=1.5, num_hosts=4) == "of the system; at the given 1.5 W"

    def read_text(path, read=Path.read_text, **options):
        if path.name == "energy_uj":
            raise PermissionError  # to root no file is closed
        return read(path, **options)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert plan(rapl=rapl) == unknown("RAPL is readable for root only")


@pytest.mark.parametrize("content", [None, "", "many\n"])
def test_a_sensor_that_fails_in_the_middle_makes_the_sum_unknown_and_not_the_run(
    tmp_path, clock, content
):
    folder = zones(tmp_path / "powercap")
    meter = energy.meter(rapl=folder, clock=clock)
    meter.read()
    clock.pass_by(12)
    path = folder / "intel-rapl:1" / "energy_uj"
    path.unlink() if content is None else path.write_text(content)
    failed = meter.read()
    clock.pass_by(1)
    count(folder, 0, 10**9)  # too late
    count(folder, 1, 10**9)
    reason = "No such file or directory" if content is None else "holds no number"
    assert failed.joules is None and reason in str(failed)
    assert meter.read() == failed


def test_what_is_no_event_of_energy_is_none():
    for value, metadata in (
        (5, {}),
        ({}, {}),
        ({"joules": 3}, {}),
        ({"joules": 3, "system_joules": "three"}, {}),
        ({"joules": 3, "system_joules": float("inf")}, {}),
        ({"joules": 3, "system_joules": 3}, {"notes": 4}),
    ):
        assert Energy.from_event(value, metadata) is None


def test_pieces_add_up():
    first = Energy(parts={"GPUs": 2.0, "memory": 1.0}, notes=("a",))
    second = Energy(parts={"GPUs": 5.0}, notes=("a", "b"))
    both = Energy(parts={"GPUs": 7.0, "memory": 1.0}, notes=("a", "b"))
    assert energy.total([first, second]) == both
    lost = Energy(unknown="GPU 0: GPU is lost")
    assert energy.total([first, lost]).joules is None
    assert energy.total([first, lost]).unknown == "GPU 0: GPU is lost"
    assert energy.total([second, None]) == replace(second, at_least=energy._A_PIECE_IS_SILENT)
    assert energy.total([None, None]) is None


def write_piece(path, clock, *, ends: bool = True, resumed_at: int = 0) -> None:
    """A log of two checkpoints, 10 s apart at 100 W; 5 s more if it comes to its end."""
    with MlperfLog(path) as log:
        initialise(log)
        meter = energy.meter(power_watts=100, clock=clock)
        with log.run(meter=meter) as run:
            run.block_start(448 * resumed_at, num_samples=448)
            for step in (resumed_at + 10, resumed_at + 20):
                clock.pass_by(10)
                run.checkpoint_start(step)
                run.checkpoint_stop(step)
            clock.pass_by(5)
            run.block_stop(448 * (resumed_at + 20))
    if not ends:
        lines = path.read_text().splitlines(keepends=True)
        end = next(number for number, line in enumerate(lines) if "block_stop" in line)
        path.write_text("".join(lines[:end]))
        assert close_log(path)


def test_a_log_says_the_energy_of_its_run_and_up_to_each_checkpoint(tmp_path, clock):
    """A killed run took at least what its last checkpoint says."""
    path, killed = tmp_path / "bert.log", tmp_path / "killed.log"
    write_piece(path, clock)
    found = [record for record in read_records(path) if record.key == "energy"]
    assert [record.value["joules"] for record in found] == [1000, 2000, 2500]
    assert [record.metadata["of"] for record in found] == ["checkpoint", "checkpoint", "run"]
    read = read_run(path).energy
    assert read.joules == 2500 and not read.at_least
    write_piece(killed, clock, ends=False)
    read = read_run(killed).energy
    assert str(read).startswith("at least 2,000.0 J") and "a killed run" in str(read)


def test_the_pieces_of_a_resumed_run_add_up(tmp_path, clock):
    logs = [tmp_path / "bert.log", tmp_path / "bert.resumed-1.log"]
    write_piece(logs[0], clock)
    write_piece(logs[1], clock, resumed_at=20)
    assert energy_of_pieces(logs).joules == 5000
    silent = tmp_path / "bert.resumed-2.log"
    with MlperfLog(silent) as log:
        initialise(log)
        with log.run():
            pass
    assert energy_of_pieces([silent]) is None
    both = energy_of_pieces([*logs, silent])
    assert both.joules == 5000 and "does not say its energy" in both.at_least
