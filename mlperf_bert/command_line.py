"""What the root scripts share: ranges of flags, and errors as one line each."""

import contextlib
import gc
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import ge, gt, le, lt
from pathlib import Path
from typing import NoReturn

from absl import app, flags

from mlperf_bert.paths import is_answer_of_a_store, reason, require_supported
from mlperf_bert.problems import Problems, as_lines, printable

MAX_SEED = 2**32 - 1
"""The random generators take 32 bits; a larger seed would be truncated silently."""
EXIT_TRY_AGAIN = 75
"""Nothing is wrong: the same command goes on."""
_SEVERAL = re.compile(r"\n(?=flag --)")  # how absl separates them
_COMPARISONS = {"at_least": ge, "above": gt, "at_most": le, "below": lt}
_LARGEST = {int: 2**63 - 1, float: 3.4028234e38}  # of int64 and float32


def in_range(*names: str, **bounds: float) -> None:
    """Refuses numeric flags that are not `at_least`, `above`, `at_most`, `below`; None passes.

    NaN and infinities are refused too. A validator, not absl's own bounds: these accept NaN, and
    report only the first bad flag.
    """
    given = " and ".join(f"{name.replace('_', ' ')} {bound}" for name, bound in bounds.items())
    tests = [(_COMPARISONS[name], bound) for name, bound in bounds.items()]

    def holds(value: float | None) -> bool:
        if value is None:
            return True
        largest = _LARGEST[type(value)]
        if value > largest:
            raise flags.ValidationError(f"must be a number at most {largest:.6g}")
        return abs(value) <= largest and all(compare(value, bound) for compare, bound in tests)

    for name in names:
        flags.register_validator(name, holds, f"must be a number {given}")


def not_empty(*names: str) -> None:
    """Refuses an empty string, such as an unset shell variable gives; None passes."""
    for name in names:
        flags.register_validator(name, lambda value: value != "", "is empty: give a value")


def paths(*names: str) -> None:
    """Refuses paths, several with commas, that are neither local nor of a store; None passes."""

    def all_supported(value: str | None) -> bool:
        for path in (value or "").split(","):
            try:
                require_supported(path.strip())
            except ValueError as error:
                raise flags.ValidationError(str(error)) from error
        return True

    for name in names:
        flags.register_validator(name, all_supported)


def no_wildcards(*names: str) -> None:
    """Refuses names of checkpoints and their folders that TensorFlow takes for patterns."""
    for name in names:
        flags.register_validator(
            name,
            lambda value: not set(value or "") & set("*?[\\"),
            "has one of * ? [ \\, which TensorFlow takes for wildcards: it would not find its "
            "checkpoints there; choose another name",
        )


def end_for_now(reason: str) -> NoReturn:
    """Ends the script with one line; the same command goes on."""
    print(f"{Path(sys.argv[0]).name}: {printable(reason)}", file=sys.stderr)
    sys.exit(EXIT_TRY_AGAIN)


@contextlib.contextmanager
def resumable(interrupted: type[Exception]) -> Iterator[None]:
    """Ends the script so when `interrupted` is raised, or on Ctrl-C."""
    try:
        yield
    except (interrupted, KeyboardInterrupt) as interruption:
        end_for_now(str(interruption) or "interrupted; run the same command again to resume")


@contextlib.contextmanager
def failures_in_one_line(script: str) -> Iterator[None]:
    """Ends the script with one line and exit code 1 for bad input, 130 for Ctrl-C."""
    try:
        yield
    except (ValueError, OSError) as error:
        sys.exit(f"{script}: {as_lines(error)}")
    except KeyboardInterrupt:
        print(f"{script}: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if not is_answer_of_a_store(error):
            raise
        sys.exit(f"{script}: {printable(reason(error))}")


def run(
    main: Callable[[], None],
    argv: list[str] | None = None,
    *,
    prepare: Callable[[], None] | None = None,
) -> None:
    """Parses the flags and runs a script's `main`; ends the process.

    `prepare` runs just after the flags are parsed: TensorFlow has asked absl to be called then, and
    looks for its devices.

    Bad flags, ValueError, OSError and what a store answers become one line on standard error and
    exit code 1.
    """
    script = Path((argv or sys.argv)[0]).name

    def guarded(_: Sequence[str]) -> None:
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # so during the imports
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with failures_in_one_line(script):
            main()

    def parsed(given: Sequence[str]) -> list[str]:
        rest = parse(script, given)
        try:
            if prepare:
                prepare()
        except (ValueError, OSError) as error:
            sys.exit(f"{script}: {as_lines(error)}")
        return rest

    # What has been imported is never garbage: without this, Python looks through all of TensorFlow
    # again and again while a model is built, and once more at the end.
    gc.freeze()
    app.run(guarded, argv, flags_parser=parsed)


def parse(script: str, argv: Sequence[str]) -> list[str]:
    """Parses the flags; if any is bad, ends the process with exit code 1 and a line for each."""
    try:
        return flags.FLAGS(argv)
    except UnicodeDecodeError as error:
        sys.exit(f"{script}: --flagfile names a file that is no text ({error.reason})")
    except (flags.Error, OSError) as error:
        sys.exit(f"{script}: {Problems(_SEVERAL.split(str(error)))}")
