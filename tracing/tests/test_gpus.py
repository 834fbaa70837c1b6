"""GPU counters, with a stand-in for NVML: no GPU is at hand."""

import types

from tracing import sampling


class NvmlError(Exception):
    pass


def test_counters_of_every_gpu_and_without_a_driver_it_is_said(monkeypatch):
    def unsupported(handle):
        raise NvmlError("Not Supported")

    module = types.SimpleNamespace(
        NVMLError=NvmlError,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "Example GPU",
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=70, memory=30),
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=5 * 10**9),
        nvmlDeviceGetPowerUsage=unsupported,
        nvmlDeviceGetTemperature=lambda handle, sensor: 55,
    )
    monkeypatch.setattr(sampling, "pynvml", module)
    found = sampling.Gpus()
    first, second = found.rows()
    assert first == {
        "gpu": 0, "name": "Example GPU", "busy_percent": 70, "memory_busy_percent": 30,
        "memory_used_bytes": 5 * 10**9, "power_mw": None, "temperature_c": 55,
    }  # fmt: skip
    assert second["gpu"] == 1
    assert found.status == "2 recorded"

    def fail():
        raise NvmlError("NVML Shared Library Not Found")

    module.nvmlInit = fail
    found = sampling.Gpus()
    assert list(found.rows()) == []
    assert found.status == "none recorded: NVML Shared Library Not Found"
