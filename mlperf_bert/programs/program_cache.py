"""Keeps exported and compiled programs in a folder for later starts, with a digest of each file.

XLA loads machine code unchecked: with one wrong bit the process may crash, or train with other
losses. So a damaged file is never loaded, but made again, and ends no run.
"""

import functools
import hashlib
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlperf_bert.messages import WARNING, Finding


def read(file: Path) -> bytes | None:
    """The content that `write` has left; None if there is no file; says so if it is damaged."""
    try:
        digest, _, content = file.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        _say(f"{file}: cannot be read ({error.strerror}); it is compiled again")
        return None
    if _digest(content) != digest:
        _say(f"{file}: is damaged (its digest differs); it is compiled again")
        return None
    return content


def write(file: Path, content: bytes) -> None:
    """Leaves content whole for later starts; if two starts write at once, either's will do."""
    beside = file.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        beside.write_bytes(_digest(content) + b"\n" + content)
        beside.replace(file)
    except OSError as error:
        _say(f"{file.parent}: cannot be written to ({error.strerror}); nothing is kept there")
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


class CompiledPrograms:
    """A folder of jax's compiled programs, as jax asks for them and leaves them, by key."""

    def __init__(self, folder: str):
        """Reads nothing yet."""
        self._path = folder  # jax logs it

    def get(self, key: str) -> bytes | None:
        """The program that `put` left under this key; None if there is none or it is damaged."""
        return read(Path(self._path, f"{key}-cache"))

    def put(self, key: str, value: bytes) -> None:
        """Leaves a program whole for later starts."""
        write(Path(self._path, f"{key}-cache"), value)


def replace_jax_cache() -> None:
    """Makes jax keep its programs as `CompiledPrograms`; its own cache has no digests."""
    import jax
    from jax._src import compilation_cache

    ours: Any = compilation_cache
    if not hasattr(ours, "get_file_cache"):
        raise ValueError(
            f"--compilation_cache_dir: jax {jax.__version__} is not as expected; install that of "
            "pyproject.toml, or leave the flag out"
        )
    ours.get_file_cache = lambda folder: (CompiledPrograms(folder), folder)
    # XLA's own files for a GPU would be there too, without digests.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    if getattr(jax.config, "jax_compilation_cache_max_size") != -1:  # noqa: B009 - mypy knows none
        _say("JAX_COMPILATION_CACHE_MAX_SIZE has no effect; remove the folder if it is too large")


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


@functools.cache  # once for each folder that cannot be written to
def _say(text: str) -> None:
    print(Finding(WARNING, text), flush=True)
