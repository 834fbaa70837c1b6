"""The energy of a run: by NVML (GPUs), RAPL (processors and memory), or of a given power.

A sensor returns the joules since its last reading. Counters are read exactly at run_start and
run_stop; of a power that can only be sampled, the readings are joined by straight lines (the
trapezoidal rule). Between the two a thread reads once a second: a counter of RAPL wraps within
minutes.

RAPL's files are read here, as no library that is kept up to date does only this.

Source: NVML's API reference, nvmlDeviceGetTotalEnergyConsumption; the kernel's documentation of
the power capping framework.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pynvml

Result = TypeVar("Result")

LOG_KEY = "energy"
"""An event of our own in MLPerf logs; the checkers ignore keys that they do not know."""
TRAINING, EVALUATION, OTHER = "training", "evaluation", "other"
PHASES = (TRAINING, EVALUATION, OTHER)
SYSTEM, GPUS, PROCESSORS, MEMORY = "system", "GPUs", "processors", "memory"
PARTS = (SYSTEM, GPUS, PROCESSORS, MEMORY)
INTERVAL_SECONDS = 1.0
LONGEST_READING_SECONDS = 10.0
"""A sensor that takes longer has failed."""
RAPL = Path("/sys/class/powercap")
_MOST_WATTS_OF_A_ZONE = 1000.0


class SensorFailed(Exception):
    """A sensor cannot be read; the message says which one and why."""


class Sensor(Protocol):
    """Something that measures the energy of a part of the system."""

    part: str
    """One of PARTS."""

    def advance(self, now: float) -> float:
        """The joules since the last call, at `now` seconds; 0 at the first call.

        Raises:
          SensorFailed: it cannot be read.
        """
        ...


class Power:
    """Integrates a power over time, by straight lines between its readings."""

    def __init__(self, part: str, watts: Callable[[], float]):
        """`watts` reads the power; it may raise SensorFailed."""
        self.part = part
        self._watts = watts
        self._last: tuple[float, float] | None = None

    def advance(self, now: float) -> float:
        """As `Sensor.advance`."""
        watts, before = self._watts(), self._last
        self._last = (now, watts)
        return (now - before[0]) * (watts + before[1]) / 2 if before else 0.0


class Counter:
    """A counter of joules, which may begin again at 0 after `range_joules`."""

    def __init__(
        self, part: str, joules: Callable[[], float], *, name: str, range_joules: float = math.inf
    ):
        """`joules` reads the counter called `name`; it may raise SensorFailed."""
        self.part = part
        self._joules = joules
        self._name = name
        self._range_joules = range_joules
        self._last: tuple[float, float] | None = None

    def advance(self, now: float) -> float:
        """As `Sensor.advance`."""
        joules, before = self._joules(), self._last
        self._last = (now, joules)
        if before is None:
            return 0.0
        if (now - before[0]) * _MOST_WATTS_OF_A_ZONE > self._range_joules:
            raise SensorFailed(
                f"{self._name} was not read for {now - before[0]:.0f} s and may have wrapped twice"
            )
        risen = joules - before[1]
        if risen < 0 and self._range_joules == math.inf:
            raise SensorFailed(f"{self._name} began again at 0")
        return risen if risen >= 0 else risen + self._range_joules


@dataclass(frozen=True, kw_only=True)
class Energy:
    """What a run took, as far as it was measured."""

    parts: Mapping[str, float] = field(default_factory=dict)
    """Measured part of the system -> joules."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Phase of the run -> joules, over the same parts; each checkpoint is in the phase around it;
    empty if not known."""
    notes: tuple[str, ...] = ()
    """What is left out of the sum, or counts too much."""
    unknown: str = ""
    """Why there is no sum; empty if there is one."""
    at_least: str = ""
    """Why the run took more; empty if it did not."""

    @property
    def joules(self) -> float | None:
        """The sum over the parts; None if it is unknown."""
        return None if self.unknown else sum(self.parts.values())

    def as_event(self) -> tuple[dict[str, object], dict[str, object]]:
        """Value and metadata of the event in a log."""
        value: dict[str, object] = {"joules": _rounded(self.joules)}
        value |= {f"{name.lower()}_joules": _rounded(joules) for name, joules in self.parts.items()}
        value |= {f"{name}_joules": _rounded(joules) for name, joules in self.phases.items()}
        remarks = {"notes": self.notes, "unknown": self.unknown, "at_least": self.at_least}
        return value, {name: remark for name, remark in remarks.items() if remark}

    @classmethod
    def from_event(cls, value: object, metadata: Mapping[str, object]) -> "Energy | None":
        """What `as_event` made; None if it is something else."""
        if not isinstance(value, Mapping) or "joules" not in value:
            return None
        notes = metadata.get("notes", ())
        if not isinstance(notes, list | tuple):
            return None
        found = cls(
            parts=_numbers(value, {name: f"{name.lower()}_joules" for name in PARTS}),
            phases=_numbers(value, {name: f"{name}_joules" for name in PHASES}),
            notes=tuple(map(str, notes)),
            unknown=str(metadata.get("unknown", "")),
            at_least=str(metadata.get("at_least", "")),
        )
        return found if found.unknown or found.parts else None

    def __str__(self) -> str:
        """One line: the sum, what is in it, and what is not."""
        if self.unknown:
            return f"unknown ({self.unknown})"
        joules = self.joules or 0.0
        shares = ", ".join(f"{name} {part:,.1f} J" for name, part in self.phases.items() if part)
        text = f"{joules:,.1f} J = {joules / 3.6e6:.4g} kWh of the {' and '.join(self.parts)}"
        text = f"{text}: {shares}" if shares else text
        text = f"at least {text}; {self.at_least}" if self.at_least else text
        return "; ".join([text, *self.notes])


def _rounded(joules: float | None) -> float | None:
    return None if joules is None else round(joules, 6)


def _numbers(value: Mapping, names: Mapping[str, str]) -> dict[str, float]:
    found = {name: value.get(key) for name, key in names.items()}
    return {
        name: float(number)
        for name, number in found.items()
        if isinstance(number, int | float) and 0 <= number < math.inf
    }


def total(pieces: Sequence[Energy]) -> Energy:
    """What the pieces of a run took together; unknown if that of one piece is."""
    joined = {"parts": PARTS, "phases": PHASES}
    sums = {
        of: {
            name: sum(getattr(piece, of).get(name, 0.0) for piece in pieces)
            for name in names
            if any(name in getattr(piece, of) for piece in pieces)
        }
        for of, names in joined.items()
    }
    has_phases = all(piece.phases for piece in pieces)
    return Energy(
        parts=sums["parts"],
        phases=sums["phases"] if has_phases else {},
        notes=tuple(dict.fromkeys(note for piece in pieces for note in piece.notes)),
        unknown=next((piece.unknown for piece in pieces if piece.unknown), ""),
        at_least=next((piece.at_least for piece in pieces if piece.at_least), ""),
    )


def _in_time(call: Callable[[], Result], seconds: float) -> Result:
    """The call's result, from a thread of its own: a driver that hangs does not hold up the run.

    Raises:
      TimeoutError: there was none after so many seconds; the thread is left to itself.
      Exception: what the call raises.
    """
    done: Future[Result] = Future()

    def answer() -> None:
        try:
            done.set_result(call())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=answer, daemon=True, name="energy call").start()
    return done.result(seconds)


class Meter:
    """Measures from `start` to `stop`; a sensor that fails makes the sum unknown; the run goes on.

    A sensor that does not answer holds up the run once, for `longest_reading_seconds`.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor],
        *,
        notes: Sequence[str] = (),
        unknown: str = "",
        interval_seconds: float = INTERVAL_SECONDS,
        longest_reading_seconds: float = LONGEST_READING_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        close: Callable[[], object] | None = None,
    ):
        """Reads nothing yet.

        Args:
          sensors: may be empty.
          notes: what these sensors leave out, or measure too much.
          unknown: why these sensors do not measure the run.
          interval_seconds: between two readings.
          longest_reading_seconds: a sensor that takes longer has failed.
          clock: returns seconds.
          close: called at the end.
        """
        self._sensors = list(sensors)
        self._notes = tuple(notes)
        self._unknown = unknown
        self._interval_seconds = interval_seconds
        self._longest_reading_seconds = longest_reading_seconds
        self._clock = clock
        self._close = close
        self._parts = dict.fromkeys((sensor.part for sensor in sensors), 0.0)
        self._phases = dict.fromkeys(PHASES, 0.0)
        self._phase = OTHER
        self._began = 0.0
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    @property
    def plan(self) -> str:
        """What will be measured, or why nothing will."""
        if self._unknown:
            return f"unknown ({self._unknown})"
        return "; ".join([f"of the {' and '.join(self._parts)}", *self._notes])

    def start(self) -> None:
        """Takes the first reading, and begins the thread."""
        with self._lock:
            self._began = self._clock()
            self._advance()
        if self._sensors:
            threading.Thread(target=self._watch, daemon=True, name="energy").start()

    def enter(self, phase: str) -> Energy:
        """Returns the energy so far; from now on it is that of another phase."""
        with self._lock:
            self._advance()
            self._phase = phase
            return self._taken()

    def read(self) -> Energy:
        """The energy so far, or until `stop`."""
        with self._lock:
            self._advance()
            return self._taken()

    def stop(self) -> Energy:
        """Takes the last reading and ends the thread. Further calls return the same."""
        with self._lock:  # the thread must not read after this reading, or what is closed
            self._advance()
            if not self._stopped.is_set():
                self._stopped.set()
                if self._close:
                    with contextlib.suppress(TimeoutError):
                        _in_time(self._close, self._longest_reading_seconds)
            return self._taken()

    def _taken(self) -> Energy:
        return Energy(
            parts=dict(self._parts),
            phases={} if self._unknown else dict(self._phases),
            notes=self._notes,
            unknown=self._unknown,
        )

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval_seconds):
            with self._lock:
                self._advance()

    def _advance(self) -> None:
        """Adds what was used since the last reading to the present phase; holding the lock."""
        if self._stopped.is_set():
            return
        now = self._clock()
        for sensor in self._sensors[:]:
            if sensor not in self._sensors:  # another one of its part has failed
                continue
            try:
                joules = self._read(sensor, now)
            except SensorFailed as failure:
                self._sensors = [other for other in self._sensors if other.part != sensor.part]
                self._parts.pop(sensor.part, None)
                after = f"after {now - self._began:.0f} s of the run"
                self._unknown = self._unknown or f"{failure}, {after}"
            else:
                self._parts[sensor.part] += joules
                self._phases[self._phase] += joules

    def _read(self, sensor: Sensor, now: float) -> float:
        try:
            return _in_time(lambda: sensor.advance(now), self._longest_reading_seconds)
        except TimeoutError as error:
            raise SensorFailed(
                f"the sensor of the {sensor.part} did not answer in "
                f"{self._longest_reading_seconds:g} s"
            ) from error


