"""GPU counters by NVML, where the driver and nvidia-ml-py are there."""

from collections.abc import Iterator
from typing import Any


class Gpus:
    """The GPUs of this machine; none if NVML is missing, and `status` says why."""

    def __init__(self):
        self._nvml: Any = None  # the module pynvml, which has no types
        try:
            import pynvml
        except ImportError:
            self.status = "none recorded: install nvidia-ml-py, the extra `tracing`"
            return
        try:
            pynvml.nvmlInit()
            self._handles = [
                pynvml.nvmlDeviceGetHandleByIndex(index)
                for index in range(pynvml.nvmlDeviceGetCount())
            ]
        except pynvml.NVMLError as error:
            self.status = f"none recorded: {error}"
            return
        self._nvml = pynvml
        self.status = f"{len(self._handles)} recorded"

    def rows(self) -> Iterator[dict]:
        """One row for each GPU; counters that a GPU lacks are null."""
        for index, handle in enumerate(self._handles if self._nvml else []):
            row = {"gpu": index, "name": self._asked("nvmlDeviceGetName", handle)}
            if rates := self._asked("nvmlDeviceGetUtilizationRates", handle):
                row |= {"busy_percent": rates.gpu, "memory_busy_percent": rates.memory}
            if memory := self._asked("nvmlDeviceGetMemoryInfo", handle):
                row["memory_used_bytes"] = memory.used
            row["power_mw"] = self._asked("nvmlDeviceGetPowerUsage", handle)
            row["temperature_c"] = self._asked(
                "nvmlDeviceGetTemperature", handle, getattr(self._nvml, "NVML_TEMPERATURE_GPU", 0)
            )
            yield row

    def _asked(self, function: str, *arguments):
        try:
            found = getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError:
            return None
        return found.decode() if isinstance(found, bytes) else found

    def close(self) -> None:
        """Lets go of NVML."""
        if self._nvml:
            self._nvml.nvmlShutdown()
