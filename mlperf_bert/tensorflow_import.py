"""TensorFlow, imported when it is needed and without the lines that it prints for itself."""

import contextlib
import importlib
import os
import platform
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

_ABOUT = Path("/proc/cpuinfo")
_importing = threading.RLock()
# Lines of information while TensorFlow is loaded, and its note that it logs before it is ready.
INFORMATION = re.compile(rb"^(I\d{4} \d|WARNING: All log messages before absl::InitializeLog)")


def tensorflow() -> ModuleType:
    """TensorFlow; its first import sets what must be set before it.

    TF_CPP_MIN_LOG_LEVEL says what it reports: 3, fatal errors only, if it is not set. TensorFlow
    2.21 obeys it only once it is loaded; so its lines of information are left out here.

    Raises:
      ImportError: TensorFlow cannot be loaded, or not on this processor.
    """
    with _importing:  # a module that another thread is still loading is in sys.modules already
        if "tensorflow" in sys.modules:
            return sys.modules["tensorflow"]
        level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        # NVML and nvidia-smi count GPUs in this order; CUDA's own begins with the fastest.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # the model needs tf_keras, not Keras 3
        _require_instructions()
        with contextlib.nullcontext() if level == "0" else lines_left_out(INFORMATION):
            return importlib.import_module("tensorflow")


def _require_instructions() -> None:
    """Raises ImportError where TensorFlow would end the process without a readable word."""
    if platform.machine() == "x86_64" and _ABOUT.exists():
        flags = re.search(r"^flags\s*:(.*)$", _ABOUT.read_text(), re.MULTILINE)
        if flags and "avx" not in flags[1].split():
            raise ImportError(
                "TensorFlow needs a processor with AVX, and /proc/cpuinfo names none; in a virtual "
                "machine, pass the processor of the host through (QEMU: -cpu host)"
            )


@contextlib.contextmanager
def lines_left_out(noise: re.Pattern[bytes], *, of: int = 2) -> Iterator[None]:
    """Leaves the lines that match out of standard error, or output (1); also those of C++."""
    stream = sys.stdout if of == 1 else sys.stderr
    stream.flush()
    reader, writer = os.pipe()
    terminal = os.dup(of)
    os.dup2(writer, of)
    os.close(writer)

    def copy() -> None:
        with os.fdopen(reader, "rb") as lines:
            for line in lines:
                if not noise.search(line):
                    os.write(terminal, line)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stream.flush()
        os.dup2(terminal, of)  # closes the pipe, which ends the thread
        thread.join(timeout=5)
        os.close(terminal)