def meter(
    *,
    power_watts: float | None = None,
    num_gpus: int = 0,
    visible: str | None = "",
    use_tpu: bool = False,
    num_hosts: int = 1,
    rapl: Path = RAPL,
    nvml: Any = None,
    clock: Callable[[], float] = time.monotonic,
) -> Meter:
    """Returns what measures a run of this process's host.

    Args:
      power_watts: of the whole system, all its hosts; then nothing is measured.
      num_gpus: GPUs that the run uses here; without any, none is measured.
      visible: CUDA_VISIBLE_DEVICES; None if processes with others of their own run here too.
      use_tpu: a TPU computes.
      num_hosts: of the run.
      rapl: the folder of the kernel's power zones.
      nvml: as the module pynvml.
      clock: returns seconds.
    """
    if power_watts is not None:
        given = float(power_watts)
        notes = [f"at the given {given:g} W"]
        return Meter([Power(SYSTEM, lambda: given)], notes=notes, clock=clock)
    sensors: list[Sensor] = []
    notes = []
    reasons: list[str] = []
    close: Callable[[], object] | None = None
    if num_gpus:
        try:
            gpus, notes, close = _gpus(nvml or pynvml, num_gpus=num_gpus, visible=visible)
            sensors += gpus
        except SensorFailed as failure:
            reasons.append(str(failure))
    elif use_tpu:
        reasons.append("a TPU does not report its energy")
    try:
        sensors += _zones(rapl)
    except SensorFailed as failure:
        if num_gpus and not reasons:
            notes.append(f"without processors ({failure})")
        else:
            reasons.append(str(failure))
    if num_hosts > 1:
        notes.append(f"of the chief's host alone, out of {num_hosts}")
    unknown = f"{', '.join(reasons)}; give --power_watts" if reasons else ""
    return Meter(sensors, notes=notes, unknown=unknown, close=close, clock=clock)


