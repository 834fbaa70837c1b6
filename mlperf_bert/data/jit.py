"""How the hot loops of the data preparation are compiled: numba, cached on disk where possible."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

_NUMBA_CONFIG: Any = numba.config  # it makes its attributes only as it is imported


def _use_writable_cache() -> bool:
    """Points numba's cache at a writable folder; returns False when there is none.

    numba keeps compiled code beside the source, which fails in a container with a read-only
    root. The fallback is a folder of this user alone: numba unpickles what it finds there.
    """
    if _NUMBA_CONFIG.CACHE_DIR or os.access(Path(__file__).parent, os.W_OK):
        return True
    folder = Path(tempfile.gettempdir()) / f"mlperf-bert-numba-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return False
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        return False
    _NUMBA_CONFIG.CACHE_DIR = str(folder)
    return True


_CACHE = _use_writable_cache()


def kernel(function: Callable) -> Callable:
    """Compiles a hot loop on its first call; it runs without holding the interpreter's lock."""
    return numba.njit(cache=_CACHE, nogil=True)(function)
