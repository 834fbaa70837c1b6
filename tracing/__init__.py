"""Traces of what a training run does to storage, memory, processors and GPUs, on one clock."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path


def path_with_home(path: str) -> Path:
    """A path of the command line, with the home folder in place of "~"."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - an unknown user's stays as it is


@contextlib.contextmanager
def ends_in_one_line(name: str) -> Iterator[None]:
    """Decorates the `main` of a command: bad input and Ctrl-C end it with one line, named so."""
    try:
        yield
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str):
            sys.exit(f"{name}: {error.filename}: {error.strerror}")
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt as interruption:
        print(f"{name}: {str(interruption) or 'interrupted'}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