def _gpus(
    nvml: Any, *, num_gpus: int, visible: str | None
) -> tuple[list[Sensor], list[str], Callable[[], object]]:
    """A sensor for every GPU of the run, notes, and what closes NVML."""
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        numbers = _used(nvml, handles, num_gpus, visible)
    except nvml.NVMLError as error:
        raise SensorFailed(f"no NVML ({error})") from error
    if not handles:
        raise SensorFailed("NVML shows no GPU")
    counted = numbers or range(len(handles))
    gpus = [_gpu(nvml, handles[n], name=f"GPU {n}") for n in counted]
    notes = []
    if any(isinstance(gpu, Power) for gpu in gpus):
        notes.append(f"GPUs by power readings every {INTERVAL_SECONDS:g} s")
    if not numbers and len(handles) != num_gpus:
        notes.append(f"all {len(handles)} GPUs count, the run uses {num_gpus}: which is not known")
    if any(_has_slices(nvml, handles[n]) for n in counted):
        notes.append("whole GPUs count, also where the run uses a MIG device of one")

    def close() -> None:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    return gpus, notes, close


def _used(nvml: Any, handles: Sequence[Any], num_gpus: int, visible: str | None) -> list[int]:
    """The numbers of the run's GPUs, by NVML's count, which is CUDA's; none if they are not known.

    NVML shows every GPU of the host or container, CUDA those of CUDA_VISIBLE_DEVICES: numbers, or
    UUIDs, which may be cut short, or UUIDs of MIG devices. The run uses the first of them.
    """
    if visible is None or len(handles) < num_gpus:
        return []
    uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
    used: list[int] = []
    for name in visible.split(",")[:num_gpus] if visible else map(str, range(num_gpus)):
        name = name.strip()
        if name.startswith("MIG-"):
            device = nvml.nvmlDeviceGetHandleByUUID(name)
            name = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device))
        numbers = [n for n, uuid in enumerate(uuids) if name == str(n) or uuid.startswith(name)]
        if len(numbers) != 1:
            return []
        used += numbers
    return list(dict.fromkeys(used)) if len(used) == num_gpus else []


