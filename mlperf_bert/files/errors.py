"""Errors: the nearest `with` names the file or flag; the command's `main` prints the line.

Any function may raise. `named`, and `paths.failures_named` for disks and stores, put the file, line
or flag at the start of an error; `messages.ends_in_one_line` makes a line and an exit code of
whatever arrives.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator

REMEDIES = {
    errno.ENOSPC: "make room and repeat the command",
    errno.EDQUOT: "make room in your quota and repeat the command",
    errno.EMFILE: "raise ulimit -n, or read fewer files at once (--num_parallel_files)",
    errno.ENFILE: "raise fs.file-max, or end what else has files open",
    errno.EAGAIN: "raise ulimit -u, or start fewer processes",
    errno.EIO: "its disk, or the way to it, has failed; repeat the command, or take another copy",
}
"""What to do about errors of the system."""
# TensorFlow's errors repeat the words of the system; the last entry is of Python's RuntimeError.
_REMEDIES_BY_WORDS = {os.strerror(number): remedy for number, remedy in REMEDIES.items()} | {
    "can't start new thread": REMEDIES[errno.EAGAIN]
}
_CAUSE_IN_A_GRAPH = re.compile(r"^(?:\s*\(\d+\) \w+:)?[ \t]*(\S.*)\n\s*\[\[\{\{node", re.MULTILINE)
_NODE_NAMES = re.compile(r"\{\{.*?\}\}\s*")
# Reading content of another form raises one of these.
_OTHER_FORM = (
    *(ValueError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, StopIteration, RecursionError),
)


class StoreUnavailable(OSError):
    """A store could not be reached for a while; the same command may succeed later."""


# Found by the names of their classes, so that no library is imported for it.
_LIBRARIES = {
    "tensorflow": "TensorFlow",
    "jaxlib": "jax",
    **{name: name for name in ("absl", "google", "jax", "pyarrow", "requests", "safetensors")},
}
_KINDS: dict[type[OSError], tuple[str, ...]] = {
    FileNotFoundError: ("NotFoundError", "NotFound"),
    FileExistsError: ("PreconditionFailed",),
    PermissionError: ("PermissionDeniedError", "Forbidden", "Unauthorized", "GoogleAuthError"),
    # AbortedError: all ten tries of TensorFlow's client have failed.
    StoreUnavailable: (
        *("AbortedError", "UnavailableError", "TransportError", "RetryError"),
        *("ServerError", "TooManyRequests", "RequestException"),
    ),
    OSError: ("OpError", "GoogleAPIError"),
}


@contextlib.contextmanager
def named(where: object, *, damaged: str | None = None) -> Iterator[None]:
    """Turns an error inside into a ValueError that begins with `where`, unless it does so already.

    Args:
      where: a file, a line of one, or a flag.
      damaged: what to do about content of another form, whatever Python raises for it. Without it
        only a ValueError and an error of a library become one.
    """
    kinds = (ValueError,) if damaged is None else _OTHER_FORM
    try:
        yield
    except Exception as error:
        told = reason(error)
        is_of_others = library_of(error) is not None and not isinstance(error, OSError)
        is_named = damaged is None and told.startswith(str(where))
        if is_named or not (is_of_others or isinstance(error, kinds)):
            raise
        if damaged is not None:
            told = f"damaged ({told.removeprefix(f'{where}: ')[:300]}); {damaged}"
        raise ValueError(f"{where}: {told}".removesuffix("; ")) from error


def library_of(error: BaseException) -> str | None:
    """The library whose error this is, in words; None for one of Python or of ours."""
    roots = (base.__module__.split(".")[0] for base in type(error).__mro__)
    return next((_LIBRARIES[root] for root in roots if root in _LIBRARIES), None)


def kind_of(error: BaseException) -> type[OSError] | None:
    """The class of OSError for what TensorFlow or a client of a bucket raises; else None."""
    names = [b.__name__ for b in type(error).__mro__] if library_of(error) else []
    kinds = (kind for name in names for kind, known in _KINDS.items() if name in known)
    return next(kinds, None)


def reason(error: BaseException) -> str:
    """The words of an error in one line; for a graph the words of the cause, without its node."""
    whole = f"lacks {error}" if isinstance(error, KeyError) else str(error)
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if library_of(error) is None:
        return whole or type(error).__name__
    # An error of a graph names nothing in its first line: the cause stands before the node.
    cause = _CAUSE_IN_A_GRAPH.search(whole)
    text = cause[1] if cause else next(iter(whole.splitlines()), "") or type(error).__name__
    return _NODE_NAMES.sub("", text).split(" [Op:")[0]


def with_remedy(text: str) -> str:
    """The words of an error; if they are the system's, as in "/d; No space", with the remedy."""
    remedy = next((each for words, each in _REMEDIES_BY_WORDS.items() if words in text), None)
    return text if remedy is None else f"{text.replace('; ', ': ', 1)}; {remedy}"
