"""Traces of what a command does to storage, memory, processors and GPUs, on one clock."""

import argparse
import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def _in_one_line(kind, error, trace) -> None:
    """Names the package that this Python lacks; any other error is shown as before."""
    package = (getattr(error, "name", None) or "tracing").partition(".")[0]
    if kind is ModuleNotFoundError and importlib.util.find_spec(package) is None:
        remedy = "run make setup, or pip install tracing/"
        print(f"tracing: {sys.executable} lacks {package}: {remedy}", file=sys.stderr)
    else:
        _before(kind, error, trace)


_before, sys.excepthook = sys.excepthook, _in_one_line


def path_with_home(path: str) -> Path:
    """A path of the command line, with the home folder in place of "~".

    Raises:
      argparse.ArgumentTypeError: it is empty.
    """
    return Path(os.path.expanduser(word(path)))  # noqa: PTH111 - an unknown user's stays as it is


def word(text: str) -> str:
    """A word of the command line.

    Raises:
      argparse.ArgumentTypeError: it is empty.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(
            "is empty, perhaps a variable that is not set; give a value, or leave it out"
        )
    return text


@contextlib.contextmanager
def ends_in_one_line(name: str) -> Iterator[None]:
    """Decorates the `main` of a command: bad input and Ctrl-C end it with one line, named so."""
    try:
        try:
            yield
        except SystemExit:  # argparse exits, for instance after --help
            print(end="", flush=True)
            raise
        print(end="", flush=True)  # does nothing if standard output is closed
    except BrokenPipeError:
        # It prints to a program that has ended, such as `head -1`. At its end Python flushes
        # what is left, and would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str):
            sys.exit(f"{name}: {error.filename}: {error.strerror}")
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt as interruption:
        print(f"{name}: {str(interruption) or 'interrupted'}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Blocks signals inside: they wait until they are asked for; new threads inherit this."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
