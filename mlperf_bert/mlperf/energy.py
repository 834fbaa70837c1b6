"""The energy of a run: of its GPUs by NVML, else of the processors by RAPL, or of a given power.

Each is a counter of joules, and the energy between two readings is what it has risen. `mlperf.log`
reads them at run_start, at both ends of a block, after a checkpoint and at run_stop: there is no
reading in between, so that a power alone cannot be summed up. Beside GPUs no processor counts: the
counter of a package wraps within 65 s, and a block of training takes longer.

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

    def as_event(self) -> tuple[dict[str, object], dict[str, object]]:
        """Value and metadata of the event in a log."""
        joules = {f"{name.lower()}_joules": round(each, 6) for name, each in self.parts.items()}
        whole = None if self.joules is None else round(self.joules, 6)
        remarks = {"notes": self.notes, "unknown": self.unknown, "at_least": self.at_least}
        return {"joules": whole, **joules}, {name: text for name, text in remarks.items() if text}

    @classmethod
    def from_event(cls, value: Any, metadata: Mapping[str, Any]) -> "Energy | None":
        """What `as_event` made; None of a damaged or another's event."""
        try:
            joules = {name: value.get(f"{name.lower()}_joules") for name in PARTS}
            read = cls(
                parts={name: float(each) for name, each in joules.items() if each is not None},
                notes=tuple(map(str, metadata.get("notes", ()))),
                unknown=str(metadata.get("unknown", "")),
                at_least=str(metadata.get("at_least", "")),
            )
        except (AttributeError, TypeError, ValueError, OverflowError):
            return None
        is_energy = all(0 <= each < math.inf for each in read.parts.values())
        return read if is_energy and (read.unknown or read.parts) else None

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
    if not known:
        return None
    # What is missing makes the sum too low, whatever the others say of theirs.
    silent = _A_PIECE_IS_SILENT if len(known) < len(pieces) else ""
    measured = [name for name in PARTS if any(name in piece.parts for piece in known)]
    return Energy(
        parts={name: sum(piece.parts.get(name, 0.0) for piece in known) for name in measured},
        notes=tuple(dict.fromkeys(note for piece in known for note in piece.notes)),
        unknown=next((piece.unknown for piece in known if piece.unknown), ""),
        at_least=silent or next((piece.at_least for piece in known if piece.at_least), ""),
    )


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
        joules = self.joules()
        then, before = self.last or (now, joules)
        self.last = (now, joules)
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
    """Measures from the first reading on; a counter that fails makes the sum unknown from then on.

    The run goes on.
    """

    counters: Sequence[Counter]
    _: KW_ONLY
    notes: Sequence[str] = ()
    """What these counters leave out, or measure too much."""
    unknown: str = ""
    """Why these counters do not measure the run."""
    clock: Callable[[], float] = time.monotonic
    """Returns seconds."""

    def __post_init__(self) -> None:
        self._parts = dict.fromkeys((counter.part for counter in self.counters), 0.0)
        self._lock = threading.Lock()

    @property
    def plan(self) -> str:
        """What will be measured, or why nothing will."""
        if self.unknown:
            return f"unknown ({self.unknown})"
        return "; ".join([f"of the {' and '.join(self._parts)}", *self.notes])

    def read(self) -> Energy:
        """The energy since the first reading."""
        # The thread that writes a checkpoint reads too.
        with self._lock:
            now = self.clock()
            try:
                for counter in self.counters if not self.unknown else ():
                    self._parts[counter.part] += counter.advance(now)
            except SensorFailed as failure:
                self.unknown = f"{failure}; give --power_watts"
            return Energy(parts=dict(self._parts), notes=tuple(self.notes), unknown=self.unknown)


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
    of_some = [f"of the chief's host alone, out of {num_hosts}"] if num_hosts > 1 else []
    try:
        if use_tpu and not num_gpus:
            raise SensorFailed("a TPU does not report its energy")
        counters, notes = _gpus(nvml, num_gpus, visible) if num_gpus else (_zones(rapl), [])
    except SensorFailed as failure:
        return Meter([], unknown=f"{failure}; give --power_watts")
    return Meter(counters, notes=[*notes, *of_some], clock=clock)


def _gpus(nvml: Any, num_gpus: int, visible: str | None) -> tuple[list[Counter], list[str]]:
    """A counter for every GPU of the run, and notes.

    NVML shows every GPU of the host or container, CUDA those of CUDA_VISIBLE_DEVICES, of which the
    run uses the first. Where it cannot be told which these are, all count.
    """
    notes = []
    try:
        nvml.nvmlInit()
        handles = _handles(nvml, num_gpus, visible)
        if handles is None:
            numbers = range(nvml.nvmlDeviceGetCount())
            handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in numbers]
            if len(handles) != num_gpus:
                used = f"the run uses {num_gpus}: which is not known"
                notes.append(f"all {len(handles)} GPUs count, {used}")
        counters = []
        for handle in handles:
            read = functools.partial(_joules_of_gpu, nvml, handle)
            # What cannot be read fails here, where a run is only planned: GPUs before Volta.
            read()
            counters.append(Counter(GPUS, f"GPU {nvml.nvmlDeviceGetIndex(handle)}", read))
    except nvml.NVMLError as error:
        raise SensorFailed(f"no NVML ({error})") from error
    if not counters:
        raise SensorFailed("NVML shows no GPU")
    return counters, notes


def _handles(nvml: Any, num_gpus: int, visible: str | None) -> list[Any] | None:
    """NVML's handles of the run's GPUs; None if it is not known which they are."""
    if visible is None:
        return None
    names = visible.split(",") if visible else [str(number) for number in range(num_gpus)]
    try:
        # NVML knows a GPU by its number or whole UUID; CUDA would take the begin of one too. A
        # MIG device has no counter of its own.
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(int(name))
            if name.isdecimal()
            else nvml.nvmlDeviceGetHandleByUUID(name)
            for name in map(str.strip, names[:num_gpus])
            if not name.startswith("MIG-")
        ]
    except nvml.NVMLError:
        return None
    return handles if len(handles) == num_gpus else None


def _joules_of_gpu(nvml: Any, handle: Any) -> float:
    try:
        return nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000  # of millijoules
    except nvml.NVMLError as error:
        raise SensorFailed(f"no counter of energy of a GPU: {error}") from error


def _zones(folder: Path) -> list[Counter]:
    """The packages of processors, and their memory where it counts apart."""
    counters = []
    for zone in sorted(folder.glob("intel-rapl:*")):  # AMD's too
        kind = _text(zone / "name")
        # Not core and uncore, which are parts of a package, nor psys, which contains packages.
        if kind == "dram" or kind.startswith("package"):
            read = functools.partial(_joules_in, zone / "energy_uj")
            read()
            part = MEMORY if kind == "dram" else PROCESSORS
            most = _joules_in(zone / "max_energy_range_uj")
            counters.append(Counter(part, f"RAPL's {zone.name}", read, range_joules=most))
    if not counters:
        raise SensorFailed(f"no RAPL in {folder}")
    return counters


def _joules_in(path: Path) -> float:
    try:
        return int(_text(path)) / 1e6  # of microjoules
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
