"""The energy of a run: by NVML (GPUs), RAPL (processors and memory), or of a given power.

Each is a counter of joules, and the energy between two readings is what it has risen. `mlperf.log`
reads them at run_start, at both ends of a block, after a checkpoint and at run_stop: there is no
reading in between, so that a power alone cannot be summed up.

RAPL's files are read here, as no library that is kept up to date does only this.

Source: NVML's API reference, nvmlDeviceGetTotalEnergyConsumption; the kernel's documentation of
the power capping framework.
"""

import functools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

LOG_KEY = "energy"
"""An event of our own in MLPerf logs; the checkers ignore keys that they do not know."""
SYSTEM, GPUS, PROCESSORS, MEMORY = "system", "GPUs", "processors", "memory"
PARTS = (SYSTEM, GPUS, PROCESSORS, MEMORY)
RAPL = Path("/sys/class/powercap")
_MOST_WATTS_OF_A_ZONE = 1000.0


class SensorFailed(Exception):
    """A sensor cannot be read; the message says which one and why."""


class Counter:
    """A counter of joules, which may begin again at 0 after `range_joules`."""

    def __init__(
        self, part: str, joules: Callable[[], float], *, name: str, range_joules: float = math.inf
    ):
        """`joules` reads the counter called `name` of one of PARTS; it may raise SensorFailed."""
        self.part = part
        self._joules = joules
        self._name = name
        self._range_joules = range_joules
        self._last: tuple[float, float] | None = None

    def advance(self, now: float) -> float:
        """The joules since the last call, at `now` seconds; 0 at the first call.

        Raises:
          SensorFailed: it cannot be read, or nobody can tell how often it has wrapped.
        """
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

    def joules_since(self, before: "Energy") -> float | None:
        """The joules since an earlier reading; None if not the same is known of both."""
        if self.joules is None or before.joules is None or self.parts.keys() != before.parts.keys():
            return None
        return self.joules - before.joules

    def as_event(self) -> tuple[dict[str, object], dict[str, object]]:
        """Value and metadata of the event in a log."""
        value: dict[str, object] = {"joules": _rounded(self.joules)}
        value |= {f"{name.lower()}_joules": _rounded(joules) for name, joules in self.parts.items()}
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
        joules = {name: value.get(f"{name.lower()}_joules") for name in PARTS}
        found = cls(
            parts={
                name: float(number)
                for name, number in joules.items()
                if isinstance(number, int | float) and 0 <= number < math.inf
            },
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
        text = f"{joules:,.1f} J = {joules / 3.6e6:.4g} kWh of the {' and '.join(self.parts)}"
        text = f"at least {text}; {self.at_least}" if self.at_least else text
        return "; ".join([text, *self.notes])


def _rounded(joules: float | None) -> float | None:
    return None if joules is None else round(joules, 6)


def total(pieces: Sequence[Energy]) -> Energy:
    """What the pieces of a run took together; unknown if that of one piece is."""
    return Energy(
        parts={
            name: sum(piece.parts.get(name, 0.0) for piece in pieces)
            for name in PARTS
            if any(name in piece.parts for piece in pieces)
        },
        notes=tuple(dict.fromkeys(note for piece in pieces for note in piece.notes)),
        unknown=next((piece.unknown for piece in pieces if piece.unknown), ""),
        at_least=next((piece.at_least for piece in pieces if piece.at_least), ""),
    )


class Meter:
    """Measures from `start` to `stop`; a counter that fails makes the sum unknown; the run goes on.

    Beside GPUs, processors and memory are left out if theirs fail, and the notes say so.
    """

    def __init__(
        self,
        counters: Sequence[Counter],
        *,
        notes: Sequence[str] = (),
        unknown: str = "",
        clock: Callable[[], float] = time.monotonic,
    ):
        """Reads nothing yet.

        Args:
          counters: may be empty.
          notes: what these counters leave out, or measure too much.
          unknown: why these counters do not measure the run.
          clock: returns seconds.
        """
        self._counters = list(counters)
        self._notes = list(notes)
        self._unknown = unknown
        self._clock = clock
        self._parts = dict.fromkeys((counter.part for counter in counters), 0.0)
        self._began = 0.0
        self._is_stopped = False
        self._lock = threading.Lock()

    @property
    def plan(self) -> str:
        """What will be measured, or why nothing will."""
        if self._unknown:
            return f"unknown ({self._unknown})"
        return "; ".join([f"of the {' and '.join(self._parts)}", *self._notes])

    def start(self) -> None:
        """Takes the first reading."""
        self._began = self._clock()
        self.read()

    def read(self, *, is_last: bool = False) -> Energy:
        """The energy so far, or until `stop`."""
        with self._lock:  # the thread that writes a checkpoint reads too
            if not self._is_stopped:
                self._advance()
            self._is_stopped |= is_last
            return Energy(parts=dict(self._parts), notes=tuple(self._notes), unknown=self._unknown)

    def stop(self) -> Energy:
        """Takes the last reading. Further calls return the same."""
        return self.read(is_last=True)

    def _advance(self) -> None:
        """Adds what was used since the last reading."""
        now = self._clock()
        for counter in self._counters[:]:
            if counter.part not in self._parts:  # another one of its part has failed
                continue
            try:
                self._parts[counter.part] += counter.advance(now)
            except SensorFailed as failure:
                self._leave_out(
                    counter.part, f"{failure}, after {now - self._began:.0f} s of the run"
                )

    def _leave_out(self, part: str, reason: str) -> None:
        self._parts.pop(part)
        if GPUS in self._parts:
            self._notes.append(f"without {part} ({reason})")
        else:
            self._unknown = self._unknown or f"{reason}; give --power_watts"


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
        counter = Counter(SYSTEM, lambda: given * clock(), name="the given power")
        return Meter([counter], notes=[f"at the given {given:g} W"], clock=clock)
    counters: list[Counter] = []
    notes: list[str] = []
    reasons: list[str] = []
    if num_gpus:
        try:
            gpus, notes = _gpus(nvml or pynvml, num_gpus=num_gpus, visible=visible)
            counters += gpus
        except SensorFailed as failure:
            reasons.append(str(failure))
    elif use_tpu:
        reasons.append("a TPU does not report its energy")
    try:
        counters += _zones(rapl)
    except SensorFailed as failure:
        if num_gpus and not reasons:
            notes.append(f"without processors ({failure})")
        else:
            reasons.append(str(failure))
    if num_hosts > 1:
        notes.append(f"of the chief's host alone, out of {num_hosts}")
    unknown = f"{', '.join(reasons)}; give --power_watts" if reasons else ""
    return Meter(counters, notes=notes, unknown=unknown, clock=clock)


def _gpus(nvml: Any, *, num_gpus: int, visible: str | None) -> tuple[list[Counter], list[str]]:
    """A counter for every GPU of the run, and notes."""
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        numbers = _used(nvml, handles, num_gpus, visible)
    except nvml.NVMLError as error:
        raise SensorFailed(f"no NVML ({error})") from error
    if not handles:
        raise SensorFailed("NVML shows no GPU")
    counted = numbers or range(len(handles))
    notes = []
    if not numbers and len(handles) != num_gpus:
        notes.append(f"all {len(handles)} GPUs count, the run uses {num_gpus}: which is not known")
    if any(_has_slices(nvml, handles[n]) for n in counted):
        notes.append("whole GPUs count, also where the run uses a MIG device of one")
    return [_gpu(nvml, handles[n], name=f"GPU {n}") for n in counted], notes


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


def _gpu(nvml: Any, handle: Any, *, name: str) -> Counter:
    """Its counter, which GPUs from Volta on have.

    Raises:
      SensorFailed: it has none.
    """

    def joules() -> float:
        try:
            return nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000  # of millijoules
        except nvml.NVMLError as error:
            raise SensorFailed(f"{name}: {error}") from error

    try:
        joules()
    except SensorFailed as error:
        raise SensorFailed(
            f"no counter of energy, which GPUs from Volta on have: {error}"
        ) from error
    return Counter(GPUS, joules, name=name)


def _zones(folder: Path) -> list[Counter]:
    """The packages of processors, and their memory where it counts apart.

    Left out: core and uncore, which are parts of a package, and psys, which contains packages.
    """
    counters = []
    for zone in sorted(folder.glob("intel-rapl:*")):  # AMD's too
        name = _text(zone / "name")
        if name.startswith("package") or name == "dram":
            joules = functools.partial(_microjoules, zone / "energy_uj")
            joules()  # or fail here, where a run is only planned
            counter = Counter(
                MEMORY if name == "dram" else PROCESSORS,
                joules,
                name=f"RAPL's {zone.name}",
                range_joules=_microjoules(zone / "max_energy_range_uj"),
            )
            counters.append(counter)
    if not counters:
        raise SensorFailed(f"no RAPL in {folder}")
    return counters


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
