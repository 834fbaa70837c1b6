"""The energy of a run: by NVML (GPUs), RAPL (processors and memory), or of a given power.

Each is a counter of joules, and the energy between two readings is what it has risen. `mlperf.log`
reads them at run_start, at both ends of a block, after a checkpoint and at run_stop: there is no
reading in between, so that a power alone cannot be summed up.

Source: NVML's API reference, nvmlDeviceGetTotalEnergyConsumption; the kernel's documentation of
the power capping framework.
"""

import functools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import pynvml

LOG_KEY = "energy"
"""An event of our own in MLPerf logs; the checkers ignore keys that they do not know."""
SYSTEM, GPUS, PROCESSORS, MEMORY = "system", "GPUs", "processors", "memory"
PARTS = (SYSTEM, GPUS, PROCESSORS, MEMORY)
RAPL = Path("/sys/class/powercap")
_MOST_WATTS_OF_A_ZONE = 1000.0
_A_PIECE_IS_SILENT = "the log of a part of the run does not say its energy"


class SensorFailed(Exception):
    """A sensor cannot be read; the message says which one and why."""


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
        joules = {f"{name.lower()}_joules": round(each, 6) for name, each in self.parts.items()}
        whole = None if self.joules is None else round(self.joules, 6)
        remarks = {"notes": self.notes, "unknown": self.unknown, "at_least": self.at_least}
        return {"joules": whole, **joules}, {name: text for name, text in remarks.items() if text}

    @classmethod
    def from_event(cls, value: object, metadata: Mapping[str, object]) -> "Energy | None":
        """What `as_event` made; None if it is something else."""
        notes = metadata.get("notes", ())
        if not isinstance(value, Mapping) or not isinstance(notes, list | tuple):
            return None
        # Of a damaged log, or another's: only what can be joules counts.
        joules = {name: value.get(f"{name.lower()}_joules") for name in PARTS}
        read = cls(
            parts={
                name: float(number)
                for name, number in joules.items()
                if isinstance(number, int | float) and 0 <= number < math.inf
            },
            notes=tuple(map(str, notes)),
            unknown=str(metadata.get("unknown", "")),
            at_least=str(metadata.get("at_least", "")),
        )
        return read if "joules" in value and (read.unknown or read.parts) else None

    def __str__(self) -> str:
        """One line: the sum, what is in it, and what is not."""
        if self.unknown:
            return f"unknown ({self.unknown})"
        joules = self.joules or 0.0
        text = f"{joules:,.1f} J = {joules / 3.6e6:.4g} kWh of the {' and '.join(self.parts)}"
        text = f"at least {text}; {self.at_least}" if self.at_least else text
        return "; ".join([text, *self.notes])


def total(pieces: Sequence[Energy | None]) -> Energy | None:
    """What the pieces of a run took together; None if no piece says anything.

    Unknown if that of one piece is; too little if one piece is silent.
    """
    known = [piece for piece in pieces if piece]
    # What is missing makes the sum too low, whatever the others say of theirs.
    silent = _A_PIECE_IS_SILENT if len(known) < len(pieces) else ""
    whole = Energy(
        parts={
            name: sum(piece.parts.get(name, 0.0) for piece in known)
            for name in PARTS
            if any(name in piece.parts for piece in known)
        },
        notes=tuple(dict.fromkeys(note for piece in known for note in piece.notes)),
        unknown=next((piece.unknown for piece in known if piece.unknown), ""),
        at_least=silent or next((piece.at_least for piece in known if piece.at_least), ""),
    )
    return whole if known else None


@dataclass
class Counter:
    """A counter of joules."""

    part: str
    """One of PARTS."""
    name: str
    joules: Callable[[], float]
    """Reads it; may raise SensorFailed."""
    range_joules: float = math.inf
    """Where it begins again at 0."""
    last: tuple[float, float] | None = None
    """Seconds and joules of the last reading."""

    def advance(self, now: float) -> float:
        """The joules since the last call, at `now` seconds; 0 at the first call.

        Raises:
          SensorFailed: it cannot be read, or nobody can tell how often it has wrapped.
        """
        (then, before), joules = self.last or (now, None), self.joules()
        self.last = (now, joules)
        if before is None:
            return 0.0
        if (now - then) * _MOST_WATTS_OF_A_ZONE > self.range_joules:
            raise SensorFailed(
                f"{self.name} was not read for {now - then:.0f} s and may have wrapped twice"
            )
        # A GPU's has no end: it begins again when the driver is loaded again.
        if joules < before and self.range_joules == math.inf:
            raise SensorFailed(f"{self.name} began again at 0")
        return joules - before if joules >= before else joules - before + self.range_joules


