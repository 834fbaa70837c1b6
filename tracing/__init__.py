"""Traces of what a training run does to storage, memory, processors and GPUs, on one clock."""

import argparse
import contextlib
import importlib.util
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def _in_one_line(kind, error, trace) -> None:
    """Says what this Python lacks; any other error as before."""
    package = (getattr(error, "name", None) or "tracing").partition(".")[0]
    if kind is ModuleNotFoundError and importlib.util.find_spec(package) is None:
        remedy = "run make setup, or pip install tracing/"
        print(f"tracing: {sys.executable} lacks {package}: {remedy}", file=sys.stderr)
    else:
        _before(kind, error, trace)


_before, sys.excepthook = sys.excepthook, _in_one_line


def path_with_home(path: str) -> Path:
    """A path of the command line, with the home folder in place of "~"."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - an unknown user's stays as it is


class Parser(argparse.ArgumentParser):
    """Of a command's words; refuses an empty one, as a variable that is not set leaves it."""

    def parse_args(self, args=None, namespace=None):
        """As argparse's; words behind "--" are of another command.

        Raises:
          ValueError: a word is empty, or the value of an option.
        """
        words = sys.argv[1:] if args is None else list(args)
        own = words[: words.index("--")] if "--" in words else words
        for before, word in itertools.pairwise(["", *own]):
            has_value = word.startswith("-") and "=" in word
            name, equals, value = word.partition("=") if has_value else (before, " ''", word)
            if not value.strip():
                is_of_option = name.startswith("-") and "=" not in name
                raise ValueError(
                    f"{f'{name}{equals}' if is_of_option else 'a word'}: is empty, perhaps a "
                    "variable that is not set; give a value, or leave it out"
                )
        return super().parse_args(words, namespace)


def parser_of(command: str, document: str) -> Parser:
    """Of a command's words; --help shows the document of its module as it is."""
    return Parser(
        prog=f"python -m tracing.{command}",
        description=document,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


@contextlib.contextmanager
def ends_in_one_line(name: str) -> Iterator[None]:
    """Decorates the `main` of a command: bad input and Ctrl-C end it with one line, named so."""
    try:
        try:
            yield
        except SystemExit:  # as after --help
            print(end="", flush=True)
            raise
        print(end="", flush=True)  # a closed output is no error
    except BrokenPipeError:
        # What it prints goes to a program that has ended, such as `head -1`. At its end Python
        # flushes what is left, and would complain again.
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
    """Signals wait until they are asked for; threads that are started meanwhile inherit this."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