def _has_slices(nvml: Any, handle: Any) -> bool:
    """Whether a GPU is divided into MIG devices, which have no counters."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:  # it cannot be
        return False


def _gpu(nvml: Any, handle: Any, *, name: str) -> Sensor:
    """Its counter, which GPUs from Volta on have, or its power."""

    def asked(function: str) -> float:
        try:
            return getattr(nvml, function)(handle) / 1000  # of millijoules, milliwatts
        except nvml.NVMLError as error:
            raise SensorFailed(f"{name}: {error}") from error

    try:
        asked("nvmlDeviceGetTotalEnergyConsumption")
    except SensorFailed:
        asked("nvmlDeviceGetPowerUsage")
        return Power(GPUS, lambda: asked("nvmlDeviceGetPowerUsage"))
    return Counter(GPUS, lambda: asked("nvmlDeviceGetTotalEnergyConsumption"), name=name)


def _zones(folder: Path) -> list[Sensor]:
    """The packages of processors, and their memory where it counts apart.

    Left out: core and uncore, which are parts of a package, and psys, which contains packages.
    """
    found: list[Sensor] = []
    for zone in sorted(folder.glob("intel-rapl:*")):  # AMD's too
        name = _text(zone / "name")
        if name.startswith("package") or name == "dram":
            found.append(_zone(zone, PROCESSORS if name != "dram" else MEMORY))
    if not found:
        raise SensorFailed(f"no RAPL in {folder}")
    return found


def _zone(zone: Path, part: str) -> Counter:
    range_joules = _microjoules(zone / "max_energy_range_uj")
    _microjoules(zone / "energy_uj")
    return Counter(
        part,
        lambda: _microjoules(zone / "energy_uj"),
        name=f"RAPL's {zone.name}",
        range_joules=range_joules,
    )


def _microjoules(path: Path) -> float:
    """The content of a file, in joules."""
    text = _text(path)
    try:
        return int(text) / 1e6
    except ValueError as error:
        raise SensorFailed(f"{path} holds no number") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except PermissionError as error:
        raise SensorFailed("RAPL is readable for root only") from error
    except OSError as error:
        raise SensorFailed(f"{path}: {error.strerror or error}") from error
