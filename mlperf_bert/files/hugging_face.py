"""Files on Hugging Face, hf://datasets/OWNER/NAME/FILE, which its own client lists and reads.

It has a file of its own because no run reads there; only a corpus may lie there.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

HUGGING_FACE = "hf://"


def matching_files(pattern: str) -> list[str]:
    """As `whole.matching_files`."""
    with _failures_named(pattern):
        return sorted(HUGGING_FACE + name for name in _file_system(pattern).glob(pattern))


@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """As `whole.opened_input`."""
    with _failures_named(path), _file_system(path).open(path, "rb") as file:
        yield file


def size_bytes(path: str) -> int:
    """The size of a file; raises as `whole.opened_input`."""
    with _failures_named(path):
        return _file_system(path).size(path)


def _file_system(path: str) -> "AbstractFileSystem":
    from fsspec import filesystem  # what lies elsewhere needs none of it

    try:
        return filesystem(HUGGING_FACE.removesuffix("://"))
    except ImportError as error:
        raise ValueError(
            f"{path}: needs huggingface_hub; pip install huggingface_hub, or fetch the files"
        ) from error


@contextlib.contextmanager
def _failures_named(path: str) -> Iterator[None]:
    """Turns what the client of Hugging Face raises into an OSError of one line.

    Its own classes of errors cannot leave a worker process: they do not unpickle.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("huggingface_hub", "requests", "httpx"):
            raise
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise OSError(f"{path}: Hugging Face cannot be read: {reason}") from error
