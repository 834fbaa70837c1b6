"""The energy of a run in one process: by its GPUs' counters in NVML, or from a given power.

`mlperf.log` reads a counter of joules at run_start and at run_stop, and never in between: so a
sensor that shows only a power, in watts, cannot be summed up.

Source: NVML's API reference, nvmlDeviceGetTotalEnergyConsumption.
"""

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pynvml

LOG_KEY = "energy"
"""An event of our own in MLPerf logs; the checkers ignore keys that they do not know."""
Counters = dict[str, Callable[[], float]]
"""Name -> reads its joules; may raise SensorFailed."""


class SensorFailed(Exception):
    """A sensor cannot be read; the message says which one and why."""


@dataclass(frozen=True, kw_only=True)
class Energy:
    """What a run took in one process."""

    joules: float | None
    """None if it is unknown."""
    about: str
    """What was measured, and how; or why it is unknown."""

    def as_event(self) -> tuple[dict[str, object], dict[str, object]]:
        """Value and metadata of the event in a log."""
        joules = None if self.joules is None else round(self.joules, 6)
        return {"joules": joules}, {"about": self.about}

    @classmethod
    def from_event(cls, value: Any, metadata: Mapping[str, Any]) -> "Energy | None":
        """Reads what `as_event` made; None for an event that is damaged or another program's."""
        try:
            joules, about = value["joules"], str(metadata["about"])
            read = cls(joules=None if joules is None else float(joules), about=about)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return read if read.joules is None or 0 <= read.joules < math.inf else None

    def __str__(self) -> str:
        """One line: the joules and what was measured, or why they are unknown."""
        if self.joules is None:
            return f"unknown ({self.about})"
        return f"{self.joules:,.1f} J = {self.joules / 3.6e6:.4g} kWh {self.about}"


@dataclass
class Meter:
    """Measures from the first reading on; a counter that fails makes all unknown from then on.

    The run continues.
    """

    about: str
    """What the counters measure, or why there are none."""
    counters: Counters = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._first: dict[str, float] = {}

    @property
    def plan(self) -> str:
        """What will be measured, or why nothing will."""
        return self.about if self.counters else f"unknown ({self.about})"

    def read(self) -> Energy:
        """The energy since the first reading."""
        try:
            joules = {name: read() for name, read in self.counters.items()}
            self._first = self._first or joules
            for name, now in joules.items():
                # A counter begins again at 0 when the driver is loaded again.
                if now < self._first[name]:
                    raise SensorFailed(f"{name} began again at 0")
        except SensorFailed as failure:
            self.about, self.counters = f"{failure}; give --power_watts", {}
        if not self.counters:
            return Energy(joules=None, about=self.about)
        return Energy(joules=sum(joules.values()) - sum(self._first.values()), about=self.about)


def meter(
    *,
    power_watts: float | None = None,
    num_gpus: int = 0,
    visible: str | None = "",
    num_hosts: int = 1,
    nvml: Any = pynvml,
    clock: Callable[[], float] = time.monotonic,
) -> Meter:
    """Returns what measures a run of this process's host.

    Args:
      power_watts: of the whole system, all hosts together; if given, nothing is measured.
      num_gpus: GPUs that the run uses here; without any, nothing is measured.
      visible: CUDA_VISIBLE_DEVICES; None counts all GPUs of the host, for runs with several
        processes on it, each with GPUs of its own.
      num_hosts: of the run.
      nvml: as the module pynvml.
      clock: returns seconds.
    """
    if power_watts is not None:
        watts = float(power_watts)
        about = f"of the whole system, computed from the given {watts:g} W"
        return Meter(about, {"the given power": lambda: watts * clock()})
    try:
        if not num_gpus:
            raise SensorFailed("only GPUs are measured")
        counters = _gpus(nvml, num_gpus, visible)
    except SensorFailed as failure:
        return Meter(f"{failure}; give --power_watts")
    about = "of the GPUs" if visible is not None else "of all GPUs of the host"
    return Meter(
        about + f"; of the chief's host alone, out of {num_hosts}" * (num_hosts > 1), counters
    )


def _gpus(nvml: Any, num_gpus: int, visible: str | None) -> Counters:
    """A counter for every GPU of the run.

    NVML shows every GPU of the host or container, CUDA those of CUDA_VISIBLE_DEVICES, of which the
    run uses the first.
    """
    counters: Counters = {}
    try:
        nvml.nvmlInit()
        count = num_gpus if visible is not None else nvml.nvmlDeviceGetCount()
        names = visible.split(",")[:num_gpus] if visible else map(str, range(count))
        for name in map(str.strip, names):
            # NVML knows a GPU by number or whole UUID; CUDA would take the start of a UUID too.
            if name.isdecimal():
                handle = nvml.nvmlDeviceGetHandleByIndex(int(name))
            else:
                handle = nvml.nvmlDeviceGetHandleByUUID(name)
            read = functools.partial(_joules_of_gpu, nvml, handle)
            # A GPU without a counter (before Volta, MIG) fails here, while the run is only planned.
            read()
            counters[f"GPU {name}"] = read
    except nvml.NVMLError as error:
        raise SensorFailed(f"NVML: {error}") from error
    return counters


def _joules_of_gpu(nvml: Any, handle: Any) -> float:
    try:
        return nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000  # NVML counts millijoules
    except nvml.NVMLError as error:
        raise SensorFailed(f"no counter of energy of a GPU: {error}") from error