@dataclass
class Meter:
    """Measures from `start` to `stop`; a counter that fails makes the sum unknown; the run goes on.

    Beside GPUs, processors and memory are left out if theirs fail, and the notes say so.
    """

    counters: Sequence[Counter]
    _: KW_ONLY
    notes: list[str] = field(default_factory=list)
    """What these counters leave out, or measure too much."""
    unknown: str = ""
    """Why these counters do not measure the run."""
    clock: Callable[[], float] = time.monotonic
    """Returns seconds."""

    def __post_init__(self) -> None:
        self._parts = dict.fromkeys((counter.part for counter in self.counters), 0.0)
        self._began: float | None = None
        self._is_stopped = False
        self._lock = threading.Lock()

    @property
    def plan(self) -> str:
        """What will be measured, or why nothing will."""
        if self.unknown:
            return f"unknown ({self.unknown})"
        return "; ".join([f"of the {' and '.join(self._parts)}", *self.notes])

    def read(self, *, is_last: bool = False) -> Energy:
        """The energy since the first reading, or between that and the last one."""
        # The thread that writes a checkpoint reads too.
        with self._lock:
            if not self._is_stopped:
                self._advance(self.clock())
            self._is_stopped |= is_last
            return Energy(parts=dict(self._parts), notes=tuple(self.notes), unknown=self.unknown)

    def _advance(self, now: float) -> None:
        self._began = now if self._began is None else self._began
        for counter in self.counters:
            # A part of which one counter has failed is left out: the others' sum would be too low.
            if counter.part not in self._parts:
                continue
            try:
                self._parts[counter.part] += counter.advance(now)
            except SensorFailed as failure:
                reason = f"{failure}, after {now - self._began:.0f} s of the run"
                self._parts.pop(counter.part)
                if GPUS in self._parts:
                    self.notes.append(f"without {counter.part} ({reason})")
                else:
                    self.unknown = self.unknown or f"{reason}; give --power_watts"


def meter(
    *,
    power_watts: float | None = None,
    num_gpus: int = 0,
    visible: str | None = "",
    use_tpu: bool = False,
    num_hosts: int = 1,
    rapl: Path = RAPL,
    nvml: Any = pynvml,
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
        counter = Counter(SYSTEM, "the given power", lambda: given * clock())
        return Meter([counter], notes=[f"at the given {given:g} W"], clock=clock)
    counters: list[Counter] = []
    notes: list[str] = []
    reasons = ["a TPU does not report its energy"] if use_tpu and not num_gpus else []
    if num_gpus:
        try:
            counters, notes = _gpus(nvml, num_gpus=num_gpus, visible=visible)
        except SensorFailed as failure:
            reasons.append(str(failure))
    try:
        counters += _zones(rapl)
    except SensorFailed as failure:
        # What GPUs take is most of it, and is told alone.
        if counters:
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
        num_there = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        raise SensorFailed(f"no NVML ({error})") from error
    if not num_there:
        raise SensorFailed("NVML shows no GPU")
    notes = []
    numbers = _used(nvml, num_gpus, visible)
    if not numbers and num_there != num_gpus:
        notes.append(f"all {num_there} GPUs count, the run uses {num_gpus}: which is not known")
    counters = []
    for number in numbers or range(num_there):
        read = functools.partial(_joules_of_gpu, nvml, number)
        counters.append(Counter(GPUS, f"GPU {number}", read))
        try:
            read()
        except SensorFailed as error:
            reason = f"no counter of energy, which GPUs from Volta on have: {error}"
            raise SensorFailed(reason) from error
    if any(_has_slices(nvml, number) for number in numbers or range(num_there)):
        notes.append("whole GPUs count, also where the run uses a MIG device of one")
    return counters, notes


def _used(nvml: Any, num_gpus: int, visible: str | None) -> list[int]:
    """The numbers of the run's GPUs, by NVML's count, which is CUDA's; none if they are not known.

    NVML shows every GPU of the host or container, CUDA those of CUDA_VISIBLE_DEVICES: numbers,
    UUIDs, or UUIDs of MIG devices. The run uses the first of them.
    """
    if visible is None:
        return []
    names = visible.split(",") if visible else map(str, range(num_gpus))
    used = []
    try:
        for name in [name.strip() for name in names][:num_gpus]:
            # NVML knows a GPU by its number or whole UUID; CUDA would take the begin of one too.
            if name.isdecimal():
                handle = nvml.nvmlDeviceGetHandleByIndex(int(name))
            else:
                handle = nvml.nvmlDeviceGetHandleByUUID(name)
            if name.startswith("MIG-"):
                handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            used.append(nvml.nvmlDeviceGetIndex(handle))
    except nvml.NVMLError:
        return []
    # Two MIG devices may be of one GPU, which counts once.
    return list(dict.fromkeys(used)) if len(used) == num_gpus else []


def _has_slices(nvml: Any, number: int) -> bool:
    """Whether a GPU is divided into MIG devices, which have no counters."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByIndex(number))[0])
    except nvml.NVMLError:  # it cannot be
        return False


def _joules_of_gpu(nvml: Any, number: int) -> float:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        return nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000  # of millijoules
    except nvml.NVMLError as error:
        raise SensorFailed(f"GPU {number}: {error}") from error


def _zones(folder: Path) -> list[Counter]:
    """The packages of processors, and their memory where it counts apart."""
    counters = []
    for zone in sorted(folder.glob("intel-rapl:*")):  # AMD's too
        kind = _text(zone / "name")
        # Not core and uncore, which are parts of a package, nor psys, which contains packages.
        if kind == "dram" or kind.startswith("package"):
            read = functools.partial(_microjoules, zone / "energy_uj")
            # What cannot be read fails here, where a run is only planned.
            read()
            part = MEMORY if kind == "dram" else PROCESSORS
            most = _microjoules(zone / "max_energy_range_uj")
            counters.append(Counter(part, f"RAPL's {zone.name}", read, range_joules=most))
    if not counters:
        raise SensorFailed(f"no RAPL in {folder}")
    return counters


def _microjoules(path: Path) -> float:
    """The content of a file, in joules."""
    try:
        return int(_text(path)) / 1e6
    except ValueError as error:
        raise SensorFailed(f"{path} holds no number") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    # Linux lets root alone read it since 2020, when it was shown to tell secrets (PLATYPUS).
    except PermissionError as error:
        raise SensorFailed("RAPL is readable for root only") from error
    except OSError as error:
        raise SensorFailed(f"{path}: {error.strerror or error}") from error
