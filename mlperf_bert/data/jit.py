"""How the hot loops of the data preparation are compiled: numba, cached on disk where possible."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

_NUMBA_CONFIG: Any = numba.config  # it makes its attributes only as it is imported


def _use_writable_cache() -> bool:
    """Points numba's cache at a writable folder; returns False when there is none.

    It is beside the source, which fails in a container with a read-only root. The fallback is a
    folder of this user alone: numba unpickles what it finds there.
    """
    source = Path(__file__).parent
    folder = Path(_NUMBA_CONFIG.CACHE_DIR or source / "__pycache__")
    if not _NUMBA_CONFIG.CACHE_DIR and not os.access(source, os.W_OK):
        folder = Path(tempfile.gettempdir()) / f"mlperf-bert-numba-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            return False
        if folder.stat().st_uid != os.getuid() or folder.is_symlink():
            return False
    # numba looks for changes in the file of a loop alone. Of others it would keep the compiled
    # code of a loop that this one calls, and end with a trace-back where a class has moved.
    files = sorted(source.glob("*.py"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    _NUMBA_CONFIG.CACHE_DIR = str(folder / f"numba-{digest[:16]}")
    return True


_CACHE = _use_writable_cache()


def kernel(function: Callable) -> Callable:
    """Compiles a hot loop on its first call; it runs without holding the interpreter's lock."""
    return numba.njit(cache=_CACHE, nogil=True)(function)
