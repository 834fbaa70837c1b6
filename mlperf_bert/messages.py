"""What a user reads: mistakes as printable lines, and the progress of long work."""

import contextlib
import dataclasses
import errno
import functools
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec

from mlperf_bert.files.errors import (
    REMEDIES,
    StoreUnavailable,
    kind_of,
    library_of,
    reason,
    with_remedy,
)
from mlperf_bert.signals import Interrupted

EXIT_TRY_AGAIN = 75
"""Nothing is wrong: the same command resumes."""
exit_code = 1  # the command's own once it has ended; 1 for an error that nobody expects
SECONDS_BETWEEN_LINES = 10.0
_lasting: list[threading.Event] = []
_Arguments = ParamSpec("_Arguments")


class Problems(ValueError):
    """Several mistakes found at once; its text has a line for each."""

    def __init__(self, problems: Sequence[str]):
        """Takes one problem or more."""
        self.problems = tuple(map(printable, problems))
        listed = [f"{len(problems)} problems:", *(f"  - {problem}" for problem in self.problems)]
        super().__init__("\n".join(listed) if len(problems) > 1 else self.problems[0])


def printable(text: str) -> str:
    r"""Escapes the control characters of names: "a\nb" -> "a\\nb"."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One finding: an error stops the run, a warning does not, a note only informs."""

    level: str
    text: str

    def __str__(self) -> str:
        return printable(f"{self.level}: {self.text}")


def as_lines(error: Exception) -> str:
    """The text of an error, in one line, or one for each of several problems.

    An error of the system begins with the file, as others do; no "[Errno 2]".
    """
    if isinstance(error, Problems):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        remedy = f"; {REMEDIES[error.errno]}" if error.errno in REMEDIES else ""
        if where or remedy:
            return printable(f"{where}{error.strerror}{remedy}")
    return printable(str(error))


def problems_of(error: Exception) -> tuple[str, ...]:
    """Each problem that an error tells, as `as_lines`."""
    return error.problems if isinstance(error, Problems) else (as_lines(error),)


def _exit_code_and_line(error: BaseException, out_of_memory: str) -> tuple[int, str] | None:
    """Exit code and line of a command that ends by this error; None for a bug of this project."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT, str(error) or "interrupted"
    if isinstance(error, Interrupted | StoreUnavailable):
        return EXIT_TRY_AGAIN, printable(str(error))
    if isinstance(error, ValueError | OSError | FloatingPointError):
        return 1, as_lines(error)
    text = reason(error)
    if (told := with_remedy(text)) != text:  # Python's words too: "can't start new thread"
        return 1, printable(told)
    if (library := library_of(error)) is None:
        return None
    told = f"{library} failed: {printable(text[:300])}"
    # A device has gone, such as the host of a TPU, or a store that records are read from.
    if kind_of(error) is StoreUnavailable or text.startswith("UNAVAILABLE"):
        return EXIT_TRY_AGAIN, f"{told}; repeat the command later"
    if "RESOURCE_EXHAUSTED" in text or type(error).__name__ == "ResourceExhaustedError":
        others = "end other processes that hold memory of the device (nvidia-smi names a GPU's)"
        return 1, f"out of memory ({printable(text[:300])}); {out_of_memory}, or {others}"
    kernels = "; if --kernels=triton is given, its kernels may do this: give --kernels=xla"
    return 1, told + kernels * ("CUDA" in text)


@contextlib.contextmanager
def _flushing() -> Iterator[None]:
    """Flushes what was printed, also by --help, which exits."""
    try:
        yield
    except SystemExit:
        print(end="", flush=True)
        raise
    print(end="", flush=True)  # does nothing where standard output is closed


def ends_in_one_line(
    name: str, *, out_of_memory: str = "give smaller batches"
) -> Callable[[Callable[_Arguments, int | None]], Callable[_Arguments, int]]:
    """Decorates the `main` of a command: an error becomes one line that begins with `name`.

    The exit code is then EXIT_TRY_AGAIN for Interrupted and for failures that may pass; 130 for
    Ctrl-C, as in a shell; 141, without a line, if it prints to a program that has ended, such as
    `head -1`; and 1 for everything else but a bug of this project, which is raised.

    Args:
      name: of the command.
      out_of_memory: what to do where a device has too little.
    """

    def decorated(main: Callable[_Arguments, int | None]) -> Callable[_Arguments, int]:
        @functools.wraps(main)
        def guarded(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> int:
            global exit_code
            exit_code = ended(*arguments, **options)
            return exit_code

        def ended(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> int:
            sys.stdout, sys.stderr = map(_outliving_its_terminal, (sys.stdout, sys.stderr))
            try:
                with _flushing():
                    return main(*arguments, **options) or 0
            except BrokenPipeError:
                # At its end Python flushes what is left, and would complain again.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return 128 + signal.SIGPIPE
            except (Exception, KeyboardInterrupt) as error:
                if (end := _exit_code_and_line(error, out_of_memory)) is None:
                    raise
            code, line = end
            print(f"{name}: {line}", file=sys.stderr)
            return code

        return guarded

    return decorated


class _Terminal(io.FileIO):
    """A terminal that may be closed: what is written afterwards is lost, and nothing fails."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return len(data)


