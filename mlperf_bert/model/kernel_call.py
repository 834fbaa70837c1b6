"""Describes a kernel to XLA for NVIDIA's GPUs, and dropout to a kernel; needs no TensorFlow."""

import functools
import re
from importlib import resources

import numpy as np

from mlperf_bert.model import kernels

TARGET = "__gpu$xla.gpu.triton"


@functools.cache
def config(name: str, grid: tuple[int, int, int]) -> str:
    """A dictionary as MLIR writes it, for the call's configuration."""
    text = resources.files(kernels).joinpath(f"{name}.mlir").read_text()
    launch = dict(re.findall(r"(\w+) = (\d+)", text.partition("\n")[0]))
    numbers = launch | dict(zip(("grid_x", "grid_y", "grid_z"), grid))
    quoted = text.replace("\\", "\\5C").replace('"', "\\22").replace("\n", "\\0A")
    return (
        f'{{name = "{name}", ir = "{quoted}", debug = false, '
        + ", ".join(f"{key} = {value} : i32" for key, value in numbers.items())
        + "}"
    )


def dropout(rate: float) -> tuple[int, int]:
    """Threshold, and the bits of the float32 factor as a whole number: fusion._drop_elements."""
    factor = np.float32(1.0) / (np.float32(1.0) - np.float32(rate))
    return int(np.float32(rate) * np.float32(2.0**31)), int(factor.view(np.int32))