def _outliving_its_terminal(stream: Any) -> Any:
    """The stream, made to outlive its terminal if it has one."""
    if stream is None or not stream.isatty():
        return stream
    raw = io.BufferedWriter(_Terminal(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=True)


@contextlib.contextmanager
def lasting(doing: str) -> Iterator[None]:
    """Says every ten seconds, on standard error, that work without a progress bar still runs.

    If such blocks are nested, only the inner one prints.
    """
    ended, began = threading.Event(), time.monotonic()
    _lasting.append(ended)

    def tell() -> None:
        from tqdm import tqdm  # it writes above the bar of a progress, if there is one

        while not ended.wait(SECONDS_BETWEEN_LINES):
            if ended is _lasting[-1]:
                taken = time.monotonic() - began
                tqdm.write(f"{doing}: {taken:.0f} s so far", file=sys.stderr)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
        _lasting.remove(ended)


class _Lines:
    """A file for tqdm where there is no terminal: each rewrite of the bar becomes a line."""

    def write(self, text: str) -> None:
        if text.strip():
            print(text.strip(), file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Does nothing: no printed text is held back."""


class Progress:
    """Counts what is done; shows rate and time left on standard error.

    On a terminal this is a bar, elsewhere a line every ten seconds.

    Attributes:
      done: units so far, `initial` included.
    """

    def __init__(
        self, *, total: int, unit: str, description: str, initial: int = 0, silent: bool = False
    ):
        """Starts at `initial` of `total`; the unit "B" (bytes) is shown as kB, MB and so on."""
        from tqdm import tqdm  # 20 ms, which a script without a progress need not wait for

        tqdm.monitor_interval = 0  # no thread of its own: processes are forked meanwhile
        in_bytes = unit == "B"
        amount = "{n_fmt}B of {total_fmt}B" if in_bytes else f"{{n_fmt}} of {{total_fmt}} {unit}"
        elsewhere = {
            "file": _Lines(),
            "mininterval": SECONDS_BETWEEN_LINES,
            "delay": SECONDS_BETWEEN_LINES,
            "leave": False,
            "position": 0,  # also for one inside another, so that no cursor moves
            "bar_format": f"{{desc}}: {amount}, {{rate_fmt}}, {{remaining}} left{{postfix}}",
        }
        self.done, self._silent = initial, silent
        self._bar = tqdm(
            total=total, initial=initial, desc=description,
            unit=unit, unit_scale=in_bytes, disable=silent, miniters=1, dynamic_ncols=True,
            **({"file": sys.stderr} if sys.stderr.isatty() else elsewhere),
        )  # fmt: skip

    def advance(self, amount: int, note: str = "") -> None:
        """Adds `amount` units; `note` is shown at the end of the line."""
        self.done += amount
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(amount)

    def line(self, text: str) -> None:
        """Prints a whole line, above the bar."""
        if not self._silent:
            self._bar.write(text, file=sys.stderr)
            sys.stderr.flush()

    def close(self) -> None:
        """Ends the bar, which stays on the screen."""
        self._bar.close()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exc_info) -> None:
        self.close()
